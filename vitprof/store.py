"""The run store: runs, their steps and their telemetry, in SQLite (WAL) or any database SQLAlchemy speaks to.

`VITPROF_DB` names another database by SQLAlchemy URL; the default is `runs.sqlite` under `VITPROF_HOME`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import os
import socket
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
import sqlalchemy as sa
from numpy.typing import NDArray

from vitprof.config import RunConfig
from vitprof.errors import StoreError
from vitprof.home import ensure_dir, home
from vitprof.records import (
    LIVE_STATUSES,
    Column,
    Phase,
    RunSummary,
    Status,
    StepRecord,
    TelemetrySample,
    columns,
    summary_from_dict,
    summary_to_dict,
)
from vitprof.resolve import run_name

STORE_VERSION = 2
"""2: more columns of steps, groups of runs, verdicts and predictions. A store of version 1 gets them when opened."""
MAX_ID = 2**31 - 1
"""The largest id that an INTEGER of every database can hold; drivers refuse larger numbers with errors of their own."""
WAL_ATTEMPTS = 10
Series = dict[str, NDArray[np.float64]]
"""Columns by name, each (n,) float64; NaN where a value is not available."""


def _sql_column(column: Column) -> sa.Column[Any]:
    return sa.Column(column.name, sa.BigInteger if column.integer else sa.Double)


metadata = sa.MetaData()
versions = sa.Table("vitprof_store", metadata, sa.Column("version", sa.Integer, primary_key=True))
runs = sa.Table(
    "runs",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("name", sa.String, nullable=False),
    sa.Column("status", sa.String, nullable=False, index=True),
    sa.Column("stage", sa.String, nullable=False, default=""),
    sa.Column("progress", sa.Double),
    sa.Column("message", sa.String, nullable=False, default=""),
    sa.Column("created_utc", sa.String, nullable=False),
    sa.Column("t_origin_s", sa.Double),
    sa.Column("training_since_s", sa.Double),
    sa.Column("config", sa.JSON, nullable=False),
    sa.Column("environment", sa.JSON, nullable=False, default=dict),
    sa.Column("facts", sa.JSON, nullable=False, default=dict),
    sa.Column("phases", sa.JSON, nullable=False, default=list),
    sa.Column("notices", sa.JSON, nullable=False, default=list),
    sa.Column("summary", sa.JSON),
    sa.Column("verdict", sa.JSON),
    sa.Column("group_key", sa.String, nullable=False, default="", server_default="", index=True),
    sa.Column("role", sa.String, nullable=False, default="", server_default=""),
    sa.Column("error", sa.String, nullable=False, default=""),
    sa.Column("owner_host", sa.String, nullable=False),
    sa.Column("owner_pid", sa.Integer, nullable=False),
    sa.Column("owner_started", sa.Double, nullable=False),
    sqlite_autoincrement=True,  # ids are never used twice: a shared link must not come to mean another run
)
steps = sa.Table(
    "steps",
    metadata,
    sa.Column("run_id", sa.Integer, nullable=False),
    *(_sql_column(c) for c in columns(StepRecord)),
    # in the order of reading: a refresh asks for the steps of a run behind the last one it has
    sa.PrimaryKeyConstraint("run_id", "step", "rank"),
    sqlite_with_rowid=False,
)
telemetry = sa.Table(
    "telemetry",
    metadata,
    sa.Column("run_id", sa.Integer, primary_key=True),
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
    *(_sql_column(c) for c in columns(TelemetrySample)),
    sqlite_with_rowid=False,
)
predictions = sa.Table(
    "predictions",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("profile_run_id", sa.Integer, nullable=False, index=True),
    sa.Column("micro_run_id", sa.Integer, nullable=False),
    sa.Column("verified_run_id", sa.Integer),
    sa.Column("config", sa.JSON, nullable=False),
    sa.Column("created_utc", sa.String, nullable=False),
    sa.Column("samples_per_s", sa.Double, nullable=False),
    sa.Column("low", sa.Double, nullable=False),
    sa.Column("high", sa.Double, nullable=False),
    sa.Column("measured_per_s", sa.Double),
)
STEP_FIELDS = tuple(c.name for c in columns(StepRecord))
TELEMETRY_FIELDS = tuple(c.name for c in columns(TelemetrySample))


@dataclass(frozen=True)
class StoredRun:
    """A run as the store holds it: everything but its steps and telemetry."""

    id: int
    name: str
    status: Status
    stage: str
    """What a running job is doing: starting, preparing, training, evaluating, finishing."""
    progress: float | None
    """How far the stage is, 0..1; None where there is no telling."""
    message: str
    """What goes with the stage, such as what is being prepared."""
    created_utc: str
    """ISO 8601 with a Z."""
    t_origin_s: float | None
    """When the job left the queue, on the monotonic clock of its machine."""
    training_since_s: float | None
    """When its training began, on the same clock."""
    config: RunConfig
    environment: dict[str, Any]
    facts: dict[str, Any]
    phases: tuple[Phase, ...]
    notices: tuple[str, ...]
    summary: RunSummary | None
    error: str
    owner_host: str
    owner_pid: int
    owner_started: float
    verdict: dict[str, Any] | None = None
    """A `vitprof.analysis.verdict.Verdict` as plain values."""
    group_key: str = ""
    """Runs with the same one belong together; "" for a run of its own."""
    role: str = ""
    """What the run is in its group."""

    @property
    def live(self) -> bool:
        return self.status in LIVE_STATUSES


def database_url() -> str | sa.URL:
    """`VITPROF_DB`, or SQLite under `VITPROF_HOME` (which is made if need be)."""
    named = os.environ.get("VITPROF_DB")
    # No text for the path: a "?" in it would begin the query of an URL.
    return named or sa.URL.create("sqlite", database=str(ensure_dir(home()) / "runs.sqlite"))


def _parse(url: str | sa.URL) -> sa.URL:
    try:
        return sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):  # their texts can quote a part of the password
        _, at, place = str(url).rpartition("@")
        shown = f"***@{place}" if at else place
        raise StoreError(
            f"VITPROF_DB: {shown!r} is not an SQLAlchemy URL; give one such as sqlite:////home/me/runs.sqlite"
        ) from None


def _on_connect(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    for left in reversed(range(WAL_ATTEMPTS)):
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            break
        except sqlite3.OperationalError:  # another program makes the switch just now, and SQLite does not wait for it
            if not left:
                raise
            cursor.execute("BEGIN IMMEDIATE")  # but it does wait for the turn to write
            cursor.execute("COMMIT")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


class RunStore:
    """Open on one database; every method is one transaction and may be called from any thread. Raises `StoreError`."""

    def __init__(self, url: str | None = None) -> None:
        parsed = _parse(url or database_url())
        self.url = parsed.render_as_string(hide_password=True)
        try:
            self._engine = sa.create_engine(parsed)
        except (sa.exc.ArgumentError, ImportError) as error:
            raise StoreError(f"VITPROF_DB: {self.url!r} cannot be used: {error}") from error
        if self._engine.dialect.name == "sqlite":
            sa.event.listen(self._engine, "connect", _on_connect)
        try:
            self._create_tables()
        except StoreError:
            self.close()
            raise

    def _create_tables(self) -> None:
        with self.transaction() as db:
            if db.dialect.name == "sqlite":
                db.exec_driver_sql("BEGIN IMMEDIATE")  # two programs may open a new store at the same moment
            found = None
            if sa.inspect(db).has_table(versions.name):
                found = db.execute(sa.select(versions.c.version)).scalar()
            if found is None:
                metadata.create_all(db)
                db.execute(sa.insert(versions).values(version=STORE_VERSION))
            elif found == 1:
                _add_what_version_2_has(db)
                db.execute(sa.update(versions).values(version=STORE_VERSION))
            elif found != STORE_VERSION:
                raise StoreError(
                    f"{self.url} was written by another vitprof (store version {found}, not {STORE_VERSION}); "
                    "move it away, or set VITPROF_DB to another database"
                )

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """A connection whose work is kept at the end of the block, all or none. Raises `StoreError`."""
        try:
            with self._engine.begin() as connection:
                yield connection
        except sa.exc.DBAPIError as error:
            raise StoreError(f"the run store {self.url} failed: {error.orig}") from error

    def close(self) -> None:
        self._engine.dispose()

    # runs

    def create_run(self, config: RunConfig, *, group_key: str = "", role: str = "") -> int:
        """A new run with status "queued", owned by this process; its id."""
        me = psutil.Process()
        with self.transaction() as db:
            inserted = db.execute(
                sa.insert(runs).values(
                    name=run_name(config),
                    status="queued",
                    created_utc=dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z"),
                    config=config.to_dict(),
                    group_key=group_key,
                    role=role,
                    owner_host=socket.gethostname(),
                    owner_pid=me.pid,
                    owner_started=me.create_time(),
                )
            )
        key = inserted.inserted_primary_key
        assert key is not None
        return int(key[0])

    def update_run(self, run_id: int, **values: Any) -> None:
        """Set columns of a run; records become plain values. A run that was deleted meanwhile stays deleted."""
        if "summary" in values and values["summary"] is not None:
            values["summary"] = summary_to_dict(values["summary"])
        if "phases" in values:
            values["phases"] = [dataclasses.astuple(p) for p in values["phases"]]
        with self.transaction() as db:
            db.execute(sa.update(runs).where(runs.c.id == run_id).values(**values))

    def run(self, run_id: int) -> StoredRun:
        """One run. Raises `StoreError` if there is none with this id."""
        row = None
        if 0 < run_id <= MAX_ID:
            with self.transaction() as db:
                row = db.execute(sa.select(runs).where(runs.c.id == run_id)).one_or_none()
        if row is None:
            raise StoreError(f"there is no run {run_id}; python -m vitprof runs lists them")
        return _stored_run(row)

    def runs(
        self,
        statuses: Sequence[str] | None = None,
        *,
        limit: int | None = None,
        oldest_first: bool = False,
        group_key: str | None = None,
    ) -> list[StoredRun]:
        """Runs with one of `statuses` (default: all), of one group (default: any), newest first."""
        query = sa.select(runs).order_by(runs.c.id if oldest_first else runs.c.id.desc()).limit(limit)
        if group_key is not None:
            query = query.where(runs.c.group_key == group_key)
        if statuses is not None:
            query = query.where(runs.c.status.in_(list(statuses)))
        with self.transaction() as db:
            return [_stored_run(row) for row in db.execute(query)]

    def delete(self, run_id: int) -> None:
        """Delete a run with its steps, its telemetry and what was predicted from it.

        Raises `StoreError` if there is none, or it is still going on.
        """
        if self.run(run_id).live:
            raise StoreError(f"run {run_id} is still going on; stop it first")
        with self.transaction() as db:
            for table in (steps, telemetry):
                db.execute(sa.delete(table).where(table.c.run_id == run_id))
            db.execute(sa.delete(predictions).where(predictions.c.profile_run_id == run_id))
            db.execute(sa.delete(runs).where(runs.c.id == run_id))

    def mark_interrupted(self) -> list[int]:
        """Mark live runs of this machine whose owner process is gone as "interrupted"; their ids."""
        host = socket.gethostname()
        gone = [
            run
            for run in self.runs(LIVE_STATUSES)
            if run.owner_host == host and not _alive(run.owner_pid, run.owner_started)
        ]
        marked = []
        error = "the program that ran it ended without finishing the run"
        with self.transaction() as db:
            for run in gone:
                # live still? its program may have finished the run, and ended, after the query above
                still_live = sa.update(runs).where(runs.c.id == run.id, runs.c.status.in_(LIVE_STATUSES))
                if db.execute(still_live.values(status="interrupted", stage="", error=error)).rowcount:
                    marked.append(run.id)
        return marked

    # series

    def append_steps(self, run_id: int, rows: Iterable[Sequence[float]]) -> None:
        """Add steps; each row in the order of `STEP_COLUMNS`."""
        self._append(steps, [dict(zip(STEP_FIELDS, row, strict=True), run_id=run_id) for row in rows])

    def append_telemetry(self, run_id: int, first_seq: int, rows: Iterable[Sequence[float]]) -> None:
        """Add telemetry samples, numbered from `first_seq`; each row in the order of `TELEMETRY_COLUMNS`."""
        self._append(
            telemetry,
            [
                dict(zip(TELEMETRY_FIELDS, row, strict=True), run_id=run_id, seq=seq)
                for seq, row in enumerate(rows, first_seq)
            ],
        )

    def _append(self, table: sa.Table, rows: list[dict[str, float | int]]) -> None:
        if rows:
            with self.transaction() as db:
                db.execute(sa.insert(table), rows)

    def steps(self, run_id: int, *, after: int = -1, names: Sequence[str] = STEP_FIELDS) -> Series:
        """The run's steps with a number above `after`, in order."""
        return self._series(steps, run_id, steps.c.step, after, names)

    def telemetry(self, run_id: int, *, after: int = -1, names: Sequence[str] = TELEMETRY_FIELDS) -> Series:
        """The run's telemetry samples with a number above `after`, in order, with that number as "seq"."""
        return self._series(telemetry, run_id, telemetry.c.seq, after, ("seq", *names))

    def _series(self, table: sa.Table, run_id: int, order: sa.Column[Any], after: int, names: Sequence[str]) -> Series:
        query = sa.select(*(table.c[n] for n in names)).where(table.c.run_id == run_id, order > after).order_by(order)
        with self.transaction() as db:
            rows = db.execute(query).fetchall()
        matrix = np.array([tuple(r) for r in rows], dtype=np.float64).reshape(len(rows), len(names))
        return {name: matrix[:, i] for i, name in enumerate(names)}


