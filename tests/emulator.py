"""A terminal for tests: a pty with a program in it, and what a person would see on it."""

import copy
import fcntl
import os
import re
import struct
import subprocess
import termios
import threading
from collections.abc import Callable, Mapping, Sequence

import pyte

MARK = re.compile(rb"\033\]0;mark (\d+) (\d+)\007")
"""A title that the program gives the window: here a picture is taken, and the terminal has this size from here on."""
LIMIT_S = 60.0


class Screen(pyte.HistoryScreen):  # type: ignore[misc]
    """pyte's, which does three things as xterm and VTE do them and pyte does not."""

    def set_mode(self, *modes: int, **kwargs: bool) -> None:
        super().set_mode(*modes, **kwargs)
        if 1049 in modes:  # the alternate screen
            self._before = copy.deepcopy((self.buffer, self.cursor))
            self.erase_in_display(2)

    def reset_mode(self, *modes: int, **kwargs: bool) -> None:
        super().reset_mode(*modes, **kwargs)
        if 1049 in modes:
            self.buffer, self.cursor = self._before

    def restore_cursor(self) -> None:
        """Behind the last column, too."""
        x = self.savepoints[-1].cursor.x if self.savepoints else 0
        super().restore_cursor()
        self.cursor.x = x

    def resize(self, lines: int | None = None, columns: int | None = None) -> None:
        """Rows go below the cursor first, then above the screen; and come back from there."""
        assert lines is not None
        self.set_margins()
        rows = [self.buffer[y] for y in range(self.lines)]
        below = self.lines - 1 - self.cursor.y
        while len(rows) > lines and below:
            rows.pop()
            below -= 1
        while len(rows) > lines:
            self.history.top.append(rows.pop(0))
            self.cursor.y -= 1
        while len(rows) < lines and self.history.top:
            rows.insert(0, self.history.top.pop())
            self.cursor.y += 1
        super().resize(lines, columns)
        self.buffer.clear()
        self.buffer.update(enumerate(rows))

    @property
    def scrolled(self) -> list[str]:
        """Lines above the screen."""
        return [
            "".join(row[x].data for x in range(self.columns)).rstrip() for row in self.history.top
        ]

    @property
    def rows(self) -> list[str]:
        return [row.rstrip() for row in self.display]


class Picture:
    """What there was to see at one moment."""

    def __init__(self, screen: Screen) -> None:
        self.rows = screen.rows
        self.lines = screen.scrolled + screen.rows[:-1]
        """All but the bottom row, those above the screen included."""
        self.bottom = screen.rows[-1]
        self.margins = screen.margins


class Terminal:
    """A program on a terminal of its own. It is the terminal's session, as a login shell would be."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        rows: int = 8,
        columns: int = 40,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._size = rows, columns
        self._fd, inside = os.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        own = {"env": {**os.environ, "TERM": "xterm", **(env or {})}, "start_new_session": True}
        own["preexec_fn"] = lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        self.process = subprocess.Popen(command, stdin=inside, stdout=inside, stderr=inside, **own)
        os.close(inside)
        self.said = b""
        self._sized_at = 0

    def read(self, until: Callable[[bytes], object] = lambda _said: False) -> bytes:
        """Everything that the program has written when `until` holds, or when it has ended."""
        giving_up = threading.Timer(LIMIT_S, self.process.kill)
        giving_up.start()
        try:
            while not until(self.said):
                try:
                    self.said += os.read(self._fd, 65536)
                except OSError:  # nobody has the terminal open any more
                    break
        finally:
            giving_up.cancel()
            giving_up.join()
        return self.said

    def press(self, key: bytes) -> None:
        os.write(self._fd, key)

    def resize(self, rows: int, columns: int) -> None:
        """Gives the terminal another size, as a person does with its window; `shown` is then what is
        drawn from here on."""
        self._size = rows, columns
        self._sized_at = len(self.said)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def shown(self) -> list[str]:
        """Returns the rows as a person sees them now."""
        screen = Screen(self._size[1], self._size[0], history=10_000)
        pyte.ByteStream(screen).feed(self.said[self._sized_at :])
        return screen.rows

    def reads_lines(self) -> bool:
        """Returns whether the terminal gives whole lines and shows what is typed, as a shell wants it."""
        local_modes = termios.tcgetattr(self._fd)[3]
        return bool(local_modes & termios.ICANON and local_modes & termios.ECHO)

    def end(self) -> tuple[int, list[Picture]]:
        """Waits for the program; its exit status, a picture at each of its marks, and one at the end."""
        pieces = MARK.split(self.read())
        status = self.process.wait(LIMIT_S)
        os.close(self._fd)
        screen = Screen(self._size[1], self._size[0], history=10_000)
        stream = pyte.ByteStream(screen)
        pictures = []
        for i in range(0, len(pieces), 3):
            stream.feed(pieces[i])
            pictures.append(Picture(screen))
            if i + 1 < len(pieces):
                screen.resize(int(pieces[i + 1]), int(pieces[i + 2]))
        return status, pictures
