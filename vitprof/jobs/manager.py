"""The job manager: a queue and a worker thread for each device, which take turns (`vitprof.jobs.scheduling`).

The store and the files of the machine's lock may not answer for minutes (a database server that hangs, NFS). So no
thread uses them while it holds `JobManager._turn`: what a thread found out meanwhile counts only if the job is still in
its queue when it holds that again.
"""

import math
import sys
import threading
import time
import traceback
from collections import deque
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

STOPPED_WITHIN_S = 5.0
"""How long (s) `stop` waits for the store to take the end of a run that had not begun; it is written in any case."""
WAIT_FOR_STORE_S = 180.0
"""How long (s) `wait` waits for an unavailable store after a run's end: as long as a backup takes, or the restart of a
database server."""
QUEUE_CHECK_S = 0.5
"""How often (s) a waiting run checks whether another program's run has ended; the end of one of this one wakes it."""
KEPT_ENDED = 256
"""Runs that have ended of which the manager still knows that they were its own."""

SHUTTING_DOWN = "vitprof is shutting down; no job was started"


@dataclass
class _Job:
    """A run that was submitted here."""

    run_id: int
    started_by: str
    start: Callable[[Path], Runner] | None
    lock: scheduling.MachineLock
    outbox: Outbox
    device: str
    """The device whose queue it is in."""
    anyway: bool = False
    """Whether it waits for runs of this program only."""
    reported: str = ""
    """What the store says that it waits for."""
    telling: threading.Lock = field(default_factory=threading.Lock)
    """Held while something of a run that has not begun is given to its outbox: its end comes last."""
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
        self.unstored: dict[int, str] = {}
        """What became of data that the store had not taken when the program ended, one line for each run."""
        self._anyway = anyway
        self._logs = logs
        self._turn = threading.Condition()
        """Held where jobs and queues change, and for no longer. Notified when `_n_changes` has grown."""
        self._n_changes = 0
        """Grows where another run's turn may have come: a run is new, has ended, or need not wait."""
        self._jobs: dict[int, _Job] = {}
        self._ended: deque[int] = deque()
        """The runs that have ended, the first one first."""
        self._queues: dict[str, dict[int, _Job]] = {}
        """Device -> the jobs that wait for it, by run. The thread that takes one out runs it or ends it."""
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
        if self._closed:
            raise JobError(SHUTTING_DOWN)
        run = store.add_run(config, group_key=group_key, role=role, started_by=started_by)
        shares = config.share_machine
        lock = scheduling.MachineLock(run.id, config.device, shares=shares, store_url=store.url)
        outbox = Outbox(store, run)
        device = lock.holder.device
        job = _Job(run.id, started_by, start, lock, outbox, device, anyway=self._anyway)
        if not self._queue(job):
            supervisor.record_end(outbox, "stopped", supervisor.NOT_BEGUN, STOPPED_WITHIN_S)
            raise JobError(SHUTTING_DOWN)
        return run.id

    def _queue(self, job: _Job) -> bool:
        """Puts a job into the queue of its device. Returns False where the manager was closed meanwhile."""
        with self._turn:
            if self._closed:
                return False
            self._jobs[job.run_id] = job
            if job.device not in self._queues:
                self._queues[job.device] = {}
                name = f"vitprof-worker-{job.device}"
                worker = threading.Thread(
                    target=self._work, args=(job.device,), name=name, daemon=True
                )
                self._threads.append(worker)
                worker.start()
            self._queues[job.device][job.run_id] = job
            self._change()
            return True

    def _change(self) -> None:
        self._n_changes += 1
        self._turn.notify_all()

    def _take(self, job: _Job) -> bool:
        """Takes a job out of its queue, with `_turn` held. Returns False where another thread has done so."""
        return self._queues[job.device].pop(job.run_id, None) is not None

    def may_stop(self, run_id: int) -> bool:
        """Returns whether the current user can `stop` the run."""
        job = self._jobs.get(run_id)
        return job is not None and not job.ended.is_set() and users.may_stop(job.started_by)

    def stop(self, run_id: int) -> None:
        """Asks a run to stop; a queued one has stopped when this returns, unless the store does not answer within
        `STOPPED_WITHIN_S`: it will take that later. Raises `JobError` for others' runs.
        """
        job = self._own(run_id, "stop it where it was started")
        job.stop.set()
        with self._turn:
            waited = self._take(job)
        if waited:
            self._end_unbegun(job)
            job.outbox.wait_for_end(STOPPED_WITHIN_S)

    def _end_unbegun(self, job: _Job) -> None:
        """Ends a job that this thread has taken out of its queue."""
        with job.telling:
            supervisor.record_end(job.outbox, "stopped", supervisor.NOT_BEGUN, 0.0)
        self._has_ended(job)

    def run_now(self, run_id: int) -> None:
        """Makes a queued run wait for this program's runs only. Raises `JobError` for others' runs."""
        job = self._own(run_id, "start it where it was queued")
        with self._turn:
            job.anyway = True
            self._change()

    def _own(self, run_id: int, todo: str) -> _Job:
        job = self._jobs.get(run_id)
        if job is None:
            raise JobError(f"run {run_id} was not started by this vitprof; {todo}")
        users.check_may_stop(f"run {run_id}", job.started_by)
        return job

    def wait(self, run_id: int, timeout: float | None = None) -> bool:
        """Waits at most `timeout` seconds until the run has ended and the store has all of it; returns whether that is
        so, or the store stayed unavailable (`why_away`). True for a run that is not known any more: it had ended.
        """
        until = math.inf if timeout is None else time.monotonic() + timeout
        job = self._jobs.get(run_id)
        if job is None:
            return True
        if not job.ended.wait(timeout):
            return False
        give_up = job.over_s + (supervisor.LEAVE_AFTER_S if job.stop.is_set() else WAIT_FOR_STORE_S)
        if job.outbox.wait(max(min(until, give_up) - time.monotonic(), 0.0)):
            return True
        return job.outbox.is_gone or give_up <= until

    def why_away(self, run_id: int) -> str:
        """Returns why the store cannot take a run's data just now; "" where it can, or has all of them."""
        job = self._jobs.get(run_id)
        return "" if job is None else job.outbox.unavailable

    def shutdown(self) -> None:
        """Stops every job, keeps what was measured, and ends every thread but those that a store holds up which does
        not answer. May be called again.
        """
        with self._turn:
            self._closed = True
            jobs = list(self._jobs.values())
            for job in jobs:
                job.stop.set()
            waited = [job for job in jobs if self._take(job)]
            self._change()
        for job in waited:
            self._end_unbegun(job)
        for job in jobs:
            job.ended.wait()
        self.launcher.close()
        until = time.monotonic() + supervisor.LEAVE_AFTER_S
        for thread in self._threads:
            thread.join(max(until - time.monotonic(), 0.0))
        for job in jobs:
            run_id = job.run_id
            if run_id not in self.unstored and not job.outbox.wait(
                max(until - time.monotonic(), 0.0)
            ):
                self.unstored[run_id] = job.outbox.leave()

    def _work(self, device: str) -> None:
        while (job := self._next(device)) is not None:
            self._run(job)
            self._has_ended(job)

    def _next(self, device: str) -> _Job | None:
        """Waits for the turn of a device's next job, and takes it out of the queue. None once the manager is closed.

        The next job is that with the lowest number, even if it came later: the others wait for it.
        """
        waiting = self._queues[device]
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._closed or waiting)
                if self._closed:
                    return None
                job = waiting[min(waiting)]
                n_changes = self._n_changes
            has_turn = self._ask_for_turn(job)
            with self._turn:
                if has_turn and self._take(job):
                    return job
                if not has_turn:
                    self._wait_for_change(n_changes)
            if has_turn:  # it was stopped meanwhile
                job.lock.release()
                with self._turn:
                    self._change()

    def _wait_for_change(self, since: int) -> None:
        self._turn.wait_for(lambda: self._n_changes != since, QUEUE_CHECK_S)

    def _ask_for_turn(self, job: _Job) -> bool:
        """Returns whether a job's turn has come, and the machine is locked for it; if not, says what it waits for."""
        try:
            jobs_ahead = scheduling.ahead_of(self.store, job.run_id)
        except StoreError:  # unavailable: the next look asks again
            return False
        if not self._is_behind(job, jobs_ahead) and job.lock.acquire(anyway=job.anyway):
            return True
        if jobs_ahead:
            reason = scheduling.why_waiting(jobs_ahead, shares=job.lock.holder.shares)
            with job.telling:
                if reason != job.reported and job.run_id in self._queues[job.device]:
                    job.outbox.add(message=reason)
                    job.reported = reason
        return False

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
            job.outbox.before_write = lambda: None  # nothing of the recorder is kept with the job
        else:
            away = f"the run store is unavailable ({job.outbox.unavailable}): what was measured waits for it"
            print(f"vitprof: run {run_id} {recorder.end}; {away}", file=sys.stderr)  # noqa: T201

    def _has_ended(self, job: _Job) -> None:
        job.over_s = time.monotonic()
        job.ended.set()
        with self._turn:
            self._ended.append(job.run_id)
            self._change()
        self._forget()

    def _forget(self) -> None:
        """Forgets the runs that ended first, if there are many, and the store has all of them."""
        with self._turn:
            old = [self._ended.popleft() for _ in range(len(self._ended) - KEPT_ENDED)]
        unwritten = [run_id for run_id in old if not self._jobs[run_id].outbox.wait(0)]
        with self._turn:
            for run_id in set(old) - set(unwritten):
                del self._jobs[run_id]
            self._ended.extendleft(reversed(unwritten))

    def _is_behind(self, job: _Job, jobs_ahead: Sequence[scheduling.JobAhead]) -> bool:
        """Returns whether runs of the store, of `jobs_ahead`, still keep a job from its turn."""
        for run in (each.run for each in jobs_ahead if each.run is not None):
            known = self._jobs.get(run.id)
            is_over = known is not None and known.ended.is_set()
            is_ours = (run.owner_host, run.owner_pid, run.owner_started) == this_program()
            if not is_over and (is_ours or not job.anyway):
                return True
        return False
