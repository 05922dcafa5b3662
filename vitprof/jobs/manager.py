"""The job manager: a queue and a worker thread for each device, which take turns (`vitprof.jobs.scheduling`).

One manager serves a whole process: the dashboard's sessions share one, a command makes its own. It writes everything
it knows about a run to the store, so that readers need only the store.
"""

from __future__ import annotations

import math
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from vitprof.config import RunConfig
from vitprof.config.availability import installed
from vitprof.config.resolve import resolve
from vitprof.errors import JobError, StoreAwayError, StoreError, VitprofError, one_line
from vitprof.jobs.finalise import settle_interrupted
from vitprof.jobs.launcher import Launcher
from vitprof.jobs.machine_lock import MachineLock
from vitprof.jobs.orphans import clear_orphans
from vitprof.jobs.outbox import Outbox
from vitprof.jobs.runners import Runner
from vitprof.jobs.scheduling import ahead_in_store, ahead_of, queue_of, why_waiting
from vitprof.jobs.supervisor import LEAVE_AFTER_S, NOT_BEGUN, JobRecorder, log_file
from vitprof.jobs.users import check_may_stop, may_stop, who
from vitprof.program import install_command
from vitprof.recording.columns import Status
from vitprof.store import LiveRun, RunStore
from vitprof.store.owner import this_program

STOP = None
"""The item in a queue that ends its worker thread."""
RETRY_S = 5.0
"""Time (s) between two tries to record that a run was stopped before it began, while the store is away."""
WAIT_FOR_STORE_S = 180.0
"""How long (s) `wait` waits for the store after a run's end while the store is away: as long as a backup takes, or the
restart of a database server."""
LOOK_EVERY_S = 0.5
"""How often (s) a waiting run checks whether another program's run has ended; the end of one of this program wakes
it."""


