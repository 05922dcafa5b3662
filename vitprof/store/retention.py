"""How long runs are kept: old ones that have ended are erased, with what was made for them.

Runs with a user's tag or note stay, as do runs that go on, and the runs of a tournament for as long as
the tournament does.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from vitprof.errors import JobError
from vitprof.recording.columns import LIVE_STATUSES
from vitprof.store import stored_run
from vitprof.store.database import in_parts, now_utc, run_tags, runs, series
from vitprof.store.run_store import RunStore, erase_rows
from vitprof.store.tournaments import delete_tournament, list_tournaments

AT_ONCE = 100
"""Runs that are erased in one transaction: other writers wait for it."""


@dataclass(frozen=True)
class Expired:
    """What is too old to be kept."""

    runs: Sequence[int]
    """Ids of the runs that were not made for others, oldest first."""
    tournaments: Sequence[int]
    size_bytes: int
    """Size of the series of all of them in the database."""


def expired(store: RunStore, days: float, *, marked_too: bool = False) -> Expired:
    """Returns what was made more than `days` days ago and has ended.

    `marked_too`: also what has a tag or a note.
    """
    before = now_utc(days)
    old = [runs.c.id > 0, runs.c.created_utc < before, runs.c.status.not_in(LIVE_STATUSES)]
    if not marked_too:
        old += [runs.c.note == "", runs.c.id.not_in(sa.select(run_tags.c.run_id))]
    # a search was made for no run, so that nothing else would erase its runs
    of_a_search = runs.c.group_key.startswith(stored_run.OF_A_SEARCH)
    own = sa.or_(stored_run.OWN, of_a_search)
    length = sa.select(sa.func.sum(sa.func.length(series.c.bytes)))
    ended = [
        each for each in list_tournaments(store) if each.created_utc < before and not each.held
    ]
    groups = [each.group_key for each in ended]
    with store.transaction() as db:
        selected = sa.select(runs.c.id).where(*old, own).order_by(runs.c.id)
        run_ids = list(db.execute(selected).scalars())
        of_tournaments = [
            sa.select(runs.c.id).where(runs.c.group_key.in_(keys)) for keys in in_parts(groups)
        ]
        size_bytes = 0
        for ids in (*of_tournaments, *map(_with_helpers, _parts(run_ids))):
            size_bytes += db.execute(length.where(series.c.run_id.in_(ids))).scalar() or 0
    return Expired(run_ids, [each.id for each in ended], int(size_bytes))


def erase(
    store: RunStore, what: Expired, on_progress: Callable[[int], object] = lambda _: None
) -> tuple[int, int]:
    """Erases what has expired for good, but for what goes on again by now.

    Returns how many runs and tournaments were erased. `on_progress` is called with how many runs are
    erased so far. Raises `StoreError` where nothing may be changed.
    """
    store.check_may_change()
    n_runs = 0
    n_tournaments = 0
    for ids in _parts(what.runs):
        with store.writing() as db:
            live = runs.c.status.in_(LIVE_STATUSES)
            live_groups = set(db.execute(sa.select(runs.c.group_key).where(live)).scalars())
            free = [each for each in ids if not live_groups & set(stored_run.helper_keys(each))]
            gone = [run.id for run in db.execute(_with_helpers(free))]
            erase_rows(db, gone)
        n_runs += len(free)
        on_progress(n_runs)
    for number in what.tournaments:
        try:
            delete_tournament(store, number)
        except JobError:
            continue
        n_tournaments += 1
    return n_runs, n_tournaments


def _parts(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    for first in range(0, len(ids), AT_ONCE):
        yield ids[first : first + AT_ONCE]


def _with_helpers(ids: Sequence[int]) -> sa.Select[tuple[int]]:
    """Returns the query for the ids of runs and of those that were made for them."""
    keys = [key for each in ids for key in stored_run.helper_keys(each)]
    return sa.select(runs.c.id).where(sa.or_(runs.c.id.in_(ids), runs.c.group_key.in_(keys)))
