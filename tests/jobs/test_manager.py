"""The job manager: queues, stopping, failing, and what is left afterwards, which is nothing."""

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import psutil
import pytest

from tests import ROOT
from tests.engine_fixtures import (
    CHEAP,
    KeptLauncher,
    descendants,
    gone,
    vitprof_threads,
    wait_until,
)
from vitprof.config import RunConfig
from vitprof.engine import train
from vitprof.engine.trainer import TorchTrainer
from vitprof.errors import ConfigError, DataError, JobError, StoreAwayError
from vitprof.home import home
from vitprof.jobs import manager as manager_module
from vitprof.jobs import supervisor, users
from vitprof.jobs.manager import JobManager
from vitprof.store import RunStore
from vitprof.telemetry.sampler import Telemetry

WORKERS = {"strategy": "workers", "storage": "memory"}
"""Jobs with worker processes that need no torchvision: loading it takes 1.5 s."""
QUICK: dict[str, Any] = CHEAP | {"strategy": "memory", "evaluate": False, "telemetry_hz": 20.0}


def config(**values: Any) -> RunConfig:
    return RunConfig(**(QUICK | values))


@contextlib.contextmanager
def manager(store: RunStore, launcher: KeptLauncher | None = None) -> Iterator[JobManager]:
    made = JobManager(store, launcher=launcher)
    yield made
    made.shutdown()
    wait_until(lambda: vitprof_threads() == [], "the end of its threads")
    assert descendants() == []


@pytest.fixture
def jobs(store: RunStore) -> Iterator[JobManager]:
    with manager(store) as made:
        yield made


def finished(jobs: JobManager, run_id: int, within_s: float = 120.0) -> Any:
    """The run, which has ended."""
    assert jobs.wait(run_id, within_s), f"run {run_id} did not end: {jobs.store.run(run_id)}"
    run = jobs.store.run(run_id)
    assert not run.live
    assert run.stage == ""
    return run


def steps_of(jobs: JobManager, run_id: int) -> list[float]:
    return jobs.store.steps(run_id)["step"].tolist()


def under_way(jobs: JobManager, **values: Any) -> int:
    """A run that has steps in the store and goes on."""
    run_id = jobs.submit(config(epochs=1000, **values))
    wait_until(lambda: steps_of(jobs, run_id), f"the first steps of run {run_id}")
    assert jobs.store.run(run_id).status == "running"
    return run_id


def under_way_in_a_batch(jobs: JobManager) -> int:
    """A run whose first batch takes a minute."""
    endless = {"batch_size": 1, "inject": "read:60000", "loader_only": True, "epochs": 1000}
    run_id = jobs.submit(config(strategy="per-sample", warmup_steps=0, **endless))
    wait_until(lambda: jobs.store.run(run_id).stage == "training", "the first batch")
    return run_id


class Gate:
    """In place of `train`: takes note of each job and ends when it is let through, or asked to stop."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.open = threading.Event()

    def __call__(self, config: RunConfig, events: Any, stop: Any) -> bool:
        self.begun.append(config.name)
        wait_until(lambda: self.open.is_set() or stop(), "the gate")
        return not stop()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Jobs in threads that do nothing but wait."""
    gate = Gate()
    monkeypatch.setattr(train, "train", gate)
    return gate


def queued(jobs: JobManager, *names: str, **values: Any) -> list[int]:
    return [jobs.submit(config(name=name, isolation="thread", **values)) for name in names]


def begun(jobs: JobManager, gate: Gate, *names: str, **values: Any) -> list[int]:
    """Jobs in the queue, the first of which has begun."""
    ids = queued(jobs, *names, **values)
    wait_until(lambda: gate.begun, "the first job")
    return ids


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs look for others, and for their turn, all the time."""
    monkeypatch.setattr(manager_module, "QUEUE_CHECK_S", 0.01)
    for name in ("FLUSH_EVERY_S", "OTHER_JOBS_CHECK_S"):
        monkeypatch.setattr(f"vitprof.jobs.supervisor.{name}", 0.01)


def both_see_each_other(jobs: JobManager, gate: Gate, *ids: int) -> None:
    wait_until(lambda: len(gate.begun) == 2, "both at once")
    wait_until(lambda: all(jobs.store.run(i).facts for i in ids), "each sees the other")
    gate.open.set()


def assert_measured(jobs: JobManager, run: Any) -> None:
    """What was measured until the run's end is whole, and in its summary."""
    steps = steps_of(jobs, run.id)
    assert steps == list(range(len(steps)))
    assert run.summary.n_steps == len(steps) > 0


