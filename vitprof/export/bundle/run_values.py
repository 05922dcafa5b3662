"""One run as the plain values of `run-N.json`, and back, each value checked."""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from dataclasses import dataclass
from typing import Any, get_type_hints

from vitprof.config import PARTS, RunConfig
from vitprof.config.catalog import dataset_info, model_preset
from vitprof.config.parts import PARTS_BY_KIND
from vitprof.config.strategies import strategy
from vitprof.errors import ConfigError, StoreError
from vitprof.export.bundle.values import BundleError, fits, sendable
from vitprof.records import ENDED_STATUSES, Phase, RunSummary, summary_from_dict, summary_to_dict
from vitprof.store import MAX_ID, MAX_NAME, MAX_NOTE, StoredRun
from vitprof.store.groups import RunGroup
from vitprof.store.words import checked_note, checked_tags

IMPORTED = "imported"
"""The fact of an imported run that says where it was made: {"host", "run_id"}."""
CREATED = "%Y-%m-%dT%H:%M:%SZ"
MAX_TAGS, MAX_NOTICES = 100, 1_000
MAX_LENGTHS = {
    "name": MAX_NAME,
    "role": 200,
    "tags": MAX_TAGS,
    "notices": MAX_NOTICES,
    "environment": 200,
    "facts": 200,
}
"""Characters and items; of other texts it is the store's rule, or `values.MAX_TEXT`."""
MAX_HOST, MAX_PHASE = 255, 50
MAX_TIME_S = 1e9
"""A monotonic clock counts from the start of its machine, and 1e9 s are 31 years. In nanoseconds it fits int64."""
NUMBER_FACTS = re.compile(r"n_.*|.*_(s|ms|bytes|frac|pct|count|samples|threads|loss|accuracy|w|mhz|c|hz)")
"""Names of facts that are numbers, by their unit."""
TEXT_FACTS = (
    *("vitprof", "python", "torch", "torchvision", "platform", "hostname", "device", "device_name", "gpu_uuid"),
)


@dataclass(frozen=True, kw_only=True)
class BundledRun:
    """A run as `run-N.json` has it, checked once, here. What has no docstring is as in `StoredRun`."""

    run_id: int
    """Its number where the bundle was written, to which `group_key` of others refers."""
    origin: dict[str, Any]
    """The host that made it, and its number there."""
    name: str
    status: str
    created_utc: str
    t_origin_s: float | None
    training_since_s: float | None
    config: RunConfig
    environment: dict[str, Any]
    facts: dict[str, Any]
    phases: list[tuple[str, float, float]]
    notices: list[str]
    summary: dict[str, Any] | None
    verdict: dict[str, Any] | None
    """It is only told if there was one: see `importing`."""
    note: str
    tags: list[str]
    group_key: str
    role: str
    error: str
    n_steps: int
    step_columns: list[str]
    n_telemetry: int
    telemetry_columns: list[str]

    def __post_init__(self) -> None:
        """Raises `BundleError` that names the field, `StoreError` for what the store would not take."""
        for name, kind in KINDS.items():
            _need(fits(getattr(self, name), kind), name)
        for name, most in MAX_LENGTHS.items():
            _need(len(getattr(self, name)) <= most, name)
        host, origin_id = self.origin.get("host"), self.origin.get("run_id")
        _need(0 < self.run_id <= MAX_ID, "run_id")
        _need(len(self.origin) == 2 and isinstance(host, str) and 0 < len(host) <= MAX_HOST, "origin")
        _need(isinstance(origin_id, int) and 0 < origin_id <= MAX_ID, "origin")
        _need(bool(self.name.strip()), "name")
        _need(self.status in ENDED_STATUSES, "status")
        _need(_is_moment(self.created_utc), "created_utc")
        _need(abs(self.t_origin_s or 0) <= MAX_TIME_S, "t_origin_s")
        _need(abs(self.training_since_s or 0) <= MAX_TIME_S, "training_since_s")
        _need(all(_is_fact(*fact) for fact in self.environment.items()), "environment")
        _need(all(_is_fact(*fact) for fact in self.facts.items()), "facts")
        _need(all(_is_phase(Phase(*phase)) for phase in self.phases), "phases")
        _need(all(_is_figure(*figure) for figure in (self.summary or {}).items()), "summary")
        _need(not self.group_key or RunGroup.parse(self.group_key) is not None, "group_key")
        _need(fits(self.parent, int) and self.parent <= MAX_ID, "group_key")
        _need(checked_tags(self.tags) == set(self.tags), "tags")
        checked_note(self.note)

    @property
    def parent(self) -> int:
        """The number, where the bundle was written, of the run that this one was made for; 0 for one of its own."""
        group = RunGroup.parse(self.group_key)
        return (group and group.run_id) or 0

    @property
    def columns(self) -> dict[str, Any]:
        """Columns of the store's `runs`, without verdict, sparkline, group and role."""
        names = ("name", "status", "created_utc", "t_origin_s", "training_since_s", "environment", "phases", "notices")
        return {
            **{name: getattr(self, name) for name in (*names, "note", "error")},
            "config": self.config.to_dict(),
            "facts": self.facts | {IMPORTED: self.origin},
            "summary": None if self.summary is None else summary_to_dict(summary_from_dict(self.summary)),
        }


