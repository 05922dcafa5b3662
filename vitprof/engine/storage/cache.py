"""A cache of part of a set: a fixed random subset of the samples is kept in memory, the rest is read each time.

Every epoch reads every sample once, so evicting samples would gain nothing. With a fixed subset the hit rate of every
epoch is simply the share of the samples that fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from vitprof.engine.data.contract import OnProgress, Stop
from vitprof.engine.storage.contract import EncodedStorage, PixelStorage
from vitprof.errors import JobStopped, SampleError

BYTES_A_MB = 1e6
SAMPLES_AT_ONCE = 256
"""Samples read at once while the cache is filled, between two progress reports."""


class Cached:
    """The common part of caches of pixels and of encoded images: which sample is in which slot of the cache."""

    hit_frac: float
    """Share of the samples that are in the cache: the hit rate of every epoch."""

    def __init__(self, storage: Any, resident: Tensor) -> None:
        n = len(storage)
        self._storage = storage
        self.labels: Tensor = storage.labels
        self.hit_frac = len(resident) / n if n else 0.0
        self._slot = torch.full((n,), -1, dtype=torch.int64)
        self._slot[resident] = torch.arange(len(resident))

    def __len__(self) -> int:
        return len(self._storage)

    def close(self) -> None:
        self._storage.close()

    def __getattr__(self, name: str) -> Any:
        if name == "_storage":  # not set yet while unpickling
            raise AttributeError(name)
        return getattr(self._storage, name)  # a chunked storage's block, a file's name


class CachedPixels(Cached):
    """A `PixelStorage` with part of it in memory."""

    def __init__(self, storage: PixelStorage, resident: Tensor, progress: OnProgress, stop: Stop) -> None:
        self.shape = storage.shape
        # Plain memory: forked workers share its pages, and PyTorch itself moves it to shared memory for other workers.
        self._images = torch.empty((len(resident), *storage.shape), dtype=torch.uint8)
        kept: list[Tensor] = []
        n = 0
        for start in range(0, len(resident), SAMPLES_AT_ONCE):
            _report(progress, stop, start, len(resident))
            for indices in _readable(storage, resident[start : start + SAMPLES_AT_ONCE], self._images[n:]):
                kept.append(indices)
                n += len(indices)
        super().__init__(storage, torch.cat(kept) if kept else resident[:0])

    def read(self, indices: Tensor, out: Tensor | None = None) -> Tensor:
        if out is None:
            out = torch.empty((len(indices), *self.shape), dtype=torch.uint8)
        slots = self._slot.index_select(0, indices)
        missed = (slots < 0).nonzero().flatten()
        if len(missed) < len(indices):
            torch.index_select(self._images, 0, slots.clamp_(min=0), out=out)
        if len(missed):
            read = self._storage.read(indices.index_select(0, missed))
            out.numpy()[missed.numpy()] = read.numpy()  # torch's index_copy_ makes a read 2.7 times as slow
        return out


class CachedEncoded(Cached):
    """An `EncodedStorage` with part of its encoded images in memory."""

    def __init__(
        self, storage: EncodedStorage, n_bytes: float, order: Tensor, progress: OnProgress, stop: Stop
    ) -> None:
        kept: list[int] = []
        pieces: list[bytes] = []
        free = n_bytes
        for i, index in enumerate(order.tolist()):
            if i % SAMPLES_AT_ONCE == 0:
                _report(progress, stop, n_bytes - free, n_bytes)
            try:
                encoded = storage.read_encoded(index)
            except SampleError:
                continue  # reading it from the storage raises the error again
            if len(encoded) > free:
                break
            kept.append(index)
            pieces.append(bytes(encoded))
            free -= len(encoded)
        super().__init__(storage, torch.tensor(kept, dtype=torch.int64))
        self._ends = [0]
        for piece in pieces:
            self._ends.append(self._ends[-1] + len(piece))
        joined = b"".join(pieces)
        self._bytes = torch.frombuffer(bytearray(joined or b"\0"), dtype=torch.uint8)
        self._where: list[int] = self._slot.tolist()

    def read_encoded(self, index: int) -> bytes:
        slot = self._where[index]
        if slot < 0:
            return self._storage.read_encoded(index)  # type: ignore[no-any-return]
        cached_bytes: bytes = self._bytes[self._ends[slot] : self._ends[slot + 1]].numpy().tobytes()
        return cached_bytes


def _readable(storage: PixelStorage, indices: Tensor, out: Tensor) -> Iterator[Tensor]:
    """Reads the samples at `indices` one after another into `out`; yields the indices of those that can be read.

    The others stay out of the cache: reading them from the storage raises the error again.
    """
    try:
        storage.read(indices, out[: len(indices)])
        yield indices
    except SampleError:
        n = 0
        for index in indices.split(1):  # type: ignore[no-untyped-call]
            try:
                storage.read(index, out[n : n + 1])
            except SampleError:
                continue
            n += 1
            yield index


def cached(storage: Any, form: str, budget_mb: float, seed: int, *, progress: OnProgress, stop: Stop) -> Cached:
    """Returns `storage` with as much of it in memory as `budget_mb` (10^6 bytes each) allows, after reading that much.

    Raises what the storage raises, except `SampleError`, and `JobStopped`.
    """
    n = len(storage)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    if form == "encoded":
        return CachedEncoded(storage, budget_mb * BYTES_A_MB, order, progress, stop)
    sample_bytes = math.prod(storage.shape)
    resident = order[: min(n, int(budget_mb * BYTES_A_MB // sample_bytes))]
    return CachedPixels(storage, resident.sort().values, progress, stop)


def _report(progress: OnProgress, stop: Stop, done: float, total: float) -> None:
    if stop():
        raise JobStopped("stopped while the cache was being filled")
    progress(done / total, "filling the cache")
