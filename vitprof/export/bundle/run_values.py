"""Converts a run to the plain values of `run-N.json` and back, and checks each value."""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from dataclasses import dataclass
from typing import Any, get_type_hints

from vitprof.analysis.timing.loading import TRANSFORMS
from vitprof.analysis.verdict.headroom import REPLAY
from vitprof.config import PARTS, RunConfig
from vitprof.config.catalog import dataset_info, model_preset
from vitprof.config.own_script import KEPT_IN_RAM, OWN_SCRIPT, is_own_script
from vitprof.config.strategies import strategy
from vitprof.errors import ConfigError, StoreError
from vitprof.export.bundle.values import BundleError, fits, need, sendable
from vitprof.names import MAX_NAME, UNNAMED, tamed_name
from vitprof.recording.columns import ENDED_STATUSES, STARTED_BY, Phase, RunSummary, summary_from_dict, summary_to_dict
from vitprof.store import MAX_ID, MAX_NOTE, StoredRun
from vitprof.store.annotations import checked_note, checked_tags
from vitprof.store.groups import RunGroup
from vitprof.store.schema import runs

IMPORTED = "imported"
"""The fact of an imported run that says where it was made: {"host", "run_id"}."""
OF_ONE_STORE = (IMPORTED, STARTED_BY)
"""Facts that belong to one store, so that no bundle has them."""
CREATED = "%Y-%m-%dT%H:%M:%SZ"
MAX_TAGS, MAX_NOTICES, MAX_HOST, MAX_PHASE = 100, 1_000, 255, 50
MAX_LENGTHS = {"name": MAX_NAME, "role": 200, "tags": MAX_TAGS, "notices": MAX_NOTICES}
"""The most characters or items of a field; other texts are limited by the store, or by `values.MAX_TEXT`."""
MAX_FACTS = 200
MAX_TIME_S = 1e9
"""The latest time on a monotonic clock, which counts from its machine's start: 31 years. In ns it fits int64."""
NUMBER_FACTS = re.compile(r"n_.*|.*_(s|ms|bytes|frac|pct|count|samples|threads|loss|accuracy|w|mhz|c|hz)")
"""Names of facts that are numbers, by their unit."""
WATCHED = "watched"
"""The fact of a watched run that holds its DataLoader's arguments."""
TEXT_FACTS = re.compile("vitprof|python|torch|torchvision|platform|hostname|device|device_name|gpu_uuid")

Identity = tuple[object, ...]


@dataclass(frozen=True, kw_only=True)
class BundledRun:
    """A run as in `run-N.json`, checked once, here. Fields without a docstring are as in `StoredRun`."""

    run_id: int
    """Its id where the bundle was written, to which `group_key` of other runs refers."""
    origin: dict[str, Any]
    """The host that recorded it, and its id there."""
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
    """It only shows that there was a verdict, which is judged again from the steps."""
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
        """Raises `BundleError` that names the field, and `StoreError` for what the store would not take."""
        for name, kind in KINDS.items():
            _check(name, fits(getattr(self, name), kind))
        for name, most in MAX_LENGTHS.items():
            _check(name, len(getattr(self, name)) <= most)
        _check("run_id", 0 < self.run_id <= MAX_ID)
        _check("origin", set(self.origin) == {"host", "run_id"} and fits(self.origin["host"], str))
        _check("origin", 0 < len(self.origin["host"]) <= MAX_HOST and fits(self.origin["run_id"], int))
        _check("origin", 0 < self.origin["run_id"] <= MAX_ID)
        _check("name", self.name)
        _check("status", self.status in ENDED_STATUSES)
        _check("created_utc", _is_moment(self.created_utc))
        for name in ("t_origin_s", "training_since_s"):
            _check(name, abs(getattr(self, name) or 0) <= MAX_TIME_S)
        for name in ("environment", "facts"):
            facts = getattr(self, name)
            _check(name, len(facts) <= MAX_FACTS and all(_is_fact(*fact) for fact in facts.items()))
        _check("phases", all(_is_phase(Phase(*phase)) for phase in self.phases))
        _check("summary", all(_is_figure(*figure) for figure in (self.summary or {}).items()))
        _check("group_key", not self.group_key or RunGroup.parse(self.group_key) is not None)
        _check("group_key", fits(self.parent, int) and self.parent <= MAX_ID)
        _check("tags", checked_tags(self.tags) == set(self.tags))
        checked_note(self.note)

    @property
    def parent(self) -> int:
        """Returns the id, where the bundle was written, of the run that this one was made for; 0 if there is none."""
        group = RunGroup.parse(self.group_key)
        return (group and group.run_id) or 0

    @property
    def identity(self) -> Identity:
        """Returns what identifies the run in every store: the host that recorded it, its id there, and when."""
        return self.origin["host"], self.origin["run_id"], self.created_utc, self.t_origin_s

    @property
    def columns(self) -> dict[str, Any]:
        """Returns the columns of the store's table `runs`; the verdict is judged again, and the group may have another
        id here.
        """
        return {name: getattr(self, name) for name in KINDS if name in runs.c} | {
            "config": self.config.to_dict(),
            "facts": self.facts | {IMPORTED: self.origin},
            "summary": None if self.summary is None else summary_to_dict(summary_from_dict(self.summary)),
            "group_key": "",
            "role": "",
        }


KINDS = get_type_hints(BundledRun)
FIGURES = get_type_hints(RunSummary)


