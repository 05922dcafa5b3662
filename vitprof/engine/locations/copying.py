"""The files under a directory, in one order, with their sizes; and copies of them, at the speed of
a drive.
"""

import os
import re
import shutil
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from vitprof.datasets.files import (
    OnProgress,
    Stop,
    ensure_space,
    leads_nowhere,
    read_error,
    reading,
    writing,
)
from vitprof.engine.locations.throttle import TokenBucket
from vitprof.errors import DataError, JobStopped
from vitprof.formats import number, seconds

OF_TEST_SPLIT = re.compile(r"(images/)?test([./-]|$)")
"""Matches paths, relative to a storage's root, that hold only test samples."""


def walk(directory: Path, *, skip_unreadable: bool = False) -> Iterator[tuple[str, int]]:
    """Yields the relative path and the size in bytes of each regular file under `directory`,
    ordered by name.

    Links are followed; with `skip_unreadable` those that lead nowhere are left out. Raises a
    `DataError` that names what cannot be listed or is not a file.
    """

    def fail(error: OSError) -> None:
        raise read_error(error.filename, error) from error

    for top, folders, names in os.walk(directory, followlinks=True, onerror=fail):
        folders.sort()
        inside = os.path.relpath(top, directory)
        for name in sorted(names):
            path = os.path.join(top, name)
            try:
                facts = os.stat(path)
            except OSError as error:
                if skip_unreadable and leads_nowhere(path):
                    continue
                raise read_error(path, error) from error
            if not stat.S_ISREG(facts.st_mode):
                raise DataError(f"{path} is neither a file nor a directory; remove it")
            relative = name
            if inside != os.curdir:
                relative = f"{inside}{os.sep}{name}"
            yield relative, facts.st_size


def tree_bytes(directory: Path, *, skip_unreadable: bool = False) -> int:
    """Returns the total size of the files under `directory`, in bytes.

    Raises `DataError` as `walk` does.
    """
    return sum(n for _, n in walk(directory, skip_unreadable=skip_unreadable))


def is_for_training(name: str) -> bool:
    """Returns whether training may read the file `name`, a path relative to a storage's root."""
    return not OF_TEST_SPLIT.match(name)


ELSEWHERE = "choose another location"
"""What to do where there is no room for a copy, or it cannot be written."""
_writing = partial(writing, remedy=ELSEWHERE)

BLOCK_BYTES = 2**20
"""Bytes read at once.

A block fits a core's cache, so that it is still there when it is written: 256 KiB to 1 MiB were a
little faster than 8 MiB, and faster than sendfile and copy_file_range."""
LEAST_BLOCK_BYTES = 4096
"""Bytes read at once from the slowest drive: a page."""
PIECE_BYTES = 16 * 2**20
"""Size of the pieces in which several threads copy a large file.

Writes to one file wait for each other, but one thread reads while another writes. Two threads
copied a cached file at 0.93 to 0.96 of the speed of writing alone, one at 0.82 (medians of 8)."""
COPY_THREADS = 2
"""Files or pieces copied at once: one waits for the disk, the other is written.

More gained nothing on two cores."""
MOST_COPY_THREADS = 512
"""Most readers at once on a drive whose latencies overlap.

The preset "network-drive" needs 64 to use its bandwidth with files of 100 KB, and never does with
small ones: 60,000 digits took 25 s with 512 readers, 50 s with 256. Each holds one open file while
it waits, and systems allow 1,024."""
REPORT_EVERY_S = 0.1
"""How often (s) progress is reported and `stop` is called."""
LONGEST_BLOCK_S = 0.25
"""Longest time that a block of a throttled drive takes, so that progress moves and a stop is
noticed."""


@dataclass(frozen=True)
class CopyResult:
    """The size of a finished copy, and how long it took."""

    n_bytes: int
    seconds: float


def copy_tree(
    source: Path,
    target: Path,
    *,
    throttle: TokenBucket | None,
    progress: OnProgress,
    stop: Stop,
    wanted: Callable[[str], bool] = lambda name: True,
    skip_unreadable: bool = False,
    clock: Callable[[], float] = time.perf_counter,
) -> CopyResult:
    """Copies files under `source` into the new directory `target`, at the speed of `throttle` if it
    is given.

    Copies the files whose path relative to `source` is `wanted` (by default all), and with
    `skip_unreadable` links that lead nowhere, too. Progress reports
    MB (10^6 bytes) and MB/s. Raises `DataError` (no room, `target` exists, a file that cannot be
    read or written) and `JobStopped`; what was copied until then is removed.
    """
    began = clock()
    found = walk(source, skip_unreadable=skip_unreadable)
    files = [(name, n_bytes) for name, n_bytes in found if wanted(name)]
    total = sum(n for _, n in files)

    def report(done: int) -> None:
        progress(done / max(total, 1), _message(done, total, clock() - began))

    with _writing(target):
        # Fails if it exists: that would not be ours to remove.
        target.mkdir(parents=True)
    try:
        with _writing(target):
            ensure_space(target, total, ELSEWHERE)
            # Empty folders, too: a class may have no image. And links that lead nowhere: such an
            # image is one of those that cannot be read.
            for top, folders, names in os.walk(source, followlinks=True):
                inside = os.path.relpath(top, source)
                for folder in folders:
                    (target / inside / folder).mkdir()
                paths = (os.path.normpath(os.path.join(inside, name)) for name in names)
                for name in filter(wanted, paths):
                    if leads_nowhere(source / name):
                        os.symlink(os.readlink(source / name), target / name)
            _Copy(source, target, throttle, files).run(report, stop)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    took_s = clock() - began
    progress(1.0, f"copied {number(total / 1e6, 'MB')} in {seconds(took_s)}")
    return CopyResult(total, took_s)


