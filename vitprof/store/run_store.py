"""The run store: runs, their steps and their telemetry, in SQLite (WAL) or any other database of SQLAlchemy."""

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, get_args

import sqlalchemy as sa

from vitprof.analysis.arrays import Series
from vitprof.config import RunConfig
from vitprof.errors import StoreError
from vitprof.names import MAX_NAME, NOT_SHOWN, why_no_name
from vitprof.program import program
from vitprof.recording.columns import (
    LIVE_STATUSES,
)
from vitprof.recording.verdict import Kind
from vitprof.store import database, stored_run
from vitprof.store.chunks import Chunk, SeriesStore, chunks_of, insert_chunks, loaded
from vitprof.store.database import (
    MAX_ID,
    in_parts,
    inserted_id,
    readable,
    run_tags,
    runs,
    series,
)
from vitprof.store.new_run import NewRun, fits, new_columns, plain_columns
from vitprof.store.owners import owner_columns
from vitprof.store.stored_run import StoredRun

MAX_TAG = 40
"""The most characters of a tag."""
MAX_NOTE = 4000
"""The most characters of a note."""
KEPT_DAYS = 30
"""For how long deleted runs can be restored."""
CLASSES = tuple(kind for kind in get_args(Kind) if kind != "inconclusive")
"""Verdicts that are conclusions; a run that only loaded, without training, has none."""
UPDATE = sa.update(runs).where(runs.c.id == sa.bindparam("of_run"))
"""Made once: to make a statement takes longer than to run it."""


KEYS = {
    runs: runs.c.id,
    series: series.c.run_id,
    run_tags: run_tags.c.run_id,
}
"""Tables with rows of a run -> the column with its number, which is negative for a deleted run."""


def _renumber(db: sa.Connection, run_id: int, to: int, message: str) -> None:
    """Gives a run another number; `message`: when it was deleted, "" where it is restored."""
    for table, key in KEYS.items():
        values: dict[str, Any] = {key.name: to}
        if table is runs:
            values["message"] = message
        db.execute(sa.update(table).where(key == run_id).values(values))


class DeletedRuns(database.Database):
    """Runs that were deleted, which are kept for a while. All methods raise `StoreError`."""

    def delete(self, *run_ids: int) -> None:
        """Takes runs out of all lists, with what was made for them: all, or none.

        For `KEPT_DAYS`, or until `prune`, `restore` brings them back. Raises `StoreError` if one is
        missing or live.
        """
        self.check_may_change()
        moment = database.now_utc()
        with self.transaction() as db:
            for run_id in dict.fromkeys(run_ids):
                status = None
                if 0 < run_id <= MAX_ID:
                    status = db.execute(
                        sa.select(runs.c.status).where(runs.c.id == run_id).with_for_update()
                    ).scalar()
                if status is None:
                    raise StoreError(_no_run(run_id))
                made_for_it = runs.c.group_key.in_(stored_run.helper_keys(run_id))
                query = sa.select(runs.c.id, runs.c.status).where(runs.c.id > 0, made_for_it)
                helpers = db.execute(query).fetchall()
                if status in LIVE_STATUSES:
                    raise StoreError(f"run {run_id} is still going on; stop it first")
                if any(helper.status in LIVE_STATUSES for helper in helpers):
                    what = f"what is measured for run {run_id}"
                    raise StoreError(f"{what} is still going on; stop it first")
                for each in (run_id, *(helper.id for helper in helpers)):
                    _renumber(db, each, -each, moment)
        self.prune()

    def erase(self, *run_ids: int) -> None:
        """Deletes runs for good."""
        self.delete(*run_ids)
        with self.transaction() as db:
            for run_id in run_ids:
                _erase(db, _with_helpers(run_id))

    def deleted(self) -> dict[int, str]:
        """Returns id and name of the runs that `restore` brings back, the last deleted first."""
        query = sa.select(runs.c.id, runs.c.name).where(runs.c.id < 0, stored_run.OWN)
        query = query.order_by(runs.c.message.desc(), runs.c.id)
        with self.transaction() as db:
            return {-run.id: run.name for run in db.execute(query)}

    def restore(self, *run_ids: int) -> None:
        """Brings deleted runs back, with their numbers: all, or none.

        Raises `StoreError` if one was not deleted.
        """
        self.check_may_change()
        with self.transaction() as db:
            for run_id in run_ids:
                query = sa.select(runs.c.id).where(runs.c.id < 0, _with_helpers(run_id))
                gone = db.execute(query).scalars().all()
                if -run_id not in gone:
                    raise StoreError(f"there is no deleted run {run_id}")
                for each in gone:
                    _renumber(db, each, -each, "")

    def prune(self, keep_days: float = KEPT_DAYS) -> int:
        """Erases what was deleted at least so many days ago; returns how many runs."""
        self.check_may_change()
        with self.transaction() as db:
            return _erase(db, runs.c.message <= database.now_utc(keep_days))


