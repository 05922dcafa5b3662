"""The configuration of a tournament."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from vitprof import choices
from vitprof.config import CHOICES, PARTS, RunConfig, own_script
from vitprof.config.bounds import MOST_TRIALS, TOURNAMENT_BOUNDS
from vitprof.config.strategies import STRATEGIES
from vitprof.config.varied import OTHERS_OF_A_JOB, Value, check_varied
from vitprof.errors import ConfigError
from vitprof.names import tamed_name


@dataclass(frozen=True)
class TournamentSpec:
    """What a tournament runs. Raises `ConfigError` that names the field, the value and what is allowed."""

    base: RunConfig
    """Settings that all trials share: data set, model, device, the budget of each trial, threads, seed."""
    strategies: tuple[str, ...]
    """Names of strategies; `OWN_SCRIPT` alone for a user's own script."""
    batch_sizes: tuple[int, ...]
    """Batch sizes, in samples."""
    workers: tuple[int, ...] | None = None
    """Numbers of workers, for strategies that take workers; None: each strategy's own number."""
    page_caches: tuple[str, ...] = ("as-is",)
    """States of the page cache at the start of a trial: as-is, warm, cold."""
    vary: tuple[tuple[str, tuple[Value, ...]], ...] = ()
    """More settings, with the values to try, for strategies that take them (names in `OTHERS_OF_A_JOB`)."""
    repeats: int = 3
    """Rounds that are run in any case."""
    until_decided: bool = True
    """Whether more rounds run, with the settings that can still be the fastest, until it is decided
    (`config.bounds.MORE_ROUNDS` at most)."""
    seconds: float | None = None
    """Time limit of the whole tournament: no trial begins after this many seconds of runs. None: no limit."""
    baseline: str = ""
    """Key of the trial that the others are compared with; "": the first one that can run."""
    early_stop: bool = True
    """Whether trials that cannot win any more are cut short."""
    script: own_script.OwnScript | None = None
    """A user's own script, whose settings are run in place of strategies; None for jobs of vitprof's own."""
    jobs: tuple[RunConfig, ...] = ()
    """Whole jobs to run in place of all combinations of the above; the first is the baseline."""
    of_run: int | None = None
    """The run whose advice the jobs prove."""

    def __post_init__(self) -> None:
        for name in ("strategies", "batch_sizes", "workers", "page_caches"):
            if name != "workers" or self.workers is not None:
                self._check_list(name, getattr(self, name))
        # JSON has lists only
        vary = tuple((name, tuple(values)) for name, values in self.vary)
        object.__setattr__(self, "vary", vary)
        check_varied(vary, OTHERS_OF_A_JOB)
        if self.script is None:
            for value in self.strategies:
                choices.chosen(STRATEGIES, "strategies", value)
        for value in self.page_caches:
            choices.chosen(dict.fromkeys(CHOICES["page_cache"]), "page_caches", value)
        optional = ("workers", "seconds")
        for name, bounds in TOURNAMENT_BOUNDS.items():
            setting = getattr(self, name)
            if setting is None and name in optional:
                continue
            values = setting if isinstance(setting, tuple) else (setting,)
            for value in values:
                bounds.check(name, value)
        self._check_shared()

    def _check_shared(self) -> None:
        if not isinstance(self.baseline, str):
            raise ConfigError("baseline", self.baseline, "give the key of a trial")
        for name in ("early_stop", "until_decided"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(name, getattr(self, name), "give true or false")
        if self.script is None and not self.jobs:
            self._check_no_parts()
        if (self.script is not None) != own_script.is_own_script(self.base):
            why = "a script of your own goes with no strategy of vitprof"
            raise ConfigError("strategies", self.strategies, why)
        if self.base.replay is not None:
            why = "replayed batches are the same for all; leave it out"
            raise ConfigError("replay", self.base.replay, why)
        self._check_how_many()

    def _check_how_many(self) -> None:
        """Raises `ConfigError`, which names the longest list, where the lists together make too many trials."""
        lists: list[tuple[str, tuple[Any, ...]]] = [
            ("strategies", self.strategies),
            ("batch_sizes", self.batch_sizes),
            ("workers", self.workers or (None,)),
            ("page_caches", self.page_caches),
            *self.vary,
        ]
        n = math.prod(len(values) for _, values in lists)
        if n <= MOST_TRIALS:
            return
        name, values = max(lists, key=lambda each: len(each[1]))
        amount = f"{len(values)} values"
        if name in OTHERS_OF_A_JOB:
            amount = f"{name}, {amount}"
            name = "vary"
        many = f"that makes {n:,} trials, and {MOST_TRIALS:,} are allowed: give fewer values"
        raise ConfigError(name, amount, many)

    def _check_no_parts(self) -> None:
        for kind in PARTS:
            part = getattr(self.base, kind)
            if part is not None:
                why = "a tournament runs strategies unchanged; leave it out"
                raise ConfigError(kind, part, why)

    def _check_list(self, name: str, values: Any) -> None:
        if not isinstance(values, tuple | list):
            raise ConfigError(name, values, "give a list")
        object.__setattr__(self, name, tuple(values))  # JSON has lists only
        if not values:
            raise ConfigError(name, "", "give at least one")
        # before each is compared with the others
        if len(values) > MOST_TRIALS:
            raise ConfigError(name, len(values), f"give at most {MOST_TRIALS}")
        if name in ("strategies", "page_caches") and not all(isinstance(v, str) for v in values):
            raise ConfigError(name, values, "give names")
        doubled = [value for i, value in enumerate(values) if value in values[:i]]
        if doubled:
            raise ConfigError(name, doubled[0], "give each one once")

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TournamentSpec:
        known = {f.name for f in fields(cls)}
        for name in values:
            if name not in known:
                raise ConfigError(name, values[name], "there is no such setting of a tournament")
        for name in ("base", "strategies", "batch_sizes"):
            if name not in values:
                raise ConfigError(name, None, "it is missing")
        if not isinstance(values["base"], Mapping):
            raise ConfigError("base", values["base"], "give the settings of a run")
        script = values.get("script")
        read = {
            "base": RunConfig.from_dict(values["base"]),
            "script": script and own_script.OwnScript(**script),
            "jobs": tuple(RunConfig.from_dict(job) for job in values.get("jobs", ())),
        }
        return cls(**{**values, **read})

    @property
    def title(self) -> str:
        """Returns a name for the tournament, made from what it compares."""
        if self.script is not None:
            varied = " x ".join(name for name, _ in self.script.vary)
            return tamed_name(f"{varied} of {shlex.join(self.script.command)}")
        if self.of_run is not None:
            return f"proof for run {self.of_run}"
        if self.jobs:
            return f"{len(self.jobs)} jobs, alternately"
        parts = [
            _counted(len(self.strategies), "strategy", "strategies"),
            _counted(len(self.batch_sizes), "batch size", "batch sizes"),
        ]
        if self.workers:
            parts.append(_counted(len(self.workers), "worker count", "worker counts"))
        for name, values in self.vary:
            words = name.replace("_", " ")
            parts.append(_counted(len(values), f"value of {words}", f"values of {words}"))
        if self.page_caches != ("as-is",):
            parts.append(f"{' and '.join(self.page_caches)} page cache")
        return f"{' x '.join(parts)} on {self.base.dataset}"


def _counted(n: int, one: str, many: str) -> str:
    return f"{n} {one if n == 1 else many}"
