"""Runs the cases one after another: those on the device in a separate process, then those that start jobs."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitprof.config import RunConfig
from vitprof.errors import DeviceError, JobStopped, VitprofError, one_line
from vitprof.home import temporary_prefix
from vitprof.jobs.launcher import command, environment
from vitprof.selftest.driver import SelftestProgress
from vitprof.selftest.gpu.case import GPU_CASES, OPENING_S, TOTAL_S, GpuCase
from vitprof.selftest.gpu.host import Host, OutOfTime
from vitprof.selftest.gpu.outcome import Outcome, not_run
from vitprof.selftest.gpu.report import GpuReport, Line, machine_facts

DEVICE = "cuda:0"
CHILD = "vitprof.selftest.gpu.child"
MOST_OPENING_S = 60.0
"""The most seconds that loading PyTorch and opening the device may take, on a slow disk."""
POLL_S = 0.1
LEAST_S = 1.0
"""Seconds that must be left for a case to be started."""
Told = Callable[[Line], None]


def run_gpu_selftest(
    script: Callable[[RunConfig], str],
    cases: Sequence[GpuCase] = GPU_CASES,
    *,
    progress: Callable[[SelftestProgress], None] = lambda progress: None,
    told: Told = lambda line: None,
    stop: Callable[[], bool] = lambda: False,
    child: Callable[[str, Sequence[str]], Sequence[str]] = lambda device, names: command(CHILD, device, *names),
    host: Callable[[Host], Host] = lambda host: host,
) -> GpuReport:
    """Runs `cases` on the first GPU within `TOTAL_S` and returns the report; calls `told` with each outcome at once.

    `script` makes the code of a strategy (`export.code.script`, which this folder must not import). A case that takes
    longer than its budget or ends its process has failed; the others still run. Once `stop()` returns true, the report
    has what was run until then. Everything is written to a temporary directory, except missing data sets, which are
    made in `VITPROF_HOME`. Tests pass other commands as `child` and another `host`.

    Raises `DeviceError` where there is no GPU that PyTorch can use, and `VitprofError` where nothing can be run.
    """
    with tempfile.TemporaryDirectory(prefix=temporary_prefix("selftest-gpu")) as directory:
        work = _Work(Path(directory), list(cases), progress, told, stop)
        try:
            work.on_device(child)
            work.with_jobs(host(Host(DEVICE, Path(directory), script, work.facts, stop)))
        except JobStopped:
            work.stopped = True
        return GpuReport(
            tuple(work.lines),
            machine_facts(work.facts),
            time.monotonic() - work.began_s,
            len(cases),
            work.stopped,
        )


@dataclass
class _Work:
    """The cases of a self-test, and their outcomes so far."""

    directory: Path
    cases: list[GpuCase]
    progress: Callable[[SelftestProgress], None]
    told: Told
    stop: Callable[[], bool]
    facts: dict[str, Any] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    stopped: bool = False
    began_s: float = field(default_factory=time.monotonic)

    def on_device(self, child: Callable[[str, Sequence[str]], Sequence[str]]) -> None:
        """Runs the cases on the device, in a new process after each that had to be ended.

        Raises `DeviceError` where there is no device, `JobStopped`.
        """
        left = [case for case in self.cases if case.on_device]
        while left or not self.facts:
            with _Child(child(DEVICE, [case.name for case in left]), self.directory / "child.log") as process:
                try:
                    self._open(process)
                except DeviceError as error:
                    if not self.facts:
                        raise
                    for case in left:  # the device was there before: one of the cases has made it unavailable
                        self._ended(case, Outcome("failed", reason=one_line(error)), time.monotonic())
                    return
                while left and process.alive:
                    case = left.pop(0)
                    if not self._in_time(case):
                        process.end()  # or it would start the case
                    else:
                        self._follow(case, process)
            while left and not self._left_s > LEAST_S:
                self._in_time(left.pop(0))

    def _open(self, process: _Child) -> None:
        """Waits for the device. Raises `DeviceError` where there is none, `JobStopped`."""
        message = self._next(process, "opening the device", time.monotonic() + MOST_OPENING_S)
        if message is None:
            raise DeviceError(f"the device could not be opened: {process.why or f'no answer in {MOST_OPENING_S:g} s'}")
        if "error" in message:
            raise DeviceError(str(message["error"]))
        self.facts = message["device"]

    def _follow(self, case: GpuCase, process: _Child) -> None:
        """Waits for a case to end, and ends its process if the case takes too long."""
        began = time.monotonic()
        ends = self._ends_s(case)
        message: dict[str, Any] | None = {}
        while message is not None and "outcome" not in message:
            message = self._next(process, case.name, ends)
        if message is not None:
            outcome = Outcome.from_dict(message["outcome"])
        elif process.alive:
            process.end()
            outcome = Outcome("failed", reason=f"it took longer than {ends - began:.0f} s")
        else:
            outcome = Outcome("failed", reason=f"its process ended: {process.why}")
        self._ended(case, outcome, began)

    def _next(self, process: _Child, words: str, ends_s: float) -> dict[str, Any] | None:
        """Returns the process's next message; None where it ends first or the time is up. Raises `JobStopped`."""
        while time.monotonic() < ends_s:
            self._tell(words)
            if self.stop():
                raise JobStopped("the selftest was stopped")
            with contextlib.suppress(queue.Empty):
                return process.said.get(timeout=POLL_S)
            if not process.alive:
                return None
        return None

    def with_jobs(self, host: Host) -> None:
        """Runs the cases that start jobs and scripts. Raises `JobStopped`."""
        with contextlib.closing(host):
            for case in self.cases:
                if case.on_device or not self._in_time(case):
                    continue
                began = time.monotonic()
                host.ends_s = self._ends_s(case)
                with _ticking(lambda name=case.name: self._tell(name)):  # type: ignore[misc]
                    outcome = _outcome(case, host, began)
                    host.ends_s = float("inf")
                    host.end_jobs()
                self._ended(case, outcome, began)

    def _ends_s(self, case: GpuCase) -> float:
        """Returns the deadline of a case that begins now, in seconds on the monotonic clock."""
        due = self.began_s + OPENING_S + sum(one.budget_s for one in self.cases[: self.cases.index(case) + 1])
        return min(max(due, time.monotonic() + case.budget_s), self.began_s + TOTAL_S)

    @property
    def _left_s(self) -> float:
        return max(0.0, self.began_s + TOTAL_S - time.monotonic())

    def _in_time(self, case: GpuCase) -> bool:
        """Returns whether there is time for a case; records a case that is left out."""
        if self._left_s > LEAST_S:
            return True
        self._ended(case, not_run(f"the time limit of {TOTAL_S / 60:g} minutes was reached"), time.monotonic())
        return False

    def _ended(self, case: GpuCase, outcome: Outcome, began_s: float) -> None:
        line = Line(case, outcome, time.monotonic() - began_s)
        self.lines.append(line)
        self.told(line)

    def _tell(self, words: str) -> None:
        done = len(self.lines)
        budgets = sum(case.budget_s for case in self.cases[done:])
        self.progress(SelftestProgress(words, done, len(self.cases), min(self._left_s, budgets)))


