"""The job manager: a queue and a worker thread for each device, which take turns (`vitprof.jobs.scheduling`)."""

import contextlib
import math
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vitprof.config import RunConfig, availability, resolve
from vitprof.errors import JobError, StoreError, VitprofError, one_line
from vitprof.jobs import finalise, killed_jobs, scheduling, supervisor, users
from vitprof.jobs.outbox import Outbox
from vitprof.jobs.runners import Launcher, Runner
from vitprof.program import install_command
from vitprof.store import RunStore
from vitprof.store.stored_run import this_program

WAIT_FOR_STORE_S = 180.0
"""How long (s) `wait` waits for an unavailable store after a run's end: as long as a backup takes, or the restart of a
database server."""
LOOK_EVERY_S = 0.5
"""How often (s) a waiting run checks whether another program's run has ended; the end of one of this one wakes it."""


@dataclass
class _Job:
    """A run that was submitted here."""

    run_id: int
    started_by: str
    start: Callable[[Path], Runner] | None
    lock: scheduling.MachineLock
    outbox: Outbox
    waiting: bool = True
    """Whether it is in the queue. The thread that clears this, which `JobManager._turn` guards, runs it or ends it."""
    anyway: bool = False
    """Whether it waits for runs of this program only."""
    stop: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    over_s: float = math.inf
    """When it ended, on the monotonic clock (s)."""


