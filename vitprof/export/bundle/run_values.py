"""One run as the plain values of `run-N.json`, and back, each value checked."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from typing import Any

from vitprof.config import PARTS, RunConfig
from vitprof.config.catalog import dataset_info, model_preset
from vitprof.config.parts import PARTS_BY_KIND
from vitprof.config.strategies import strategy
from vitprof.errors import ConfigError
from vitprof.export.bundle.archive import BundleError
from vitprof.export.bundle.values import is_number, is_whole, sendable
from vitprof.records import ENDED_STATUSES, RunSummary, columns, summary_to_dict
from vitprof.store import MAX_ID, MAX_NAME, MAX_NOTE, MAX_TAG, StoredRun

IMPORTED = "imported"
"""The fact of an imported run that says where it was made: {"host", "run_id"}."""
CREATED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
GROUP = re.compile(r"[a-z]{1,20}:[1-9]\d{0,9}")
MAX_TAGS, MAX_NOTICES, MAX_FACTS = 100, 1_000, 200
MAX_TIME_S = 1e9
"""A monotonic clock counts from the start of its machine, and 1e9 s are 31 years. In nanoseconds it fits int64."""
UNITS = re.compile(r"n_.*|.*_(s|ms|bytes|frac|pct|count|samples|threads|loss|accuracy|w|mhz|c|hz)")
"""Names of facts that are numbers, by their unit."""
TEXTS = ("vitprof", "python", "torch", "torchvision", "platform", "hostname", "device", "device_name", "gpu_uuid")
"""Facts that are texts."""
FIELDS: tuple[str, ...] = (
    "run_id",
    "origin",
    "name",
    "status",
    "created_utc",
    "t_origin_s",
    "training_since_s",
    "config",
    "environment",
    "facts",
    "phases",
    "notices",
    "summary",
    "verdict",
    "note",
    "tags",
    "group_key",
    "role",
    "error",
    "n_steps",
    "step_columns",
    "n_telemetry",
    "telemetry_columns",
)
"""`run_id` is the run's number where the bundle was written, to which `group_key` refers; `origin` is the host that
made the run and its number there; the last four tell the shape of the series. The rest is as the store has it."""


@dataclass(frozen=True)
class BundledRun:
    """What `run-N.json` says, checked."""

    run_id: int
    host: str
    origin_id: int
    config: RunConfig
    values: dict[str, Any]
    """Columns of the store's `runs`, without verdict, sparkline, group and role."""
    judged: bool
    """Whether it had a verdict."""
    tags: tuple[str, ...]
    group_key: str
    role: str
    n_steps: int
    step_columns: tuple[str, ...]
    n_telemetry: int
    telemetry_columns: tuple[str, ...]


def origin(run: StoredRun) -> dict[str, Any]:
    """The host that made a run, and its number there."""
    found = run.facts.get(IMPORTED)
    return dict(found) if isinstance(found, dict) else {"host": run.owner_host, "run_id": run.id}


def to_values(run: StoredRun, tags: tuple[str, ...], series: dict[str, Any]) -> dict[str, Any]:
    """`FIELDS` of a run that has ended; `series` are the last four."""
    values = {
        "run_id": run.id,
        "origin": origin(run),
        "name": run.name[:MAX_NAME],
        "status": run.status,
        "created_utc": run.created_utc,
        "t_origin_s": run.t_origin_s,
        "training_since_s": run.training_since_s,
        "config": run.config.to_dict(),
        "environment": run.environment,
        "facts": {name: value for name, value in run.facts.items() if name != IMPORTED},
        "phases": [[p.name, p.t_start_s, p.t_end_s] for p in run.phases],
        "notices": list(run.notices)[:MAX_NOTICES],
        "summary": summary_to_dict(run.summary) if run.summary else None,
        "verdict": run.verdict,
        "note": run.note[:MAX_NOTE],
        "tags": list(tags)[:MAX_TAGS],
        "group_key": run.group_key,
        "role": run.role,
        "error": run.error,
        **series,
    }
    plain: dict[str, Any] = sendable(values)
    return plain