KINDS = get_type_hints(BundledRun)
FIGURES = get_type_hints(RunSummary)


def origin(run: StoredRun) -> dict[str, Any]:
    """Returns the host that made a run, and its number there."""
    found = run.facts.get(IMPORTED)
    return dict(found) if isinstance(found, dict) else {"host": run.owner_host, "run_id": run.id}


def to_values(run: StoredRun, tags: tuple[str, ...], series: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of `BundledRun` for a run that has ended; `series` are the last four."""
    values = vars(run) | {
        "run_id": run.id,
        "origin": origin(run),
        "name": run.name[:MAX_NAME],
        "config": run.config.to_dict(),
        "facts": {name: value for name, value in run.facts.items() if name != IMPORTED},
        "phases": [dataclasses.astuple(phase) for phase in run.phases],
        "notices": run.notices[:MAX_NOTICES],
        "summary": summary_to_dict(run.summary) if run.summary else None,
        "note": run.note[:MAX_NOTE],
        "tags": tags[:MAX_TAGS],
        **series,
    }
    plain: dict[str, Any] = sendable({name: values[name] for name in KINDS})
    return plain


def from_values(values: dict[str, Any], what: str) -> BundledRun:
    """Returns the run of `to_values`. Raises `BundleError`, `what` naming the file that `values` are from."""
    try:
        _need(set(values) == set(KINDS), "the list of its fields")
        return BundledRun(**(values | {"config": _config(values["config"])}))
    except ConfigError as error:
        raise BundleError(f"{what}: this vitprof cannot use its config ({error})") from error
    except (BundleError, StoreError) as error:
        raise BundleError(f"{what}: {error}") from error


def _need(holds: bool, field: str) -> None:
    if not holds:
        raise BundleError(f"{field} is not as vitprof writes it")


def _config(values: Any) -> RunConfig:
    """Returns a config whose names are known here: pages look them up. Raises `ConfigError`, `BundleError`.

    Whether it can be run, `resolve` says when somebody wants to: an older vitprof may have allowed more.
    """
    try:
        config = RunConfig.from_dict(values)
        info, _ = dataset_info(config.dataset, config.n_images), model_preset(config.model)
        parts = strategy(config.strategy).combination(info, {kind: getattr(config, kind) for kind in PARTS})
        for kind in PARTS:
            if getattr(parts, kind) not in PARTS_BY_KIND[kind]:
                raise ConfigError(kind, getattr(parts, kind), f"choose one of {', '.join(PARTS_BY_KIND[kind])}")
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
        raise BundleError("config is not as vitprof writes it") from error
    return config


def _is_moment(text: str) -> bool:
    try:
        return dt.datetime.strptime(text, CREATED).strftime(CREATED) == text
    except ValueError:
        return False


def _is_fact(name: str, value: object) -> bool:
    """Tells if a fact is no list; what has a unit in its name is a number, or not known, and names are texts."""
    kind = float if NUMBER_FACTS.fullmatch(name) else str if name in TEXT_FACTS else str | bool | float
    return name != IMPORTED and (value is None or fits(value, kind))


def _is_phase(phase: Phase) -> bool:
    return len(phase.name) <= MAX_PHASE and -MAX_TIME_S <= phase.t_start_s <= phase.t_end_s <= MAX_TIME_S


def _is_figure(name: str, value: object) -> bool:
    kind = FIGURES.get(name)
    return fits(value, kind) or (value is None and kind is float)
