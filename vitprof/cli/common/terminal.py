"""What all commands share: printing, checking output files, reading numbers, exit statuses, and signals."""

import contextlib
import errno
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn, TextIO, cast

import typer
from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from vitprof import errors, names
from vitprof.config.bounds import Bounds
from vitprof.config.device_rate import device_rate
from vitprof.jobs.signals import END, OTHERS, GroupWitness, SignalRelay
from vitprof.recording.columns import SCHEMA_VERSION
from vitprof.store import RunStore

RUN = "RUN"
ID = "ID"
EXIT_FAILED = 1
EXIT_BAD_VALUE = 2
EXIT_NOT_PRINTED = 2
"""Standard output takes nothing. 1 would be an answer of `check`."""
EXIT_STOPPED = 130
EXIT_READER_GONE = 141
"""The reader of standard output has ended, as `head` does: what a shell says of a program that SIGPIPE ended."""
VERDICT_COLOURS = {"ok": "green", "note": "yellow", "bad": "red"}
"""Verdict -> colour of the word on the terminal."""
PIPE_WIDTH = 400
"""Width in columns of a table that goes to a file or another program: wide enough for one line for each run."""

MOST_SAID = 1000
"""Length of the longest message, in characters. A longer one, which repeats a long value, loses its middle."""
SAID_OF_THE_END = 300
"""Characters that are kept at the end of such a message, where it says what to do."""


class HarmlessConsole(Console):
    """A console that prints brackets and colons as they are, and replaces characters that a terminal would obey."""

    def __init__(self, **more: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **more)

    def render_str(self, text: str, **more: Any) -> Text:
        return super().render_str(names.harmless(text), **more)


out = HarmlessConsole()
err = HarmlessConsole(stderr=True)


def show(*lines: RenderableType, console: Console = out) -> None:
    for line in lines:
        console.print(line, soft_wrap=True)


WIDE = 120
"""Columns of a terminal from which tables have all that there is; narrower ones have what matters."""


def is_wide() -> bool:
    """Returns whether tables may have columns that only some readers need; in a file they have all."""
    return not out.is_terminal or out.width >= WIDE


def show_table(
    header: Iterable[str],
    rows: Iterable[Iterable[RenderableType]],
    title: str | None = None,
    **more: Any,
) -> None:
    """Prints a table; without a header for no column names. `more` is what rich's Table takes."""
    light: dict[str, Any] = {"box": box.SIMPLE, "pad_edge": False, "show_edge": False}
    table = Table(*header, title=title, title_justify="left", **light, **more)
    for row in rows:
        table.add_row(*row)
    out.print(table)


@contextlib.contextmanager
def open_store(*, settle: bool = False) -> Iterator[RunStore]:
    """Opens the store for the block; with `settle`, runs whose program is gone are summed up first."""
    with contextlib.closing(RunStore()) as store:
        if settle:
            from vitprof.jobs.finalise import settle_interrupted

            settle_interrupted(store)
        yield store


JSON_HELP = "print one JSON object and nothing else"
AsJson = Annotated[bool, typer.Option("--json", help=JSON_HELP)]


def reader(name: str, kind: Callable[[str], Any], allowed: str) -> Callable[[str], Any]:
    """Returns a parser of numbers. It raises `ConfigError` that names the value: not all versions of Typer
    do.
    """

    def read(text: str) -> Any:
        try:
            return kind(text)
        except ValueError:
            raise errors.ConfigError(name, text, allowed) from None

    return read


def within(name: str, bounds: Bounds) -> Callable[[str], Any]:
    """Returns a parser of numbers within bounds, for the option `name`."""
    read = reader(name, int if bounds.whole else float, bounds.allowed)

    def checked(text: str) -> Any:
        value = read(text)
        bounds.check(name, value)
        return value

    return checked


def number(name: str, bounds: Bounds, help_text: str, **more: Any) -> Any:
    metavar = "INTEGER" if bounds.whole else "NUMBER"
    return typer.Option(help=help_text, metavar=metavar, parser=within(name, bounds), **more)


