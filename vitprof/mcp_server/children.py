"""The command line in child processes: what a script prints never mixes with the protocol."""

import contextlib
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio
from anyio.abc import ByteReceiveStream, Process

import vitprof
from vitprof.parents import ENDS_WITH
from vitprof.program import STILL_RUNNING

MOST_KEPT_BYTES = 2_000_000
"""Of what a child prints the end is kept, up to this."""
PROGRESS_EVERY_S = 2.0
GRACE = ((signal.SIGINT, 15.0), (signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0))
"""Signals that end a child, each with the seconds it may take: after the first the run is summed up."""
HURRIED = ((signal.SIGTERM, 1.0), (signal.SIGKILL, 0.5))
"""The same where this server is asked to end: a client waits two seconds before it kills."""
POLL_S = 0.05

Report = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Ended:
    """A child that has ended."""

    status: int
    """Its exit status; negative for the signal that ended it."""
    out: str
    """The end of its standard output."""
    err: str
    """The end of its standard error."""

    @property
    def remarks(self) -> list[str]:
        """Returns vitprof's own lines on standard error, without its name in front, and without
        those on its progress."""
        own = "vitprof: "
        lines = self.err.splitlines()
        remarks = [line.removeprefix(own).strip() for line in lines if line.startswith(own)]
        return [remark for remark in remarks if not remark.startswith(STILL_RUNNING)]


class Children:
    """The children that run now."""

    def __init__(self) -> None:
        self._running: set[Process] = set()

    async def run(
        self, words: Sequence[str], directory: Path, report: Report | None = None
    ) -> Ended:
        """Runs vitprof's command line with these words to its end.

        `report` is called every few seconds. If the call is cancelled, the child is ended first.
        """
        process = await anyio.open_process(
            [sys.executable, "-m", vitprof.__name__, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=directory,
            env=_environment(),
            # a group of its own, which can be ended whole
            start_new_session=True,
        )
        self._running.add(process)
        out = deque[bytes]()
        err = deque[bytes]()
        try:
            async with anyio.create_task_group() as tasks:
                if report is not None:
                    tasks.start_soon(_again, report)
                async with anyio.create_task_group() as readers:
                    readers.start_soon(_keep, process.stdout, out)
                    readers.start_soon(_keep, process.stderr, err)
                    await process.wait()
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await end(process, GRACE)
            self._running.discard(process)
        assert process.returncode is not None
        return Ended(process.returncode, _text(out), _text(err))

    async def end_all(self) -> None:
        """Ends all children, in a hurry."""
        async with anyio.create_task_group() as tasks:
            for process in list(self._running):
                tasks.start_soon(end, process, HURRIED)


async def end(process: Process, steps: Sequence[tuple[signal.Signals, float]]) -> None:
    """Ends a child by one signal after another, the last one to all that it started."""
    for number, seconds in steps:
        if process.returncode is not None:
            break
        with contextlib.suppress(ProcessLookupError):
            if number == signal.SIGKILL:
                os.killpg(process.pid, number)
            else:
                # it passes them on to the script that it runs
                process.send_signal(number)
        with anyio.move_on_after(seconds):
            await process.wait()


def _environment() -> dict[str, str]:
    """Returns the variables of a child, which ends with this server, even where that is killed. A checkout is
    found from any folder, after what the user names."""
    variables = os.environ | {ENDS_WITH: str(os.getpid())}
    checkout = Path(vitprof.__file__).parents[1]
    if (checkout / "pyproject.toml").is_file():
        named = variables.get("PYTHONPATH", "").split(os.pathsep)
        paths = [path for path in named if path]
        if str(checkout) not in paths:
            paths.append(str(checkout))
        variables["PYTHONPATH"] = os.pathsep.join(paths)
    return variables


async def _again(report: Report) -> None:
    while True:
        await anyio.sleep(PROGRESS_EVERY_S)
        await report()


async def _keep(stream: ByteReceiveStream | None, kept: deque[bytes]) -> None:
    """Reads a stream to its end, and keeps the last of it."""
    if stream is None:
        return
    n_bytes = 0
    with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
        while True:
            part = await stream.receive()
            kept.append(part)
            n_bytes += len(part)
            while n_bytes - len(kept[0]) > MOST_KEPT_BYTES:
                n_bytes -= len(kept.popleft())


def _text(kept: deque[bytes]) -> str:
    return b"".join(kept).decode("utf-8", errors="replace")
