"""Runs as they are stored: whole, and as rows of a list, which the database searches, filters, sorts and pages."""

from __future__ import annotations

import datetime as dt
import math
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, cast, get_args

import psutil
import sqlalchemy as sa

from vitprof.config import RunConfig, accelerators, bounds
from vitprof.errors import ConfigError
from vitprof.names import UNNAMED, tamed_name
from vitprof.recording import recording, verdict
from vitprof.recording.columns import ENDED_STATUSES, LIVE_STATUSES, Phase, summary_from_dict
from vitprof.store.database import Database, in_parts, reading, run_tags, runs

GroupKind = Literal["headroom", "tournament"]
MADE_FOR_A_RUN: tuple[GroupKind, ...] = ("headroom",)
"""Kinds of groups whose runs mean nothing without the run that the group is named after."""
KEY = re.compile(r"([a-z]{1,20}):(.{1,60})")
# bounded: Python refuses to read thousands of digits
ID = re.compile(r"[1-9][0-9]{0,18}")
OF_A_SEARCH = "autotune:"
"""Begins the keys of groups that earlier versions made for a search for the best setting. They belong to no
run and no tournament."""
OF_A_PREDICTION = "prediction:"
"""Begins the keys of groups that earlier versions made for a prediction, as older bundles have them."""
OF_A_TOURNAMENT = "tournament:"
"""Begins the keys of the groups of tournaments (`RunGroup.key`)."""


@dataclass(frozen=True)
class RunGroup:
    """A group of runs, as the column `group_key` names it: its kind, and the run or tournament it belongs to."""

    kind: GroupKind
    of: int
    """Id of the run (headroom) or of the tournament."""

    @property
    def key(self) -> str:
        """Returns the value of the column `group_key`, such as "headroom:7"."""
        return f"{self.kind}:{self.of}"

    @property
    def run_id(self) -> int | None:
        """Returns the id of the run that the group was made for; None for a tournament."""
        if self.kind not in MADE_FOR_A_RUN:
            return None
        return self.of

    @classmethod
    def parse(cls, key: str) -> RunGroup | None:
        """Returns the group with this `key`; None for a run in no group ("") and for a key of another
        version (`OF_A_SEARCH`).
        """
        match = KEY.fullmatch(key)
        if match is None or match[1] not in get_args(GroupKind) or not ID.fullmatch(match[2]):
            return None
        return cls(cast(GroupKind, match[1]), int(match[2]))


def helper_keys(run_id: int) -> list[str]:
    """Returns the keys of the groups of runs that mean nothing without this one."""
    return [RunGroup(kind, run_id).key for kind in MADE_FOR_A_RUN]


def role_of(key: str, number: int) -> str:
    """Returns the role of a run in its tournament, from the trial's key and the round's number."""
    return f"{key}#{number}"


def read_role(role: str) -> tuple[str, int]:
    """Returns the trial's key and the round's number of a role, the inverse of `role_of`; 0 where it has no
    number.
    """
    key, _, number = role.rpartition("#")
    return key, int(number) if number.isdecimal() else 0


def this_program() -> tuple[str, int, float]:
    """Returns host, process id and start (seconds since the epoch) of this process, which together
    identify it.
    """
    process = psutil.Process()
    return socket.gethostname(), process.pid, process.create_time()


def is_alive(host: str, pid: int, started: float) -> bool:
    """Returns whether that program still runs; True for one of another machine, where that cannot be known."""
    if host != socket.gethostname():
        return True
    try:
        process = psutil.Process(pid)
        # ended too; in a container without an init it stays forever
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return bool(abs(process.create_time() - started) < 1.0)
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:  # it exists, but access to it is denied
        return True


