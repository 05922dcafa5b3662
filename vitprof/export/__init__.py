"""What leaves the house; here: how a file is written, as a whole or not at all. Modules that take long to import are
imported where they are used: `vitprof.export.report`, `.trace`, `.tensorboard`.
"""

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from vitprof.errors import VitprofError


def write_text(path: Path, text: str) -> None:
    """Writes `text` in UTF-8, line ends unchanged, as `write_bytes` does. Raises `VitprofError`."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """Writes `data` to a file as a whole or not at all, see `new_file`. Raises `VitprofError`."""
    with new_file(path) as file:
        file.write(data)


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Yields a temporary file, which becomes `path` at the end of the block or, on an error, is removed. A link is
    followed; a pipe or a device is written to directly. Raises `VitprofError`.
    """
    try:
        if path.exists() and not (
            path.is_file() or path.is_dir()
        ):  # a pipe or a device, such as /dev/stdout
            with path.open("wb") as file:
                yield file
            return
        target = path.resolve()  # the file that a link leads to is replaced, not the link
        temporary = target.with_name(f".vitprof-{secrets.token_hex(8)}.tmp")
        try:
            with temporary.open(
                "xb"
            ) as file:  # exclusively: what is there already, even a link, is not ours
                yield file
            temporary.replace(target)
        finally:
            with contextlib.suppress(
                OSError
            ):  # gone after the rename; otherwise the first error is the one to report
                temporary.unlink()
    except OSError as error:
        raise VitprofError(f"{path} cannot be written: {error.strerror or error}") from error
