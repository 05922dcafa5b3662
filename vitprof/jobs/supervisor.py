"""Runs one job from its start to its end: takes its messages, stops it if asked, and records what it measured."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vitprof.config import RunConfig
from vitprof.config.own_script import is_own_script, with_loader
from vitprof.engine.locations import remove_copies
from vitprof.errors import StoreAwayError, one_line
from vitprof.home import ensure_dir, log_dir
from vitprof.jobs import disturbances, finalise, scheduling
from vitprof.jobs.outbox import RETRY_S, Outbox
from vitprof.jobs.runners import Launcher, Runner, start_runner
from vitprof.measure.step_columns import Columns
from vitprof.measure.wire import Message, Note
from vitprof.recording.columns import TELEMETRY_COLUMNS, Phase, Status
from vitprof.store import RunStore, chunks
from vitprof.telemetry.sampler import Telemetry

FLUSH_EVERY_S = 0.5
OWN_FLUSH_EVERY_S = 1.0
"""The same for a watched script, which trains for hours: writing takes 2 ms of CPU, however few steps there are."""
STOP_GRACE_S = 1.2
"""How long (s) a job may take to stop by itself, and to be gone after its last message. Stop is promised within 2 s,
and ending a process takes a moment too."""
WRITE_WITHIN_S = 30.0
"""How long (s) to wait for the end of a run to be written, unless the store is away; this includes summing it up."""
CREATE_WITHIN_S, LEAVE_AFTER_S = 180.0, 5.0
"""How long (s) to wait for a store that is away: when a script begins, which is watched from the start even so; and
when it has ended, as nobody should have to wait for vitprof."""
NOT_BEGUN = "stopped before it began"


def log_file(run_id: int, logs: Path | None = None) -> Path:
    """Returns the log file of a run's processes, in `logs` (default: `home.log_dir()`), and creates that folder."""
    return ensure_dir(logs or log_dir()) / f"run-{run_id}.log"


def create_run(store: RunStore, config: RunConfig, over: Callable[[], bool]) -> int:
    """Adds a run for a script that is already running, and returns its id. Waits for a store that is away: at most
    `CREATE_WITHIN_S`, and `LEAVE_AFTER_S` once the script is `over`. Raises `StoreError`.
    """
    until = time.monotonic() + CREATE_WITHIN_S
    while True:
        try:
            return store.create_run(config)
        except StoreAwayError:
            if time.monotonic() >= until:
                raise
            if over():
                until = min(until, time.monotonic() + LEAVE_AFTER_S)
        time.sleep(RETRY_S)


