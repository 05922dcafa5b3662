"""A look at a data set in a process of its own, within bounds of time and memory.

See `vitprof.confined`: LMDB maps a damaged file into memory, and on a page the process would be the
dashboard's. What was looked at once is known by its size and time (`specs.stamp_of_library_files`).
"""

import io
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from vitprof import confined
from vitprof.datasets.own import specs
from vitprof.datasets.own.registry import LookReport, OwnSet
from vitprof.errors import ConfigError, JobStopped
from vitprof.forms import FORMS

MOST_CPU_S = 60.0
"""CPU time without a sample that is listed or opened. A slow network drive takes none."""
MOST_WAIT_S = 600.0
"""Time without a report, of a network drive that does not answer."""
REPORT_EVERY_S = 0.2
MOST_BYTES = 1 << 30
"""Memory for the libraries, in addition to the contents of the files."""
BYTES_A_BYTE = 8
"""Memory for each byte of the files: lists of labels are larger than the labels in a file."""
LIBRARY_BYTES = 4 << 30
"""Memory for PyTorch and Hugging Face's packages, whose own data are counted, too."""
SHARE_OF_A_FOLDER = 0.5
"""Of the free memory, for class folders and tables of paths: how many files these name is not known
before they are listed."""
Progress = Callable[[float, str], object]


def look(
    name: str,
    text: str,
    *,
    full: bool = False,
    allowed: Sequence[Path] | None = None,
    progress: Progress = lambda done, words: None,
    stop: Callable[[], bool] = lambda: False,
) -> LookReport:
    """Does what `look.look` does, in another process. Raises `ConfigError` and `JobStopped`.

    Code of the user's runs here, as elsewhere, and so does what is read from a network.
    """
    spec = specs.parse(text)
    if spec.kind == "python" or specs.is_remote(spec.path):
        # Pillow comes with it.
        from vitprof.datasets.own import look as here

        return here.look(name, text, full=full, allowed=allowed, progress=progress, stop=stop)
    below = None if allowed is None else [str(path) for path in allowed]
    request = json.dumps({"name": name, "text": text, "full": full, "allowed": below})
    with TemporaryFile() as asked:
        asked.write(request.encode())
        asked.seek(0)
        child = confined.start(__name__, asked, subprocess.PIPE)
    with child:
        try:
            return _result(text, child, progress, stop)
        finally:
            child.kill()


def _result(
    text: str, child: subprocess.Popen[bytes], progress: Progress, stop: Callable[[], bool]
) -> LookReport:
    for kind, *values in _messages(text, child, stop):
        if kind == "progress":
            progress(*values)
        elif kind == "refused":
            raise ConfigError(*values)
        elif kind == "missing":
            message, name = values
            raise ModuleNotFoundError(message, name=name)
        elif kind == "found":
            found = values[0]
            found["own"] = OwnSet(**found["own"])
            for name in ("widths", "unreadable", "notes"):
                found[name] = tuple(found[name])
            return LookReport(**found)
    status = child.wait()
    raise specs.wrong(text, _ended(status))


def _messages(
    text: str, child: subprocess.Popen[bytes], stop: Callable[[], bool]
) -> Iterator[list[Any]]:
    """Yields what the child says, to its end."""
    assert child.stdout is not None
    descriptor = child.stdout.fileno()
    # Not select: a dashboard may have more descriptors than it takes.
    said = select.poll()
    said.register(descriptor, select.POLLIN)
    pending = b""
    last_message_s = time.monotonic()
    while True:
        if stop():
            raise JobStopped("stopped while looking at the data set")
        if said.poll(1000 * REPORT_EVERY_S):
            data = os.read(descriptor, 1 << 16)
            if not data:
                return
            last_message_s = time.monotonic()
            *lines, pending = (pending + data).split(b"\n")
            yield from map(json.loads, lines)
        elif time.monotonic() - last_message_s > MOST_WAIT_S:
            raise specs.wrong(text, f"nothing could be read of it for {MOST_WAIT_S:,.0f} s")


def _ended(status: int) -> str:
    """Returns why a process gave no answer."""
    if status == confined.ENDED_BY_CPU_TIME:
        return f"{MOST_CPU_S:.0f} s of work gave no sample; it may be damaged"
    return confined.why_ended(status)


# in the other process


def main() -> None:
    """Looks at what standard input says, and prints a line of JSON for each message."""
    out = io.TextIOWrapper(confined.own_output(), encoding="utf-8")
    request = json.load(sys.stdin)
    allowed = request["allowed"]
    if allowed is not None:
        allowed = [Path(path) for path in allowed]
    reports = _Reports(out)
    _bound_memory(request["text"])
    try:
        from vitprof.datasets.own.look import look as look_here
    except ModuleNotFoundError as error:
        # Pillow, where vitprof is installed without its pages.
        reports.say("missing", error.msg, error.name)
        return
    try:
        found = look_here(
            request["name"],
            request["text"],
            full=request["full"],
            allowed=allowed,
            progress=reports.progress,
            alive=reports.alive,
        )
        reports.say("found", asdict(found))
    except ConfigError as error:
        reports.say("refused", error.field, error.value, error.allowed)


class _Reports:
    """Says to the parent that work goes on; without that for long, the process is ended."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out
        self._n = 0
        self._next_s = 0.0
        self._count_from_here()

    def say(self, kind: str, *values: object) -> None:
        self._out.write(json.dumps([kind, *values]) + "\n")
        self._out.flush()

    def progress(self, done: float, words: str) -> None:
        self._count_from_here()
        if done in (0.0, 1.0) or self._is_time():
            self.say("progress", done, words)

    def alive(self) -> None:
        self._n += 1
        if self._n % 1000 == 0:
            self._count_from_here()
        if self._is_time():
            self.say("progress", 0.0, f"listed {self._n:,} samples")

    def _is_time(self) -> bool:
        now_s = time.monotonic()
        if now_s < self._next_s:
            return False
        self._next_s = now_s + REPORT_EVERY_S
        return True

    def _count_from_here(self) -> None:
        confined.count_cpu_from_here(MOST_CPU_S)


def _bound_memory(text: str) -> None:
    """Bounds what this process may allocate; mapped files are not counted."""
    import psutil

    spec = specs.parse(text)
    most = MOST_BYTES
    if spec.kind in ("folder", "csv", "webdataset"):
        most += round(SHARE_OF_A_FOLDER * psutil.virtual_memory().available)
    else:
        most += BYTES_A_BYTE * _bytes_on_disk(spec.path)
    form = FORMS.get(spec.kind)
    if spec.kind == "hf" or (form is not None and (form.needs_torch or form.names_files)):
        most += LIBRARY_BYTES
    confined.bound_memory(most)


def _bytes_on_disk(path: str) -> int:
    """Returns what a file or the files below a folder take on disk: a file may say any length."""
    paths = [path]
    for root, _, names in os.walk(path):
        paths += [os.path.join(root, name) for name in names]
    total = 0
    for each in paths:
        with suppress(OSError, ValueError):
            total += 512 * os.stat(each).st_blocks
    return total


if __name__ == "__main__":
    main()
