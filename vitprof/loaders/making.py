"""How a batch is made: read from the storage, decoded and cropped, augmented. Loaders decide when, and in which thread.

A maker is a pure function of (epoch, indices): every loader makes the same batch of the same samples, random crops
included, whichever process or thread it does that in.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import default_collate

from vitprof import augment, decode
from vitprof.batch import Batch
from vitprof.catalog import DatasetInfo
from vitprof.config import RunConfig
from vitprof.errors import SampleError
from vitprof.parts import STORAGES
from vitprof.storage import EncodedStorage, PixelStorage

REMEDY = (
    "mend the data set's own file and delete what was prepared from it, or leave such samples out (--skip-unreadable)"
)


class Maker(Protocol):
    """Makes batches out of a storage. Can be pickled and used in several threads."""

    shape: tuple[int, int, int]
    """(height, width, channels) of the images it makes."""

    def __call__(self, epoch: int, indices: Tensor, out: Tensor | None = None) -> Batch:
        """The samples at `indices` (b,) int64 as uint8, in `out` (b, height, width, channels) if given.

        Raises `SampleError` for one that cannot be read, unless such samples are to be skipped.
        """


def collate_readable(samples: list[Any], unreadable: list[str]) -> Batch:
    """Samples of a Dataset as a batch that also says what could not be read. Without a sample it is empty."""
    if not samples:
        return Batch(torch.empty(0), torch.empty(0, dtype=torch.int64), tuple(unreadable))
    images, labels = default_collate(samples)
    return Batch(images, labels, tuple(unreadable))


def images_first(pixels: Tensor) -> Tensor:
    """(b, height, width, channels) seen as (b, channels, height, width); nothing is copied."""
    return pixels.permute(0, 3, 1, 2)


class PixelMaker:
    """Batches of a storage that reads pixels."""

    def __init__(self, storage: PixelStorage, info: DatasetInfo, config: RunConfig, train: bool) -> None:
        self.shape = storage.shape
        self._storage, self._info, self._seed = storage, info, config.seed
        self._augment = train and config.augment == "cpu"
        self._skip = config.skip_unreadable

    def __call__(self, epoch: int, indices: Tensor, out: Tensor | None = None) -> Batch:
        unreadable: tuple[str, ...] = ()
        try:
            pixels = self._storage.read(indices, out)
        except SampleError:
            if not self._skip:
                raise
            indices, pixels, unreadable = self._read_what_can_be_read(indices, out)
        if self._augment:
            if out is None:  # it may be the storage's own memory
                pixels = pixels.clone()
            augment.on_cpu(pixels.numpy(), augment_maps(self._info, self._seed, epoch, indices))
        return Batch(images_first(pixels), self._storage.labels.index_select(0, indices), unreadable)

    def _read_what_can_be_read(self, indices: Tensor, out: Tensor | None) -> tuple[Tensor, Tensor, tuple[str, ...]]:
        if out is None:
            out = torch.empty((len(indices), *self.shape), dtype=torch.uint8)
        good: list[int] = []
        unreadable: list[str] = []
        for index in indices.tolist():
            row = len(good)
            try:
                self._storage.read(torch.tensor([index]), out[row : row + 1])
                good.append(index)
            except SampleError as error:
                unreadable.append(str(error))
        return torch.tensor(good, dtype=torch.int64), out[: len(good)], tuple(unreadable)


class EncodedMaker:
    """Batches of a storage that reads JPEG or PNG."""

    def __init__(self, storage: EncodedStorage, info: DatasetInfo, config: RunConfig, train: bool) -> None:
        self.shape = (info.image_size, info.image_size, info.channels)
        self._storage, self._info, self._seed = storage, info, config.seed
        self._augment = train and config.augment == "cpu"
        self._skip = config.skip_unreadable
        self._decoder = config.decoder or "simplejpeg"
        self._decode: decode.Decoder | None = None

    def __call__(self, epoch: int, indices: Tensor, out: Tensor | None = None) -> Batch:
        if out is None:
            out = torch.empty((len(indices), *self.shape), dtype=torch.uint8)
        return self.finish(indices, out, self.fill(epoch, indices.tolist(), out.numpy()))

    def fill(self, epoch: int, indices: list[int], rows: NDArray[np.uint8]) -> list[str]:
        """Decode the samples into `rows` (b, height, width, channels); what is wrong with each, "" if nothing.

        Raises `SampleError` unless unreadable samples are to be skipped.
        """
        return [self._sample(epoch, index, row) for index, row in zip(indices, rows, strict=True)]

    def finish(self, indices: Tensor, out: Tensor, wrong: list[str]) -> Batch:
        """The batch of samples that were filled in, without those that could not be read."""
        unreadable: tuple[str, ...] = ()
        if any(wrong):
            good = torch.tensor([i for i, line in enumerate(wrong) if not line], dtype=torch.int64)
            indices, readable = indices[good], out[good]
            out = out[: len(good)].copy_(readable)  # it may be memory that is waited for, so the batch stays in it
            unreadable = tuple(filter(None, wrong))
        return Batch(images_first(out), self._storage.labels.index_select(0, indices), unreadable)

    def _sample(self, epoch: int, index: int, row: NDArray[np.uint8]) -> str:
        if self._decode is None:  # found anew in each worker process
            self._decode = decode.open_decoder(self._decoder)
        try:
            encoded = self._storage.read_encoded(index)
            try:
                self._decode(encoded, self.crop(epoch, index), row)
            except ValueError as error:
                raise self.undecodable(index, error) from error
        except SampleError as error:
            if not self._skip:
                raise
            return str(error)
        if self._augment and self._info.kind != "jpeg":
            augment.on_cpu(row[None], augment_maps(self._info, self._seed, epoch, torch.tensor([index])))
        return ""

    def crop(self, epoch: int, index: int) -> Callable[[int, int], decode.Crop]:
        """(height, width) of the encoded image -> what of it becomes the sample in this epoch."""
        if self._augment and self._info.kind == "jpeg":
            uniform = augment.sample_uniform(self._seed, epoch, index, decode.N_UNIFORM)
            return partial(_random_crop, uniform=uniform, flips=self._info.flips)
        return partial(decode.centre_crop, size=self._info.image_size)

    def undecodable(self, index: int, reason: ValueError) -> SampleError:
        """The error to raise for a sample whose bytes are no whole image."""
        return SampleError(f"{self._storage.name_of(index)} cannot be decoded ({reason}); {REMEDY}")

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_decode": None}


def _random_crop(height: int, width: int, uniform: NDArray[np.float64], flips: bool) -> decode.Crop:
    crop = decode.random_crop(height, width, uniform)
    return crop if flips else crop._replace(flip=False)


def augment_maps(info: DatasetInfo, seed: int, epoch: int, indices: Tensor) -> Tensor:
    """The affine maps of these samples in this epoch, (b, 2, 3)."""
    uniform = [augment.sample_uniform(seed, epoch, i, augment.N_UNIFORM) for i in indices.tolist()]
    return augment.affine(torch.from_numpy(np.array(uniform).reshape(-1, augment.N_UNIFORM)), info)


def open_maker(storage: Any, info: DatasetInfo, config: RunConfig, *, train: bool) -> PixelMaker | EncodedMaker:
    """The maker for a storage of form "pixels" or "encoded". `config` is resolved."""
    form = STORAGES[config.storage or ""].form
    return (PixelMaker if form == "pixels" else EncodedMaker)(storage, info, config, train)
