"""The files that a script's process reads samples from."""

import contextlib
import functools
import os
import stat
import sys
import sysconfig
from collections.abc import Iterator
from typing import Any

CODE = (".py", ".pyc", ".so", ".json", ".cfg")
"""Endings of files that belong to programs, not to samples."""
OPENED: list[list[str]] = []
"""The list that files which Python opens are added to now, if any."""


@functools.cache
def _listen_to_open() -> None:
    def hook(event: str, args: tuple[Any, ...]) -> None:
        if OPENED and event == "open" and isinstance(args[0], (str, bytes)):
            with contextlib.suppress(Exception):  # the script would get it
                path = os.path.realpath(os.fsdecode(args[0]))
                if not (args[2] or 0) & (os.O_WRONLY | os.O_RDWR) and _holds_samples(path):
                    OPENED[-1].append(path)

    sys.addaudithook(hook)  # which cannot be taken away


@contextlib.contextmanager
def opening() -> Iterator[list[str]]:
    """Gives a list of the files that Python opens for reading."""
    _listen_to_open()
    OPENED.append([])
    try:
        yield OPENED[-1]
    finally:
        OPENED.pop()


def _holds_samples(path: str) -> bool:
    if path.endswith(CODE) or path.startswith(
        ("/proc/", "/sys/", "/dev/", sysconfig.get_path("stdlib"))
    ):
        return False
    try:
        return stat.S_ISREG(os.stat(path).st_mode) and "site-packages" not in path
    except OSError:
        return False


def held_files() -> list[str]:
    """Returns files that this process has open for reading only, or mapped: those of HDF5, say."""
    found = []
    with contextlib.suppress(OSError):
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError, ValueError):
                flags = open(f"/proc/self/fdinfo/{number}").read().split("flags:")[1].split()[0]  # noqa: SIM115
                if int(flags, 8) & os.O_ACCMODE == os.O_RDONLY:
                    found.append(os.readlink(f"/proc/self/fd/{number}"))
        with open("/proc/self/maps") as maps:
            found += [
                line.split(maxsplit=5)[5].rstrip("\n")
                for line in maps
                if line.count(" ") > 5 and "/" in line
            ]
    return [path for path in dict.fromkeys(found) if os.path.isabs(path) and _is_data(path)]


def _is_data(path: str) -> bool:
    if ".so" in os.path.basename(path):
        return False
    return _holds_samples(path) and not path.startswith(
        ("/usr/", "/lib", sys.prefix, sys.base_prefix)
    )
