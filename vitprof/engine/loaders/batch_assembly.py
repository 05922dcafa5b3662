"""Makers: they read a batch from the storage, decode, crop and augment it.

Loaders decide when, and in which thread. A maker is a pure function of (epoch, indices): every
loader, in any process or thread, makes the same batch of the same samples, including random crops.
"""

import threading
from collections.abc import Callable
from contextlib import closing
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
from vitprof.measure.core_use import LEAST_BATCH_S
from vitprof.measure.stage_look import REST, LookSchedule, StageLook, begin_look, looked_batch
from vitprof.measure.step_columns import BatchTimes
from vitprof.measure.stopwatch import Stopwatch, requested_wait
from vitprof.recording.columns import TIMED_STAGES

HOW_TO_SKIP = (
    "repair the data set's own file and delete what was prepared from it, "
    "or skip such samples (--skip-unreadable)"
)


class Maker:
    """Makes batches from a storage. Can be pickled and used in several threads."""

    shape: tuple[int, int, int]
    """(height, width, channels) of the images it makes."""
    rest = ""
    """The stage of what comes between those that have a clock; "" where nothing does."""
    at_once = False
    """Whether all samples go through a stage together."""

    def __init__(self, storage: Any, info: DatasetInfo, config: RunConfig, train: bool) -> None:
        self._storage = storage
        self._info = info
        self._seed = config.seed
        self._augment = train and config.augment == "cpu"
        self._skip = config.skip_unreadable
        self._times = config.loader_times
        self.wait = requested_wait(config, train=train)
        self.looks = LookSchedule(is_on=train and self._times)
        """At which batches it is looked."""

    def __call__(
        self,
        epoch: int,
        indices: Tensor,
        out: Tensor | None = None,
        look: StageLook | None = None,
    ) -> Batch:
        """Returns the samples at `indices` (b,) int64 as a uint8 batch, in `out` (b, height, width,
        channels) if given.

        With `RunConfig.loader_times` the batch has its times. `look` is a look at the whole batch where
        these samples are a part of it, and whoever began it ends it. Raises `SampleError` for a
        sample that cannot be read, unless such samples are skipped.
        """
        # A batch in memory takes 10 us: what is off must cost next to nothing.
        if look is None and self.looks.took_s >= LEAST_BATCH_S:
            look = self.next_look(1 if self.at_once else len(indices))
            if look is not None:
                return self.looked_at(look, epoch, indices, out)
        return self.made(epoch, indices, out, look)

    def made(
        self, epoch: int, indices: Tensor, out: Tensor | None, look: StageLook | None
    ) -> Batch:
        """Returns the batch for `__call__`; `look` is a look at it, if there is one."""
        raise NotImplementedError

    def next_look(self, samples: int) -> StageLook | None:
        """Returns a look at the batch of so many samples that begins now, in this thread; None for
        most.
        """
        counts_for = self.looks.next_counts_for()
        if not counts_for:
            return None
        return begin_look(counts_for, samples, rest=self.rest, is_alone=is_alone())

    def looked_at(self, look: StageLook, epoch: int, indices: Tensor, out: Tensor | None) -> Batch:
        """Returns a batch, as `__call__` does, with what its stages used of the cores by `look`,
        which it ends.
        """
        with closing(look):
            batch = self.made(epoch, indices, out, look)
        return with_look(batch, look)


def with_look(batch: Batch, look: StageLook) -> Batch:
    """Returns a batch with what its stages used of the cores by a look that has ended."""
    assert batch.made is not None, "only batches with times are looked at"
    return batch._replace(looked=looked_batch(look, batch.made[: len(TIMED_STAGES)]))


def is_alone() -> bool:
    """Returns whether no other thread helps the one that calls this to make batches: it is one of a
    loader's, in which PyTorch has no further threads. OpenCV has none anyway.
    """
    in_loop = threading.current_thread() is threading.main_thread()
    return not in_loop and torch.get_num_threads() == 1


