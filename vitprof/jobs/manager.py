"""The job manager: a queue and a worker thread for each device, which take turns (`vitprof.jobs.scheduling`)."""

from __future__ import annotations

import math
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vitprof.config import RunConfig, availability, resolve
from vitprof.errors import JobError, StoreAwayError, StoreError, VitprofError, one_line
from vitprof.jobs import finalise, killed_jobs, scheduling, supervisor, users
from vitprof.jobs.outbox import Outbox
from vitprof.jobs.runners import Launcher, Runner
from vitprof.program import install_command
from vitprof.recording.columns import Status
from vitprof.store import RunStore
from vitprof.store.stored_run import this_program

RETRY_S = 5.0
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
    waiting: bool = True
    """Whether it is in the queue. The thread that clears this, which `JobManager._turn` guards, runs it or ends it."""
    anyway: bool = False
    """Whether it waits for runs of this program only."""
    stop: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    lock: scheduling.MachineLock | None = None
    outbox: Outbox | None = None
    """That of a run that has begun, until the store has all of it."""
    over_s: float = math.inf
    """When it ended, on the monotonic clock (s)."""
    unrecorded: tuple[Status, str] | None = None
    """Status and error of a run that ended without a recorder, until the store has them."""


class JobManager:
    """A queue of jobs: takes configs, runs them one after another, and records them in `store`."""

    def __init__(
        self, store: RunStore, *, logs: Path | None = None, launcher: Launcher | None = None, anyway: bool = False
    ) -> None:
        """`logs`: the folder for what jobs print, by default `home.log_dir()`. `launcher` is closed with the manager.
        `anyway`: runs wait for those of this program only, and have a notice of others.
        """
        self.store, self.launcher = store, launcher or Launcher()
        self.left: dict[int, str] = {}
        """What became of data that the store had not taken when the program ended, one line for each run."""
        self._anyway, self._logs = anyway, logs
        self._turn = threading.Condition()
        """Held where jobs and queues change; notified when a run has ended: another one's turn may have come."""
        self._jobs: dict[int, _Job] = {}
        self._queues: dict[str, queue.Queue[_Job | None]] = {}
        """Device -> its jobs; None ends the worker thread."""
        self._threads: list[threading.Thread] = []
        self._closed = False
        killed_jobs.clear_orphans()
        finalise.settle_interrupted(store)

    def submit(
        self, config: RunConfig, *, group_key: str = "", role: str = "", start: Callable[[Path], Runner] | None = None
    ) -> int:
        """Queues a job and returns its run id; `start` starts something other than a job of the config. Raises
        `ConfigError` before anything is stored if the config cannot work, `JobError` where PyTorch is missing.
        """
        if start is None:
            config = resolve.resolve(config)
            if not availability.installed("torch"):
                todo = install_command("dashboard")
                raise JobError(f"a job needs PyTorch, which is not installed: {todo}")
        self._record_ends()
        device, started_by = scheduling.queue_of(config.device), users.who()
        with self._turn:
            if self._closed:
                raise JobError("vitprof is shutting down; no job was started")
            run_id = self.store.create_run(config, group_key=group_key, role=role, started_by=started_by)
            job = self._jobs[run_id] = _Job(run_id, started_by, start, anyway=self._anyway)
            if device not in self._queues:
                jobs = self._queues[device] = queue.Queue()
                name = f"vitprof-worker-{device}"
                self._threads.append(threading.Thread(target=self._work, args=(jobs,), name=name, daemon=True))
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
            waiting, job.waiting = job.waiting, False
        if waiting:
            job.unrecorded = "stopped", supervisor.NOT_BEGUN
            self._has_ended(job)
            self._record_ends()

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
        until, job = math.inf if timeout is None else time.monotonic() + timeout, self._jobs[run_id]
        if not job.ended.wait(timeout):
            return False
        give_up = job.over_s + (supervisor.LEAVE_AFTER_S if job.stop.is_set() else WAIT_FOR_STORE_S)
        while (outbox := job.outbox) is not None and not outbox.wait(0):
            now = time.monotonic()
            if now >= give_up:
                return True
            if now >= until:
                return False
            outbox.wait(min(until, give_up, now + LOOK_EVERY_S) - now)
        return True

    def why_away(self, run_id: int) -> str:
        """Returns why the store cannot take a run's data just now; "" where it can, or has all of them."""
        job = self._jobs.get(run_id)
        if job is not None and job.unrecorded is not None:
            return "it could not be written when the run ended"
        return "" if job is None or job.outbox is None else job.outbox.unavailable

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
        self._record_ends()
        until = time.monotonic() + supervisor.LEAVE_AFTER_S
        for job in self._jobs.values():
            if job.outbox is not None and not job.outbox.wait(max(until - time.monotonic(), 0.0)):
                self.left[job.run_id] = job.outbox.leave()
            job.outbox = None

    def _work(self, jobs: queue.Queue[_Job | None]) -> None:
        while True:
            unrecorded = any(job.unrecorded for job in list(self._jobs.values()))
            try:
                job = jobs.get(timeout=RETRY_S if unrecorded else None)
            except queue.Empty:
                self._record_ends()
                continue
            if job is None:
                return
            if not self._await_turn(job):
                continue
            try:
                self._run(job)
            except Exception as error:  # whatever it is, the next job in the queue must get its turn
                if not isinstance(error, VitprofError):
                    traceback.print_exc()
                job.unrecorded = "failed", one_line(error)
            if job.lock is not None:
                job.lock.release()
            self._has_ended(job)
            self._record_ends()

    def _await_turn(self, job: _Job) -> bool:
        """Waits for the runs that go first. Returns False where another thread has taken the job out of the queue."""
        reported = ""
        with self._turn:
            while job.waiting and not self._closed:
                try:
                    (mine,) = (run for run in self.store.live_runs() if run.id == job.run_id)
                    device, shares = scheduling.queue_of(mine.device), mine.share_machine
                    lock = scheduling.MachineLock(mine.id, device, shares=shares, store_url=self.store.url)
                    if not _is_behind(job, self.store, self._jobs) and lock.acquire(anyway=job.anyway):
                        job.lock = lock
                        break
                    ahead = scheduling.ahead_of(self.store, mine.id)
                    if ahead and (reason := scheduling.why_waiting(ahead, shares=shares)) != reported:
                        self.store.update_run(mine.id, message=reason)
                        reported = reason
                except (StoreError, ValueError):
                    pass  # unavailable, or the run was deleted: the next round asks again
                self._turn.wait(LOOK_EVERY_S)
            waiting, job.waiting = job.waiting, False
        return waiting

    def _run(self, job: _Job) -> None:
        """Runs and records a job. Waits for an unavailable store, until the job is stopped. Raises `StoreError`."""
        store, run_id, own, logs = self.store, job.run_id, job.start, self._logs
        start = None if own is None else lambda: own(supervisor.log_file(run_id, logs))
        while True:
            try:
                recorder = supervisor.JobRecorder(
                    store, run_id, job.stop, logs=logs, launcher=self.launcher, start=start, lock=job.lock
                )
                break
            except StoreAwayError:
                if job.stop.wait(LOOK_EVERY_S):
                    raise
        job.outbox = recorder.outbox
        try:
            recorder.run()
        except Exception as error:
            if not isinstance(error, VitprofError):
                traceback.print_exc()
            recorder.fail(one_line(error))
        job.start, job.over_s = None, time.monotonic()
        if recorder.outbox.wait(0):
            job.outbox = None
        else:
            away = f"the run store is unavailable ({recorder.outbox.unavailable}): what was measured waits for it"
            print(f"vitprof: run {run_id} {recorder.end}; {away}", file=sys.stderr)  # noqa: T201

    def _has_ended(self, job: _Job) -> None:
        job.ended.set()
        with self._turn:
            self._turn.notify_all()

    def _record_ends(self) -> None:
        """Records the ends of runs that have no recorder; without this they would stay queued forever."""
        for job in list(self._jobs.values()):
            if job.unrecorded is not None:
                status, error = job.unrecorded
                try:
                    self.store.update_run(job.run_id, status=status, stage="", message="", error=error)
                except StoreError:
                    return
                job.unrecorded = None


def _is_behind(job: _Job, store: RunStore, jobs: Mapping[int, _Job]) -> bool:
    """Returns whether runs of its store go before a job; `jobs`: those of this program. Raises `StoreError`."""
    for run in scheduling.ahead_in_store(store, job.run_id):
        is_over = run.id in jobs and jobs[run.id].ended.is_set()
        is_ours = (run.owner_host, run.owner_pid, run.owner_started) == this_program()
        if not is_over and (is_ours or not job.anyway):
            return True
    return False
