"""Samples one by one, as torchvision's own Datasets give them: from MNIST's IDX files, or from an
image folder.

MNIST reads the whole file into memory when the Dataset is made; what takes time for each sample is
the conversion to a PIL image, ToTensor and Normalize, as in the article that the strategies begin
with.
"""

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, BinaryIO

import torch
from PIL import Image, UnidentifiedImageError
from torch.utils.data import Dataset
from torchvision import datasets, transforms

from vitprof.datasets.catalog import DatasetInfo
from vitprof.datasets.mnist import read_split
from vitprof.datasets.photos import unreadable
from vitprof.engine.storage.contract import Location, Pixels, StoredSplit
from vitprof.engine.storage.source import PhotosSource
from vitprof.measure.stopwatch import Stopwatch

ROTATION_DEG = 15
PADDING_PX = 2
"""Random crops are taken from the image with a black border this wide."""
LARGE_READ_BYTES = 1 << 14
"""From so many bytes on it is looked at what a read uses of the cores; a look takes 2 us."""


class IdxStorage(StoredSplit):
    """`torchvision.datasets.MNIST` with the transforms that every tutorial uses.

    With `augment` they rotate, crop and (where a mirrored image keeps its class) flip at random.
    Raises a `DataError` that names a missing or damaged file.
    """

    pixels: Pixels = "normalised"

    def __init__(
        self, info: DatasetInfo, location: Location, train: bool, *, augment: bool = False
    ) -> None:
        super().__init__(info, location, train)
        steps = [transforms.ToTensor(), transforms.Normalize(info.mean, info.std)]
        if augment:
            random_steps = [
                transforms.RandomRotation(ROTATION_DEG),
                transforms.RandomCrop(info.image_size, padding=PADDING_PX),
            ]
            if info.flips:
                random_steps.append(transforms.RandomHorizontalFlip())
            steps = [*random_steps, *steps]
        try:
            self._dataset = datasets.MNIST(
                str(location.root), train=train, transform=transforms.Compose(steps)
            )
            if len(self._dataset.data) != len(self._dataset.targets):
                raise ValueError("images and labels do not belong together")
        except Exception as error:
            # torchvision raises whatever its parser stumbles over; this raises an error that names
            # the file.
            read_split(location.root, train)
            raise self._unusable(f"torchvision cannot read {location.root} ({error})") from error
        self.labels = self._dataset.targets

    def dataset(
        self, stopwatch: Stopwatch | None = None
    ) -> Dataset[tuple[torch.Tensor, int | torch.Tensor]]:
        dataset = self._dataset
        if stopwatch is not None:
            # Nothing is read any more: time outside the transforms is the conversion from array to
            # PIL image.
            stopwatch.noted = ("transform",)
            stopwatch.rest = "decode"
            dataset = copy.copy(dataset)
            dataset.transform = TimedCompose(dataset.transform, stopwatch)
        return dataset  # type: ignore[no-any-return]