class JobManager:
    """A queue of jobs: takes configs, runs them one after another, and records them in `store`.

    Jobs with `share_machine` run beside those on other devices that have it too.

    What a job's process prints goes to a file of its own in `logs`, by default `home.log_dir()`. `launcher` starts the
    processes and is closed with the manager; the default one keeps no warm process.
    """

    def __init__(
        self, store: RunStore, *, logs: Path | None = None, launcher: Launcher | None = None, anyway: bool = False
    ) -> None:
        """`anyway`: runs wait for those of this program only; a run has a notice of others that ran meanwhile."""
        self.store = store
        self._anyway = anyway
        self._run_now: set[int] = set()
        """Runs that the user wants to begin whatever other programs do."""
        self._logs, self.launcher = logs, launcher or Launcher()
        self._lock = threading.Lock()
        self._turn = threading.Condition(self._lock)
        """Notified when a run has ended: another one's turn may have come."""
        self._queues: dict[str, queue.Queue[int | None]] = {}
        self._threads: list[threading.Thread] = []
        self._waiting: set[int] = set()
        self._stops: dict[int, threading.Event] = {}
        self._starts: dict[int, Callable[[Path], Runner]] = {}
        self._unsaid: dict[int, tuple[Status, str]] = {}
        """Status and error of runs that ended without a recorder, until the store has them."""
        self._outboxes: dict[int, Outbox] = {}
        """Outboxes of running runs, and of ended ones that the store may not have all of."""
        self._over_s: dict[int, float] = {}
        """When such a run ended, on the monotonic clock (s)."""
        self.left: dict[int, str] = {}
        """What became of data that the store had not taken when the program ended, one line for each run."""
        self._ended: dict[int, threading.Event] = {}
        self._started_by: dict[int, str] = {}
        self._closed = False
        clear_orphans()
        settle_interrupted(store)

    def submit(
        self, config: RunConfig, *, group_key: str = "", role: str = "", start: Callable[[Path], Runner] | None = None
    ) -> int:
        """Queues a job and returns its run id. Raises `ConfigError` before anything is stored if the config cannot
        work, `JobError` where PyTorch is missing or after `shutdown`.

        Runs that belong together share a `group_key` and have a `role` in it. `start`, if given, starts something other
        than a job of the config, such as a user's own script, when its turn has come; its argument is the log file.
        """
        if start is None:
            config = resolve(config)
            if not installed("torch"):
                todo = install_command("dashboard")
                raise JobError(f"a job needs PyTorch, which is not installed: {todo}")
        self._say_the_unsaid()
        device, started_by = queue_of(config.device), who()
        with self._lock:
            if self._closed:
                raise JobError("vitprof is shutting down; no job was started")
            run_id = self.store.create_run(config, group_key=group_key, role=role, started_by=started_by)
            self._started_by[run_id] = started_by
            self._stops[run_id] = threading.Event()
            self._ended[run_id] = threading.Event()
            if start is not None:
                self._starts[run_id] = start
            if device not in self._queues:
                self._start_worker(device)
            self._waiting.add(run_id)
            self._queues[device].put(run_id)
        return run_id

    def _start_worker(self, device: str) -> None:
        jobs: queue.Queue[int | None] = queue.Queue()
        thread = threading.Thread(target=self._work, args=(jobs,), name=f"vitprof-worker-{device}", daemon=True)
        self._queues[device] = jobs
        self._threads.append(thread)
        thread.start()

    def owns(self, run_id: int) -> bool:
        """Returns whether the run was submitted here and has not ended."""
        return run_id in self._ended and not self._ended[run_id].is_set()

    def may_stop(self, run_id: int) -> bool:
        """Returns whether the current user can `stop` the run."""
        return self.owns(run_id) and may_stop(self._started_by[run_id])

    def stop(self, run_id: int) -> None:
        """Asks a run to stop. A run that is still queued has stopped when this returns; `wait` for one that is running.

        Raises `JobError` where it was not started here, or was started by another user of the dashboard.
        """
        if run_id not in self._stops:
            raise JobError(f"run {run_id} was not started by this vitprof; stop it where it was started")
        check_may_stop(f"run {run_id}", self._started_by[run_id])
        self._stops[run_id].set()
        if self._claim(run_id):
            self._end_unbegun(run_id, "stopped", NOT_BEGUN)

    def _end_unbegun(self, run_id: int, status: Status, error: str) -> None:
        self._unsaid[run_id] = status, error
        self._has_ended(run_id)
        self._say_the_unsaid()

    def run_now(self, run_id: int) -> None:
        """Makes a queued run wait for this program's runs only, as with `anyway`. Raises `JobError` where it was not
        started here, or the current user may not stop it.
        """
        if run_id not in self._stops:
            raise JobError(f"run {run_id} was not started by this vitprof; start it where it was queued")
        check_may_stop(f"run {run_id}", self._started_by[run_id])
        with self._turn:
            self._run_now.add(run_id)
            self._turn.notify_all()

    def _claim(self, run_id: int) -> bool:
        """Takes a run out of the queue, to run it or to end it; returns False if another thread already has."""
        with self._lock:
            waiting = run_id in self._waiting
            self._waiting.discard(run_id)
        return waiting

    def _has_ended(self, run_id: int) -> None:
        self._ended[run_id].set()
        with self._turn:
            self._turn.notify_all()

    def wait(self, run_id: int, timeout: float | None = None) -> bool:
        """Waits until the run has ended and the store has all of it, for at most `timeout` seconds; returns whether
        that is so.

        Also returns True where the store is still away `WAIT_FOR_STORE_S` after the run's end, or `LEAVE_AFTER_S` after
        that of a run that was stopped; see `why_away`.
        """
        until = math.inf if timeout is None else time.monotonic() + timeout
        if not self._ended[run_id].wait(timeout):
            return False
        while (outbox := self._outboxes.get(run_id)) is not None and not outbox.wait(0):
            now = time.monotonic()
            patience_s = LEAVE_AFTER_S if self._stops[run_id].is_set() else WAIT_FOR_STORE_S
            give_up = self._over_s[run_id] + patience_s
            if now >= give_up:
                return True
            if now >= until:
                return False
            outbox.wait(min(until, give_up, now + LOOK_EVERY_S) - now)
        return True

    def why_away(self, run_id: int) -> str:
        """Returns why the store cannot take a run's data just now; "" where it can, or has all of them."""
        if run_id in self._unsaid:
            return "it could not be written when the run ended"
        outbox = self._outboxes.get(run_id)
        return "" if outbox is None else outbox.unavailable

    def shutdown(self) -> None:
        """Stops every job, keeps what was measured, and ends every thread. May be called again."""
        with self._lock:
            self._closed = True
            for stop in self._stops.values():
                stop.set()
            for jobs in self._queues.values():
                jobs.put(STOP)
            self._turn.notify_all()
        for thread in self._threads:
            thread.join()
        self.launcher.close()
        self._say_the_unsaid()
        until = time.monotonic() + LEAVE_AFTER_S
        while self._outboxes:
            run_id, outbox = self._outboxes.popitem()
            if not outbox.wait(max(until - time.monotonic(), 0.0)):
                self.left[run_id] = outbox.leave()

    def _work(self, jobs: queue.Queue[int | None]) -> None:
        while (run_id := self._next(jobs)) is not STOP:
            lock = self._await_turn(run_id)
            if not self._claim(run_id):
                if lock is not None:
                    lock.release()
                continue
            try:
                self._record(run_id, lock)
            except Exception as error:  # whatever it is, the next job in the queue must get its turn
                if not isinstance(error, VitprofError):
                    traceback.print_exc()
                self._unsaid[run_id] = "failed", one_line(error)
                self._say_the_unsaid()
            finally:
                if lock is not None:
                    lock.release()
                self._has_ended(run_id)

    def _await_turn(self, run_id: int) -> MachineLock | None:
        """Waits for the runs that go first, and reports them in the store, as long as the run is queued. Returns the
        lock that it holds in its turn; None where it left the queue.
        """
        reported = ""
        with self._turn:
            while run_id in self._waiting and not self._closed:
                try:
                    mine = self._live(run_id)
                    lock = MachineLock(
                        run_id, queue_of(mine.device), shares=mine.share_machine, store_url=self.store.url
                    )
                    if not self._ahead_here(run_id) and lock.acquire(anyway=self._is_anyway(run_id)):
                        return lock
                    ahead = ahead_of(self.store, run_id)
                    if ahead and (reason := why_waiting(ahead, shares=mine.share_machine)) != reported:
                        self.store.update_run(run_id, message=reason)
                        reported = reason
                except StoreError:
                    pass  # whether a run is ahead is not known: the next round asks again
                self._turn.wait(LOOK_EVERY_S)
        return None

    def _is_anyway(self, run_id: int) -> bool:
        return self._anyway or run_id in self._run_now

    def _ahead_here(self, run_id: int) -> list[LiveRun]:
        """Returns the runs of this store that the run waits for."""
        ahead = [run for run in ahead_in_store(self.store, run_id) if not self._is_over(run.id)]
        if not self._is_anyway(run_id):
            return ahead
        return [run for run in ahead if (run.owner_host, run.owner_pid, run.owner_started) == this_program()]

    def _live(self, run_id: int) -> LiveRun:
        """Returns the run as other programs see it. Raises `StoreError`, also where it was deleted meanwhile."""
        for run in self.store.live_runs():
            if run.id == run_id:
                return run
        raise StoreError(f"run {run_id} is not waiting or running")

    def _is_over(self, run_id: int) -> bool:
        """Returns whether the run was one of this manager's and has ended; the store may not have its end yet."""
        return run_id in self._ended and self._ended[run_id].is_set()

    def _record(self, run_id: int, lock: MachineLock | None) -> None:
        stop, own = self._stops[run_id], self._starts.pop(run_id, None)
        start = None if own is None else lambda: own(log_file(run_id, self._logs))
        recorder = self._recorder(run_id, stop, start, lock)
        self._outboxes[run_id] = outbox = recorder.outbox
        try:
            recorder.run()
        except Exception as error:
            if not isinstance(error, VitprofError):
                traceback.print_exc()
            recorder.fail(one_line(error))
        self._over_s[run_id] = time.monotonic()
        if outbox.wait(0):
            del self._outboxes[run_id]
        else:
            away = f"the run store is unavailable ({outbox.unavailable}): what was measured waits for it"
            print(f"vitprof: run {run_id} {recorder.end}; {away}", file=sys.stderr)  # noqa: T201

    def _recorder(
        self, run_id: int, stop: threading.Event, start: Callable[[], Runner] | None, lock: MachineLock | None
    ) -> JobRecorder:
        """Returns the recorder of a run; waits for a store that is away, until `stop` is set. Raises `StoreError`."""
        while True:
            try:
                return JobRecorder(
                    self.store, run_id, stop, logs=self._logs, launcher=self.launcher, start=start, lock=lock
                )
            except StoreAwayError:
                if stop.wait(LOOK_EVERY_S):
                    raise

    def _next(self, jobs: queue.Queue[int | None]) -> int | None:
        """Returns the next run in the queue, or `STOP`. Meanwhile tries to record what the store could not take."""
        while self._unsaid:
            try:
                return jobs.get(timeout=RETRY_S)
            except queue.Empty:
                self._say_the_unsaid()
        return jobs.get()

    def _say_the_unsaid(self) -> None:
        """Records the ends of runs that have no recorder; without this they would stay queued forever."""
        for run_id, (status, error) in list(self._unsaid.items()):
            try:
                self.store.update_run(run_id, status=status, stage="", message="", error=error)
            except StoreError:
                return
            self._unsaid.pop(run_id, None)
