"""What a supervisor makes of a job: other jobs at the same time, however long they last, and whose GPU it has."""

import contextlib
import time
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from vitprof.config import RunConfig
from vitprof.jobs import supervisor
from vitprof.jobs.scheduling import MachineLock
from vitprof.jobs.supervisor import N_CONCURRENT, Disturbances, JobRecorder
from vitprof.store import RunStore


@contextlib.contextmanager
def running(store: RunStore, run_id: int, url: str = "") -> Iterator[MachineLock]:
    """A run that has its place on the machine."""
    lock = MachineLock(run_id, "cpu", shares=False, store_url=url or store.url)
    assert lock.acquire(anyway=True)
    yield lock
    lock.release()


def test_one_that_began_after_the_last_look_but_one_is_stored_with_the_end(store: RunStore) -> None:
    mine, first, second = (
        store.create_run(RunConfig(device="cpu", name=name)) for name in ("mine", "a", "b")
    )
    store.update_run(mine, status="running", notices=["a notice"], facts={"known": 1})
    disturbances = Disturbances(store, lambda: mine)
    with running(store, mine) as disturbances.lock:
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
                assert [line.partition(" ran")[0] for line in run.notices[n:]] == [
                    f"run {other} on cpu ({name})"
                ]
                assert run.facts == {"known": 1, N_CONCURRENT: n}


def test_jobs_of_all_stores_are_noted_once_after_a_while(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = (
        store.create_run(RunConfig(device="cpu", name=name)) for name in ("mine", "theirs")
    )
    found = Disturbances(store, lambda: mine)
    with running(store, mine) as found.lock:
        found.look_at_store()
        for run_id in (mine, theirs):
            store.update_run(run_id, status="running")
        monkeypatch.setattr("vitprof.jobs.supervisor.OTHER_JOBS_CHECK_S", 0.0)
        with running(store, theirs), running(store, 7, "sqlite:///elsewhere"):
            found.look_at_store()
            found.look_again()
    assert len(found.notices) == 2
    assert found.update([], None, last=False) == {N_CONCURRENT: 2}
    assert found.notices[0].startswith(
        f"run {theirs} on cpu (theirs) ran at the same time: they shared CPU"
    )
    assert found.notices[1].startswith("run 7 of another store on cpu (")


def test_one_that_began_and_ended_while_nobody_looked_is_noted_afterwards(store: RunStore) -> None:
    earlier, mine, queued, late = (
        store.create_run(RunConfig(device="cpu", name=n)) for n in "abcd"
    )
    store.update_run(mine, status="running")
    found = Disturbances(store, lambda: mine)
    found.lock = MachineLock(mine, "cpu", shares=False, store_url=store.url)
    for run_id, began_s in (
        (earlier, time.perf_counter()),
        (late, time.perf_counter()),
        (queued, None),
    ):
        store.update_run(run_id, status="done", t_origin_s=began_s)
    for _ in range(2):
        found.look_again()
        assert [line.partition(" ran")[0] for line in found.notices] == [f"run {late} on cpu (d)"]


@pytest.mark.parametrize(
    ("found", "nvidia"), [({"untested_device": "ROCm", "gpu_uuid": None}, False), ({}, True)]
)
def test_nvml_is_not_asked_for_a_gpu_of_rocm(
    monkeypatch: pytest.MonkeyPatch, found: dict[str, str | None], nvidia: bool
) -> None:
    started = Mock()
    monkeypatch.setattr(supervisor, "Telemetry", started)
    JobRecorder._start_telemetry(Mock(_ranks={}, _other_gpus=[]), 1, {"device": "cuda:0"} | found)
    assert started.call_args.kwargs["nvidia"] is nvidia


def test_the_gpus_of_other_ranks_count_whenever_they_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = Mock()
    monkeypatch.setattr(supervisor, "Telemetry", started)
    recorder = Mock(_ranks={}, _other_gpus=[], _telemetry=None)
    JobRecorder._follow_gpu(recorder, "GPU-1")
    JobRecorder._start_telemetry(recorder, 1, {"device": "cuda:0", "gpu_uuid": "GPU-0"})
    JobRecorder._follow_gpu(recorder, "GPU-2")
    added = [call.args for call in started.return_value.add_gpu.call_args_list]
    assert added == [("GPU-1",), ("GPU-2",)]