def from_values(values: dict[str, Any], what: str) -> BundledRun:
    """The inverse of `to_values`. Raises `BundleError`, `what` naming the file that `values` are from."""

    def need(holds: bool, field: str) -> None:
        if not holds:
            raise BundleError(f"{what}: {field} is not as vitprof writes it")

    need(set(values) == set(FIELDS), "the list of its fields")
    made = values["origin"]
    need(_is_id(values["run_id"]), "run_id")
    need(isinstance(made, dict) and set(made) == {"host", "run_id"} and _is_id(made["run_id"]), "origin")
    need(_is_text(made["host"], 255) and bool(made["host"]), "origin")
    need(_is_text(values["name"], MAX_NAME) and bool(values["name"].strip()), "name")
    need(values["status"] in ENDED_STATUSES, "status")
    need(_is_moment(values["created_utc"]), "created_utc")
    for name in ("t_origin_s", "training_since_s"):
        need(values[name] is None or _is_time(values[name]), name)
    for name in ("environment", "facts"):
        need(_is_facts(values[name]), name)
    need(_is_phases(values["phases"]), "phases")
    need(_is_texts(values["notices"], MAX_NOTICES, 10_000), "notices")
    need(values["summary"] is None or _is_summary(values["summary"]), "summary")
    need(values["verdict"] is None or isinstance(values["verdict"], dict), "verdict")
    need(_is_text(values["note"], MAX_NOTE), "note")
    need(_is_texts(values["tags"], MAX_TAGS, MAX_TAG), "tags")
    need(all(tag and tag == tag.strip() and "," not in tag for tag in values["tags"]), "tags")
    group = values["group_key"]
    need(group == "" or (isinstance(group, str) and bool(GROUP.fullmatch(group))), "group_key")
    need(_is_text(values["role"], 200), "role")
    need(_is_text(values["error"], 10_000), "error")
    for series in ("step", "telemetry"):
        need(_is_texts(values[f"{series}_columns"], 100, 100), f"{series}_columns")
    need(is_whole(values["n_steps"]) and is_whole(values["n_telemetry"]), "n_steps")
    config = _config(values["config"], what)
    kept = (
        "name",
        "status",
        "created_utc",
        "t_origin_s",
        "training_since_s",
        "environment",
        "phases",
        "notices",
        "summary",
        "note",
        "error",
    )
    return BundledRun(
        run_id=values["run_id"],
        host=made["host"],
        origin_id=made["run_id"],
        config=config,
        values={name: values[name] for name in kept}
        | {"config": config.to_dict(), "facts": values["facts"] | {IMPORTED: dict(made)}},
        judged=values["verdict"] is not None,
        tags=tuple(values["tags"]),
        group_key=group,
        role=values["role"],
        n_steps=values["n_steps"],
        step_columns=tuple(values["step_columns"]),
        n_telemetry=values["n_telemetry"],
        telemetry_columns=tuple(values["telemetry_columns"]),
    )


def _config(values: object, what: str) -> RunConfig:
    """A config whose names are known here: pages look them up. Raises `BundleError`.

    Whether it can be run, `resolve` says when somebody wants to: an older vitprof may have allowed more.
    """
    if not isinstance(values, dict):
        raise BundleError(f"{what}: config is not as vitprof writes it")
    try:
        config = RunConfig.from_dict(values)
        info, _ = dataset_info(config.dataset, config.n_images), model_preset(config.model)
        parts = strategy(config.strategy).combination(info, {kind: getattr(config, kind) for kind in PARTS})
        for kind in PARTS:
            if getattr(parts, kind) not in PARTS_BY_KIND[kind]:
                raise ConfigError(kind, getattr(parts, kind), f"choose one of {', '.join(PARTS_BY_KIND[kind])}")
    except ConfigError as error:
        raise BundleError(f"{what}: this vitprof cannot use its config ({error})") from error
    except (TypeError, ValueError, OverflowError, LookupError, AttributeError) as error:
        raise BundleError(f"{what}: config is not as vitprof writes it") from error
    return config


def _is_id(value: object) -> bool:
    return isinstance(value, int) and is_whole(value) and 0 < value <= MAX_ID


def _is_text(value: object, most: int) -> bool:
    return isinstance(value, str) and len(value) <= most


def _is_texts(value: object, most: int, longest: int) -> bool:
    return isinstance(value, list) and len(value) <= most and all(_is_text(text, longest) for text in value)


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and is_number(value) and abs(value) <= MAX_TIME_S


def _is_moment(value: object) -> bool:
    if not isinstance(value, str) or not CREATED.fullmatch(value):
        return False
    try:
        dt.datetime.fromisoformat(value[:-1])
    except ValueError:
        return False
    return True


def _is_facts(value: object) -> bool:
    """A flat mapping; what has a unit in its name is a number, or not known, and names are texts."""
    if not isinstance(value, dict) or len(value) > MAX_FACTS or IMPORTED in value:
        return False
    if not all(value.get(name) is None or isinstance(value[name], str) for name in TEXTS):
        return False
    return all(
        item is None or is_number(item) if UNITS.fullmatch(name) else not isinstance(item, (list, dict))
        for name, item in value.items()
    )


def _is_phases(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(p, list)
        and len(p) == 3
        and _is_text(p[0], 50)
        and _is_time(p[1])
        and _is_time(p[2])
        and p[1] <= p[2]
        for p in value
    )


def _is_summary(value: object) -> bool:
    known = {c.name: c.integer for c in columns(RunSummary)}
    return isinstance(value, dict) and all(
        name in known and (is_whole(item) if known[name] else item is None or is_number(item))
        for name, item in value.items()
    )