@dataclass(frozen=True, kw_only=True)
class StoredRun(recording.Recording):
    """A stored run: its recording without tags, steps and telemetry, and what belongs to the store."""

    error: str = ""
    stage: str = ""
    """What a running job is doing: starting, preparing, training, evaluating, finishing."""
    progress: float | None = None
    """Progress of the stage, 0 to 1; None where it is not known."""
    message: str = ""
    """A detail of the stage, such as what is being prepared."""
    owner_user: str = ""
    """Who made it: the dashboard's user where it has a login, otherwise the system's."""
    project: str = ""
    owner_host: str
    owner_pid: int
    owner_started: float

    @property
    def id(self) -> int:
        return self.run_id

    @property
    def live(self) -> bool:
        return self.status in LIVE_STATUSES

    @property
    def ended_s(self) -> float:
        """Returns when it ended, in seconds since 1970, infinity while it goes on.

        How long it waited in the queue is not stored: one that did has ended later than that.
        """
        if self.live:
            return math.inf
        submitted_s = dt.datetime.fromisoformat(self.created_utc).timestamp()
        took_s = 0.0 if self.summary is None else self.summary.wall_s
        return submitted_s + (took_s if math.isfinite(took_s) else 0.0)

    @property
    def group(self) -> RunGroup | None:
        """Returns its group; None for a run in no group, and for a group that only another version knows."""
        return RunGroup.parse(self.group_key)


STORED = tuple(
    runs.c.id.label("run_id") if f.name == "run_id" else runs.c[f.name]
    for f in fields(StoredRun)
    if f.name == "run_id" or f.name in runs.c
)


def stored_run(row: sa.Row[Any]) -> StoredRun:
    """Returns a row of the columns `STORED` as a run.

    Raises `UnreadableError` where this version cannot read it.
    """
    return read_run(row._mapping)


def read_run(values: Mapping[Any, Any]) -> StoredRun:
    """Returns the columns `STORED` as a run. Raises `UnreadableError`."""
    with reading(f"run {values['run_id']}"):
        summary = None
        if values["summary"]:
            summary = summary_from_dict(values["summary"])
        read = {
            "config": RunConfig.from_dict(values["config"]),
            "phases": tuple(Phase(*phase) for phase in values["phases"]),
            "notices": tuple(values["notices"]),
            "summary": summary,
            "verdict": read_verdict(values["verdict"]),
        }
        return StoredRun(**(_named(values) | read))


def read_verdict(values: Mapping[str, Any] | None) -> verdict.Verdict | None:
    """Returns a stored verdict; None where this version cannot read it: the run can be judged again."""
    if not values:
        return None
    try:
        return verdict.Verdict.from_dict(values)
    except ValueError:
        return None


SORTS: tuple[str, ...] = (
    "id",
    "name",
    "strategy",
    "samples_per_s",
    "idle_frac",
    "device_idle_frac",
)
"""Columns that a list of runs can be sorted by; "id" is the order in which they were created."""
COLUMN_OF = {"verdict": "verdict_kind", "user": "owner_user", "host": "owner_host"}
"""Filter -> column, where that has another name."""
OWN = runs.c.group_key == ""
"""Condition of the runs that were not made for another one."""
SPARK_BINS = 40
"""Most values of a sparkline."""


@dataclass(frozen=True)
class RunRow:
    """A run as a row of a list."""

    id: int
    name: str
    status: str
    created_utc: str
    """ISO 8601 with a Z."""
    strategy: str
    dataset: str
    batch_size: int
    device: str
    """As asked for, such as "auto"."""
    samples_per_s: float | None
    """Steady-state throughput; None where it was not measured."""
    idle_frac: float | None
    """Share of the training time that the verdict states (`Verdict.stated_idle_frac`); None without
    one."""
    device_idle_frac: float | None
    """Share of the training time in which the device computed nothing, for whatever reason."""
    verdict_kind: str
    """The verdict in a word or two, as its headline has it (`rendering.in_a_word`); "" without one."""
    note: str
    spark: tuple[float | None, ...]
    """The device's idle share over the run, at most `SPARK_BINS` values from 0 to 1; None where it is not
    known."""
    group_key: str
    role: str
    error: str
    owner_user: str
    """Who made it."""
    owner_host: str
    """The machine that it was made on."""
    project: str
    tags: tuple[str, ...]

    @property
    def live(self) -> bool:
        return self.status in LIVE_STATUSES

    @property
    def simulated(self) -> bool:
        return accelerators.is_simulated(self.device)