class PixelMaker(Maker):
    """The maker for a storage of form "pixels"."""

    at_once = True

    def __init__(
        self, storage: PixelStorage, info: DatasetInfo, config: RunConfig, train: bool
    ) -> None:
        super().__init__(storage, info, config, train)
        self.shape = storage.shape

    def made(
        self, epoch: int, indices: Tensor, out: Tensor | None, look: StageLook | None
    ) -> Batch:
        if look is not None:
            look.begin_sample()
            look.enter("read")
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
            pixels, indices, unreadable = self._read_readable(indices, out)
        changed = read = perf_counter() if times else 0.0
        if self._augment:
            if out is None:
                # `pixels` may be the storage's own memory.
                pixels = pixels.clone()
            self._transform(epoch, indices, pixels, look)
            changed = perf_counter()
        if look is not None:
            look.collate()
        if wait is not None:
            wait.into("collate")
        images = pixels.permute(0, 3, 1, 2)
        labels = self._storage.labels.index_select(0, indices)
        if not times:
            return Batch(images, labels, unreadable)
        end = perf_counter()
        self.looks.took_s = end - begun
        made = BatchTimes(read - begun, 0.0, changed - read, end - changed, begun, end)
        return Batch(images, labels, unreadable, made)

    def _read_readable(
        self, indices: Tensor, out: Tensor | None
    ) -> tuple[Tensor, Tensor, tuple[str, ...]]:
        """Returns the pixels of the samples that can be read, their indices, and a line for each of
        the others.
        """
        if out is None:
            out = torch.empty((len(indices), *self.shape), dtype=torch.uint8)
        readable, unreadable = read_readable(self._storage, indices, out)
        return out[: len(readable)], readable, unreadable

    def _transform(
        self, epoch: int, indices: Tensor, pixels: Tensor, look: StageLook | None
    ) -> None:
        """Augments the samples at `indices` in place: `pixels` (b, height, width, channels) uint8."""
        if look is not None:
            look.enter("transform")
        if self.wait is not None:
            self.wait.into("transform")
        transforms.on_cpu(pixels.numpy(), augment_maps(self._info, self._seed, epoch, indices))


class EncodedMaker(Maker):
    """The maker for a storage of form "encoded" (JPEG or PNG)."""

    rest = REST

    def __init__(
        self, storage: EncodedStorage, info: DatasetInfo, config: RunConfig, train: bool
    ) -> None:
        super().__init__(storage, info, config, train)
        self.shape = (info.image_size, info.image_size, info.channels)
        # Imported here: only image files need its packages.
        from vitprof.engine.decoders import open_decoder

        self._decode = open_decoder(config.decoder or "simplejpeg")

    def made(
        self, epoch: int, indices: Tensor, out: Tensor | None, look: StageLook | None
    ) -> Batch:
        begun = perf_counter()
        stopwatch = Stopwatch(self.wait, look)
        if out is None:
            out = torch.empty((len(indices), *self.shape), dtype=torch.uint8)
        wrong = self.fill(epoch, indices.tolist(), out.numpy(), stopwatch)
        if look is not None:
            look.collate()
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
        self.looks.took_s = end - begun
        spent = [(each.read_s, each.decode_s, each.transform_s) for each in stopwatches]
        read_s, decode_s, transform_s = map(sum, zip(*spent, strict=True))
        made = BatchTimes(read_s, decode_s, transform_s, end - filled, begun, end)
        return Batch(images, labels, unreadable, made)

    def _sample(self, epoch: int, index: int, row: NDArray[np.uint8], stopwatch: Stopwatch) -> str:
        look = stopwatch.look
        if look is not None:
            look.begin_sample()
            look.enter("read")
        begun = perf_counter()
        stopwatch.wait("read")
        try:
            encoded = self._storage.read_encoded(index)
            read = perf_counter()
            stopwatch.read_s += read - begun
            if look is not None:
                look.enter("decode")
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
        if look is not None:
            look.enter("transform")
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
