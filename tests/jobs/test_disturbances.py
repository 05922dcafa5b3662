"""Other jobs at the same time as a run, however long they last."""

from __future__ import annotations

import pytest

from vitprof.config import RunConfig
from vitprof.jobs.disturbances import N_BESIDE, Disturbances
from vitprof.jobs.tickets import Ticket
from vitprof.store import RunStore


def test_one_that_began_after_the_last_look_but_one_is_stored_with_the_end(store: RunStore) -> None:
    mine, first, second = (store.create_run(RunConfig(device="cpu", name=name)) for name in ("mine", "a", "b"))
    store.update_run(mine, status="running", notices=["a notice"], facts={"known": 1})
    disturbances = Disturbances(store, mine)
    disturbances.ticket = ticket = Ticket(mine, "cpu", shares=True, store_url=store.url)
    disturbances.look_at_store()
    disturbances.look_again()
    assert (store.run(mine).notices, store.run(mine).facts) == (("a notice",), {"known": 1})
    for n, (other, name) in enumerate([(first, "a"), (second, "b")], 1):
        store.update_run(other, status="running")
        disturbances.look_at_store()  # too soon for another look
        assert len(disturbances.notices) == n - 1
        for _ in range(2):
            disturbances.look_again()
            run = store.run(mine)
            assert run.notices[0] == "a notice"
            assert [line.partition(" ran")[0] for line in run.notices[n:]] == [f"run {other} on cpu ({name})"]
            assert run.facts == {"known": 1, N_BESIDE: n}
    ticket.close()


def test_looks_again_after_a_while(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, other = (store.create_run(RunConfig(device="cpu", name=name)) for name in ("mine", "other"))
    store.update_run(mine, status="running")
    disturbances = Disturbances(store, mine)
    disturbances.ticket = ticket = Ticket(mine, "cpu", shares=True, store_url=store.url)
    disturbances.look_at_store()
    store.update_run(other, status="running")
    monkeypatch.setattr("vitprof.jobs.disturbances.LOOK_EVERY_S", 0.0)
    disturbances.look_at_store()
    assert len(disturbances.notices) == 1
    assert disturbances.look([], None, last=False) == {N_BESIDE: 1}
    ticket.close()