def run_id(help_text: str) -> Any:
    read = reader(RUN, int, "give a whole number, as `runs` lists them")
    return typer.Argument(metavar=RUN, help=help_text, parser=read)


def is_given(context: typer.Context, name: str) -> bool:
    """Returns whether an option was given, even with its default value."""
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def refuse_given(context: typer.Context, names: Iterable[str], reason: str) -> None:
    """Raises `ConfigError` for an option that was given, even with its default value, and does nothing."""
    for name in names:
        if not is_given(context, name):
            continue
        value = context.params[name]
        if isinstance(value, list):
            value = " ".join(map(str, value))
        shown = value if isinstance(value, bool) else str(value)
        raise errors.ConfigError(name.removeprefix("as_"), shown, reason)


def check_output(path: Path | None, option: str = "output") -> None:
    """Raises `ConfigError` if the file of an option cannot be written: before the work is done rather than
    after.
    """
    if path is None:
        return
    if path.is_dir():
        raise errors.ConfigError(option, str(path), "it is a directory; give a file")
    # /dev/null, /dev/stdout: a new file would be renamed over it
    if path.exists() and not path.is_file():
        raise errors.ConfigError(option, str(path), "it is a device or a pipe; give a file")
    if not path.parent.is_dir():
        raise errors.ConfigError(option, str(path), f"there is no directory {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise errors.ConfigError(option, str(path), f"{path.parent} cannot be written to")


def print_json(value: dict[str, Any]) -> None:
    print_text(json_text(value))


def json_text(value: dict[str, Any]) -> str:
    """Returns `value`, also of dataclasses, as the text of a JSON object, with the schema version in
    front; NaN and infinities become null.
    """
    from pydantic_core import to_jsonable_python

    plain = to_jsonable_python({"schema_version": SCHEMA_VERSION} | value, inf_nan_mode="null")
    return json.dumps(plain, indent=2, allow_nan=False) + "\n"


def print_text(text: str) -> None:
    sys.stdout.write(text)
    # raises here, where it is handled, if it cannot be written
    sys.stdout.flush()


class OutputError(Exception):
    """Standard output does not take what a command prints.

    No `OSError`: Typer and rich end a program with status 1 for some of those.
    """

    def __init__(self, stream: Any, error: OSError) -> None:
        super().__init__(error.strerror or str(error))
        self.stream = stream
        self.reader_has_gone = error.errno == errno.EPIPE


class CheckedStream:
    """A standard stream. Raises `OutputError` where it does not take what is written."""

    def __init__(self, stream: Any, *, closed: bool = False) -> None:
        """`closed`: whoever started this program has closed it; `stream` only stands in for it."""
        self._stream = stream
        self._closed = closed

    def write(self, data: Any) -> int:
        if self._closed and data:
            self._refuse(OSError(errno.EBADF, "it is closed"))
        try:
            return int(self._stream.write(data))
        except OSError as error:
            self._refuse(error)
            return len(data)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._refuse(error)

    def _refuse(self, error: OSError) -> None:
        raise OutputError(self._stream, error) from error

    @property
    def buffer(self) -> "CheckedStream":
        return type(self)(self._stream.buffer, closed=self._closed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class DroppingStream(CheckedStream):
    """A standard error that drops what it cannot take: nothing can be said of that anywhere."""

    def _refuse(self, error: OSError) -> None:
        """Does nothing."""


@contextlib.contextmanager
def checked_streams() -> Iterator[None]:
    """Makes standard output and standard error in the block a `CheckedStream` and a `DroppingStream`.

    Opens them where whoever started this program has closed them.
    """
    out_before = sys.stdout
    err_before = sys.stderr
    with open(os.devnull, "w") as null:
        # None where it is closed
        is_closed = out_before is None
        sys.stdout = cast(TextIO, CheckedStream(out_before or null, closed=is_closed))
        sys.stderr = cast(TextIO, DroppingStream(err_before or null))
        try:
            yield
        finally:
            sys.stdout = out_before
            sys.stderr = err_before
            drop_what_is_not_printed()


def end_unprinted(error: OutputError) -> NoReturn:
    """Ends the program because standard output takes nothing more, with a line unless its reader has gone."""
    with contextlib.suppress(OSError):
        # What it still holds goes there when Python ends, which would else fail with a status of its own.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, error.stream.fileno())
        os.close(null)
    with out.capture():
        # drops what rich still holds
        pass
    if error.reader_has_gone:
        raise SystemExit(EXIT_READER_GONE)
    complain(f"standard output cannot be written: {error}", EXIT_NOT_PRINTED)


def drop_what_is_not_printed() -> None:
    """Drops what standard output and error refuse to take: Python would end with a status of its own for it."""
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name).flush()
        except Exception:
            setattr(sys, name, None)


def check_rate() -> None:
    """Ends the program with a line where the price of a device is none: before the work is done rather
    than after.
    """
    try:
        device_rate()
    except errors.VitprofError as error:
        complain(errors.one_line(error), EXIT_BAD_VALUE)


def name_to_keep(name: str) -> str:
    """Returns a name as it is stored, cut with a remark. Raises `ConfigError` for one that cannot be shown."""
    kept = names.cut_name(name)
    reason = names.why_no_name(kept)
    if reason:
        raise errors.ConfigError("name", kept, reason)
    if len(name.strip()) > names.MAX_NAME:
        remark(f"--name {names.NAME_CUT}")
    return kept


def remark(message: str) -> None:
    """Prints one line on standard error. Spaces within stay: a path may have two together."""
    lines = (line.strip() for line in message.splitlines())
    line = names.harmless(" ".join(line for line in lines if line))
    if len(line) > MOST_SAID:
        line = f"{line[: MOST_SAID - SAID_OF_THE_END]} ... {line[-SAID_OF_THE_END:]}"
    print("vitprof:", line, file=sys.stderr)  # noqa: T201


def complain(message: str, status: int) -> NoReturn:
    """Prints one line on standard error and ends the program with this exit status."""
    remark(message)
    raise SystemExit(status)


# Ctrl-C, SIGTERM and SIGHUP: a command that is stopped by them still shows what it has, or passes them on


def signals_interrupt() -> None:
    """Makes SIGTERM and SIGHUP (a closed terminal) do what Ctrl-C does until the program ends, so that a
    command leaves no half-written file. A signal that is ignored stays ignored, as with nohup.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)


@dataclass
class StopRequested:
    """Whether a signal arrived: call it to find out."""

    by: str = ""
    """Ctrl-C, SIGTERM or SIGHUP; "" if none has arrived."""

    def __call__(self) -> bool:
        return bool(self.by)


@contextlib.contextmanager
def _handled(
    numbers: Iterable[int], handler: Callable[[int, FrameType | None], object]
) -> Iterator[None]:
    """Handles signals by `handler` until the block ends, but for those that are ignored.

    For the main thread only.
    """
    before = {
        n: signal.signal(n, handler) for n in numbers if signal.getsignal(n) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier or signal.SIG_DFL)


@contextlib.contextmanager
def stop_requested() -> Iterator[StopRequested]:
    """Yields a `StopRequested` in which Ctrl-C, SIGTERM and SIGHUP are only noted until the block ends; a
    second one of the same kind interrupts.
    """
    request = StopRequested()

    def note(number: int, frame: FrameType | None) -> None:
        request.by = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        signal.signal(number, signal.default_int_handler)

    with _handled((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), note):
        yield request


@contextlib.contextmanager
def signals_relayed() -> Iterator[SignalRelay]:
    """Yields a `SignalRelay` that receives all signals that mean something to a script.

    They interrupt nothing here, and do not end this program. Those for which a handler is set
    already are left alone, but for the ones that ask to end.
    """
    witness = GroupWitness()
    relay = SignalRelay(witness)
    others = [n for n in OTHERS if signal.getsignal(n) is signal.SIG_DFL]
    try:
        with _handled((*END, *others), relay):
            yield relay
    finally:
        witness.close()
