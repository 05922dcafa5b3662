"""One job from the queue to its end: start it, take its messages, stop it if asked, record what it measured."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from vitprof.config.own_script import is_own_script, with_loader
from vitprof.engine.locations import remove_copies
from vitprof.engine.protocol import Message, Note
from vitprof.errors import StoreError, one_line
from vitprof.home import ensure_dir, log_dir
from vitprof.jobs.launcher import Launcher
from vitprof.jobs.runners import Runner, start_runner
from vitprof.jobs.settling import settle
from vitprof.jobs.turns import device_of, running_beside
from vitprof.records import TELEMETRY_COLUMNS, Phase, Status
from vitprof.store import RunStore
from vitprof.telemetry import Telemetry

FLUSH_EVERY_S = 0.5
STOP_GRACE_S = 1.2
"""How long a job may take to stop by itself, and to be gone after its last message. Stop is promised within 2 s, and
ending a process takes a moment too."""
STORE_GRACE_S = 5.0
"""How long the store may fail before a job is given up."""
NOT_BEGUN = "stopped before it began"


def log_file(run_id: int, logs: Path | None = None) -> Path:
    """Returns the file for what a run's processes print, in `logs` (`home.log_dir()` if not given), which is made."""
    return ensure_dir(logs or log_dir()) / f"run-{run_id}.log"


class JobRecorder:
    """Runs one job to its end and records it."""

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
    ) -> None:
        """`start` starts what is to be recorded; by default the job that the run's config asks for."""
        self._store, self._run_id, self._stop, self._clock = store, run_id, stop, clock
        self._logs, self._launcher = logs, launcher or Launcher()
        run = store.run(run_id)
        self._config = run.config
        self._start = start or self._start_job
        self._facts: dict[str, Any] = dict(run.facts)
        self._environment: dict[str, Any] = {}
        self._notices: list[str] = []
        self._phases: list[Phase] = []
        self._rows: list[np.ndarray[Any, np.dtype[np.float64]]] = []
        self._changes: dict[str, Any] = {}
        self._beside: set[int] = set()
        self._sampled: deque[tuple[float, ...]] = deque()
        """Telemetry that is not stored yet; its thread appends."""
        self._samples = 0
        """Telemetry that is stored."""
        self._telemetry: Telemetry | None = None
        self._end: tuple[Status, str] | None = None  # the job's last message
        self._origin: float | None = None  # when it was started first
        self._failing_since: float | None = None  # the store, that is

    def run(self) -> None:
        """The whole life of the job. Raises `VitprofError` if it could not even be started.

        May be called again where a job goes on after its end: it is recorded into the same run.
        """
        if self._stop.is_set():
            self._store.update_run(self._run_id, status="stopped", stage="", error=NOT_BEGUN)
            return
        if self._origin is None:
            self._origin = self._clock()
        self._end = None
        self._store.update_run(
            self._run_id, status="running", stage="starting", message="", error="", t_origin_s=self._origin
        )
        runner = self._start()
        try:
            self._follow(runner)
        finally:
            runner.kill()
            why = runner.close()
            remove_copies()  # of a job that had no time to do so itself
            if self._telemetry is not None:
                self._telemetry.stop()
        try:
            self._flush()
            self._finish(self._origin, why)
        except StoreError as error:
            if self._end is not None and self._end[1]:  # what ended the job matters more: a full disk fails both
                raise StoreError(f"{self._end[1]} (and it could not be recorded: {one_line(error)})") from error
            raise

    def _start_job(self) -> Runner:
        return start_runner(self._config, log_file(self._run_id, self._logs), self._launcher, self._stop)

    def _follow(self, runner: Runner) -> None:
        """Takes the job's messages until it ends; pass on a wish to stop, and enforce it and the end."""
        flushed = self._clock()
        kill_at: float | None = None
        for message in runner.messages():
            if message is not None:
                self._take(message, runner)
            now = self._clock()
            if now - flushed >= FLUSH_EVERY_S:
                self._try_to_flush(now)
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
            self._rows.append(message)
            return
        values = message.values
        match message.kind:
            case "gauges":
                if self._telemetry is not None:
                    self._telemetry.gauges = {k: v for k, v in values.items() if k in TELEMETRY_COLUMNS}
            case "stage":
                self._changes |= {
                    "stage": values["name"],
                    "progress": values["fraction"],
                    "message": values["message"],
                }
                if values["name"] == "training" and values["fraction"] == 0:
                    self._changes["training_since_s"] = self._clock()
            case "phase":
                self._phases.append(Phase(**values))
                self._changes["phases"] = self._phases
            case "notice":
                self._notices.append(values["line"])
            case "facts":
                self._facts |= values
                self._changes["facts"] = self._facts
            case "environment":
                self._environment = values
                self._changes["environment"] = values
                if is_own_script(self._config):
                    self._config = self._changes["config"] = with_loader(self._config, values)
                self._start_telemetry(runner.pid, values)
            case "end":
                self._end = values["status"], values["error"]
                if self._telemetry is not None:
                    self._telemetry.gauges = {}  # nobody tells any more

    def _start_telemetry(self, pid: int, environment: dict[str, Any]) -> None:
        self._telemetry = Telemetry(
            pid=pid,
            device=environment.get("device", self._config.device),
            gpu_uuid=environment.get("gpu_uuid"),
            hz=self._config.telemetry_hz,
            sink=self._sampled.extend,
            clock=self._clock,
        )
        self._telemetry.start()

    def _try_to_flush(self, now: float) -> None:
        """Flushes; a store that fails is tried again for a while: the job may be about to say why."""
        try:
            self._flush()
            self._failing_since = None
        except StoreError:
            self._failing_since = now if self._failing_since is None else self._failing_since
            if now - self._failing_since > STORE_GRACE_S:
                raise

    def _flush(self) -> None:
        """Writes what has come in since the last time: at least twice a second, so that a kill loses little."""
        self._look_beside()
        if self._rows:
            self._store.append_steps(self._run_id, np.concatenate(self._rows).tolist())
            self._rows.clear()
        if sampled := list(self._sampled):
            self._store.append_telemetry(self._run_id, self._samples, sampled)
            self._samples += len(sampled)
            for _ in sampled:
                self._sampled.popleft()
        notices = list(self._notices)
        if self._telemetry is not None:
            notices += self._telemetry.notices
            if not self._telemetry.facts.items() <= self._environment.items():
                self._environment |= self._telemetry.facts
                self._changes["environment"] = self._environment
            if self._telemetry.error is not None:
                notices.append(f"telemetry ended early: {one_line(self._telemetry.error)}")
        if notices:
            self._changes["notices"] = notices
        if self._changes:
            self._store.update_run(self._run_id, **self._changes)
            self._changes.clear()

    def _look_beside(self) -> None:
        """Takes note of other runs on this machine that are running now."""
        for other in running_beside(self._store, self._run_id):
            if other.id in self._beside:
                continue
            self._beside.add(other.id)
            self._facts["n_beside"] = len(self._beside)
            self._changes["facts"] = self._facts
            self._notices.append(
                f"run {other.id} on {device_of(other)} ({other.name}) ran at the same time: they shared CPU and disk, "
                "so loading may be slower here than in a run alone"
            )

    def _finish(self, origin: float, why: str) -> None:
        """Settles status and summary."""
        without_a_word: tuple[Status, str] = ("stopped", "") if self._stop.is_set() else ("failed", why)
        status, error = self._end or without_a_word
        settled = settle(self._store, self._run_id, origin, self._clock())
        self._store.update_run(self._run_id, status=status, stage="", progress=None, message="", error=error, **settled)
