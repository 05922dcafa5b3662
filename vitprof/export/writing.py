"""Files and directories that are written as a whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from vitprof.errors import VitprofError


def write_text(path: Path, text: str) -> None:
    """`write_bytes` of `text` in UTF-8, line ends as they are."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a whole file or none: to a temporary name, then renamed. Raises `VitprofError`."""
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):  # a pipe or a device, such as /dev/stdout
            path.write_bytes(data)
            return
        target = path.resolve()  # of a link, the file it leads to is replaced, not the link
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            temporary.write_bytes(data)
            temporary.replace(target)
        finally:
            with contextlib.suppress(OSError):  # gone after the rename; else the first error is the one to tell
                temporary.unlink()
    except OSError as error:
        raise VitprofError(f"{path} cannot be written: {error.strerror or error}") from error


@contextlib.contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """A directory to fill under a temporary name: `path` at the end of the block, or gone. Raises `VitprofError`.

    There must be nothing at `path` but an empty directory; who calls this has looked.
    """
    try:
        target = path.resolve()
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
        try:
            yield temporary
            temporary.chmod(0o755)  # mkdtemp's 0700 would hide it from others
            temporary.replace(target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise VitprofError(f"{path} cannot be written: {error.strerror or error}") from error
