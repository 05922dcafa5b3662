"""The gate through which goes every path of a data set of the user's own: that of its spec, and those
that links, tables and containers name.

A page may read below some folders only, and whoever made a file may name any path in it. A pipe would
be waited for without end, and a device read without end.
"""

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

MOST_BYTES = 1 << 29
"""Of a file that holds one image. More are no image: reading it would take the memory."""
OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
"""Without O_NONBLOCK, opening a pipe waits for somebody who writes."""
KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


Kept = Callable[[str, list[str]], list[str]]
"""Given a folder and the names of those in it, returns some of them."""


class NotAdmitted(ValueError):
    """A path that is not read, with the reason."""


def _nothing() -> None:
    """Is told that work goes on where nobody counts its time."""


@dataclass(frozen=True)
class Gate:
    """Which paths may be read."""

    roots: tuple[Path, ...] | None = None
    """Folders, resolved, below which files may be; None: anywhere."""
    alive: Callable[[], None] = _nothing
    """Called with each thing that is listed: what bounds the time of listing counts from there."""

    def is_inside(self, path: str | Path) -> bool:
        """Returns whether a path is below one of the folders, links and `..` followed."""
        if self.roots is None:
            return True
        try:
            # Not Path.resolve, which raises RuntimeError for links in a circle.
            real = Path(os.path.realpath(path))
        except ValueError:
            # A NUL in it.
            return False
        return any(real.is_relative_to(root) for root in self.roots)

    def admit(self, path: str | Path) -> None:
        """Raises `NotAdmitted` unless a path leads to a file that may be read, and `OSError`."""
        if not self.is_inside(path):
            raise NotAdmitted(f"{path} is outside of the folders that may be read")
        _ensure_file(path, os.stat(path))

    def admit_all(self, top: Path) -> None:
        """Admits each file below a folder that its library opens by itself. Raises as `admit` does."""
        for path in self.files_below(top):
            # A link that leads nowhere is opened by nobody.
            if os.path.exists(path):
                self.admit(path)

    def read(self, path: str | Path) -> bytes:
        """Returns what is in the file of one image. Raises `NotAdmitted` and `OSError`."""
        self.admit(path)
        with open(os.open(path, OPEN_FLAGS), "rb") as file:
            found = os.fstat(file.fileno())
            # It may be another one by now.
            _ensure_file(path, found)
            if found.st_size > MOST_BYTES:
                raise NotAdmitted(
                    f"{path} has {found.st_size:,} bytes; an image file of at most {MOST_BYTES:,} is read"
                )
            return file.read(found.st_size)

    def files_below(self, top: Path, kept: Kept = lambda folder, names: names) -> Iterator[Path]:
        """Yields the paths of what is no folder below a folder, in order. Links are followed, each
        folder once; a link to a folder that may not be read is yielded itself. `kept` returns which
        folders of those in a folder are looked into.
        """
        seen: set[str] = set()
        for root, below, files in os.walk(top, followlinks=True):
            real = os.path.realpath(root)
            if real in seen:
                # A link back to a folder above would otherwise be followed for ever.
                below.clear()
                continue
            seen.add(real)
            outside = [name for name in below if not self.is_inside(os.path.join(root, name))]
            below[:] = kept(root, sorted(set(below).difference(outside)))
            for name in sorted([*files, *outside]):
                self.alive()
                yield Path(root, name)


def is_special(path: str | Path) -> bool:
    """Returns whether a path leads to what is there and is no file: a pipe, a device, a folder."""
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def _ensure_file(path: str | Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise NotAdmitted(f"{path} is {kind}, not a file")