def _with_helpers(run_id: int) -> sa.ColumnElement[bool]:
    """Returns the condition for a deleted run and what was made for it."""
    return sa.or_(runs.c.id == -run_id, runs.c.group_key.in_(stored_run.helper_keys(run_id)))


def _erase(db: sa.Connection, which: sa.ColumnElement[bool]) -> int:
    """Erases deleted runs; returns how many."""
    gone = db.execute(sa.select(runs.c.id).where(runs.c.id < 0, which)).scalars().all()
    for run_id in gone:
        erase_rows(db, [run_id])
    return len(gone)


def erase_rows(db: sa.Connection, run_ids: Collection[int]) -> None:
    """Erases all rows of these runs, as they are numbered now."""
    for part in in_parts(run_ids):
        for table, key in KEYS.items():
            db.execute(sa.delete(table).where(key.in_(part)))


IDENTITY = ("created_utc", "owner_host", "owner_pid", "owner_started")
"""Columns that tell a run from those of other programs, in every store."""


def _id_of(db: sa.Connection, wanted: Mapping[str, Any]) -> int | None:
    alike = [runs.c[name] == wanted[name] for name in IDENTITY]
    if wanted.get("id"):
        alike.append(runs.c.id.in_((wanted["id"], -wanted["id"])))
    return db.execute(sa.select(runs.c.id).where(*alike)).scalar()


def _columns_of(db: sa.Connection, run_id: int) -> dict[str, Any] | None:
    run = db.execute(sa.select(runs).where(runs.c.id == run_id)).mappings().one_or_none()
    if run is None:
        return None
    return {name: value for name, value in run.items() if name != "id"}


