"""The events in a trace's file, one after the other: of the file a few megabytes are in memory.

The form is Kineto's (`libkineto/src/output_json.cpp`): an object whose "traceEvents" hold the events,
with facts of the recording before and after them; or the bare list that older profilers write.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from json import JSONDecodeError
from pathlib import Path
from typing import IO, Any, cast

from vitprof import formats
from vitprof.errors import VitprofError

CHUNK_BYTES = 4 << 20
"""What is read at once."""
MOST_CHARACTERS = 64 << 20
"""Length of the longest value. What is longer has no end: the file is damaged, or no trace."""
EVENTS = "traceEvents"
"""The key of the list of events."""
PACKED = {
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
}
"""How files begin that are compressed in another way than by gzip."""
GZIP = b"\x1f\x8b"
MAKE_ONE = "give what torch.profiler's export_chrome_trace or tensorboard_trace_handler has written"
_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder(strict=False)
"""Takes NaN and Infinity, which Kineto has written in older versions, and line ends within texts."""


class TraceError(VitprofError):
    """A file that is no trace of a training, or not a whole one."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a file is read."""

    done_bytes: int
    """Bytes of the file, compressed as they are."""
    total_bytes: int
    n_events: int


OnProgress = Callable[[Progress], object]


class TraceFile:
    """A trace, which is read once from its beginning to its end.

    The reader is Python's own JSON scanner, applied to one event after the other (`raw_decode`). A trace of
    173 MB with shapes and stacks takes it 3.1 to 3.2 s of CPU, ijson with its C back end 2.9 to 3.3 s (n = 3
    each, `benchmarks/read_trace.py`), and `json.load` 5.4 s and a gigabyte of memory. Unlike ijson it takes
    NaN, and reads the facts around the events in the same pass.
    """

    def __init__(self, path: Path, on_progress: OnProgress | None = None) -> None:
        """`on_progress` is called every few megabytes."""
        self.path = path
        self.about: dict[str, Any] = {}
        """What the file says besides its events; complete once they are read."""
        self.n_bytes = 0
        self.n_events = 0
        self._on_progress = on_progress

    def events(self) -> Iterator[dict[str, Any]]:
        """Yields the events in the order of the file. Raises `TraceError`."""
        try:
            with self._text() as text:
                yield from self._walk(text)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise self._cut() from None
        except OSError as error:
            raise TraceError(f"{self.path} cannot be read: {error.strerror or error}") from error
        except RecursionError:
            raise self._no_trace("its values are nested too deeply") from None

    @contextlib.contextmanager
    def _text(self) -> Iterator[_Text]:
        if self.path.is_dir():
            raise TraceError(f"{self.path} is a directory; {_choice_in(self.path)}")
        if self.path.exists() and not self.path.is_file():
            raise TraceError(f"{self.path} is a device or a pipe; give a file")
        with self.path.open("rb") as file:
            self.n_bytes = self.path.stat().st_size
            begin = file.read(8)
            file.seek(0)
            if not begin:
                raise self._no_trace("it is empty")
            for magic, name in PACKED.items():
                if begin.startswith(magic):
                    raise self._no_trace(f"it is packed by {name}; unpack it first")
            stream: IO[bytes] = file
            if begin.startswith(GZIP):
                stream = cast("IO[bytes]", gzip.GzipFile(fileobj=file))

            def read_more() -> bytes:
                part = stream.read(CHUNK_BYTES)
                if self._on_progress is not None:
                    self._on_progress(Progress(file.tell(), self.n_bytes, self.n_events))
                return part

            yield _Text(read_more)

    def _walk(self, text: _Text) -> Iterator[dict[str, Any]]:
        """Yields the events, and keeps what else there is in `about`."""
        first = text.peek()
        if first == "[":
            yield from self._list(text)
            return
        if first != "{":
            raise self._no_trace("it is not JSON")
        has_events = False
        text.advance()
        while text.peek() != "}":
            if text.peek() == ",":
                text.advance()
                continue
            key = self._value(text)
            if text.peek() != ":":
                if not text.peek():
                    raise self._cut()
                raise self._no_trace("it is not JSON")
            text.advance()
            if key == EVENTS and text.peek() == "[":
                has_events = True
                yield from self._list(text)
            else:
                self.about[str(key)] = self._value(text)
        if not has_events:
            raise self._no_trace(f"it has no {EVENTS}")

    def _list(self, text: _Text) -> Iterator[dict[str, Any]]:
        """Yields the objects of a list."""
        text.advance()
        while text.peek() != "]":
            if text.peek() == ",":
                text.advance()
                continue
            event = self._value(text)
            if isinstance(event, dict):
                self.n_events += 1
                yield event
        text.advance()

    def _value(self, text: _Text) -> Any:
        """Returns the next value, of any kind."""
        while True:
            # The scanner takes no white space in front.
            text.peek()
            try:
                value, end = _DECODER.raw_decode(text.text, text.at)
            except JSONDecodeError as error:
                self._read_more(text, error)
                continue
            except ValueError:
                # Python reads no whole number of more than 4,300 digits.
                raise self._no_trace("it has a number that is too long") from None
            # The rest of a number may be missing.
            if end == len(text.text) and text.read_on():
                continue
            text.at = end
            return value

    def _read_more(self, text: _Text, error: JSONDecodeError) -> None:
        """Reads on after a value that could not be read: its end may be in what comes. Raises
        `TraceError` where nothing comes, or too much."""
        at = formats.count(text.n_before + error.pos, "character")
        if len(text.text) - text.at > MOST_CHARACTERS:
            raise self._no_trace(f"it is not JSON after {at}")
        if text.read_on():
            return
        n_remaining = len(text.text[error.pos :].strip())
        if n_remaining <= 1 or "Unterminated" in error.msg:
            raise self._cut()
        raise self._no_trace(f"it is not JSON after {at}")

    def _no_trace(self, why: str) -> TraceError:
        return TraceError(f"{self.path} is no trace of torch.profiler: {why}; {MAKE_ONE}")

    def _cut(self) -> TraceError:
        why = "the program that wrote it was ended, or the copy is not complete"
        return TraceError(f"{self.path} ends in the middle: {why}")


class _Text:
    """The part of a text that is in memory."""

    def __init__(self, read_more: Callable[[], bytes]) -> None:
        self.text = ""
        self.at = 0
        """Where reading goes on."""
        self.n_before = 0
        """Characters that were forgotten."""
        self._read_more = read_more
        # Names of kernels may hold anything; a byte order mark is none of the text.
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")

    def read_on(self) -> bool:
        """Forgets what was passed, and appends what comes next; returns whether anything did."""
        part = self._read_more()
        if not part:
            return False
        self.n_before += self.at
        self.text = self.text[self.at :] + self._decoder.decode(part)
        self.at = 0
        return True

    def peek(self) -> str:
        """Returns the next character that is no white space; "" at the end."""
        while True:
            space = _SPACE.match(self.text, self.at)
            if space is not None:
                self.at = space.end()
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.read_on():
                return ""

    def advance(self) -> None:
        """Passes the character that `peek` has returned."""
        self.at += 1


def _choice_in(folder: Path) -> str:
    """Returns which file of a folder to give, as the profiler's handler writes one for each cycle."""
    found = sorted(path.name for path in folder.glob("*.json*") if path.is_file())
    if not found:
        return "give a file"
    return f"give one of the {len(found):,} files in it, such as {found[-1]}"
