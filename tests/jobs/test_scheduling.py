"""Whose turn it is: one job at a time on a machine, unless jobs on different devices agreed to share it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.store.other_versions import rewrite
from vitprof.config import RunConfig
from vitprof.jobs import scheduling
from vitprof.jobs.scheduling import ahead_of, queue_of, running_beside, why_waiting
from vitprof.store import RunStore


def add(store: RunStore, device: str = "cpu", *, status: str = "queued", shares: bool = False, **columns: Any) -> int:
    run_id = store.create_run(RunConfig(device=device, share_machine=shares))
    store.update_run(run_id, status=status, **columns)
    return run_id


def ids(store: RunStore, run_id: int) -> list[int]:
    return [int(ahead.name.removeprefix("run ")) for ahead in ahead_of(store, run_id)]


def test_auto_waits_for_the_gpu_that_cuda_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "visible_gpus", lambda: ["a GPU"])
    assert (queue_of("auto"), queue_of("cpu"), queue_of("cuda:3")) == ("cuda:0", "cpu", "cuda:3")
    monkeypatch.setattr(scheduling, "visible_gpus", lambda: [])
    assert queue_of("auto") == "cpu"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second", "waits"),
    [
        (("cuda:0", False), ("cuda:1", False), True),
        (("cuda:0", True), ("cuda:1", False), True),
        (("cuda:0", False), ("cuda:1", True), True),
        (("cuda:0", True), ("cuda:1", True), False),
        (("cuda:0", True), ("cuda:0", True), True),
        (("cuda:0", True), ("cpu", True), False),
        (("simulated:1,0", True), ("cpu", True), True),
    ],
)
def test_jobs_run_side_by_side_where_both_share_and_the_devices_differ(
    store: RunStore, first: tuple[str, bool], second: tuple[str, bool], waits: bool
) -> None:
    one, two = (add(store, device, shares=shares) for device, shares in (first, second))
    assert ids(store, one) == []
    assert ids(store, two) == ([one] if waits else [])


def test_a_run_that_shares_does_not_overtake_one_that_wants_to_be_alone(store: RunStore) -> None:
    going_on = add(store, "cuda:0", shares=True, status="running")
    alone = add(store, "cuda:2")
    late = add(store, "cuda:1", shares=True)
    assert ids(store, late) == [alone]
    assert ids(store, alone) == [going_on]


def test_runs_of_another_machine_and_of_programs_that_are_gone_are_not_waited_for(store: RunStore) -> None:
    add(store, status="running", owner_host="elsewhere")
    add(store, status="running", owner_started=1.0)
    add(store, status="done")
    unreadable = add(store, status="running")
    rewrite(store, unreadable, RunConfig().to_dict() | {"warmup_steps": 10**12})
    earlier = add(store)
    mine = add(store)
    later = add(store, status="running")
    assert ids(store, mine) == [unreadable, earlier]
    assert [run.id for run in running_beside(store, mine)] == [unreadable, later]
    assert ids(store, 999) == running_beside(store, 999) == []


def test_a_config_from_before_there_was_a_choice_shares_nothing(store: RunStore) -> None:
    run_id = add(store, shares=True)
    old = RunConfig().to_dict()
    del old["share_machine"]
    rewrite(store, run_id, old)
    assert [run.share_machine for run in store.live_runs()] == [False]


def test_the_words_say_what_for_and_why(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "visible_gpus", lambda: [])
    first = add(store, "auto", status="running")
    add(store, "cuda:0", shares=True)
    last = add(store, "cuda:0", shares=True)
    ahead = ahead_of(store, last)
    assert why_waiting(ahead, shares=False) == (
        f"waiting for run {first} on cpu and 1 more; jobs run one at a time so that they do not take each other's CPU "
        "and disk"
    )
    assert why_waiting(ahead, shares=True).endswith("; it was started to run alone (share_machine off)")
    assert why_waiting(ahead[1:], shares=True).endswith(" on cuda:0; a device takes one job at a time")
