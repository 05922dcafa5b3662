"""The whole terminal as the list of `top`, until a key or a signal ends it.

What is on the terminal before comes back at the end, however it ends. The store is read in a thread
of its own: a key is answered also while a server or a file system is silent.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from vitprof import errors
from vitprof.attempts import Attempt
from vitprof.cli.common import status_line, terminal
from vitprof.cli.top.drawing import joined, screen
from vitprof.cli.top.keys import NAMES, single_keys, split
from vitprof.cli.top.reading import StoreReader
from vitprof.cli.top.rows import Snapshot, in_order
from vitprof.cli.top.view import View

REFRESH_S = 2.0
"""How often (s) the store is read. Runs write to it twice a second."""
ESCAPE_S = 0.05
"""How long (s) the rest of a sequence of keys may take: escape alone is known by that nothing follows."""
SILENT_S = 5.0
"""Time (s) without an answer of the store from which it is said."""
END_WITHIN_S = 1.0
"""How long (s) to wait at the end for a read that has begun."""


def can_show() -> bool:
    """Returns whether keys can be read, and a screen be drawn."""
    has_keys = sys.stdin is not None and sys.stdin.isatty()
    return has_keys and terminal.out.is_terminal and status_line.can_show(sys.stdout)


def show(reader: StoreReader, first: Snapshot) -> None:
    """Shows what `reader` reads until a key, Ctrl-C, SIGTERM or SIGHUP ends it; `first`: what it
    read already.

    Raises `StoreError` where the store is gone for good.
    """
    wakeups = Wakeups()
    top = TopScreen(reader, first, wakeups)
    try:
        with terminal.stop_requested() as stop, wakeups:
            while not (stop() or top.is_over):
                with single_keys(sys.stdin.fileno()), _whole_screen() as live:
                    while not (stop() or top.is_over or wakeups.suspended):
                        top.draw(live)
                        top.wait()
                        top.refresh()
                if wakeups.suspended:
                    wakeups.suspend()
    finally:
        top.end()


@contextlib.contextmanager
def _whole_screen() -> Iterator[Live]:
    """Gives the block the whole terminal, and shows again what was there before at its end."""
    live = Live(
        console=terminal.out,
        screen=True,
        auto_refresh=False,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    live.start()
    try:
        yield live
    finally:
        live.stop()


class Wakeups:
    """What ends a wait for keys: a pipe that signals and other threads write to.

    For the main thread only. Signals that change the screen are handled until the block ends.
    """

    def __init__(self) -> None:
        self.suspended = False
        """Whether Ctrl-Z was pressed."""
        self.fd, self._written = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._written, False)

    def __enter__(self) -> Self:
        self._fd_before = signal.set_wakeup_fd(self._written, warn_on_full_buffer=False)
        self._before = {
            number: signal.signal(number, handler)
            for number, handler in (
                (signal.SIGWINCH, self._ignore),
                (signal.SIGCONT, self._ignore),
                (signal.SIGTSTP, self._note),
            )
        }
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler or signal.SIG_DFL)
        signal.set_wakeup_fd(self._fd_before)

    def close(self) -> None:
        """Closes the pipe; once no thread may write to it any more."""
        os.close(self.fd)
        os.close(self._written)

    def wake(self) -> None:
        """Ends the wait; any thread may call it."""
        # a full pipe wakes as well
        with contextlib.suppress(BlockingIOError):
            os.write(self._written, b"\0")

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self.fd, 1024):
                pass

    def suspend(self) -> None:
        """Suspends this program, as Ctrl-Z does, and returns when it goes on."""
        self.suspended = False
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._note)

    def _ignore(self, number: int, frame: FrameType | None) -> None:
        """Does nothing: the signal's number in the pipe wakes."""

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.suspended = True