ROW_COLUMNS = tuple(f.name for f in fields(RunRow) if f.name in runs.c)


@dataclass(frozen=True)
class LiveRun:
    """The part of a run that matters to other runs on its machine, which wait for it or ran at the same time."""

    id: int
    name: str
    status: str
    device: str
    """As asked for, such as "auto"."""
    share_machine: bool
    """Whether it may run beside others; False for a run from before that could be chosen."""
    owner_host: str
    owner_pid: int
    owner_started: float


@dataclass(frozen=True)
class RunQuery:
    """Filters and order for a list of runs. Empty filters do not restrict it."""

    text: str = ""
    """Words, each of which must be in the name, note, strategy, data set, device, a tag or the number
    ("12", "#12")."""
    filters: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Name -> values, of which a run must have at least one. Names are columns of `runs`, those of
    `COLUMN_OF`, and "tag"."""
    group_key: str | None = None
    helpers: bool = False
    """Also list runs made for others: those that measure a headroom, and trials of tournaments."""
    sort: str = "id"
    descending: bool = True

    def __post_init__(self) -> None:
        """Raises `ConfigError` for unknown names, and for what a database would take forever over, or
        refuse.
        """
        if self.sort not in SORTS:
            raise ConfigError("sort", self.sort, f"choose one of {', '.join(SORTS)}")
        statuses = (*LIVE_STATUSES, *ENDED_STATUSES)
        for status in self.filters.get("status", ()):
            if status not in statuses:
                raise ConfigError("status", status, f"choose one of {', '.join(statuses)}")
        if len(self.text) > bounds.MAX_SEARCH:
            most = f"give at most {bounds.MAX_SEARCH} characters"
            raise ConfigError("text", self.text[:20] + "...", most)
        for name, values in self.filters.items():
            if len(values) > bounds.MOST_FILTERED:
                many = f"{len(values):,} are too many; give at most {bounds.MOST_FILTERED}"
                raise ConfigError(name, values[0], many)


@dataclass(frozen=True, slots=True)
class HelperCounts:
    """How many runs were made for others, by what for."""

    of_tournaments: int
    """Trials of tournaments."""
    of_runs: int
    """Those that measure the headroom of a run, and those of searches that earlier versions made."""

    @property
    def total(self) -> int:
        return self.of_tournaments + self.of_runs


class RunLists(Database):
    """Lists of runs. All methods raise `StoreError`."""

    def list_runs(self, query: RunQuery, *, limit: int, offset: int = 0) -> list[RunRow]:
        """Returns one page of the runs that match `query`. Those without a value to sort by come last."""
        by = runs.c[query.sort]
        order: list[sa.ColumnElement[Any]] = [by.desc() if query.descending else by.asc()]
        if by is not runs.c.id:
            order = [by.is_(None), *order, runs.c.id.desc()]
        wanted = (
            sa.select(*(runs.c[name] for name in ROW_COLUMNS))
            .where(*_conditions(query))
            .order_by(*order)
        )
        with self.transaction() as db:
            rows = db.execute(wanted.limit(limit).offset(offset)).fetchall()
            tags: dict[int, list[str]] = {row.id: [] for row in rows}
            for ids in in_parts(tags):
                of_these = sa.select(run_tags).where(run_tags.c.run_id.in_(ids))
                for row in db.execute(of_these.order_by(run_tags.c.tag)):
                    tags[row.run_id].append(row.tag)
        lists = ({"spark": tuple(row.spark or ()), "tags": tuple(tags[row.id])} for row in rows)
        return [
            RunRow(**_named(row._mapping) | known) for row, known in zip(rows, lists, strict=True)
        ]

    def count_runs(self, query: RunQuery) -> int:
        """Returns the number of runs that match `query`."""
        total = sa.select(sa.func.count(runs.c.id)).where(*_conditions(query))
        with self.transaction() as db:
            return int(db.execute(total).scalar_one())

    def count_helpers(self, query: RunQuery) -> HelperCounts:
        """Returns how many runs made for others match `query`, whether or not it lists them."""
        conditions = [*_conditions(replace(query, helpers=True)), runs.c.group_key > ""]
        of_a_tournament = runs.c.group_key.startswith(OF_A_TOURNAMENT)
        count = sa.select(
            sa.func.count(runs.c.id),
            sa.func.count(sa.case((of_a_tournament, runs.c.id))),
        ).where(*conditions)
        with self.transaction() as db:
            total, of_tournaments = db.execute(count).one()
        return HelperCounts(int(of_tournaments), int(total) - int(of_tournaments))

    def live_runs(self) -> list[LiveRun]:
        """Returns the queued and running runs, oldest first, even those that this version cannot read in
        full.
        """
        return self._parts_of(runs.c.status.in_(LIVE_STATUSES))

    def ended_since(self, run_id: int, since_s: float) -> list[LiveRun]:
        """Returns the ended runs made after a run on its machine that began after `since_s` (seconds on
        the monotonic clock).
        """
        host = sa.select(runs.c.owner_host).where(runs.c.id == run_id).scalar_subquery()
        later = (runs.c.id > run_id, runs.c.owner_host == host, runs.c.t_origin_s > since_s)
        return self._parts_of(*later, runs.c.status.not_in(LIVE_STATUSES))

    def _parts_of(self, *conditions: sa.ColumnElement[bool]) -> list[LiveRun]:
        # earlier versions do not know the field
        stored = runs.c.config["share_machine"].as_boolean()
        shares = sa.func.coalesce(stored, sa.false()).label("share_machine")
        columns = [runs.c[f.name] for f in fields(LiveRun) if f.name != "share_machine"]
        query = sa.select(*columns, shares).where(*conditions).order_by(runs.c.id)
        with self.transaction() as db:
            return [LiveRun(**_named(row._mapping)) for row in db.execute(query)]

    def choices(self, name: str) -> list[str]:
        """Returns the values that a filter (`RunQuery.filters`) can have: those of all runs, sorted, none empty."""
        column: sa.Column[Any] = run_tags.c.tag
        run_id: sa.Column[int] = run_tags.c.run_id
        if name != "tag":
            column = _column(name)
            run_id = runs.c.id
        # a deleted run's number is negative
        query = sa.select(column).where(run_id > 0).distinct().order_by(column)
        with self.transaction() as db:
            return [value for value in db.execute(query).scalars() if value]


def _conditions(query: RunQuery) -> list[sa.ColumnElement[bool]]:
    """Returns the conditions for the runs that match a query; all of them must hold."""
    conditions: list[sa.ColumnElement[bool]] = [runs.c.id > 0]
    for name, values in query.filters.items():
        if values and name == "tag":
            tagged = sa.select(run_tags.c.run_id).where(run_tags.c.tag.in_(values))
            conditions.append(runs.c.id.in_(tagged))
        elif values:
            conditions.append(_column(name).in_(values))
    if query.group_key is not None:
        conditions.append(runs.c.group_key == query.group_key)
    elif not query.helpers:
        conditions.append(OWN)
    conditions += [_has_word(word) for word in query.text.split()]
    return conditions


def _column(name: str) -> sa.Column[Any]:
    """Returns the column of a filter other than "tag"."""
    return runs.c[COLUMN_OF.get(name, name)]


def _has_word(word: str) -> sa.ColumnElement[bool]:
    """Returns the condition for the runs that have a word somewhere, or are the one with this number."""
    tagged = sa.select(run_tags.c.run_id).where(run_tags.c.tag.icontains(word, autoescape=True))
    places: list[sa.ColumnElement[bool]] = [runs.c.id.in_(tagged)]
    for name in ("name", "note", "strategy", "dataset", "device"):
        places.append(runs.c[name].icontains(word, autoescape=True))
    number = word.removeprefix("#")
    # longer ones are no id, and drivers refuse them
    if number.isdecimal() and len(number) < 10:
        places.append(runs.c.id == int(number))
    return sa.or_(*places)


def _named(values: Mapping[Any, Any]) -> dict[str, Any]:
    """Returns a row's values with a name that can be shown: older versions of vitprof stored any name."""
    return {**values, "name": tamed_name(values["name"] or "") or UNNAMED}
