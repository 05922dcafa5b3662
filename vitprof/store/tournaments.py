"""Tournaments in the run store, and the program that runs each."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import sqlalchemy as sa

from vitprof.config import bounds, tournament_spec
from vitprof.errors import ConfigError, JobError, StoreError
from vitprof.names import MAX_NAME, UNNAMED, tamed_name, why_no_name
from vitprof.program import program
from vitprof.recording.columns import LIVE_STATUSES
from vitprof.store import RunStore, stored_run
from vitprof.store.database import inserted_id, now_utc, readable, reading, runs, tournaments

TournamentStatus = Literal["queued", "running", "paused", "stopped", "done"]


@dataclass(frozen=True)
class StoredTournament:
    """A stored tournament."""

    id: int
    name: str
    created_utc: str
    """ISO 8601 with a Z."""
    spec: tournament_spec.TournamentSpec
    status: TournamentStatus
    """A tournament that is stored as running, but whose program is gone, is "paused" here: it can be resumed."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Trial key -> why it could not be run on the machine that ran the tournament."""
    cut: Mapping[str, str] = field(default_factory=dict)
    """Trial key -> why it was cut short."""
    note: str = ""
    """Why the tournament ended early or was paused, in a line."""
    held: bool = False
    """Whether a live program runs it; True for one of another machine, where that cannot be known."""
    holder_pid: int | None = None
    """That program's process id."""
    holder_host: str = ""
    """That program's machine, or container, where that is another one; "" where it is this one."""
    started_by: str = ""
    """The dashboard's user who started or last resumed it; "" where there is no login."""

    @property
    def group_key(self) -> str:
        return stored_run.RunGroup("tournament", self.id).key


@dataclass(frozen=True)
class TrialRun:
    """The newest run of a trial in one round, without its long values."""

    id: int
    round: int
    status: str
    error: str
    stage: str
    progress: float | None
    n_made: int = 1
    """The number of runs of this round in the store: a run that did not finish is repeated."""


def insert_tournament(
    store: RunStore, spec: tournament_spec.TournamentSpec, name: str = "", created_utc: str = ""
) -> int:
    """Stores a tournament with status "queued" and returns its id.

    `created_utc`: when it was made, for one that is imported. Raises `ConfigError` for a name that is
    refused.
    """
    store.check_may_change()
    name = name.strip() or spec.title
    reason = why_no_name(name)
    if reason:
        shown = name if len(name) <= MAX_NAME else name[:20] + "..."
        raise ConfigError("name", shown, reason)
    with store.transaction() as db:
        values = {
            "name": name,
            "created_utc": created_utc or now_utc(),
            "status": "queued",
            "spec": spec.to_dict(),
            "state": {},
        }
        return inserted_id(db.execute(sa.insert(tournaments).values(values)))


def tournament(store: RunStore, tournament_id: int) -> StoredTournament:
    """Returns one tournament.

    Raises `MissingError`, or `UnreadableError` where this vitprof cannot read it.
    """
    return _stored(_row(store, tournament_id))


def list_tournaments(
    store: RunStore,
    limit: int | None = None,
    *,
    of_run: int | None = None,
    directory: str | None = None,
) -> list[StoredTournament]:
    """Returns tournaments, newest first; leaves out those of another version that cannot be read.

    `of_run`: only those that prove advice on this run. `directory`: only those on scripts that are
    run there. The database finds these: to read a spec and to check it takes longer than to find it.
    """
    query = sa.select(tournaments).order_by(tournaments.c.id.desc()).limit(limit)
    spec = tournaments.c.spec
    if of_run is not None:
        query = query.where(spec["of_run"].as_integer() == of_run)
    if directory is not None:
        query = query.where(spec[("script", "directory")].as_string() == directory)
    with store.transaction() as db:
        rows = db.execute(query).fetchall()
    return list(readable(rows, _stored))


def held_tournament(store: RunStore) -> StoredTournament | None:
    """Returns the newest tournament that a live program runs and that can be read; None where there
    is none."""
    query = sa.select(tournaments.c.id, tournaments.c.state).order_by(tournaments.c.id.desc())
    with store.transaction() as db:
        rows = db.execute(query).fetchall()
    for row in rows:
        if _alive_owner(row.state):
            # deleted meanwhile, or of another version
            with contextlib.suppress(StoreError):
                return tournament(store, row.id)
    return None


