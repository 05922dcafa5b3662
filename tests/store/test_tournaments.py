"""Tournaments in the store: kept, claimed by one program, taken over, deleted."""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa

from tests.config.test_tournament_spec import BASE, made
from vitprof.config.own_script import OWN_SCRIPT, OwnScript, own_config
from vitprof.errors import ConfigError, JobError, StoreError
from vitprof.store import RunGroup, RunStore, tournaments
from vitprof.store.database import runs as run_table
from vitprof.store.database import tournaments as store_table


@pytest.fixture
def number(store: RunStore) -> int:
    """A tournament in the store."""
    return tournaments.insert_tournament(store, made())


def test_kept_and_found_unless_the_name_cannot_be_shown(store: RunStore) -> None:
    for name in ("x" * 201, "two\nlines"):
        with pytest.raises(ConfigError, match=r"^name: "):
            tournaments.insert_tournament(store, made(), name=name)
    assert tournaments.list_tournaments(store) == []
    first = tournaments.insert_tournament(store, made())
    second = tournaments.insert_tournament(store, made(repeats=1), name="mine")
    assert [t.id for t in tournaments.list_tournaments(store)] == [second, first]
    found = tournaments.tournament(store, first)
    assert (found.spec, found.status, found.held) == (made(), "queued", False)
    assert found.name == "2 strategies x 2 batch sizes on digits"
    assert found.created_utc.endswith("Z")
    assert tournaments.tournament(store, second).name == "mine"
    for number in (0, -1, 5, 2**70):
        with pytest.raises(StoreError, match=f"no tournament {number}"):
            tournaments.tournament(store, number)


def test_those_of_a_run_and_of_a_directory_are_found(store: RunStore) -> None:
    tournaments.insert_tournament(store, made())
    of_seven = tournaments.insert_tournament(store, made(of_run=7))
    tournaments.insert_tournament(store, made(of_run=77))
    on_script = {}
    for directory in ('/home/me/it\'s "mine"', "/home/me"):
        script = OwnScript(("python", "train.py"), directory, (("workers", (2,)),))
        spec = made(
            base=own_config("", steps=40), strategies=(OWN_SCRIPT,), batch_sizes=(1,), script=script
        )
        on_script[directory] = tournaments.insert_tournament(store, spec)
    again = tournaments.insert_tournament(store, made(of_run=7))
    of_run = tournaments.list_tournaments(store, of_run=7)
    assert [t.id for t in of_run] == [again, of_seven]
    assert [t.id for t in tournaments.list_tournaments(store, 1, of_run=7)] == [again]
    for directory, number in on_script.items():
        there = tournaments.list_tournaments(store, directory=directory)
        assert [t.id for t in there] == [number]
    assert tournaments.list_tournaments(store, directory="/home") == []


def test_the_one_that_a_program_runs_is_found(store: RunStore, number: int) -> None:
    tournaments.insert_tournament(store, made())
    assert tournaments.held_tournament(store) is None
    tournaments.claim(store, number)
    held = tournaments.held_tournament(store)
    assert held is not None
    assert (held.id, held.held) == (number, True)
    with store.transaction() as db:  # another version
        unreadable = sa.update(store_table).where(store_table.c.id == number)
        db.execute(unreadable.values(spec={"colour": "red"}))
    assert tournaments.held_tournament(store) is None


def test_more_rounds(store: RunStore) -> None:
    number = tournaments.insert_tournament(store, made(repeats=2, seconds=60.0))
    for round_ in (1, 2, 3):
        role = f"memory/b32/w-/as-is#{round_}"
        store.create_run(BASE, group_key=RunGroup("tournament", number).key, role=role)
    tournaments.add_rounds(store, number, 3)
    found = tournaments.tournament(store, number)
    assert (found.spec.repeats, found.spec.seconds, found.status) == (6, None, "paused")
    assert found.note == "3 more rounds to run"
    for wrong, field in ((0, "more_rounds"), (98, "repeats")):
        with pytest.raises(ConfigError, match=f"^{field}: "):
            tournaments.add_rounds(store, number, wrong)
    tournaments.claim(store, number)
    with pytest.raises(JobError, match="is running already"):
        tournaments.add_rounds(store, number, 1)


def state_of(store: RunStore) -> Any:
    with store.transaction() as db:
        return db.execute(sa.select(store_table.c.state)).scalar_one()


def test_two_who_change_the_state_at_once(store: RunStore, number: int) -> None:
    def change(name: str) -> None:
        for k in range(20):
            tournaments.set_status(store, number, "running", **{f"{name}-{k}": k})

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(change, ("refused", "cut")))
    assert len(state_of(store)) == 40