class TestQueue:
    def test_one_after_another_and_one_that_waits_stops_at_once(
        self, jobs: JobManager, gate: Gate
    ) -> None:
        ids = begun(jobs, gate, "a", "b", "c")
        assert [jobs.store.run(i).status for i in ids[1:]] == ["queued", "queued"]
        assert gate.begun == ["a"]
        assert all(jobs.may_stop(i) for i in ids)
        jobs.stop(ids[1])
        run = jobs.store.run(ids[1])  # while the first still runs
        assert (run.status, run.error, run.t_origin_s) == (
            "stopped",
            "stopped before it began",
            None,
        )
        assert jobs.wait(ids[1], 0)
        assert not jobs.may_stop(ids[1])
        jobs.stop(ids[1])  # once more does nothing
        gate.open.set()
        assert [finished(jobs, i).status for i in ids] == ["done", "stopped", "done"]
        assert gate.begun == ["a", "c"]
        assert not any(jobs.may_stop(i) for i in ids)

    def test_one_at_a_time_on_all_devices_and_the_store_says_what_for(
        self, jobs: JobManager, gate: Gate
    ) -> None:
        (first,) = begun(jobs, gate, "on the cpu")
        second, third = queued(jobs, "on the gpu", "after it", device="cuda:0")
        wait_until(lambda: jobs.store.run(second).message, "what it waits for")
        assert jobs.store.run(second).message.startswith(
            f"waiting for run {first} on cpu; jobs run one at a time"
        )
        assert gate.begun == ["on the cpu"]
        jobs.stop(second)  # its turn has not come, and it holds nobody up
        assert (jobs.store.run(second).status, jobs.store.run(second).message) == ("stopped", "")
        gate.open.set()
        assert [finished(jobs, i).status for i in (first, third)] == ["done", "done"]
        run = jobs.store.run(third)
        assert (gate.begun, run.message, run.facts, run.notices) == (
            ["on the cpu", "after it"],
            "",
            {},
            (),
        )

    def test_jobs_that_share_run_side_by_side_and_say_so(
        self, jobs: JobManager, gate: Gate, quick_looks: None
    ) -> None:
        (first,) = queued(jobs, "on the cpu", share_machine=True)
        (second,) = queued(jobs, "on the gpu", device="cuda:0", share_machine=True)
        both_see_each_other(jobs, gate, first, second)
        runs = [finished(jobs, i) for i in (first, second)]
        assert [run.facts for run in runs] == [{"n_beside": 1}] * 2
        (notice,) = runs[0].notices
        assert notice.startswith(
            f"run {second} on cuda:0 (on the gpu) ran at the same time: they shared CPU and disk"
        )

    @pytest.mark.parametrize("says", ["nothing", "anyway", "now"])
    def test_programs_on_one_store_take_turns(
        self, jobs: JobManager, gate: Gate, quick_looks: None, says: str
    ) -> None:
        """The other program is a manager of this process with a store entry that says otherwise."""
        (first,) = begun(jobs, gate, "there")
        sleeper = psutil.Process(os.getppid())
        jobs.store.update_run(first, owner_pid=sleeper.pid, owner_started=sleeper.create_time())
        other = JobManager(jobs.store, anyway=says == "anyway")
        try:
            (second,) = queued(other, "here", device="cuda:0" if says == "nothing" else "cpu")
            if says != "anyway":
                wait_until(lambda: jobs.store.run(second).message, "what it waits for")
                assert ", since " in jobs.store.run(second).message
                assert gate.begun == ["there"]
            if says == "now":
                other.run_now(second)
            if says != "nothing":
                both_see_each_other(jobs, gate, first, second)
            gate.open.set()
            runs = [finished(jobs, first), finished(other, second)]
            assert [run.status for run in runs] == ["done", "done"]
            assert [run.facts for run in runs] == [{} if says == "nothing" else {"n_beside": 1}] * 2
            assert all("ran at the same time" in run.notices[0] for run in runs if run.facts)
            assert gate.begun == ["there", "here"]
        finally:
            other.shutdown()

    def test_shutdown_stops_all_of_it(
        self, store: RunStore, gate: Gate, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        jobs = JobManager(store)
        with pytest.raises(ConfigError, match="batch_size"):
            jobs.submit(config(batch_size=10**6))
        with monkeypatch.context() as patch:
            patch.setattr(manager_module.availability, "installed", lambda _name: False)
            with pytest.raises(JobError, match="a job needs PyTorch, which is not installed: "):
                jobs.submit(config())
        ids = begun(jobs, gate, "a", "b")
        jobs.shutdown()
        assert [store.run(i).status for i in ids] == ["stopped", "stopped"]
        assert gate.begun == ["a"]
        assert vitprof_threads() == []
        with pytest.raises(JobError, match="shutting down"):
            queued(jobs, "late")
        assert len(store.runs()) == 2
        jobs.shutdown()

    def test_runs_that_ended_long_ago_are_forgotten(
        self, jobs: JobManager, gate: Gate, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(manager_module, "KEPT_ENDED", 2)
        gate.open.set()
        ids = []
        for name in "abcde":
            ids += queued(jobs, name)
            assert finished(jobs, ids[-1]).status == "done"
        wait_until(lambda: len(jobs._ended) == 2, "that the others are forgotten")
        assert sorted(jobs._jobs) == ids[-2:]
        assert jobs.wait(ids[0], 0)
        assert (jobs.may_stop(ids[0]), jobs.why_away(ids[0])) == (False, "")

    def test_others_who_log_in_cannot_stop(
        self, jobs: JobManager, gate: Gate, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        person = "ada"
        monkeypatch.setattr(users, "_source", [lambda: person])
        first, waits = queued(jobs, "a", "b")
        person = "bob"
        wait_until(lambda: gate.begun, "the first job")
        for run_id in (first, waits):
            assert jobs.store.run(run_id).started_by == "ada"
            assert not jobs.may_stop(run_id)
            with pytest.raises(
                JobError, match=f"run {run_id} was started by ada; others cannot stop it"
            ):
                jobs.stop(run_id)
        person = ""  # the command line, and a dashboard without logins
        assert jobs.may_stop(first)
        person = "ada"
        jobs.stop(waits)
        gate.open.set()
        assert [finished(jobs, i).status for i in (first, waits)] == ["done", "stopped"]
        assert jobs.store.run(first).started_by == "ada", "what the job told since is beside it"
        of_another_program = jobs.store.create_run(config())
        assert not jobs.may_stop(of_another_program)
        with pytest.raises(JobError, match="stop it where it was started"):
            jobs.stop(of_another_program)


@pytest.mark.usefixtures("small_home")
class TestThreadIsolation:
    def test_a_whole_run(self, jobs: JobManager) -> None:
        run = finished(
            jobs, jobs.submit(config(epochs=2, batch_size=150, evaluate=True, isolation="thread"))
        )
        assert (run.status, run.error, run.notices) == ("done", "", ())
        assert steps_of(jobs, run.id) == list(range(8))
        assert (run.summary.n_steps, run.summary.n_samples, run.summary.n_epochs_measured) == (
            8,
            1200,
            1,
        )
        assert 0 <= run.summary.test_accuracy <= 1
        assert np.isnan(
            run.summary.cpu_s_per_sample
        )  # the process's CPU time is not the job's alone
        phases = "startup prepare prepare startup evaluate evaluate shutdown"
        assert [p.name for p in run.phases] == phases.split()
        assert (run.environment["device"], run.facts["n_train"]) == ("cpu", 600)
        assert run.t_origin_s <= run.phases[0].t_start_s <= run.training_since_s
        telemetry = jobs.store.telemetry(run.id)
        assert telemetry["seq"].tolist() == list(range(len(telemetry["seq"])))
        assert (np.diff(telemetry["t_s"]) > 0).all()
        assert run.summary.rss_peak_bytes > 0

    def test_a_failure_shows_its_own_message_and_keeps_what_was_measured(
        self, jobs: JobManager, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        wall = RuntimeError("the optimizer\nran into a wall")
        whole, failing = TorchTrainer.step, Mock(side_effect=[None] * 4 + [wall])
        monkeypatch.setattr(TorchTrainer, "step", lambda *args: failing() or whole(*args))
        run = finished(jobs, jobs.submit(config(steps=6, isolation="thread")))
        assert (run.status, run.error, run.summary.n_steps) == (
            "failed",
            "RuntimeError: the optimizer",
            4,
        )
        assert steps_of(jobs, run.id) == [0, 1, 2, 3]
        assert "Traceback" in capsys.readouterr().err  # for whoever reads the log


class TestTrouble:
    """Around the job, not in it."""

    def test_telemetry_that_fails_is_said_and_a_store_that_cannot_sum_up_a_run_fails_it(
        self,
        jobs: JobManager,
        gate: Gate,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        def train_and_tell(config: RunConfig, events: Any, stop: Any) -> bool:
            events.environment({})
            return gate(config, events, stop)

        monkeypatch.setattr(train, "train", train_and_tell)
        monkeypatch.setattr(
            Telemetry, "sample", Mock(side_effect=OSError(24, "too many open files"))
        )
        gate.open.set()
        with monkeypatch.context() as patch:
            patch.setattr(
                "vitprof.jobs.finalise.settle", Mock(side_effect=RuntimeError("a defect"))
            )
            run = finished(jobs, *queued(jobs, "a"))
        assert (run.status, run.error) == ("failed", "RuntimeError: a defect")
        assert "Traceback" in capsys.readouterr().err
        run = finished(jobs, *queued(jobs, "b"))
        assert run.status == "done"
        assert run.notices == ("telemetry ended early: OSError: [Errno 24] too many open files",)

    def test_a_full_disk_that_fails_job_and_store_is_told_in_the_words_of_the_job(
        self,
        jobs: JobManager,
        gate: Gate,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """In the middle of a preparation: the next job runs, and the run gets its end when there is room again."""
        full = threading.Event()

        def prepare(config: RunConfig, events: Any, stop: Any) -> bool:
            if config.name == "a":
                events.stage("preparing", 0.5)
                full.set()
                raise DataError("disk full while preparing /home/memmap")
            return gate(config, events, stop)

        def while_full(write: Any) -> Any:
            def broken(self: RunStore, run_id: int, *rows: Any, **values: Any) -> None:
                if full.is_set():
                    raise StoreAwayError(
                        "the run store failed: database or disk is full", "database or disk is full"
                    )
                write(self, run_id, *rows, **values)

            return broken

        monkeypatch.setattr(train, "train", prepare)
        monkeypatch.setattr("vitprof.jobs.outbox.RETRY_S", 0.01)
        for name in ("update_run", "record"):
            monkeypatch.setattr(RunStore, name, while_full(getattr(RunStore, name)))
        first, second = queued(jobs, "a", "b")
        wait_until(lambda: gate.begun, "the next job")
        assert not jobs.may_stop(first)
        assert not jobs.wait(first, 0.05), "the store does not have its end"
        assert jobs.why_away(first) == "database or disk is full"
        full.clear()
        run = finished(jobs, first)
        assert (run.status, run.error) == ("failed", "disk full while preparing /home/memmap")
        gate.open.set()
        assert finished(jobs, second).status == "done"
        line = f"vitprof: run {first} failed: disk full while preparing /home/memmap; the run store is unavailable ("
        assert line in capsys.readouterr().err

    def test_stopped_with_the_store_away(
        self, jobs: JobManager, gate: Gate, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        locked = StoreAwayError("the run store failed: locked", "locked")
        monkeypatch.setattr("vitprof.jobs.outbox.RETRY_S", 0.01)
        first, second = begun(jobs, gate, "a", "b")
        with monkeypatch.context() as patch:
            patch.setattr(RunStore, "record", Mock(side_effect=locked))
            jobs.stop(second)
            assert not jobs.wait(second, 0)
            assert (jobs.store.run(second).status, jobs.why_away(second)) == ("queued", "locked")
        gate.open.set()
        assert finished(jobs, first).status == "done"
        assert finished(jobs, second).error == "stopped before it began"

    def test_a_job_that_hangs_after_its_end_is_killed(
        self, jobs: JobManager, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def hanging(config: RunConfig, buffer: Any, stop: Any) -> None:
            buffer.end("done")
            while True:
                pass

        monkeypatch.setattr("vitprof.jobs.child.run_job", hanging)
        assert finished(jobs, *queued(jobs, "a")).status == "done"


@pytest.mark.usefixtures("full_home")
class TestProcessIsolation:
    @pytest.fixture
    def jobs(self, store: RunStore, launcher: KeptLauncher) -> Iterator[JobManager]:
        """With PyTorch loaded, for which none of the other tests' jobs waits."""
        with manager(store, launcher) as made:
            yield made

    @pytest.mark.measured
    def test_stop_of_a_job_that_hangs_in_a_batch(self, jobs: JobManager) -> None:
        """The loop cannot hear in there, so the process is ended."""
        before_the_batch_ends_s = 50.0
        run_id = under_way_in_a_batch(jobs)
        jobs.stop(run_id)
        run = finished(jobs, run_id, before_the_batch_ends_s)
        assert (run.status, run.error) == ("stopped", "")
        assert len(steps_of(jobs, run_id)) <= 1

    @pytest.mark.measured
    def test_a_stop_takes_two_seconds_at_most(self, jobs: JobManager) -> None:
        run_id = under_way_in_a_batch(jobs)
        began_s = time.monotonic()
        jobs.stop(run_id)
        finished(jobs, run_id)
        assert time.monotonic() - began_s < 2.0

    @pytest.mark.measured
    def test_stop_keeps_what_was_measured_and_the_next_job_runs(
        self, jobs: JobManager, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(supervisor, "STOP_GRACE_S", 60.0)  # it is to end by itself
        first = under_way(jobs, **WORKERS)
        second = jobs.submit(config(steps=20))
        family = descendants()
        assert len(family) == 3  # the job and two workers
        jobs.stop(first)
        run = finished(jobs, first)
        assert gone(family)
        assert (run.status, run.error) == ("stopped", "")
        assert_measured(jobs, run)
        assert run.summary.shutdown_s >= 0  # it ended by itself
        done = finished(jobs, second)
        assert (done.status, steps_of(jobs, second)) == ("done", list(range(20)))
        assert done.summary.cpu_s_per_sample > 0
        assert done.summary.rss_peak_bytes > 0
        assert sorted(p.name for p in (home() / "logs").iterdir()) == ["run-1.log", "run-2.log"]

    @pytest.mark.parametrize(
        ("number", "error"),
        [(0, "^the job's process was ended by SIGKILL"), (1, r"DataLoader worker \(pid.*{pid}")],
    )
    def test_killed_in_mid_run(self, jobs: JobManager, number: int, error: str) -> None:
        run_id = under_way(jobs, **WORKERS)
        family = descendants()
        assert len(family) == 3  # the job and two workers
        family[number].kill()
        run = finished(jobs, run_id)
        assert (run.status, "\n" in run.error) == ("failed", False)
        assert re.search(
            error.format(pid=family[number].pid), run.error
        )  # PyTorch has several ways to say it
        assert_measured(jobs, run)
        assert gone(family)

    @pytest.mark.measured
    def test_two_programs_on_one_store(self, jobs: JobManager, tmp_path: Path) -> None:
        """Neither takes the other's job for lost until the other is killed: then that ends, and is summed up."""
        script = f"""
import time
from vitprof.jobs.manager import JobManager
from vitprof.config import RunConfig
from vitprof.store import RunStore
store = RunStore()
jobs = JobManager(store)
run_id = jobs.submit(RunConfig(**{QUICK | WORKERS | {"epochs": 1000, "name": "theirs"}}))
while not len(store.steps(run_id, names=["step"])["step"]): time.sleep(0.02)
print(run_id, flush=True)
jobs.wait(run_id)
"""
        env = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "VITPROF_DB": f"sqlite:///{tmp_path / 'runs.sqlite'}",
        }
        with subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, env=env, text=True
        ) as other:
            assert other.stdout is not None
            theirs = int(other.stdout.readline())
            mine = jobs.submit(config(epochs=1000, name="mine"))
            assert jobs.store.mark_interrupted() == []
            assert {r.id: r.status for r in jobs.store.runs()} == {
                mine: "queued",
                theirs: "running",
            }
            with pytest.raises(JobError, match="stop it where it was started"):
                jobs.stop(theirs)
            family = psutil.Process(other.pid).children(recursive=True)
            assert len(family) == 3  # the job and two workers
            other.kill()
        assert gone(family)
        wait_until(
            lambda: steps_of(jobs, mine),
            "the own one's steps: nobody waits for a program that is gone",
        )
        JobManager(jobs.store).shutdown()  # as when vitprof is started anew
        run = jobs.store.run(theirs)
        assert run.status == "interrupted"
        assert "ended without finishing" in run.error
        assert_measured(jobs, run)
        jobs.stop(mine)
        assert finished(jobs, mine).status == "stopped"
