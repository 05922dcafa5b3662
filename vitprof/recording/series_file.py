"""The columns of a Parquet file that somebody sent, read by Arrow in a process of its own.

Arrow ends the process that reads some damaged files: by SIGABRT for an exception of C++ that pyarrow
lets through, by SIGSEGV for pages that contradict the footer. Here that is one line. What comes back
are plain numbers, so Arrow reads nothing of the file in the process that imports it.

Standard input of the other process has requests: `HEAD`, then the file. For each its standard output
has a line of JSON, then the columns as float64 (n,), one after another.
"""

import json
import struct
import subprocess
import sys
import threading
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitprof import confined
from vitprof.errors import one_line
from vitprof.formats import size
from vitprof.recording import codec, footer

Series = dict[str, NDArray[np.float64]]
"""Columns by their names, (n,) each."""
HEAD = struct.Struct("<QQQ")
"""Of a request: bytes of the file, the fewest columns that are counted, the most bytes they may take."""
MOST_CPU_S = 60.0
"""CPU time for all files of a bundle. The largest that vitprof writes takes about 2 s."""
MOST_WAIT_S = 600.0
"""Time for all files of a bundle, on a machine that is busy."""
ENDS_WITHIN_S = 30.0
"""Time in which a process has ended whose pipe is broken."""
MOST_BYTES = 3 << 30
"""Memory for the library, a file of at most 256 MiB, and its columns of at most 1 GiB, for a moment twice."""
MOST_LINE_BYTES = 1 << 24
"""Of the names of columns. Those of a footer take under 1 MiB."""


class Unreadable(ValueError):
    """A file that cannot be used; the message goes on after its name: "is damaged: ..."."""


class SeriesReader:
    """Reads files in a process that begins with the first one, and ends with the block."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._late: threading.Timer | None = None
        self._is_late = False

    def __enter__(self) -> "SeriesReader":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._late is not None:
            self._late.cancel()
        if self._child is not None:
            self._child.kill()
            # An answer that nobody reads is left in it.
            self._child.communicate()

    def columns(self, data: bytes, n_known: int, most_bytes: int) -> Series:
        """Returns the columns of a file, (n,) float64 each, all of one length.

        `n_known`: columns that a reader adds where the file lacks them, and `most_bytes`: what all
        may take together. Raises `Unreadable`.
        """
        try:
            answer = self._answer(HEAD.pack(len(data), n_known, most_bytes), data)
            if "refused" in answer:
                raise Unreadable(answer["refused"])
            return self._columns(answer["names"], answer["rows"], most_bytes)
        except (OSError, EOFError) as error:
            raise Unreadable(f"could not be read: {self._why(error)}") from error

    def _begun(self) -> subprocess.Popen[bytes]:
        if self._child is None:
            self._child = confined.start(__name__, subprocess.PIPE, subprocess.PIPE)
            # A write or a read that waits for the other process ends with it.
            self._late = threading.Timer(MOST_WAIT_S, self._give_up)
            self._late.daemon = True
            self._late.start()
        return self._child

    def _give_up(self) -> None:
        self._is_late = True
        if self._child is not None:
            self._child.kill()

    def _answer(self, head: bytes, data: bytes) -> dict[str, Any]:
        child = self._begun()
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(head)
        child.stdin.write(data)
        child.stdin.flush()
        line = child.stdout.readline(MOST_LINE_BYTES)
        if not line.endswith(b"\n"):
            raise EOFError
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError:
            raise EOFError from None
        return answer

    def _columns(self, names: list[str], n: int, most_bytes: int) -> Series:
        child = self._begun()
        assert child.stdout is not None
        if 8 * n * len(names) > most_bytes:
            raise EOFError
        series = {name: np.empty(n) for name in names}
        for values in series.values():
            _fill(child.stdout, values.view(np.uint8))
        return series

    def _why(self, error: Exception) -> str:
        if self._is_late:
            return f"it took more than {MOST_WAIT_S:.0f} s"
        if self._child is None:
            return f"no process could be started for it ({one_line(error)})"
        try:
            # A pipe breaks just before its process ends.
            status = self._child.wait(ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            return "the process that reads it gave another answer than vitprof's"
        if status == confined.ENDED_BY_CPU_TIME:
            return f"it takes more than {MOST_CPU_S:.0f} s of work; it may be damaged"
        return confined.why_ended(status)


def _fill(stream: Any, values: NDArray[np.uint8]) -> None:
    """Reads bytes into `values` (n,). Raises `EOFError` where the stream ends before."""
    at = 0
    while at < len(values):
        n_read = stream.readinto(values[at:])
        if not n_read:
            raise EOFError
        at += n_read


# in the other process


def main() -> None:
    """Answers each request on standard input."""
    out = confined.own_output()
    confined.bound_memory(MOST_BYTES)
    confined.count_cpu_from_here(MOST_CPU_S)
    incoming = sys.stdin.buffer
    while head := incoming.read(HEAD.size):
        n_bytes, n_known, most_bytes = HEAD.unpack(head)
        try:
            series = columns_of(incoming.read(n_bytes), n_known, most_bytes)
        except Unreadable as error:
            answer: dict[str, Any] = {"refused": str(error)}
            series = {}
        else:
            n = len(next(iter(series.values()), ()))
            answer = {"names": list(series), "rows": n}
        out.write(json.dumps(answer).encode() + b"\n")
        for values in series.values():
            out.write(values.view(np.uint8).data)
        out.flush()


def columns_of(data: bytes, n_known: int, most_bytes: int) -> Series:
    """Does what `SeriesReader.columns` does, in this process, which some damaged files end."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # A few bytes that unpack to gigabytes are refused before they are read.
        if not footer.is_uncompressed(data):
            raise Unreadable("is packed a second time")
        file = pq.ParquetFile(pa.BufferReader(data))
        about = file.metadata
        names = file.schema_arrow.names
        n = about.num_rows
        if 8 * n * max(len(names), n_known) > most_bytes:
            raise Unreadable(f"has more rows than the {size(most_bytes)} that are allowed")
        is_flat = len(set(names)) == len(names) == about.num_columns
        if not is_flat or not set(file.schema_arrow.types) <= {pa.float64()}:
            raise Unreadable("has columns that are no numbers")
        table = file.read(use_threads=False)
        series = {name: codec.floats(table.column(name)) for name in names}
    except Unreadable:
        raise
    except MemoryError as error:
        raise Unreadable("needs more memory than there is for it; it may be damaged") from error
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Unreadable(f"is damaged: {one_line(error)}") from error
    # Arrow does not look at it, where row groups are damaged.
    if not all(len(values) == n for values in series.values()):
        raise Unreadable("is damaged: its columns have different lengths")
    return series


if __name__ == "__main__":
    main()