class ImageFolderStorage(StoredSplit):
    """`torchvision.datasets.ImageFolder` over the class folders in train or test, decoded by
    Pillow.

    With `augment` the training split gets RandomResizedCrop and RandomHorizontalFlip; otherwise,
    and always in the test split, Resize and CenterCrop (torchvision's reference training). Raises
    `DataError` if the folder cannot be read or has another number of classes or images than the
    data set; samples raise a `SampleError` that names the file.
    """

    pixels: Pixels = "normalised"

    def __init__(
        self, info: DatasetInfo, location: Location, train: bool, *, augment: bool = False
    ) -> None:
        super().__init__(info, location, train)
        root = location.root / self._split
        size = info.image_size
        if augment and train:
            crop = [transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip()]
        else:
            crop = [transforms.Resize(size * 256 // 224), transforms.CenterCrop(size)]
        to_input = transforms.Compose(
            [*crop, transforms.ToTensor(), transforms.Normalize(info.mean, info.std)]
        )
        # Raises what says what is wrong with the folders.
        PhotosSource(info, location.root, train)
        loader = _Loader(location)
        # A small set has classes without a sample; its labels must still be those of the full set.
        self._dataset = datasets.ImageFolder(
            str(root), transform=to_input, loader=loader, allow_empty=True
        )
        self.labels = torch.tensor(self._dataset.targets, dtype=torch.int64)

    def dataset(
        self, stopwatch: Stopwatch | None = None
    ) -> Dataset[tuple[torch.Tensor, int | torch.Tensor]]:
        dataset = self._dataset
        if stopwatch is not None:
            stopwatch.noted = ("read", "decode", "transform")
            dataset = copy.copy(dataset)
            dataset.loader = replace(dataset.loader, stopwatch=stopwatch)
            dataset.transform = TimedCompose(dataset.transform, stopwatch)
        return dataset  # type: ignore[no-any-return]

    def name_of(self, index: int) -> str:
        """Returns the path of a sample's file, for messages."""
        return str(self._dataset.samples[index][0])


@dataclass(frozen=True)
class _Loader:
    """torchvision's `pil_loader`, slowed by the throttle, timed, and with errors that name the
    file.
    """

    location: Location
    stopwatch: Stopwatch | None = None

    def __call__(self, path: str) -> Image.Image:
        stopwatch = self.stopwatch
        if stopwatch is None:
            return self._load(path)
        look = stopwatch.look
        if look is not None:
            look.enter("decode")
        begun = perf_counter()
        read_before = stopwatch.read_s
        stopwatch.wait("decode")
        image = self._load(path)
        stopwatch.decode_s += perf_counter() - begun - (stopwatch.read_s - read_before)
        if look is not None:
            look.enter("")
        return image

    def _load(self, path: str) -> Image.Image:
        try:
            look = None if self.stopwatch is None else self.stopwatch.look
            if look is not None:
                look.enter("read")
            begun = perf_counter()
            with Path(path).open("rb") as file:
                if self.location.throttle is not None:
                    self.location.reading(os.fstat(file.fileno()).st_size, 1)
                source: BinaryIO | TimedFile = file
                if self.stopwatch is not None:
                    self.stopwatch.wait("read")
                    self.stopwatch.read_s += perf_counter() - begun
                    if look is not None:
                        look.enter("decode")
                    source = TimedFile(file, self.stopwatch)
                with Image.open(source) as image:
                    converted: Image.Image = image.convert("RGB")
                    return converted
        except UnidentifiedImageError as error:
            raise unreadable(path, "it is empty, or not an image") from error
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            lines = str(error).splitlines() or [type(error).__name__]
            reason = getattr(error, "strerror", None) or lines[0]
            raise unreadable(path, reason) from error


class TimedCompose:
    """A `Compose` as torchvision's that also notes the seconds.

    Can be pickled if the transforms can.

    It replaces torchvision's instead of wrapping it: one more call for each sample would cost more
    than the clock.
    """

    def __init__(self, compose: Any, stopwatch: Stopwatch) -> None:
        self.transforms: list[Callable[[Any], Any]] = compose.transforms
        self._stopwatch = stopwatch

    def __call__(self, sample: Any) -> Any:
        stopwatch = self._stopwatch
        look = stopwatch.look
        if look is not None:
            look.enter("transform")
        begun = perf_counter()
        if stopwatch.due is not None:
            stopwatch.wait("transform")
        for transform in self.transforms:
            sample = transform(sample)
        stopwatch.transform_s += perf_counter() - begun
        if look is not None:
            look.enter("")
        return sample


class TimedFile:
    """A file that notes the seconds of each `read`: tells reading from decoding where a decoder
    reads as it goes.
    """

    def __init__(self, file: BinaryIO, stopwatch: Stopwatch) -> None:
        self._file = file
        self._stopwatch = stopwatch
        self.seek = file.seek
        self.tell = file.tell

    def read(self, size: int = -1) -> bytes:
        # Of small reads there are dozens in a file, most of them from the memory of Python's buffer.
        is_large = not 0 <= size < LARGE_READ_BYTES
        look = self._stopwatch.look if is_large else None
        stage = "" if look is None else look.enter("read")
        begun = perf_counter()
        data = self._file.read(size)
        self._stopwatch.read_s += perf_counter() - begun
        if look is not None:
            look.enter(stage)
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