def origin(run: StoredRun) -> dict[str, Any]:
    """Returns the host that recorded a run, and its id there."""
    found = run.facts.get(IMPORTED)
    return dict(found) if isinstance(found, dict) else {"host": run.owner_host, "run_id": run.id}


def identity(run: StoredRun) -> Identity:
    """Returns what identifies a run in every store, as `BundledRun.identity` does."""
    made = origin(run)
    return made["host"], made["run_id"], run.created_utc, run.t_origin_s


def to_values(run: StoredRun, tags: tuple[str, ...], series: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of `BundledRun` for a run that has ended; `series` are the last four."""
    values = vars(run) | {
        "run_id": run.id,
        "origin": origin(run),
        "config": run.config.to_dict(),
        "facts": {name: value for name, value in run.facts.items() if name not in OF_ONE_STORE},
        "phases": [dataclasses.astuple(phase) for phase in run.phases],
        "notices": run.notices[:MAX_NOTICES],
        "summary": summary_to_dict(run.summary) if run.summary else None,
        "verdict": run.verdict.to_dict() if run.verdict else None,
        "note": run.note[:MAX_NOTE],
        "tags": sorted({kept for tag in tags if (kept := tamed_name(tag))})[:MAX_TAGS],
        **series,
    }
    plain: dict[str, Any] = sendable({name: values[name] for name in KINDS})
    return plain


def from_values(values: dict[str, Any], what: str) -> BundledRun:
    """Returns the run with these values. Raises `BundleError`, in which `what` names the file that they are from."""
    try:
        _check("the list of its fields", set(values) == set(KINDS))
        return BundledRun(**(values | {"name": _name(values["name"]), "config": _config(values["config"])}))
    except ConfigError as error:
        raise BundleError(f"{what}: this vitprof cannot use its config ({error})") from error
    except (BundleError, StoreError) as error:
        raise BundleError(f"{what}: {error}") from error


def _check(field: str, holds: object) -> None:
    need(holds, f"{field} is not as vitprof writes it")


def _name(given: Any) -> Any:
    """Returns a run's name as this vitprof keeps it: an older one wrote names of several lines."""
    fine = isinstance(given, str) and 0 < len(given) <= MAX_NAME
    return (tamed_name(given) or UNNAMED) if fine else given


def _config(values: Any) -> RunConfig:
    """Returns a config whose names are known here, as pages look them up. Raises `ConfigError`, `BundleError`.

    It may be one that cannot be run, since an older vitprof may have allowed more: `resolve` checks that before a run.
    """
    try:
        config = RunConfig.from_dict(values)
        if is_own_script(config):
            _check_own(config)
            return config
        info, _ = dataset_info(config.dataset, config.n_images), model_preset(config.model)
        _ = strategy(config.strategy).combination(info, {kind: getattr(config, kind) for kind in PARTS}).parts
    except LookupError as error:
        raise BundleError(f"its config names {error}, which this vitprof does not have") from error
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise BundleError("config is not as vitprof writes it") from error
    return config


def _check_own(config: RunConfig) -> None:
    """Raises `BundleError` where a user's own script has settings of vitprof's own jobs (`config.own_script`)."""
    parts = {kind: getattr(config, kind) for kind in PARTS if kind != "storage"}
    own = parts == {"location": None, "loader": "dataloader", "transfer": None} and config.model == OWN_SCRIPT
    own = own and config.storage in (None, KEPT_IN_RAM)
    _check("config", own and len(config.dataset) <= MAX_NAME)


def _is_moment(text: str) -> bool:
    try:
        return dt.datetime.strptime(text, CREATED).strftime(CREATED) == text
    except ValueError:
        return False


def _is_fact(name: str, value: object) -> bool:
    """Returns whether a fact is as vitprof writes it: no list, a number where its name has a unit, a text where it is a
    name, or None.
    """
    if name in OF_ONE_STORE:
        return False
    if name in _INSIDE:
        return isinstance(value, dict) and len(value) <= MAX_FACTS and all(map(_INSIDE[name], value.items()))
    kind = float if NUMBER_FACTS.fullmatch(name) else str if TEXT_FACTS.fullmatch(name) else str | bool | float
    return value is None or fits(value, kind)


def _is_argument(item: tuple[str, object]) -> bool:
    return item[0] not in _INSIDE and _is_fact(*item)


def _is_transform(item: tuple[str, object]) -> bool:
    told = item[1]
    if not isinstance(told, dict) or set(told) != {"s_per_sample", "calls"} or not fits(told["calls"], int):
        return False
    return fits(told["s_per_sample"], float) and 0 <= told["s_per_sample"] <= MAX_TIME_S


def _is_block(item: tuple[str, object]) -> bool:
    number, told = item
    if (
        not number.isdecimal()
        or not isinstance(told, dict)
        or set(told) != {"steps", "step_s", "compute_s", "data_wait_s"}
    ):
        return False
    return fits(told["steps"], int) and all(fits(value, float) and 0 <= value <= MAX_TIME_S for value in told.values())


_INSIDE = {WATCHED: _is_argument, TRANSFORMS: _is_transform, REPLAY: _is_block}
"""Facts that are objects, and the check of each of their items."""


def _is_phase(phase: Phase) -> bool:
    return len(phase.name) <= MAX_PHASE and -MAX_TIME_S <= phase.t_start_s <= phase.t_end_s <= MAX_TIME_S


def _is_figure(name: str, value: object) -> bool:
    kind = FIGURES.get(name)
    return fits(value, kind) or (value is None and kind is float)