def _runs_of(tournament_id: int) -> sa.ColumnElement[bool]:
    group = stored_run.RunGroup("tournament", tournament_id)
    return sa.and_(runs.c.id > 0, runs.c.group_key == group.key)


def newest_runs(store: RunStore, tournament_id: int) -> dict[str, dict[int, TrialRun]]:
    """Returns the newest run of each round of each trial, by the trial's key and the round's number."""
    columns = (runs.c.id, runs.c.role, runs.c.status, runs.c.error, runs.c.stage, runs.c.progress)
    query = sa.select(*columns).where(_runs_of(tournament_id)).order_by(runs.c.id)
    newest: dict[str, dict[int, TrialRun]] = {}
    with store.transaction() as db:
        for row in db.execute(query):
            key, number = stored_run.read_role(row.role)
            of_trial = newest.setdefault(key, {})
            before = of_trial.get(number)
            of_trial[number] = TrialRun(
                id=row.id,
                round=number,
                status=row.status,
                error=row.error,
                stage=row.stage,
                progress=row.progress,
                n_made=1 if before is None else before.n_made + 1,
            )
    return newest


def set_status(store: RunStore, tournament_id: int, status: TournamentStatus, **state: Any) -> None:
    """Sets the status, and the given parts of the state; of a deleted tournament nothing."""
    # two threads, such as a runner and a page, may each change a part of the state
    with store.writing() as db:
        kept = db.execute(_state_of(tournament_id)).scalar()
        changed = sa.update(tournaments).where(tournaments.c.id == tournament_id)
        db.execute(changed.values(status=status, state={**(kept or {}), **state}))


def set_spec(store: RunStore, tournament_id: int, spec: tournament_spec.TournamentSpec) -> None:
    """Sets the spec of a tournament. Does nothing if it was deleted meanwhile."""
    with store.writing() as db:
        changed = sa.update(tournaments).where(tournaments.c.id == tournament_id)
        db.execute(changed.values(spec=spec.to_dict()))


def _state_of(tournament_id: int) -> sa.Select[tuple[Any]]:
    return sa.select(tournaments.c.state).where(tournaments.c.id == tournament_id).with_for_update()


def claim(store: RunStore, tournament_id: int) -> StoredTournament:
    """Sets a tournament to running, with this process as its owner.

    Raises `JobError` where a program runs it, `StoreError` where it cannot be read.
    """
    _check_free(_row(store, tournament_id))
    tournament(store, tournament_id)  # one that cannot be read is not begun
    host, own_pid, started = stored_run.this_program()
    owner = {"host": host, "pid": own_pid, "started": started}
    with store.writing() as db:
        state = dict(db.execute(_state_of(tournament_id)).scalar() or {})
        before = state.get("owner") or {}
        pid = tournaments.c.state["owner"]["pid"].as_integer()
        # two programs may find it free at the same moment: the second one's condition fails
        unchanged = pid == before["pid"] if before else pid.is_(None)
        claimed = db.execute(
            sa.update(tournaments)
            .where(tournaments.c.id == tournament_id, unchanged)
            .values(status="running", state={**state, "owner": owner, "note": ""})
        )
    if not claimed.rowcount:
        raise JobError(
            f"tournament {tournament_id} was begun by another program just now; there is nothing to do here"
        )
    return tournament(store, tournament_id)


def interrupt_round(store: RunStore, tournament_id: int, number: int, why: str) -> None:
    """Ends the runs of a round that are still live in the store, because the node that made them is gone."""
    gone = {"status": "interrupted", "stage": "", "error": why}
    is_live = runs.c.status.in_(LIVE_STATUSES)
    query = sa.select(runs.c.id, runs.c.role).where(_runs_of(tournament_id), is_live)
    with store.transaction() as db:
        ids = []
        for run in db.execute(query):
            _key, of_round = stored_run.read_role(run.role)
            if of_round == number:
                ids.append(run.id)
        db.execute(sa.update(runs).where(runs.c.id.in_(ids)).values(**gone))