def _message(done: int, total: int, took_s: float) -> str:
    message = f"copied {number(done / 1e6)} of {number(total / 1e6, 'MB')}"
    if took_s > 0:
        message += f", {number(done / 1e6 / took_s, 'MB/s')}"
    return message


def _pieces(files: list[tuple[str, int]]) -> Iterator[tuple[str, int, int]]:
    """Yields name, first byte and end of each piece: a file, or a part of a large one."""
    for name, n_bytes in files:
        for start in range(0, max(n_bytes, 1), PIECE_BYTES):
            yield name, start, min(start + PIECE_BYTES, n_bytes)


class _Copy:
    """Threads that take pieces from one queue. The calling thread reports progress and stops them."""

    def __init__(
        self, source: Path, target: Path, throttle: TokenBucket | None, files: list[tuple[str, int]]
    ) -> None:
        self._source = str(source)
        self._target = str(target)
        self._throttle = throttle
        block = BLOCK_BYTES
        if throttle is not None:
            in_time = int(throttle.drive.mb_s * 1e6 * LONGEST_BLOCK_S)
            block = max(LEAST_BLOCK_BYTES, min(block, in_time))
        # Each thread has a buffer of a block: no larger than the largest file needs.
        self._block = min(block, max([1, *(n for _, n in files)]))
        self._pieces = deque(_pieces(files))
        self._threads = max(1, min(_threads(throttle, files), MOST_COPY_THREADS, len(self._pieces)))
        self._done = [0] * self._threads
        self._halt = threading.Event()

    def run(self, report: Callable[[int], None], stop: Stop) -> None:
        """Copies all pieces; `report` gets the bytes copied so far.

        Raises `DataError` and `JobStopped`.
        """
        with ThreadPoolExecutor(self._threads, thread_name_prefix="vitprof-copy") as pool:
            try:
                pending = {pool.submit(self._work, i) for i in range(self._threads)}
                while pending:
                    ended, pending = wait(
                        pending, timeout=REPORT_EVERY_S, return_when=FIRST_EXCEPTION
                    )
                    for future in ended:
                        future.result()
                    if pending and stop():
                        raise JobStopped("stopped while data were being copied")
                    report(sum(self._done))
            finally:
                self._halt.set()

    def _work(self, thread: int) -> None:
        buffer = memoryview(bytearray(self._block))
        while not self._halt.is_set():
            try:
                name, start, stop = self._pieces.popleft()
            except IndexError:
                return
            source = f"{self._source}{os.sep}{name}"
            target = f"{self._target}{os.sep}{name}"
            # Before the file is opened, so that few are open at once. It counts with its first
            # piece.
            n_files = 1 if start == 0 else 0
            self._pay(min(self._block, stop - start), n_files)
            with (
                _opened(source, os.O_RDONLY, reading) as read_from,
                _opened(target, os.O_WRONLY | os.O_CREAT, _writing) as written_to,
            ):
                if stop - start > self._block and hasattr(os, "posix_fadvise"):
                    # Reads further ahead than by default; WILLNEED was slower, cold and cached (n =
                    # 6).
                    os.posix_fadvise(read_from, 0, 0, os.POSIX_FADV_SEQUENTIAL)
                for at in range(start, max(stop, 1), self._block):
                    block = buffer[: min(self._block, stop - at)]
                    if at > start:
                        self._pay(len(block), 0)
                    if self._halt.is_set():
                        return
                    _read(read_from, source, block, at)
                    _write(written_to, target, block, at)
                    self._done[thread] += len(block)

    def _pay(self, n_bytes: int, n_files: int) -> None:
        """Waits as long as the drive takes; opening a file counts with its first block."""
        if self._throttle is not None:
            self._throttle.wait(n_bytes, n_files, self._halt.is_set)


def _read(descriptor: int, path: str, room: memoryview, at: int) -> None:
    """Fills `room` from the file."""
    got = 0
    with reading(path):
        while got < len(room):
            n = os.preadv(descriptor, (room[got:],), at + got)
            if not n:
                raise DataError(f"{path} became shorter while it was copied; try again")
            got += n


def _write(descriptor: int, path: str, block: memoryview, at: int) -> None:
    written = 0
    with _writing(path):
        while written < len(block):
            written += os.pwrite(descriptor, block[written:], at + written)


@contextmanager
def _opened(
    path: str, flags: int, doing: Callable[[str], AbstractContextManager[None]]
) -> Iterator[int]:
    with doing(path):
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _threads(throttle: TokenBucket | None, files: list[tuple[str, int]]) -> int:
    """Returns the number of readers that use the drive's full bandwidth while each waits for its
    file to be opened.
    """
    if throttle is None or throttle.drive.serial or not files:
        return COPY_THREADS
    mean_bytes = sum(n for _, n in files) / len(files)
    return int(COPY_THREADS + throttle.drive.files_on_the_way(mean_bytes))