class RunStore(stored_run.RunLists, SeriesStore, DeletedRuns):
    """The runs in one database.

    Every method is a transaction that any thread may call; all of them raise `StoreError`.
    """

    def create_run(self, config: RunConfig, **about: str) -> int:
        """Adds a run as `add_run` does, and returns its id."""
        return self.add_run(config, **about).id

    def add_run(
        self, config: RunConfig, *, group_key: str = "", role: str = "", started_by: str = ""
    ) -> StoredRun:
        """Adds a run with status "queued", owned by this process, and returns it.

        Runs that belong together share a `group_key` and have a `role` in it. `started_by`: the
        dashboard's user, where it has a login.
        """
        self.check_may_change()
        values = new_columns(config, started_by)
        values |= {"group_key": group_key, "role": role}
        with self.transaction() as db:
            run_id = inserted_id(db.execute(sa.insert(runs).values(**values)))
            query = sa.select(*stored_run.STORED).where(runs.c.id == run_id)
            return stored_run.stored_run(db.execute(query).one())

    def add_new(self, new: NewRun, *, again: bool = False) -> int:
        """Adds a run that was begun before the store could be used, and returns its id.

        `again`: returns the id of the run that an earlier try may have added; it is negative where that
        was deleted.
        """
        self.check_may_change()
        with self.writing() as db:
            known = _id_of(db, new.columns) if again else None
            if known is not None:
                return known
            return inserted_id(db.execute(sa.insert(runs).values(**new.columns)))

    def update_run(self, run_id: int, **values: Any) -> None:
        """Sets columns of a run; config, summary and phases are given as objects.

        Does nothing if the run was deleted.
        """
        self.record(run_id, values=values)

    def record(
        self,
        run_id: int,
        chunks: Iterable[Chunk] = (),
        values: Mapping[str, Any] | None = None,
        *,
        again: bool = False,
    ) -> None:
        """Adds steps, telemetry and columns of a run, all or nothing.

        `again`: skips rows that are stored already, as an earlier try may have stored them.
        """
        with self.writing() as db:
            insert_chunks(db, run_id, chunks, again=again)
            if values:
                known = {runs.c[name].key: value for name, value in plain_columns(values).items()}
                db.execute(UPDATE, {**known, "of_run": run_id})

    def run(self, run_id: int) -> StoredRun:
        """Returns one run.

        Raises `MissingError` if there is none with this id, `UnreadableError` if this vitprof cannot
        read it.
        """
        row = self.row(sa.select(*stored_run.STORED), runs.c.id, run_id, _no_run(run_id))
        return stored_run.stored_run(row)

    def columns_of(self, run_id: int) -> dict[str, Any] | None:
        """Returns the columns of a run as they are stored, without its id; None where it was deleted."""
        with self.transaction() as db:
            return _columns_of(db, run_id)

    def kept_in_gone_file(self, run_id: int) -> tuple[NewRun, list[Chunk]] | None:
        """Returns a run as the store's file has it that was deleted or replaced, while connections of
        this program still have it open.

        None where it is not there either, or none of them has. Raises `StoreError`.
        """
        rows = sa.select(series).where(series.c.run_id == run_id).order_by(series.c.chunk)
        with self._begun() as db:
            columns = _columns_of(db, run_id)
            if columns is None:
                return None
            chunks = [loaded(row.kind, row.bytes) for row in db.execute(rows)]
        return NewRun(columns), chunks

    def check_values(self, run_id: int, values: Any) -> None:
        """Raises `ValueError` for columns, from a file, with which a run could not be read."""
        row = self.row(sa.select(*stored_run.STORED), runs.c.id, run_id, _no_run(run_id))
        try:
            plain = plain_columns(values)
            float(plain.get("t_end_s") or 0.0)
            for name, value in plain.items():
                if name != "t_end_s" and not fits(runs.c[name], value):
                    raise ValueError
            columns = {name: plain.get(name, stored) for name, stored in row._mapping.items()}
            stored_run.read_run(columns)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, StoreError):
            raise ValueError("it has values that no run has") from None

    def id_of(self, wanted: Mapping[str, Any]) -> int | None:
        """Returns the id of the run with these values in its columns; it is negative for a deleted run.

        None: there is none.
        """
        with self.transaction() as db:
            return _id_of(db, wanted)

    def runs(
        self,
        statuses: Sequence[str] | None = None,
        *,
        limit: int | None = None,
        oldest_first: bool = False,
        group_key: str | None = None,
    ) -> list[StoredRun]:
        """Returns runs with one of `statuses` (default: all), of one group (default: any), newest first.

        Leaves out those that this version cannot read: `list_runs` has them, and `run` says why.
        """
        order = runs.c.id if oldest_first else runs.c.id.desc()
        query = sa.select(*stored_run.STORED).where(runs.c.id > 0).order_by(order).limit(limit)
        if group_key is not None:
            query = query.where(runs.c.group_key == group_key)
        if statuses is not None:
            query = query.where(runs.c.status.in_(list(statuses)))
        with self.transaction() as db:
            rows = db.execute(query).fetchall()
        return list(readable(rows, stored_run.stored_run))

    def fastest(self, dataset: str) -> dict[tuple[str, str], float]:
        """Returns (device, strategy) -> samples/s of the fastest run on a data set that loaded its data
        and has a conclusion.
        """
        column = runs.c
        query = sa.select(column.device, column.strategy, sa.func.max(column.samples_per_s))
        query = query.where(
            column.id > 0, column.dataset == dataset, column.verdict_kind.in_(CLASSES)
        )
        # a replay of kept batches loads nothing
        query = query.where(column.config["replay"].as_string().is_(None))
        with self.transaction() as db:
            rows = db.execute(query.group_by(column.device, column.strategy)).fetchall()
        return {(device, strategy): most for device, strategy, most in rows if most is not None}

    def tag(self, run_id: int, tags: Iterable[str]) -> None:
        """Replaces the run's tags.

        Raises `StoreError`, also for a tag that is empty, too long or contains a comma.
        """
        self.edit(run_id, tags=tags)

    def edit(
        self,
        run_id: int,
        *,
        name: str | None = None,
        note: str | None = None,
        tags: Iterable[str] | None = None,
    ) -> None:
        """Sets the values that are given, all or none of them. Raises `StoreError`."""
        self.check_may_change()
        values: dict[str, str] = {}
        if name is not None:
            values["name"] = checked_name(name)
        if note is not None:
            values["note"] = checked_note(note)
        new_tags = None if tags is None else checked_tags(tags)
        with self.transaction() as db:
            if db.execute(sa.select(runs.c.id).where(runs.c.id == run_id)).first() is None:
                raise StoreError(f"there is no run {run_id} any more")
            if values:
                db.execute(sa.update(runs).where(runs.c.id == run_id).values(**values))
            if new_tags is not None:
                db.execute(sa.delete(run_tags).where(run_tags.c.run_id == run_id))
                _set_tags(db, run_id, new_tags)

    def tags(self, run_id: int) -> tuple[str, ...]:
        query = (
            sa.select(run_tags.c.tag).where(run_tags.c.run_id == run_id).order_by(run_tags.c.tag)
        )
        with self.transaction() as db:
            return tuple(db.execute(query).scalars())

    def mark_interrupted(
        self, given_up: Collection[int] = (), *, spare: Collection[int] = ()
    ) -> list[int]:
        """Marks live runs of this machine whose process is gone as "interrupted", except those to
        `spare`, and returns their ids.

        Whether a process of another machine is gone is not known: of its runs, only those in
        `given_up` are marked, which the user says are gone.
        """
        owner = (runs.c.owner_host, runs.c.owner_pid, runs.c.owner_started)
        # not whole runs: one that this version cannot read would stay live forever, and could not be
        # deleted
        is_live = runs.c.status.in_(LIVE_STATUSES)
        query = sa.select(runs.c.id, *owner).where(is_live).order_by(runs.c.id.desc())
        with self.transaction() as db:
            live = [run for run in db.execute(query) if run.id not in spare]
        this_host, *_ = stored_run.this_program()

        def is_gone(run: Any) -> bool:
            if run.id in given_up and run.owner_host != this_host:
                return True
            return not stored_run.is_alive(run.owner_host, run.owner_pid, run.owner_started)

        marked = []
        error = "the program that ran it ended without finishing the run"
        interrupted = sa.update(runs).values(status="interrupted", stage="", error=error)
        gone = [run for run in live if is_gone(run)]
        with self.transaction() as db:
            for run in gone:
                # its program may have finished the run, and ended, after the query above
                result = db.execute(interrupted.where(runs.c.id == run.id, is_live))
                if result.rowcount:
                    marked.append(run.id)
        return marked


