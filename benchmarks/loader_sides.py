"""vitprof's side of each comparison: the pipeline that a job runs, without the training; and its copying of files."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measuring import Side, Work, repeated
from vitprof import home
from vitprof.config import RunConfig
from vitprof.config.parts import STORAGES
from vitprof.config.resolve import resolve
from vitprof.engine.loaders.contract import Batch
from vitprof.engine.locations.copying import BLOCK_BYTES, copy_tree
from vitprof.engine.pipeline import Pipeline, open_pipeline
from vitprof.measure.devices import CpuDevice
from vitprof.measure.step_columns import StepMarks

READ_BYTES = 8 * 2**20
MARGIN = 64 * 2**20
SMALL_FILE = 100_000
"""Bytes of each file where many are copied: about the size of a photo."""


class Silent:
    """A receiver that drops all events."""

    def environment(self, facts: dict[str, Any]) -> None: ...

    def gauges(self, read: Callable[[], dict[str, float]]) -> None: ...

    def stage(self, name: str, fraction: float, message: str = "") -> None: ...

    def step(self, marks: StepMarks) -> None: ...

    def phase(self, name: str, t_start_s: float, t_end_s: float) -> None: ...

    def notice(self, line: str) -> None: ...

    def facts(self, values: dict[str, Any]) -> None: ...


def never() -> bool:
    return False


def warm(config: RunConfig) -> RunConfig:
    """Returns `config` resolved, with a warm page cache where samples are read from files."""
    resolved = resolve(config)
    return (
        replace(resolved, page_cache="warm")
        if STORAGES[resolved.storage or ""].on_disk
        else resolved
    )


def opened(things: ExitStack, **config: Any) -> Pipeline:
    """Returns the pipeline of a config as a job opens it, with a warm page cache. Raises what `open_pipeline` does."""
    fixed: dict[str, Any] = {"device": "cpu", "threads": 1}
    resolved = warm(RunConfig(**(fixed | config)))
    clock = time.perf_counter
    return things.enter_context(
        open_pipeline(resolved, CpuDevice(clock), Silent(), never, clock, evaluate=False)
    )


def in_the_loop(pipeline: Pipeline) -> Side:
    """Returns a side that takes batches as the training loop does. A slice continues where the previous one ended.

    It is for loaders that do nothing between two calls.
    """
    loader, transfer = pipeline.train.loader, pipeline.train.transfer

    def forever() -> Iterator[Batch]:
        epoch = 0
        while True:
            yield from loader.epoch(epoch)
            epoch += 1

    batches = forever()

    def side(seconds: float) -> Work:
        work, n, until = Work(), 0, time.perf_counter() + seconds
        with work.timed():
            for batch in batches:
                n += len(transfer(batch).labels)
                if time.perf_counter() >= until:
                    break
        work.units = n
        return work

    return side


def with_threads(pipeline: Pipeline, *, whole_epochs: bool = False) -> Side:
    """Returns the same for loaders with threads: each slice ends its epoch, so that no thread works during the next."""
    split = pipeline.train
    epochs = iter(range(10**9))

    def side(seconds: float) -> Work:
        work, n, until = Work(), 0, time.perf_counter() + seconds
        with work.timed():
            while time.perf_counter() < until:
                batches: Any = split.epoch(next(epochs))
                for batch in batches:
                    n += len(split.transfer(batch).labels)
                    if not whole_epochs and time.perf_counter() >= until:
                        break
                batches.close()
        work.units = n
        return work

    return side


def staging(things: ExitStack, n_bytes: int, file_bytes: int) -> dict[str, Side]:
    """Returns three sides: `copy_tree` of `n_bytes` in files of `file_bytes`, only reading them, and only writing them.
    Units are bytes.

    None of them waits for the disk: what they wrote is in the page cache when they return. Before each, outside the
    timing, as much memory is touched and freed: without that the same write cost 0.18 to 1.24 CPU-seconds for each GB
    on a virtual machine, with it 0.17 to 0.28, as pages that were not used for a while are slow to get.
    """
    directory = Path(
        things.enter_context(tempfile.TemporaryDirectory(dir=home.ensure_dir(home.home())))
    )
    source, target = directory / "source", directory / "target"
    content = memoryview(
        os.urandom(min(file_bytes, BLOCK_BYTES))
    )  # blocks as in the copy: larger ones leave the cache
    names = [f"{i:06d}" for i in range(max(1, n_bytes // file_bytes))]
    written = len(names) * file_bytes

    def write(into: Path) -> None:
        into.mkdir()
        for name in names:
            file = os.open(into / name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            left = file_bytes
            while left:
                left -= os.write(file, content[:left])
            os.close(file)

    def read() -> None:
        buffer = [bytearray(READ_BYTES)]
        for name in names:
            file = os.open(source / name, os.O_RDONLY | os.O_CLOEXEC)
            while os.readv(file, buffer):
                pass
            os.close(file)

    def copy() -> None:
        copy_tree(
            source, target, throttle=None, progress=lambda fraction, message: None, stop=never
        )

    def once(do: Callable[[], None]) -> Side:
        def timed(work: Work) -> float:
            np.full(written + MARGIN, 1, np.uint8)
            with work.timed():
                do()
            shutil.rmtree(target, ignore_errors=True)
            return written

        return repeated(timed)

    write(source)
    return {"copied": once(copy), "read": once(read), "written": once(lambda: write(target))}
