"""A training script of which a few batches come late, for causes that are named on its command line.

    python -m benchmarks.stall_script KIND,KIND,... FOLDER WORKERS

Run by `benchmarks.stalls`.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import mmap
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import lmdb
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

BATCH = 4
FIRST_LATE = 40
"""After the warm-up, and enough waits to know what is usual."""
LATE_EVERY = 12
"""Fewer than one batch in ten may be late, or that would be usual."""
STALL_S = 1.2
USUAL_S = 0.002
USUAL_WORK_S = 0.03
"""CPU time of a sample where other programs shall make a batch late: too little work for that could not be."""
NOTICED_S = 0.03
"""Within this other programs have seen that they shall work."""
FILE_BYTES = 64 << 20
DIRECT_BYTES = 1 << 16
ZIP_ENTRIES = 60_000
CHUNK = 1024
"""Rows and columns of the only chunk of an HDF5 file: 4 MiB, packed."""
WRITER = """
import lmdb, sys, time
with lmdb.open(sys.argv[1]).begin(write=True):
    print("writes", flush=True)
    time.sleep(float(sys.argv[2]))
"""
OPENER = """
import fcntl, sys, time
with open(sys.argv[1], "r+b") as file:
    fcntl.lockf(file, fcntl.LOCK_EX)
    print("locked", flush=True)
    time.sleep(float(sys.argv[2]))
"""
"""Holds the lock that LMDB takes while it opens a file, as where that is on a slow drive."""
MADV_PAGEOUT = 21
"""Has the kernel give pages away, and count that as a shortage of memory (include/uapi/asm-generic/mman-common.h)."""
THRASHED_BYTES = 8 << 20
PAGE_READS = 3
"""How often a page is read before it is given away: fewer times, and it would not count as in use."""
N_READERS = 4
CHECKPOINT_BYTES = 64 << 20


def until(seconds: float = STALL_S) -> Callable[[], bool]:
    """Returns what says whether so long has not passed yet."""
    end_s = time.perf_counter() + seconds
    return lambda: time.perf_counter() < end_s


def sleep(folder: Path) -> None:
    time.sleep(STALL_S)


def read_file(folder: Path) -> None:
    """Reads past the page cache: the thread waits for the drive each time."""
    goes_on = until()
    descriptor = os.open(folder / "large", os.O_RDONLY | os.O_DIRECT)
    buffer = mmap.mmap(-1, DIRECT_BYTES)
    at = 0
    while goes_on():
        os.preadv(descriptor, [buffer], at % FILE_BYTES)
        at += DIRECT_BYTES
    os.close(descriptor)


def read_cold(folder: Path) -> None:
    """Reads a mapped file whose pages are not in memory."""
    goes_on = until()
    with (
        open(folder / "large", "rb") as file,
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data,
    ):
        data.madvise(mmap.MADV_RANDOM)
        pages: Iterator[int] = iter([])
        while goes_on():
            at = next(pages, None)
            if at is None:
                data.madvise(mmap.MADV_DONTNEED)
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                pages = iter(range(0, FILE_BYTES, mmap.PAGESIZE))
                continue
            data[at]


def sync(folder: Path) -> None:
    goes_on = until()
    with open(folder / f"log-{os.getpid()}", "ab") as file:
        while goes_on():
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())


def lock(folder: Path) -> None:
    held = threading.Lock()
    held.acquire()
    threading.Timer(STALL_S, held.release).start()
    with held:
        pass


def file_lock(folder: Path) -> None:
    with open(folder / "locked", "w") as first, open(folder / "locked") as second:
        fcntl.flock(first, fcntl.LOCK_EX)
        threading.Timer(STALL_S, lambda: fcntl.flock(first, fcntl.LOCK_UN)).start()
        fcntl.flock(second, fcntl.LOCK_EX)


def hold_python(folder: Path) -> None:
    """A thread holds Python's lock, in C code that never gives it away: for 2 s, as a process that has not
    answered for 1 s is known to be without that lock."""
    thread = threading.Thread(target=lambda: sum(range(160_000_000)))
    thread.start()
    thread.join()


def collect(folder: Path) -> None:
    """Collects garbage among many objects."""
    kept = [[each] for each in range(1_000_000)]
    goes_on = until()
    while goes_on():
        gc.collect()
    kept.clear()


def regex(folder: Path) -> None:
    """Works in C code that holds Python's lock, for 2 s."""
    re.match("(a+)+$", "a" * 26 + "b")