def _add_what_version_2_has(db: sa.Connection) -> None:
    """New columns and tables. What was not measured then is null, which is read as "not available"."""
    inspector = sa.inspect(db)
    preparer = db.dialect.identifier_preparer
    for table in (runs, steps, telemetry):
        known = {column["name"] for column in inspector.get_columns(table.name)}
        for column in table.columns:
            if column.name not in known:
                definition = sa.schema.CreateColumn(column).compile(dialect=db.dialect)
                db.exec_driver_sql(f"ALTER TABLE {preparer.format_table(table)} ADD COLUMN {definition}")
    for index in runs.indexes:
        index.create(db, checkfirst=True)
    predictions.create(db, checkfirst=True)


def _stored_run(row: sa.Row[Any]) -> StoredRun:
    values = dict(row._mapping)
    return StoredRun(
        **(
            values
            | {
                "config": RunConfig.from_dict(values["config"]),
                "phases": tuple(Phase(*p) for p in values["phases"]),
                "notices": tuple(values["notices"]),
                "summary": summary_from_dict(values["summary"]) if values["summary"] else None,
            }
        )
    )


def _alive(pid: int, started: float) -> bool:
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:  # ended too; in a container without an init it stays for good
            return False
        return bool(abs(process.create_time() - started) < 1.0)
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:  # it exists but is not ours to look at: no reason to call it gone
        return True
