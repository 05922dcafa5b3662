"""The data set `mnist`: the real one, downloaded by torchvision."""

from __future__ import annotations

import http.client
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from errno import EDQUOT, EFBIG, ENOSPC
from pathlib import Path

from vitprof.engine.data import idx
from vitprof.engine.data.contract import OnProgress, Stop, never, silent
from vitprof.errors import DataError, JobStopped

IDENTITY: dict[str, int | str] = {"maker": "torchvision MNIST", "version": 1}
"""Identity of what `make` downloads; it is downloaded again if this changes."""

TIMEOUT_S = 20.0
"""How long the network may be silent. torchvision tries up to three addresses before it gives up."""

NEEDED_BYTES = 70_000_000
"""Room for the archives (12 MB) and the unpacked files (55 MB), which exist together for a moment."""


def make(directory: Path, *, progress: OnProgress = silent, stop: Stop = never) -> None:
    """Downloads MNIST to `directory`/MNIST/raw as four unpacked IDX files. `directory` must exist.

    torchvision checks the archives' MD5. `stop()` is called before and after the download, not in between.
    Raises `DataError` if the download or the disk fails, `JobStopped` if asked to stop. Files downloaded until then
    stay: `datasets.prepare` works in a directory that it removes.
    """
    idx.ensure_space(directory, NEEDED_BYTES)
    progress(0.0, "downloading MNIST")
    _stop_if_asked(stop)
    from torchvision.datasets import MNIST

    # torchvision prints what it downloads; a command's standard output may have to be JSON.
    with _socket_timeout(TIMEOUT_S), redirect_stdout(sys.stderr):
        try:
            MNIST(str(directory), train=True, download=True)
        except (OSError, RuntimeError, http.client.HTTPException, EOFError) as error:
            if isinstance(error, OSError) and error.errno in (ENOSPC, EDQUOT, EFBIG):
                raise idx.write_error(directory, error) from error
            raise DataError(
                f"MNIST could not be downloaded ({_reason(error)}); choose the data set 'digits', which is made here"
            ) from error
    _stop_if_asked(stop)
    with idx.writing(directory):
        for archive in idx.raw_dir(directory).glob("*.gz"):
            archive.unlink()
    progress(1.0, "downloaded MNIST")


def _stop_if_asked(stop: Stop) -> None:
    if stop():
        raise JobStopped("stopped while MNIST was being downloaded")


@contextmanager
def _socket_timeout(seconds: float) -> Iterator[None]:
    """Sets the timeout of new sockets for the block, in the whole process. torchvision would let them wait forever."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _reason(error: Exception) -> str:
    """Returns one line for `error`.

    torchvision's has a line for each mirror, between headings: only the reasons are kept, each once.
    """
    lines = [line.strip(" <>") for line in str(error).splitlines()]
    messages = [line for line in lines if line and not line.startswith(("Error downloading", "Tried "))]
    return "; ".join(dict.fromkeys(messages)) or type(error).__name__