class JobManager:
    """A queue of jobs: takes configs, runs them one after another, and records them in `store`."""

    def __init__(
        self,
        store: RunStore,
        *,
        logs: Path | None = None,
        launcher: Launcher | None = None,
        anyway: bool = False,
    ) -> None:
        """`logs`: the folder for what jobs print, by default `home.log_dir()`. `launcher` is closed with the manager.
        `anyway`: runs wait for those of this program only, and have a notice of others.
        """
        self.store, self.launcher = store, launcher or Launcher()
        self.left: dict[int, str] = {}
        """What became of data that the store had not taken when the program ended, one line for each run."""
        self._anyway = anyway
        self._logs = logs
        self._turn = threading.Condition()
        """Held where jobs and queues change; notified when a run has ended: another one's turn may have come."""
        self._jobs: dict[int, _Job] = {}
        self._queues: dict[str, queue.Queue[_Job | None]] = {}
        """Device -> its jobs; None ends the worker thread."""
        self._threads: list[threading.Thread] = []
        self._closed = False
        store.refuses = users.why_not_run
        killed_jobs.clear_orphans()
        finalise.settle_interrupted(store)

    def submit(
        self,
        config: RunConfig,
        *,
        group_key: str = "",
        role: str = "",
        start: Callable[[Path], Runner] | None = None,
    ) -> int:
        """Queues a job and returns its run id; `start` starts something other than a job of the config. Raises
        `ConfigError` before anything is stored if the config cannot work, `JobError` where PyTorch is missing.
        """
        if start is None:
            config = resolve.resolve(config)
            if not availability.installed("torch"):
                todo = install_command("dashboard")
                raise JobError(f"a job needs PyTorch, which is not installed: {todo}")
        started_by = users.who()
        store = self.store
        with self._turn:
            if self._closed:
                raise JobError("vitprof is shutting down; no job was started")
            run = store.add_run(config, group_key=group_key, role=role, started_by=started_by)
            run_id = run.id
            shares = config.share_machine
            lock = scheduling.MachineLock(run_id, config.device, shares=shares, store_url=store.url)
            job = _Job(run_id, started_by, start, lock, Outbox(store, run), anyway=self._anyway)
            self._jobs[run_id], device = job, lock.holder.device
            if device not in self._queues:
                jobs = self._queues[device] = queue.Queue()
                name = f"vitprof-worker-{device}"
                self._threads.append(
                    threading.Thread(target=self._work, args=(jobs,), name=name, daemon=True)
                )
                self._threads[-1].start()
            self._queues[device].put(job)
        return run_id

    def owns(self, run_id: int) -> bool:
        return run_id in self._jobs and not self._jobs[run_id].ended.is_set()

    def may_stop(self, run_id: int) -> bool:
        """Returns whether the current user can `stop` the run."""
        return self.owns(run_id) and users.may_stop(self._jobs[run_id].started_by)

    def stop(self, run_id: int) -> None:
        """Asks a run to stop; a queued one has stopped when this returns. Raises `JobError` for others' runs."""
        job = self._own(run_id, "stop it where it was started")
        job.stop.set()
        with self._turn:
            waiting = job.waiting
            job.waiting = False
        if waiting:
            supervisor.record_end(job.outbox, "stopped", supervisor.NOT_BEGUN)
            self._has_ended(job)

    def run_now(self, run_id: int) -> None:
        """Makes a queued run wait for this program's runs only. Raises `JobError` for others' runs."""
        job = self._own(run_id, "start it where it was queued")
        with self._turn:
            job.anyway = True
            self._turn.notify_all()

    def _own(self, run_id: int, todo: str) -> _Job:
        if run_id not in self._jobs:
            raise JobError(f"run {run_id} was not started by this vitprof; {todo}")
        users.check_may_stop(f"run {run_id}", self._jobs[run_id].started_by)
        return self._jobs[run_id]

    def wait(self, run_id: int, timeout: float | None = None) -> bool:
        """Waits at most `timeout` seconds until the run has ended and the store has all of it; returns whether that is
        so, or the store stayed unavailable (`why_away`).
        """
        until = math.inf if timeout is None else time.monotonic() + timeout
        job = self._jobs[run_id]
        if not job.ended.wait(timeout):
            return False
        give_up = job.over_s + (supervisor.LEAVE_AFTER_S if job.stop.is_set() else WAIT_FOR_STORE_S)
        return job.outbox.wait(max(min(until, give_up) - time.monotonic(), 0.0)) or give_up <= until

    def why_away(self, run_id: int) -> str:
        """Returns why the store cannot take a run's data just now; "" where it can, or has all of them."""
        return self._jobs[run_id].outbox.unavailable if run_id in self._jobs else ""

    def shutdown(self) -> None:
        """Stops every job, keeps what was measured, and ends every thread. May be called again."""
        with self._turn:
            self._closed = True
            for job in self._jobs.values():
                job.stop.set()
            for jobs in self._queues.values():
                jobs.put(None)
            self._turn.notify_all()
        for thread in self._threads:
            thread.join()
        self.launcher.close()
        until = time.monotonic() + supervisor.LEAVE_AFTER_S
        for run_id, job in self._jobs.items():
            if run_id not in self.left and not job.outbox.wait(max(until - time.monotonic(), 0.0)):
                self.left[run_id] = job.outbox.leave()

    def _work(self, jobs: queue.Queue[_Job | None]) -> None:
        while (job := jobs.get()) is not None:
            if self._await_turn(job):
                self._run(job)
                self._has_ended(job)

    def _await_turn(self, job: _Job) -> bool:
        """Waits for the runs that go first. Returns False where another thread has taken the job out of the queue."""
        reported = ""
        with self._turn:
            while job.waiting and not self._closed:
                with contextlib.suppress(StoreError):  # unavailable: the next round asks again
                    ahead = scheduling.ahead_of(self.store, job.run_id)
                    if not self._is_behind(job, ahead) and job.lock.acquire(anyway=job.anyway):
                        break
                    shares = job.lock.holder.shares
                    if (
                        ahead
                        and (reason := scheduling.why_waiting(ahead, shares=shares)) != reported
                    ):
                        self.store.update_run(job.run_id, message=reason)
                        reported = reason
                self._turn.wait(LOOK_EVERY_S)
            waiting = job.waiting
            job.waiting = False
        return waiting

    def _run(self, job: _Job) -> None:
        """Runs and records a job. Whatever goes wrong, the next job in the queue gets its turn."""
        run_id = job.run_id
        own = job.start
        logs = self._logs
        start = None if own is None else lambda: own(supervisor.log_file(run_id, logs))
        recorder = supervisor.JobRecorder(
            self.store,
            run_id,
            job.stop,
            logs=logs,
            launcher=self.launcher,
            start=start,
            lock=job.lock,
            outbox=job.outbox,
        )
        try:
            recorder.run()
        except Exception as error:
            if not isinstance(error, VitprofError):
                traceback.print_exc()
            recorder.fail(one_line(error))
        job.lock.release()
        job.start = None
        if job.outbox.wait(0):
            job.outbox.look = lambda: None  # nothing of the recorder is kept with the job
        else:
            away = f"the run store is unavailable ({job.outbox.unavailable}): what was measured waits for it"
            print(f"vitprof: run {run_id} {recorder.end}; {away}", file=sys.stderr)  # noqa: T201

    def _has_ended(self, job: _Job) -> None:
        job.over_s = time.monotonic()
        job.ended.set()
        with self._turn:
            self._turn.notify_all()

    def _is_behind(self, job: _Job, ahead: Sequence[scheduling.Ahead]) -> bool:
        """Returns whether runs of the store, of those that go `ahead`, still keep a job from its turn."""
        for run in (each.run for each in ahead if each.run is not None):
            is_over = run.id in self._jobs and self._jobs[run.id].ended.is_set()
            is_ours = (run.owner_host, run.owner_pid, run.owner_started) == this_program()
            if not is_over and (is_ours or not job.anyway):
                return True
        return False