class JobRecorder:
    """The recorder of one job, which it runs to its end."""

    def __init__(
        self,
        store: RunStore,
        run_id: int,
        stop: threading.Event,
        clock: Callable[[], float] = time.perf_counter,
        *,
        logs: Path | None = None,
        launcher: Launcher | None = None,
        start: Callable[[], Runner] | None = None,
        lock: scheduling.MachineLock | None = None,
    ) -> None:
        """`start` starts what is to be recorded, by default the job of the run's config."""
        self._store, self._run_id, self._stop, self._clock = store, run_id, stop, clock
        self._logs, self._launcher = logs, launcher or Launcher()
        run = store.run(run_id)
        self._config = run.config
        self._disturbances, self._lock = disturbances.Disturbances(store, run_id), lock
        self.outbox = Outbox(store, run, look=self._disturbances.look_at_store, clock=clock)
        """After `run` it may hold data that the store does not have yet; `leave` ends that."""
        self._start = start or self._start_job
        self._columns: dict[str, Any] = {"facts": dict(run.facts), "environment": {}, "phases": [], "notices": []}
        self._steps: list[Columns] = []
        self._changes: dict[str, Any] = {}
        self._sampled: deque[tuple[float, ...]] = deque()
        """Telemetry samples not yet given to the outbox; the telemetry's thread appends to it."""
        self._telemetry: Telemetry | None = None
        self._end: tuple[Status, str] | None = None  # the job's last message
        self._origin: float | None = None  # when it was started first

    def run(self) -> None:
        """Starts the job and records it to its end. Raises `VitprofError` if it could not be started."""
        if self._stop.is_set():
            self.outbox.add(status="stopped", stage="", error=NOT_BEGUN)
            self.outbox.wait(WRITE_WITHIN_S, also_unavailable=True)
            return
        if self._origin is None:
            self._origin = self._clock()
        self._end = None
        self.outbox.add(status="running", stage="starting", message="", error="", t_origin_s=self._origin)
        config = self._config
        lock = self._lock or scheduling.MachineLock(
            self._run_id, scheduling.queue_of(config.device), shares=config.share_machine, store_url=self._store.url
        )
        lock.acquire(anyway=True)
        self._disturbances.lock = lock
        try:
            self._run_to_its_end(self._origin)
        finally:
            self._disturbances.lock = None
            lock.release()

    def _run_to_its_end(self, origin: float) -> None:
        runner = self._start()
        try:
            chunks.arrow()  # imported while the job starts, not at the first write, in the middle of its training
            self._follow(runner)
        finally:
            runner.kill()
            reason = runner.close()
            remove_copies()  # those of a job that was killed
            if self._telemetry is not None:
                self._telemetry.stop()
        self._flush(last=True)
        self._finish(origin, reason)
        self.outbox.wait(WRITE_WITHIN_S, also_unavailable=True)

    def fail(self, reason: str) -> None:
        self._end = "failed", reason
        self.outbox.add(status="failed", stage="", error=reason)
        self.outbox.wait(WRITE_WITHIN_S, also_unavailable=True)

    def leave(self) -> str:
        """Ends the recording. Returns a line on the data that the store does not have; "" where it has them all."""
        return "" if self.outbox.wait(LEAVE_AFTER_S) else self.outbox.leave()

    @property
    def end(self) -> str:
        """Returns how the job ended, to follow "run 3"."""
        status, error = self._end or ("stopped", "")
        return f"{status}: {error}" if error else f"is {status}"

    def _start_job(self) -> Runner:
        return start_runner(self._config, log_file(self._run_id, self._logs), self._launcher, self._stop)

    def _follow(self, runner: Runner) -> None:
        """Takes the job's messages until it ends."""
        flushed, every_s = self._clock(), OWN_FLUSH_EVERY_S if is_own_script(self._config) else FLUSH_EVERY_S
        kill_at: float | None = None
        for message in runner.messages():
            if message is not None:
                self._take(message, runner)
            now = self._clock()
            if now - flushed >= every_s:
                self._flush()
                flushed = now
            if kill_at is None and (self._end is not None or self._stop.is_set()):
                if self._end is None:
                    runner.ask_stop()
                    self._changes["stage"] = "stopping"
                kill_at = now + STOP_GRACE_S
            elif kill_at is not None and now >= kill_at:
                runner.kill()
                kill_at = now + STOP_GRACE_S

    def _take(self, message: Message, runner: Runner) -> None:
        if not isinstance(message, Note):
            self._steps.append(message)
            return
        values = message.values
        match message.kind:
            case "gauges":
                if self._telemetry is not None:
                    self._telemetry.gauges = {k: v for k, v in values.items() if k in TELEMETRY_COLUMNS}
            case "stage":
                self._changes |= {"stage": values["name"], "progress": values["fraction"]}
                self._changes["message"] = values["message"]
                if values["name"] == "training" and values["fraction"] == 0:
                    self._changes["training_since_s"] = self._clock()
            case "phase":
                self._add("phases", [Phase(**values)])
            case "notice":
                self._columns["notices"].append(values["line"])
            case "facts":
                self._add("facts", values)
            case "environment":
                self._columns["environment"] = {}
                self._add("environment", values)
                if is_own_script(self._config):
                    self._config = self._changes["config"] = with_loader(self._config, values)
                self._start_telemetry(runner.pid, values)
            case "end":
                self._end = values["status"], values["error"]
                if self._telemetry is not None:
                    self._telemetry.gauges = {}  # the job no longer updates them

    def _add(self, name: str, values: Any) -> None:
        """Adds to a column of the run, a dict or a list; it is written with the next flush."""
        self._columns[name] = self._changes[name] = (
            self._columns[name] | values if isinstance(values, dict) else self._columns[name] + values
        )

    def _start_telemetry(self, pid: int, environment: dict[str, Any]) -> None:
        self._disturbances.new_telemetry(self._telemetry)
        self._telemetry = Telemetry(
            pid=pid,
            trains=environment.get("pid"),
            device=environment.get("device", self._config.device),
            gpu_uuid=environment.get("gpu_uuid"),
            hz=self._config.telemetry_hz,
            sink=self._sampled.extend,
            clock=self._clock,
        )
        self._telemetry.start()

    def _flush(self, *, last: bool = False) -> None:
        steps, self._steps = self._steps, []
        if facts := self._disturbances.look(steps, self._telemetry, last=last):
            self._add("facts", facts)
        sampled = [self._sampled.popleft() for _ in range(len(self._sampled))]
        notices = self._columns["notices"] + self._disturbances.notices
        if self._telemetry is not None:
            notices += self._telemetry.notices
            if not self._telemetry.facts.items() <= self._columns["environment"].items():
                self._add("environment", self._telemetry.facts)
            if self._telemetry.error is not None:
                notices.append(f"telemetry ended early: {one_line(self._telemetry.error)}")
        if notices:
            self._changes["notices"] = notices
        changes, self._changes = self._changes, {}
        self.outbox.add(steps, sampled, **changes)

    def _finish(self, origin: float, reason: str) -> None:
        self._end = status, error = self._end or (("stopped", "") if self._stop.is_set() else ("failed", reason))
        ended = self._clock()

        def settled() -> dict[str, Any]:
            self._disturbances.look_again()
            return finalise.settle(self._store, self._run_id, origin, ended)

        columns = {"status": status, "stage": "", "progress": None, "message": "", "error": error}
        self.outbox.finish(settled, t_end_s=ended, **columns)
