"""Files and directories that are written as a whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from vitprof.errors import VitprofError
from vitprof.formats import size


def write_text(path: Path, text: str) -> None:
    """`write_bytes` of `text` in UTF-8, line ends as they are."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a whole file or none, see `new_file`. Raises `VitprofError`."""
    with new_file(path) as file:
        file.write(data)


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write under a temporary name that nobody can guess: `path` at the end of the block, or gone.

    What was at `path` stays until then; a link is followed, a pipe or a device is written to. Raises `VitprofError`.
    """
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):  # a pipe or a device, such as /dev/stdout
            with path.open("wb") as file:
                yield file
            return
        target = path.resolve()  # of a link, the file it leads to is replaced, not the link
        temporary = target.with_name(f".vitprof-{secrets.token_hex(8)}.tmp")
        try:
            with temporary.open("xb") as file:  # exclusively: what lies there, a link too, is somebody else's
                yield file
            temporary.replace(target)
        finally:
            with contextlib.suppress(OSError):  # gone after the rename; else the first error is the one to tell
                temporary.unlink()
    except OSError as error:
        raise VitprofError(f"{path} cannot be written: {error.strerror or error}") from error


@contextlib.contextmanager
def new_directory(path: Path, room: int) -> Iterator[Path]:
    """A directory to fill under a temporary name: `path` at the end of the block, or gone. Raises `VitprofError`.

    There must be nothing at `path` but an empty directory; who calls this has looked. `room` is about how many bytes
    will be written: where the disk has less, nothing is begun.
    """
    try:
        target = path.resolve()
        _check_room(target.parent, path, room)
        temporary = Path(tempfile.mkdtemp(prefix=".vitprof-", suffix=".tmp", dir=target.parent))
        try:
            yield temporary
            temporary.chmod(0o755)  # mkdtemp's 0700 would hide it from others
            temporary.replace(target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise VitprofError(f"{path} cannot be written: {error.strerror or error}") from error


def _check_room(directory: Path, path: Path, room: int) -> None:
    """Raises `VitprofError` where the disk of `directory` has less than `room` bytes free; `OSError`."""
    disk = os.statvfs(directory)
    free = disk.f_bavail * disk.f_frsize
    if disk.f_blocks and free < room:  # a file system without blocks does not say
        raise VitprofError(f"{path} cannot be written: it takes about {size(room)}, and {size(free)} are free there")