def add_rounds(store: RunStore, tournament_id: int, n: int) -> None:
    """Adds `n` rounds to those that a tournament has had, and removes its time limit.

    It is paused then, and can be resumed. Raises `ConfigError`, and `JobError` where a program runs it.
    """
    _check_free(_row(store, tournament_id))
    now = tournament(store, tournament_id)
    of_trials = newest_runs(store, tournament_id).values()
    n_had = max((number for rounds in of_trials for number in rounds), default=0)
    bounds.TOURNAMENT_BOUNDS["repeats"].check("more_rounds", n)
    bounds.TOURNAMENT_BOUNDS["repeats"].check("repeats", n_had + n)
    set_spec(store, tournament_id, replace(now.spec, repeats=n_had + n, seconds=None))
    rounds = "round" if n == 1 else "rounds"
    set_status(store, tournament_id, "paused", note=f"{n} more {rounds} to run")


def release(store: RunStore, tournament_id: int) -> None:
    """Takes a tournament and its runs from another machine, which the user says is gone.

    Raises `JobError` where a program of this machine runs it.
    """
    now = tournament(store, tournament_id)
    if not now.holder_host:
        _check_free(_row(store, tournament_id))
        return
    note = f"taken over from {now.holder_host}"
    with store.transaction() as db:
        of_holder = (runs.c.group_key == now.group_key, runs.c.owner_host == now.holder_host)
        live = sa.update(runs).where(*of_holder, runs.c.status.in_(LIVE_STATUSES))
        db.execute(live.values(status="interrupted", stage="", error=note))
    set_status(store, tournament_id, "paused", owner=None, note=note)


def delete_tournament(store: RunStore, tournament_id: int) -> None:
    """Deletes a tournament with its runs, for good. Raises `JobError` where it is running."""
    store.check_may_change()
    # not `tournament()`: one that cannot be read can be deleted
    _check_free(_row(store, tournament_id))
    store.mark_interrupted()
    with store.transaction() as db:
        ids = list(db.execute(sa.select(runs.c.id).where(_runs_of(tournament_id))).scalars())
    store.erase(*ids)
    with store.transaction() as db:
        db.execute(sa.delete(tournaments).where(tournaments.c.id == tournament_id))


def _row(store: RunStore, tournament_id: int) -> sa.Row[Any]:
    missing = f"there is no tournament {tournament_id}; {program()} tournament --list lists them"
    return store.row(sa.select(tournaments), tournaments.c.id, tournament_id, missing)


def _check_free(row: sa.Row[Any]) -> None:
    """Raises `JobError` where a program runs the tournament."""
    owner = _alive_owner(row.state)
    if not owner:
        return
    where = f"already (process {owner['pid']})"
    todo = "stop it there first"
    if owner["host"] != stored_run.this_program()[0]:
        where = f"on another machine ({owner['host']}, process {owner['pid']})"
        todo += ", or take it over if that machine is gone (--take-over, or the button on its page)"
    raise JobError(f"tournament {row.id} is running {where}; {todo}")


def _alive_owner(state: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Returns the live program that runs a tournament, by its state; {} where there is none.

    A program of another machine counts as live: whether it is cannot be known.
    """
    owner: Mapping[str, Any] = (state or {}).get("owner") or {}
    if owner and stored_run.is_alive(owner["host"], owner["pid"], owner["started"]):
        return owner
    return {}


def _stored(row: sa.Row[Any]) -> StoredTournament:
    state = row.state or {}
    with reading(f"tournament {row.id}"):
        spec = tournament_spec.TournamentSpec.from_dict(row.spec)
    owner = _alive_owner(state)
    this_host, *_ = stored_run.this_program()
    holder_host = owner.get("host", "")
    status = row.status
    note = state.get("note", "")
    if status == "running" and not owner:
        status = "paused"
        note = note or "the program that ran it ended"
    return StoredTournament(
        id=row.id,
        name=tamed_name(row.name) or UNNAMED,
        created_utc=row.created_utc,
        spec=spec,
        status=status,
        refused=state.get("refused") or {},
        cut=state.get("cut") or {},
        note=note,
        held=bool(owner),
        holder_pid=owner.get("pid"),
        holder_host="" if holder_host == this_host else holder_host,
        started_by=str(state.get("started_by") or ""),
    )
