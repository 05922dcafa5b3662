"""The keys of a terminal: what it sends for each, and its mode in which each comes at once."""

from __future__ import annotations

import contextlib
import termios
import tty
from collections.abc import Iterator

ESCAPE = b"\x1b"
NAMES: dict[bytes, str] = {
    b"q": "quit",
    b"Q": "quit",
    b"s": "sort",
    b"S": "sort",
    b"\r": "enter",
    b"\n": "enter",
    b"k": "up",
    b"j": "down",
    b"g": "home",
    b"G": "end",
    b" ": "page down",
    b"\x7f": "escape",
    b"\x08": "escape",
    ESCAPE: "escape",
    ESCAPE + b"[A": "up",
    ESCAPE + b"[B": "down",
    ESCAPE + b"[D": "left",
    ESCAPE + b"OA": "up",
    ESCAPE + b"OB": "down",
    ESCAPE + b"OD": "left",
    ESCAPE + b"[5~": "page up",
    ESCAPE + b"[6~": "page down",
    ESCAPE + b"[H": "home",
    ESCAPE + b"[F": "end",
    ESCAPE + b"OH": "home",
    ESCAPE + b"OF": "end",
    ESCAPE + b"[1~": "home",
    ESCAPE + b"[4~": "end",
}
"""What a terminal sends -> the key. Arrows come in two forms: xterm's "normal" and "application"
(https://invisible-island.net/xterm/ctlseqs/ctlseqs.html, "PC-Style Function Keys"). Backspace goes
back, too."""
LONGEST = 16
"""Bytes of a sequence from which it is none that is known: a line that was pasted begins so."""


def split(data: bytes) -> tuple[list[str], bytes]:
    """Returns the keys in what a terminal sent, "" for those that mean nothing, and the beginning of
    one that has not come in full: over SSH a sequence may arrive in pieces.
    """
    found = []
    while data:
        n = _length(data)
        if n is None:
            break
        found.append(NAMES.get(data[:n], ""))
        data = data[n:]
    return found, data


def _length(data: bytes) -> int | None:
    """Returns the length of the first key; None where it has not come in full."""
    if not data.startswith(ESCAPE):
        return 1
    if data[1:2] == b"O":
        return 3 if len(data) >= 3 else None
    if data[1:2] == b"[":
        # a control sequence ends with the first byte from "@" to "~" (ECMA-48, 5.4)
        for place, byte in enumerate(data[2:LONGEST], start=2):
            if 0x40 <= byte <= 0x7E:
                return place + 1
        return LONGEST if len(data) >= LONGEST else None
    # alone it is the key, if nothing follows soon
    return 1 if len(data) > 1 else None


@contextlib.contextmanager
def single_keys(fd: int) -> Iterator[None]:
    """Makes each key arrive at once, and unseen, until the block ends. Ctrl-C and Ctrl-Z stay
    signals.
    """
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield
    finally:
        # the terminal may be gone
        with contextlib.suppress(termios.error):
            termios.tcsetattr(fd, termios.TCSADRAIN, before)
