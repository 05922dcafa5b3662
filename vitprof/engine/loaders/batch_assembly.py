"""Makers: they read a batch from the storage, decode, crop and augment it.

Loaders decide when, and in which thread. A maker is a pure function of (epoch, indices): every
loader, in any process or thread, makes the same batch of the same samples, including random crops.
"""

from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitprof.config import RunConfig, parts
from vitprof.datasets.catalog import DatasetInfo
from vitprof.engine import transforms
from vitprof.engine.loaders.contract import Batch
from vitprof.engine.storage.contract import EncodedStorage, PixelStorage, read_readable
from vitprof.errors import SampleError
from vitprof.measure.step_columns import BatchTimes
from vitprof.measure.stopwatch import Stopwatch, requested_wait

HOW_TO_SKIP = (
    "repair the data set's own file and delete what was prepared from it, "
    "or skip such samples (--skip-unreadable)"
)


class Maker:
    """Makes batches from a storage. Can be pickled and used in several threads."""

    shape: tuple[int, int, int]
    """(height, width, channels) of the images it makes."""

    def __init__(self, storage: Any, info: DatasetInfo, config: RunConfig, train: bool) -> None:
        self._storage = storage
        self._info = info
        self._seed = config.seed
        self._augment = train and config.augment == "cpu"
        self._skip = config.skip_unreadable
        self._times = config.loader_times
        self.wait = requested_wait(config, train=train)

    def __call__(self, epoch: int, indices: Tensor, out: Tensor | None = None) -> Batch:
        """Returns the samples at `indices` (b,) int64 as a uint8 batch, in `out` (b, height, width,
        channels) if given.

        With `RunConfig.loader_times` the batch has its times. Raises `SampleError` for a sample
        that cannot be read, unless such samples are skipped.
        """
        raise NotImplementedError


class PixelMaker(Maker):
    """The maker for a storage of form "pixels"."""

    def __init__(
        self, storage: PixelStorage, info: DatasetInfo, config: RunConfig, train: bool
    ) -> None:
        super().__init__(storage, info, config, train)
        self.shape = storage.shape

    def __call__(self, epoch: int, indices: Tensor, out: Tensor | None = None) -> Batch:
        # A batch in memory takes 10 us: what is off must cost next to nothing.
        times = self._times
        wait = self.wait
        begun = perf_counter() if times else 0.0
        if wait is not None:
            wait.into("read")
        unreadable: tuple[str, ...] = ()
        try:
            pixels = self._storage.read(indices, out)
        except SampleError:
            if not self._skip:
                raise
            if out is None:
                out = torch.empty((len(indices), *self.shape), dtype=torch.uint8)
            indices, unreadable = read_readable(self._storage, indices, out)
            pixels = out[: len(indices)]
        changed = read = perf_counter() if times else 0.0
        if self._augment:
            if wait is not None:
                wait.into("transform")
            if out is None:
                # `pixels` may be the storage's own memory.
                pixels = pixels.clone()
            transforms.on_cpu(pixels.numpy(), augment_maps(self._info, self._seed, epoch, indices))
            changed = perf_counter()
        if wait is not None:
            wait.into("collate")
        images = pixels.permute(0, 3, 1, 2)
        labels = self._storage.labels.index_select(0, indices)
        if not times:
            return Batch(images, labels, unreadable)
        end = perf_counter()
        made = BatchTimes(read - begun, 0.0, changed - read, end - changed, begun, end)
        return Batch(images, labels, unreadable, made)