class TopScreen:
    """What is on the screen, and the thread that reads the store for it."""

    def __init__(
        self,
        reader: StoreReader,
        first: Snapshot,
        wakeups: Wakeups,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader = reader
        self._clock = clock
        self._wakeups = wakeups
        self._snapshot = first
        self._view = View().with_runs(self._listed(View()))
        self._keys = b""
        """The beginning of a key that has not come in full."""
        self._read: Attempt[Snapshot] | None = None
        """The read that goes on; None while there is none."""
        self._has_read = threading.Event()
        """Set as that read ends, before it wakes: what it returns is there in a moment."""
        self._read_since_s = clock()
        """When the last read began."""
        self._opened: int | None = None
        """The run whose answer the last read was to have; None for none."""
        self._drawn: tuple[Live, tuple[int, int], Text] | None = None
        """What was drawn last, where, and how large the terminal was then."""
        self._note = ""
        self._is_cut_off = False
        """Whether the terminal gives no more keys."""

    @property
    def is_over(self) -> bool:
        return self._view.quits or self._is_cut_off

    def draw(self, live: Live) -> None:
        size = _size_of(live.console)
        text = self.picture(live.console)
        drawn = (live, size, text)
        if drawn == self._drawn:
            return
        live.update(text, refresh=True)
        self._drawn = drawn

    def picture(self, console: Console) -> Text:
        """Returns what fills the console."""
        width, height = console.size
        lines, self._view = screen(self._snapshot, self._view, self._note, width, height, console)
        return joined(lines)

    def wait(self) -> None:
        """Waits for a key, a signal, the end of a read, or until the next one is due."""
        keys = sys.stdin.fileno()
        timeout_s = max(0.0, self._read_since_s + REFRESH_S - self._clock())
        if self._read is not None:
            timeout_s = REFRESH_S
        if self._keys:
            timeout_s = ESCAPE_S
        ready, _, _ = select.select([keys, self._wakeups.fd], [], [], timeout_s)
        self._wakeups.clear()
        if keys in ready:
            self._take_keys(_read(keys))
        elif self._keys and not ready:
            # nothing followed: it was the key alone, or no key that is known
            self._press([NAMES.get(self._keys, "")])
            self._keys = b""

    def refresh(self) -> None:
        """Receives what was read, and begins to read again where that is due.

        Raises `StoreGoneError`.
        """
        now_s = self._clock()
        if self._read is not None and self._has_read.is_set():
            self._has_read.clear()
            self._receive(self._read)
            self._read = None
        elif self._read is not None and now_s - self._read_since_s > SILENT_S:
            self._note = "the run store does not answer; this is what it said before"
        is_due = now_s - self._read_since_s >= REFRESH_S
        if self._read is None and (is_due or self._view.opened != self._opened):
            opened = self._view.opened
            self._opened = opened
            self._read_since_s = now_s
            self._read = Attempt(lambda: self._read_and_wake(opened), "vitprof-top")

    def end(self) -> None:
        """Waits for a read that has begun, for a moment."""
        if self._read is not None:
            with contextlib.suppress(errors.VitprofError, TimeoutError):
                self._read.result(END_WITHIN_S)
            if not self._read.is_over:
                # it may still write to the pipe, which ends with the program
                return
        self._wakeups.close()

    def _read_and_wake(self, opened: int | None) -> Snapshot:
        try:
            return self._reader.read(opened)
        finally:
            self._has_read.set()
            self._wakeups.wake()

    def _receive(self, read: Attempt[Snapshot]) -> None:
        try:
            self._snapshot = read.result(None)
            self._note = ""
        except errors.StoreGoneError:
            raise
        except errors.StoreError as error:
            # a server that is restarted comes back
            self._note = errors.one_line(error)
        self._view = self._view.with_runs(self._listed(self._view))

    def _listed(self, view: View) -> list[int]:
        return [row.run_id for row in in_order(self._snapshot.rows, view.sort)]

    def _take_keys(self, data: bytes) -> None:
        if not data:
            self._is_cut_off = True
            return
        pressed, self._keys = split(self._keys + data)
        self._press(pressed)

    def _press(self, keys: list[str]) -> None:
        for key in keys:
            self._view = self._view.pressed(key, self._listed(self._view))


def _read(fd: int) -> bytes:
    """Returns what a terminal has sent; nothing where it is gone."""
    try:
        return os.read(fd, 1024)
    except OSError:
        return b""


def _size_of(console: Console) -> tuple[int, int]:
    """Returns columns and rows of the terminal, which is what the console then draws for.

    rich prefers COLUMNS and LINES where a shell exported them: those of a window before it changed.
    """
    try:
        width, height = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        width = height = 0
    if width and height:
        console.size = (width, height)
    return console.size