def stop(folder: Path) -> None:
    command = f"sleep {STALL_S}; kill -CONT {os.getpid()}"
    with subprocess.Popen(["sh", "-c", command]):
        os.kill(os.getpid(), signal.SIGSTOP)


def compute(folder: Path) -> None:
    """A huge sample."""
    goes_on = until()
    while goes_on():
        sum(each * each for each in range(1000))


def read_zip(folder: Path) -> None:
    """Reads the list of a large archive again."""
    goes_on = until()
    while goes_on():
        zipfile.ZipFile(folder / "large.zip").close()


def read_hdf5(folder: Path) -> None:
    """Reads rows of a packed chunk that is larger than the cache: each row unpacks it again."""
    goes_on = until()
    with h5py.File(folder / "rows.h5", rdcc_nbytes=0) as file:
        while goes_on():
            file["x"][0]


def lmdb_writer(folder: Path) -> None:
    """Writes to an LMDB file while another program does."""
    command = [sys.executable, "-c", WRITER, str(folder / "lmdb"), str(STALL_S)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE) as writer,
        lmdb.open(str(folder / "lmdb")) as file,
    ):
        assert writer.stdout is not None
        writer.stdout.readline()
        file.begin(write=True).abort()


def lmdb_open(folder: Path) -> None:
    """Opens an LMDB file while another program holds its lock."""
    path = folder / "opened.lmdb"
    command = [sys.executable, "-c", OPENER, str(path / "lock.mdb"), str(STALL_S)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as opener:
        assert opener.stdout is not None
        opener.stdout.readline()
        lmdb.open(str(path), readonly=True).close()


def thrash(folder: Path) -> None:
    """Reads the pages of a mapped file, each of which the kernel had to give away although it was in use: as
    where memory is short and there is no swap."""
    goes_on = until(2 * STALL_S)
    with (
        open(folder / "large", "r+b") as file,
        mmap.mmap(file.fileno(), THRASHED_BYTES, prot=mmap.PROT_READ) as data,
    ):
        data.madvise(mmap.MADV_RANDOM)
        while goes_on():
            for _ in range(PAGE_READS):
                for at in range(0, THRASHED_BYTES, mmap.PAGESIZE):
                    data[at]
            data.madvise(MADV_PAGEOUT)


def reader_threads(folder: Path) -> None:
    """Waits for its own threads, which read past the page cache."""
    with ThreadPoolExecutor(N_READERS) as readers:
        for reader in [readers.submit(read_file, folder) for _ in range(N_READERS)]:
            reader.result()


def sleeping_threads(folder: Path) -> None:
    """Waits for its own threads, which wait for something else."""
    with ThreadPoolExecutor(N_READERS) as others:
        for other in [others.submit(time.sleep, STALL_S) for _ in range(N_READERS)]:
            other.result()


def name_server(folder: Path) -> None:
    """Asks a server that does not answer, as a resolver of names does."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        asked.bind(("127.0.0.1", 0))
        asked.settimeout(STALL_S)
        with contextlib.suppress(TimeoutError):
            asked.recv(1)


def program(folder: Path) -> None:
    subprocess.run(["sleep", str(STALL_S)], check=True)


def server(folder: Path) -> None:
    ours, theirs = socket.socketpair()
    threading.Timer(STALL_S, lambda: theirs.send(b"x")).start()
    ours.recv(1)


def crowd(folder: Path) -> None:
    """Has no more to do than usual, while other programs take the cores: `benchmarks.stalls` runs them."""
    (folder / "crowded").touch()
    time.sleep(NOTICED_S)


def work() -> None:
    """Uses a core for a while, however long that takes."""
    end_s = time.thread_time() + USUAL_WORK_S
    while time.thread_time() < end_s:
        sum(each * each for each in range(1000))


def mixed(folder: Path) -> None:
    """Does several things in turn."""
    goes_on = until()
    while goes_on():
        works_on = until(0.015)
        while works_on():
            sum(each * each for each in range(1000))
        time.sleep(0.015)


def nothing(folder: Path) -> None:
    """Nothing is late."""


KINDS = {
    "sleep": sleep,
    "file": read_file,
    "cold-file": read_cold,
    "sync": sync,
    "lock": lock,
    "file-lock": file_lock,
    "python-lock": hold_python,
    "garbage": collect,
    "regex": regex,
    "stop": stop,
    "huge-sample": compute,
    "zip": read_zip,
    "hdf5": read_hdf5,
    "lmdb": lmdb_writer,
    "lmdb-open": lmdb_open,
    "thrash": thrash,
    "reader-threads": reader_threads,
    "sleeping-threads": sleeping_threads,
    "program": program,
    "server": server,
    "names": name_server,
    "crowd": crowd,
    "mixed": mixed,
    "checkpoint": nothing,
    "save": nothing,
}


def late_steps(kinds: Sequence[str]) -> dict[int, str]:
    """Returns the steps whose batch is late, and of which kind each is."""
    return {FIRST_LATE + LATE_EVERY * number: kind for number, kind in enumerate(kinds)}


class Stalling(Dataset[torch.Tensor]):
    def __init__(self, kinds: Sequence[str], folder: Path) -> None:
        self.late = late_steps(kinds)
        self.folder = folder
        self.works = "crowd" in kinds

    def __len__(self) -> int:
        return (max(self.late) + LATE_EVERY) * BATCH

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.works:
            work()
        else:
            time.sleep(USUAL_S)
        batch, sample = divmod(index, BATCH)
        if batch in self.late and sample == 0:
            KINDS[self.late[batch]](self.folder)
        return torch.full((4,), float(index))


def save(folder: Path) -> None:
    """Saves a large checkpoint in the thread that trains."""
    goes_on = until()
    while goes_on():
        with open(folder / "checkpoint.pt", "wb") as file:
            torch.save(torch.ones(CHECKPOINT_BYTES // 4), file)
            os.fsync(file.fileno())


def prepare(kinds: Sequence[str], folder: Path) -> None:
    """Writes what these kinds need."""
    if {"file", "cold-file", "thrash", "reader-threads"} & {*kinds}:
        (folder / "large").write_bytes(bytes(FILE_BYTES))
        os.sync()  # pages that are not written yet stay in memory
    if "hdf5" in kinds:
        with h5py.File(folder / "rows.h5", "w") as file:
            packed = {"chunks": (CHUNK, CHUNK), "compression": "gzip"}
            file.create_dataset("x", data=np.ones((CHUNK, CHUNK), np.float32), **packed)
    if "lmdb-open" in kinds:
        lmdb.open(str(folder / "opened.lmdb")).close()
    if "zip" in kinds:
        with zipfile.ZipFile(folder / "large.zip", "w") as archive:
            for number in range(ZIP_ENTRIES):
                archive.writestr(f"{number}", b"")


def main() -> None:
    kinds = sys.argv[1].split(",")
    folder = Path(sys.argv[2])
    workers = int(sys.argv[3])
    prepare(kinds, folder)
    late = late_steps(kinds)
    torch.manual_seed(1)
    loader = DataLoader(Stalling(kinds, folder), batch_size=BATCH, num_workers=workers)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for number, batch in enumerate(loader):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        time.sleep(0.01)
        if late.get(number) == "crowd":
            (folder / "crowded").unlink(missing_ok=True)
        if late.get(number) == "checkpoint":
            time.sleep(STALL_S)
        if late.get(number) == "save":
            save(folder)


if __name__ == "__main__":
    main()
