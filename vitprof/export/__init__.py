"""What others can use: files of runs, an HTML report, a trace, bundles, a strategy as code.

Here is how a file is written, as a whole or not at all. Modules that take long to import are
imported where they are used: `vitprof.export.report` and `.trace`.
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
    """Yields a file with an unguessable temporary name, which becomes `path` at the end of the
    block.

    On an error it is removed. `path` is unchanged until the end. A link is followed; a pipe or a
    device is written to directly. Raises `VitprofError`.
    """
    try:
        # A pipe or a device, such as /dev/stdout, cannot be replaced.
        if path.exists() and not path.is_file() and not path.is_dir():
            with path.open("wb") as file:
                yield file
            return
        # The file that a link leads to is replaced, not the link.
        target = path.resolve()
        temporary = target.with_name(f".vitprof-{secrets.token_hex(8)}.tmp")
        try:
            # Exclusively: what is there already, even a link, is not ours.
            with temporary.open("xb") as file:
                yield file
            temporary.replace(target)
        finally:
            # It is gone after the rename; otherwise the first error is the one to report.
            with contextlib.suppress(OSError):
                temporary.unlink()
    except OSError as error:
        raise VitprofError(f"{path} cannot be written: {error.strerror or error}") from error