def _outcome(case: GpuCase, host: Host, began_s: float) -> Outcome:
    module, _, function = case.run.partition(".")
    found = importlib.import_module(f"vitprof.selftest.gpu.{module}")
    try:
        outcome: Outcome = getattr(found, function)(host)
    except JobStopped:
        raise
    except OutOfTime:
        return Outcome("failed", reason=f"it took longer than {host.ends_s - began_s:.0f} s")
    except (VitprofError, OSError) as error:
        return Outcome("failed", reason=one_line(error))
    return outcome


@contextlib.contextmanager
def _ticking(tick: Callable[[], None]) -> Iterator[None]:
    """Calls `tick` every `POLL_S` seconds, in a separate thread, until the end of the block."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(POLL_S):
            tick()

    tick()
    thread = threading.Thread(target=run, name="vitprof-selftest-tick", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class _Child:
    """The process that opens the device, in a process group of its own; its messages arrive line by line."""

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        self._log = log
        self.said: queue.Queue[dict[str, Any]] = queue.Queue()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,  # Ctrl-C reaches this process only, which then ends it
                env=environment(),
            )
        self._reader = threading.Thread(target=self._read, name="vitprof-selftest-reader", daemon=True)
        self._reader.start()

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    @property
    def alive(self) -> bool:
        """Returns whether more messages may come."""
        return self._reader.is_alive() or not self.said.empty()

    @property
    def why(self) -> str:
        """Returns how it ended, in words; "" while it is running."""
        code = self._process.poll()
        if code is None:
            return ""
        last = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        return f"exit status {code}{f', {last[0]}' if last else ''}"

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said.put(json.loads(line))

    def end(self) -> None:
        """Kills it and every process that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