def _no_run(run_id: int) -> str:
    return f"there is no run {run_id}; {program()} runs lists them"


class RunImport:
    """A transaction that imports runs."""

    def __init__(self, db: sa.Connection) -> None:
        self._db = db

    def recorded_in(self, moments: Collection[str]) -> Iterator[Any]:
        """Yields the runs of this store whose `created_utc` is one of `moments`.

        They are rows of what identifies a run: its number and these columns.
        """
        identity = (runs.c.created_utc, runs.c.t_origin_s, runs.c.owner_host, runs.c.facts)
        query = sa.select(runs.c.id.label("run_id"), *identity).where(runs.c.id > 0)
        for part in in_parts(sorted(moments)):
            yield from self._db.execute(query.where(runs.c.created_utc.in_(part)))

    def insert(
        self,
        values: Mapping[str, Any],
        *,
        steps: Series,
        telemetry: Series,
        ranks: Series | None = None,
        tags: Iterable[str] = (),
    ) -> int:
        """Adds a run that has ended, with its series and tags, and returns its new id.

        This process becomes its owner. `values`: columns of `runs`, without those of the owner.
        `ranks`: the steps of the other ranks of a distributed job.
        """
        columns = owner_columns() | plain_columns(values)
        run_id = inserted_id(self._db.execute(sa.insert(runs).values(columns)))
        insert_chunks(self._db, run_id, chunks_of("steps", steps, merge=True))
        insert_chunks(self._db, run_id, chunks_of("telemetry", telemetry, merge=True))
        if ranks:
            insert_chunks(self._db, run_id, chunks_of("ranks", ranks, merge=True))
        _set_tags(self._db, run_id, tags)
        return run_id


@contextlib.contextmanager
def importing(store: RunStore) -> Iterator[RunImport]:
    """Yields an import whose runs are committed at the end of the block, all or none.

    Raises `StoreError`.
    """
    with store.transaction() as db:
        yield RunImport(db)


def _set_tags(db: sa.Connection, run_id: int, tags: Iterable[str]) -> None:
    rows = [{"run_id": run_id, "tag": tag} for tag in sorted(set(tags))]
    if rows:
        db.execute(sa.insert(run_tags), rows)


def checked_name(name: str) -> str:
    """Returns a run's name as it is stored, 1 to `MAX_NAME` characters. Raises `StoreError`."""
    kept = _short("name", name, MAX_NAME)
    reason = why_no_name(kept)
    if reason:
        raise StoreError(f"name: {reason}")
    if not kept:
        raise StoreError(f"name: a run needs one; give 1 to {MAX_NAME} characters")
    return kept


def checked_note(note: str) -> str:
    """Returns a note as it is stored, "" for none. Raises `StoreError`."""
    kept = _short("note", note, MAX_NOTE)
    if NOT_SHOWN.search(kept):
        raise StoreError("note: it has characters that cannot be shown; give plain text")
    return kept


def checked_tags(tags: Iterable[str]) -> set[str]:
    """Returns tags as they are stored.

    Raises `StoreError` for a tag that is empty, too long or contains a comma.
    """
    kept = {_short("tag", tag, MAX_TAG) for tag in tags}
    if any(not tag or "," in tag for tag in kept):
        raise StoreError(f"tag: give 1 to {MAX_TAG} characters without a comma")
    for tag in kept:
        reason = why_no_name(tag)
        if reason:
            raise StoreError(f"tag: {reason}")
    return kept


def _short(what: str, text: str, most: int) -> str:
    """Returns `text` without white space around it. Raises `StoreError` if it is too long."""
    text = text.strip()
    if len(text) > most:
        raise StoreError(f"{what}: {len(text)} characters are too many; give at most {most}")
    return text
