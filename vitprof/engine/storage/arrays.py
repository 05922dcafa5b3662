"""A split as one array: a .npy file mapped into memory, or tensors in memory (uint8, or float as a
TensorDataset).
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, TensorDataset

from vitprof.datasets.catalog import DatasetInfo
from vitprof.datasets.files import OnProgress, Stop, report
from vitprof.datasets.mnist import read_split
from vitprof.engine.storage import contract
from vitprof.errors import DataError, SampleError
from vitprof.formats import size
from vitprof.forms.memmap import NpyWriter, map_npy
from vitprof.measure.stopwatch import Stopwatch


def open_writer(directory: Path, split: contract.SplitFacts) -> contract.SplitWriter:
    """Returns the writer of train.npy or test.npy."""
    shape = (split.n, *split.shape)
    return contract.RowsWriter(NpyWriter(directory / f"{split.name}.npy", shape))


FORMAT = contract.Format(1, "pixels", open_writer, contract.image_bytes)


class MappedStorage(contract.StoredSplit):
    """Images as an array in a mapped file: one gather of rows for each batch."""

    def __init__(
        self, info: DatasetInfo, location: contract.Location, train: bool, file: str
    ) -> None:
        super().__init__(info, location, train)
        self._path = location.root / file
        self._image_bytes = contract.image_bytes(info)
        self.labels = contract.read_labels(location.root, train=train)
        self._here()

    def _map(self) -> NDArray[Any]:
        """Returns the array, mapped. Raises `OSError` and `ValueError`."""
        raise NotImplementedError

    def _open(self) -> torch.Tensor:
        try:
            images = self._map()
        except contract.FAILURES as error:
            raise contract.unusable(self._path, error) from error
        wanted = (len(self), *self.shape)
        if images.dtype != np.uint8 or images.shape != wanted:
            found = f"{images.dtype} {images.shape}"
            # Whoever keeps the error would keep the file mapped.
            del images
            raise self._unusable(f"{self._path} holds {found}, not uint8 {wanted}")
        return torch.from_numpy(images)

    def read(self, indices: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        self._location.reading(len(indices) * self._image_bytes)
        # As fast as np.take(out=, mode="clip"), and raises an error for a wrong index.
        return torch.index_select(self._here(), 0, indices, out=out)


class MemmapStorage(MappedStorage):
    """Images in a .npy file."""

    def __init__(self, info: DatasetInfo, location: contract.Location, train: bool) -> None:
        super().__init__(info, location, train, f"{'train' if train else 'test'}.npy")

    def _map(self) -> NDArray[Any]:
        self._location.reading(0, 1)
        return map_npy(self._path)


SAMPLES_AT_ONCE = 256
"""Samples converted at once, so that the whole set is never in memory twice, or read into the cache
between two progress reports.
"""


class _InMemory:
    """The common part of storages of tensors: no file is open."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.images = images
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def close(self) -> None:
        """Does nothing: no file is open."""