class EncodedMaker(Maker):
    """The maker for a storage of form "encoded" (JPEG or PNG)."""

    def __init__(
        self, storage: EncodedStorage, info: DatasetInfo, config: RunConfig, train: bool
    ) -> None:
        super().__init__(storage, info, config, train)
        self.shape = (info.image_size, info.image_size, info.channels)
        # Imported here: only image files need its packages.
        from vitprof.engine.decoders import open_decoder

        self._decode = open_decoder(config.decoder or "simplejpeg")

    def __call__(self, epoch: int, indices: Tensor, out: Tensor | None = None) -> Batch:
        begun = perf_counter()
        stopwatch = Stopwatch(self.wait)
        if out is None:
            out = torch.empty((len(indices), *self.shape), dtype=torch.uint8)
        wrong = self.fill(epoch, indices.tolist(), out.numpy(), stopwatch)
        return self.finish(indices, out, wrong, begun, stopwatch)

    def fill(
        self, epoch: int, indices: list[int], rows: NDArray[np.uint8], stopwatch: Stopwatch
    ) -> list[str]:
        """Decodes the samples into `rows` (b, height, width, channels).

        Returns each one's error message, "" if none.

        Adds the time taken to `stopwatch`. Raises `SampleError` unless unreadable samples are
        skipped.
        """
        return [
            self._sample(epoch, index, row, stopwatch)
            for index, row in zip(indices, rows, strict=True)
        ]

    def finish(
        self, indices: Tensor, out: Tensor, wrong: list[str], begun: float, *stopwatches: Stopwatch
    ) -> Batch:
        """Returns the batch of the samples that `fill` put into `out`, without those that have a
        message in `wrong`.
        """
        filled = perf_counter()
        unreadable = tuple(filter(None, wrong))
        if self.wait is not None:
            self.wait.into("collate")
        if unreadable:
            good = torch.tensor([i for i, line in enumerate(wrong) if not line], dtype=torch.int64)
            indices = indices[good]
            readable = out[good]
            # In place: a transfer may expect the batch in this memory.
            out = out[: len(good)].copy_(readable)
        images = out.permute(0, 3, 1, 2)
        labels = self._storage.labels.index_select(0, indices)
        if not self._times:
            return Batch(images, labels, unreadable)
        end = perf_counter()
        spent = [(each.read_s, each.decode_s, each.transform_s) for each in stopwatches]
        read_s, decode_s, transform_s = map(sum, zip(*spent, strict=True))
        made = BatchTimes(read_s, decode_s, transform_s, end - filled, begun, end)
        return Batch(images, labels, unreadable, made)

    def _sample(self, epoch: int, index: int, row: NDArray[np.uint8], stopwatch: Stopwatch) -> str:
        begun = perf_counter()
        stopwatch.wait("read")
        try:
            encoded = self._storage.read_encoded(index)
            read = perf_counter()
            stopwatch.read_s += read - begun
            stopwatch.wait("decode")
            try:
                self._decode(encoded, self.crop(epoch, index), row)
            except ValueError as error:
                raise self.undecodable(index, error) from error
        except SampleError as error:
            if not self._skip:
                raise
            return str(error)
        decoded = perf_counter()
        stopwatch.decode_s += decoded - read
        if self._augment and self._info.kind != "jpeg":
            stopwatch.wait("transform")
            maps = augment_maps(self._info, self._seed, epoch, torch.tensor([index]))
            transforms.on_cpu(row[None], maps)
            stopwatch.transform_s += perf_counter() - decoded
        return ""

    def crop(self, epoch: int, index: int) -> Callable[[int, int], transforms.Crop]:
        """Returns a function from an encoded image's (height, width) to the crop of sample `index`
        in this epoch.
        """
        if self._augment and self._info.kind == "jpeg":
            uniform = transforms.sample_uniform(self._seed, epoch, index, transforms.N_CROP_UNIFORM)
            return partial(transforms.random_crop, u=uniform, flips=self._info.flips)
        return partial(transforms.centre_crop, size=self._info.image_size)

    def undecodable(self, index: int, reason: ValueError) -> SampleError:
        """Returns the error to raise for a sample whose bytes are not a complete image."""
        return SampleError(
            f"{self._storage.name_of(index)} cannot be decoded ({reason}); {HOW_TO_SKIP}"
        )


def augment_maps(info: DatasetInfo, seed: int, epoch: int, indices: Tensor) -> Tensor:
    """Returns the affine maps of the samples at `indices` in `epoch`: (b, 2, 3) float64, as
    `affine` does.
    """
    n = transforms.N_UNIFORM
    uniform = [transforms.sample_uniform(seed, epoch, i, n) for i in indices.tolist()]
    # An empty batch has an array of shape (0,).
    return transforms.affine(torch.from_numpy(np.array(uniform).reshape(-1, n)), info)


def open_maker(
    storage: Any, info: DatasetInfo, config: RunConfig, *, train: bool
) -> PixelMaker | EncodedMaker:
    """Returns the maker for a storage of form "pixels" or "encoded". `config` is resolved."""
    if parts.STORAGES[config.storage or ""].form == "pixels":
        return PixelMaker(storage, info, config, train)
    return EncodedMaker(storage, info, config, train)
