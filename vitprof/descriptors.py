"""Keeps what vitprof opens off the numbers 0, 1 and 2: a script takes these for its streams."""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    # the program comes here first, before it is known that more can be imported
    import socket

FIRST_FREE = 3
"""The lowest number that is no standard stream."""


def occupy_standard_streams() -> None:
    """Opens the null device in place of each standard stream that is closed, in this process only.

    Whatever is opened first would else get its number, and SQLite, which takes none of these
    numbers, puts the null device there in a way that the script inherits: as a standard error that
    can only be read. What this opens is closed in every program that is started.
    """
    while True:
        number = os.open(os.devnull, os.O_RDWR)
        if number >= FIRST_FREE:
            os.close(number)
            return


def above_standard_streams(connected: "socket.socket") -> "socket.socket":
    """Returns a socket whose number is no standard stream's: itself, or a copy in its place."""
    import fcntl
    import socket

    if connected.fileno() >= FIRST_FREE:
        return connected
    with connected:
        number = fcntl.fcntl(connected.fileno(), fcntl.F_DUPFD_CLOEXEC, FIRST_FREE)
        return socket.socket(fileno=number)