class MemoryStorage(_InMemory):
    """Images (n, height, width, channels) uint8 and labels (n,) int64, contiguous on one device."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        super().__init__(images, labels)
        _, height, width, channels = images.shape
        self.shape = (height, width, channels)
        self.device = images.device
        """Where images and labels are, and where the indices given to `read` must be."""

    def read(self, indices: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        return torch.index_select(self.images, 0, indices, out=out)

    def to(self, device: torch.device) -> MemoryStorage:
        """Returns the same storage on `device`."""
        return MemoryStorage(self.images.to(device), self.labels.to(device))


class FloatStorage(_InMemory):
    """Images (n, channels, height, width) float32 in 0..1 and labels (n,) int64, as the article
    keeps them.
    """

    pixels: contract.Pixels = "unit"

    def dataset(
        self, stopwatch: Stopwatch | None = None
    ) -> Dataset[tuple[torch.Tensor, int | torch.Tensor]]:
        if stopwatch is not None:
            # A sample is a row of the tensor as it is.
            stopwatch.rest = "read"
        return TensorDataset(self.images, self.labels)  # type: ignore[return-value]  # two tensors make pairs


def open_uint8(info: DatasetInfo, location: contract.Location, train: bool) -> MemoryStorage:
    """Returns the split as stored, one byte for each pixel value.

    Raises `DataError` if the files cannot be read or the split does not fit into memory.
    """
    source = _stored(info, location, train, bytes_a_value=1)
    if isinstance(source, MemoryStorage):
        return source
    images = source.read(torch.arange(len(source)))
    source.close()
    return MemoryStorage(images, source.labels)


def open_float(info: DatasetInfo, location: contract.Location, train: bool) -> FloatStorage:
    """Returns the split as one float32 tensor scaled to 0..1: four bytes for each pixel value.

    Raises `DataError` as `open_uint8` does.
    """
    source = _stored(info, location, train, bytes_a_value=4)
    height, width, channels = source.shape
    images = torch.empty((len(source), channels, height, width))
    for rows in torch.split(torch.arange(len(source)), SAMPLES_AT_ONCE):
        images[rows[0] : rows[-1] + 1] = source.read(rows).permute(0, 3, 1, 2)
    source.close()
    return FloatStorage(images.div_(255), source.labels)


def ensure_memory(needed_bytes: int, what: str) -> None:
    """Raises `DataError` if less than `needed_bytes` of memory are available, before the system
    kills the process.
    """
    available_bytes = psutil.virtual_memory().available
    if available_bytes < needed_bytes:
        raise DataError(
            f"not enough memory: {what} needs {size(needed_bytes)} and {size(available_bytes)} are available; "
            "choose a storage on disk or fewer images"
        )


def _stored(
    info: DatasetInfo, location: contract.Location, train: bool, *, bytes_a_value: int
) -> MemmapStorage | MemoryStorage:
    """Returns the split as it is stored.

    Raises `DataError` if there is no memory for so many bytes a pixel value.
    """
    source: MemmapStorage | MemoryStorage
    if info.kind == "idx":
        images, labels = read_split(location.root, train)
        source = MemoryStorage(torch.from_numpy(images).unsqueeze(3), torch.from_numpy(labels))
    else:
        source = MemmapStorage(info, location, train)
    n_bytes = bytes_a_value * len(source) * math.prod(source.shape)
    ensure_memory(n_bytes, f"the {'train' if train else 'test'} split of {info.name}")
    return source


BYTES_A_MB = 1e6
MESSAGE = "filling the cache"
ACTIVITY = "the cache was being filled"


class Cached:
    """The common part of caches of pixels and of encoded images: which sample is in which slot of
    the cache.
    """

    def __init__(self, storage: Any, resident: torch.Tensor) -> None:
        n = len(storage)
        self._storage = storage
        self.labels: torch.Tensor = storage.labels
        self.hit_frac = len(resident) / n if n else 0.0
        """Share of the samples that it holds: its hit rate in every epoch."""
        self._slot = torch.full((n,), -1, dtype=torch.int64)
        """(n,) slot of each sample in the cache; -1 for one that is not in it."""
        self._slot[resident] = torch.arange(len(resident))

    def __len__(self) -> int:
        return len(self._storage)

    def close(self) -> None:
        self._storage.close()

    def __getattr__(self, name: str) -> Any:
        if name == "_storage":
            # It is not set yet while unpickling: looking for it would ask this method again.
            raise AttributeError(name)
        # A chunked storage's block, a file's name.
        return getattr(self._storage, name)


class CachedPixels(Cached):
    """A `PixelStorage` with part of it in memory."""

    def __init__(
        self,
        storage: contract.PixelStorage,
        resident: torch.Tensor,
        progress: OnProgress,
        stop: Stop,
    ) -> None:
        self.shape = storage.shape
        # Plain memory: forked workers share its pages, and PyTorch itself moves it to shared memory
        # for other workers.
        self._images = torch.empty((len(resident), *storage.shape), dtype=torch.uint8)
        kept: list[torch.Tensor] = []
        n = 0
        for start in range(0, len(resident), SAMPLES_AT_ONCE):
            report(progress, stop, start / len(resident), MESSAGE, ACTIVITY)
            wanted = resident[start : start + SAMPLES_AT_ONCE]
            indices, _ = contract.read_readable(storage, wanted, self._images[n:])
            kept.append(indices)
            n += len(indices)
        # An empty one in front, as torch.cat needs at least one.
        super().__init__(storage, torch.cat([resident[:0], *kept]))

    def read(self, indices: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        if out is None:
            out = torch.empty((len(indices), *self.shape), dtype=torch.uint8)
        slots = self._slot.index_select(0, indices)
        missed = (slots < 0).nonzero().flatten()
        if len(missed) < len(indices):
            torch.index_select(self._images, 0, slots.clamp_(min=0), out=out)
        if len(missed):
            read = self._storage.read(indices.index_select(0, missed))
            # torch's index_copy_ makes a read 2.7 times as slow.
            out.numpy()[missed.numpy()] = read.numpy()
        return out


class CachedEncoded(Cached):
    """An `EncodedStorage` with part of its encoded images in memory."""

    def __init__(
        self,
        storage: contract.EncodedStorage,
        n_bytes: float,
        order: torch.Tensor,
        progress: OnProgress,
        stop: Stop,
    ) -> None:
        kept: list[int] = []
        pieces: list[bytes] = []
        free = n_bytes
        for i, index in enumerate(order.tolist()):
            if i % SAMPLES_AT_ONCE == 0:
                report(progress, stop, 1 - free / n_bytes, MESSAGE, ACTIVITY)
            try:
                encoded = storage.read_encoded(index)
            except SampleError:
                # Reading it from the storage raises the error again.
                continue
            if len(encoded) > free:
                break
            kept.append(index)
            pieces.append(bytes(encoded))
            free -= len(encoded)
        super().__init__(storage, torch.tensor(kept, dtype=torch.int64))
        self._ends = list(itertools.accumulate(map(len, pieces), initial=0))
        # A tensor, as workers that are not forked get it in shared memory; frombuffer takes no
        # empty one.
        self._bytes = torch.frombuffer(bytearray(b"".join(pieces) or b"\0"), dtype=torch.uint8)
        self._where: list[int] = self._slot.tolist()

    def read_encoded(self, index: int) -> bytes:
        slot = self._where[index]
        if slot < 0:
            return self._storage.read_encoded(index)  # type: ignore[no-any-return]
        cached_bytes: bytes = self._bytes[self._ends[slot] : self._ends[slot + 1]].numpy().tobytes()
        return cached_bytes


def cached(
    storage: Any, form: str, budget_mb: float, seed: int, *, progress: OnProgress, stop: Stop
) -> Cached:
    """Returns `storage` with as much of it in memory as `budget_mb` (10^6 bytes each) allows.

    Raises what it raises.
    """
    n = len(storage)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    if form == "encoded":
        return CachedEncoded(storage, budget_mb * BYTES_A_MB, order, progress, stop)
    sample_bytes = math.prod(storage.shape)
    n_resident = min(n, int(budget_mb * BYTES_A_MB // sample_bytes))
    resident = order[:n_resident]
    # In order, so that the cache is filled by reading the storage from its beginning to its end.
    return CachedPixels(storage, resident.sort().values, progress, stop)
