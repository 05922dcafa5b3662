"""What is old is erased with what was made for it; what goes on, or was written on by a user, stays."""

import pytest
import sqlalchemy as sa

from tests.store.test_run_store import step_row
from tests.store.test_tournaments import made as made_tournament
from tests.stored_series import append_steps
from vitprof.config import RunConfig
from vitprof.errors import StoreError
from vitprof.store import RunQuery, RunStore
from vitprof.store.database import now_utc, runs, series
from vitprof.store.retention import erase, expired
from vitprof.store.stored_run import RunGroup
from vitprof.store.tournaments import insert_tournament, list_tournaments

DAYS = 90.0


def made(store: RunStore, days_ago: float, status: str = "done", **about: str) -> int:
    run_id = store.create_run(RunConfig(), **about)
    append_steps(store, run_id, [step_row(0)])
    store.update_run(run_id, status=status, created_utc=now_utc(days_ago))
    return run_id


def left(store: RunStore) -> set[int]:
    with store.transaction() as db:
        return set(db.execute(sa.select(runs.c.id)).scalars())


def test_old_runs_go_with_their_helpers_and_all_others_stay(store: RunStore) -> None:
    old, young = made(store, DAYS + 1), made(store, DAYS - 1)
    tagged, noted = made(store, DAYS + 1), made(store, DAYS + 1)
    store.tag(tagged, ["paper"])
    store.edit(noted, note="best so far")
    alive, helped = made(store, DAYS + 1, "running"), made(store, DAYS + 1)
    helper = made(store, 0, group_key=RunGroup("headroom", old).key)
    going = made(store, 0, "running", group_key=RunGroup("headroom", helped).key)
    what = expired(store, DAYS)
    assert (what.runs, what.tournaments) == ([old, helped], [])
    assert what.size_bytes > 0
    assert erase(store, what) == (1, 0), "the one that something is being measured for stays"
    assert left(store) == {young, tagged, noted, alive, helped, going}
    with store.transaction() as db:
        assert set(db.execute(sa.select(series.c.run_id)).scalars()).isdisjoint({old, helper})
    assert expired(store, DAYS, marked_too=True).runs == [tagged, noted, helped]


def test_the_runs_of_an_earlier_versions_search_go_alone(store: RunStore) -> None:
    rung = made(store, DAYS + 1, group_key="autotune:411-1790000000000000000", role="batch 64#1")
    assert expired(store, DAYS).runs == [rung]


def test_a_tournament_goes_whole_and_not_while_it_runs(store: RunStore) -> None:
    ended = insert_tournament(store, made_tournament())
    trial = made(store, DAYS + 1, group_key=RunGroup("tournament", ended).key, role="memory#1")
    assert expired(store, DAYS).runs == [], "a trial goes with its tournament"
    with store.transaction() as db:
        db.exec_driver_sql(
            "update tournaments set created_utc = '2020-01-01T00:00:00Z', status = 'done'"
        )
    what = expired(store, DAYS)
    assert what.tournaments == [ended]
    assert erase(store, what) == (0, 1)
    assert list_tournaments(store) == []
    assert trial not in left(store)


def test_more_than_one_transaction(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitprof.store.retention.AT_ONCE", 2)
    for _ in range(5):
        made(store, DAYS + 1)
    seen: list[int] = []
    assert erase(store, expired(store, DAYS), seen.append) == (5, 0)
    assert seen == [2, 4, 5]
    assert store.count_runs(RunQuery()) == 0


def test_who_may_not_change_runs_erases_none(store: RunStore) -> None:
    old = made(store, DAYS + 1)
    store.refuses = lambda: "ann may see runs"
    with pytest.raises(StoreError, match="ann may see runs"):
        erase(store, expired(store, DAYS))
    assert left(store) == {old}