def test_one_program_at_a_time(store: RunStore, number: int) -> None:
    assert tournaments.claim(store, number).status == "running"
    with pytest.raises(JobError, match="is running already"):
        tournaments.claim(store, number)
    tournaments.set_status(store, number, "paused", owner=None, note="coffee")
    found = tournaments.tournament(store, number)
    assert (found.status, found.note, found.held) == ("paused", "coffee", False)
    claimed = tournaments.claim(store, number)
    assert (claimed.note, claimed.holder_pid) == ("", os.getpid())
    gone = {
        **state_of(store)["owner"],
        "started": 1.0,
    }  # the process with this number is another one now
    tournaments.set_status(store, number, "running", owner=gone)
    found = tournaments.tournament(store, number)
    assert (found.status, found.held, found.note) == (
        "paused",
        False,
        "the program that ran it ended",
    )
    assert tournaments.claim(store, number).status == "running"


def test_of_another_machine_it_can_be_taken_over_by_a_person(store: RunStore, number: int) -> None:
    tournaments.claim(store, number)
    with pytest.raises(JobError, match="is running already"):
        tournaments.release(store, number)
    tournaments.set_status(
        store, number, "running", owner={"host": "box-1", "pid": 7, "started": 1.0}
    )
    run_id = store.create_run(
        BASE, group_key=RunGroup("tournament", number).key, role="memory/b32/w-/as-is#1"
    )
    store.update_run(run_id, status="running", owner_host="box-1")
    for act in (tournaments.claim, tournaments.delete_tournament):
        with pytest.raises(
            JobError, match=r"another machine \(box-1, process 7\); .*, or take it over"
        ):
            act(store, number)
    tournaments.release(store, number)
    found = tournaments.tournament(store, number)
    assert (found.status, found.held, found.note) == ("paused", False, "taken over from box-1")
    assert (store.run(run_id).status, tournaments.claim(store, number).status) == (
        "interrupted",
        "running",
    )


def test_deleted_with_its_runs(store: RunStore, number: int) -> None:
    mine = store.create_run(
        BASE, group_key=RunGroup("tournament", number).key, role="memory/b32/w-/as-is#1"
    )
    other = store.create_run(BASE)
    store.update_run(mine, status="done")
    tournaments.claim(store, number)
    with pytest.raises(JobError, match="is running"):
        tournaments.delete_tournament(store, number)
    tournaments.set_status(store, number, "stopped", owner=None)
    tournaments.delete_tournament(store, number)
    assert tournaments.list_tournaments(store) == []
    assert ([r.id for r in store.runs()], store.prune(0)) == ([other], 0)


def test_one_of_another_version_is_left_out_and_can_be_deleted(
    store: RunStore, number: int
) -> None:
    other = tournaments.insert_tournament(store, made())
    endless = made().to_dict() | {"repeats": 10**12}
    for spec, why in (({"colour": "red"}, "another version"), (endless, "from 1 to 100")):
        with store.transaction() as db:
            db.execute(sa.update(store_table).where(store_table.c.id == number).values(spec=spec))
        with pytest.raises(StoreError, match=why):
            tournaments.tournament(store, number)
    assert [t.id for t in tournaments.list_tournaments(store)] == [other]
    mine = store.create_run(
        BASE, group_key=RunGroup("tournament", number).key, role="memory/b32/w-/as-is#1"
    )
    store.update_run(mine, status="done")
    tournaments.delete_tournament(store, number)
    assert store.runs() == []
    with pytest.raises(StoreError, match=f"no tournament {number}"):
        tournaments.tournament(store, number)


def test_the_newest_run_of_each_round(store: RunStore, number: int) -> None:
    group = RunGroup("tournament", number).key
    ids = [
        store.create_run(BASE, group_key=group, role=role)
        for role in ("a#1", "b#1", "a#2", "a#1", "strange")
    ]
    store.create_run(BASE, group_key=RunGroup("tournament", number + 1).key, role="a#1")
    store.update_run(ids[3], status="failed", error="no room", stage="preparing", progress=0.5)
    with store.transaction() as db:  # their configs are not read
        db.execute(sa.update(run_table).values(config={"colour": "red"}))
    newest = tournaments.newest_runs(store, number)
    found = {key: {n: run.id for n, run in rounds.items()} for key, rounds in newest.items()}
    assert found == {"a": {1: ids[3], 2: ids[2]}, "b": {1: ids[1]}, "": {0: ids[4]}}
    assert newest["a"][1] == tournaments.TrialRun(
        ids[3], 1, "failed", "no room", "preparing", 0.5, n_made=2
    )
