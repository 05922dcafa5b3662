"""Samples one by one from torchvision's own ImageFolder, with the transforms that every tutorial uses."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import BinaryIO

import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import Dataset
from torchvision import datasets, transforms

from vitprof.config.catalog import DatasetInfo
from vitprof.engine.data.photos import unreadable
from vitprof.engine.storage import Pixels, Place
from vitprof.engine.storage.timed import TimedCompose, TimedFile
from vitprof.errors import DataError
from vitprof.measure.stopwatch import Stopwatch


class ImageFolderStorage:
    """`torchvision.datasets.ImageFolder` over the class folders in train or test, decoded by Pillow.

    With `augment` the training split gets RandomResizedCrop and RandomHorizontalFlip; otherwise, and always in the test
    split, Resize and CenterCrop (torchvision's reference training). Raises `DataError` if the folder cannot be read or
    has another number of classes or images than the data set; samples raise a `SampleError` that names the file.
    """

    pixels: Pixels = "normalised"

    def __init__(self, info: DatasetInfo, place: Place, train: bool, *, augment: bool = False) -> None:
        root = place.root / ("train" if train else "test")
        size = info.image_size
        crop = (
            [transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip()]
            if augment and train
            else [transforms.Resize(size * 256 // 224), transforms.CenterCrop(size)]
        )
        to_input = transforms.Compose([*crop, transforms.ToTensor(), transforms.Normalize(info.mean, info.std)])
        remedy = f"delete {place.root} and it is made again"
        try:
            # A small set has classes without a sample; its labels must still be those of the full set.
            self._dataset = datasets.ImageFolder(str(root), transform=to_input, loader=_Loader(place), allow_empty=True)
        except OSError as error:
            # torchvision's own error, without an errno, if there are no class folders
            why = error.strerror or "it has no class folders"
            raise DataError(f"cannot read {error.filename or root}: {why}; {remedy}") from error
        if len(self._dataset.classes) != info.classes:
            found = len(self._dataset.classes)
            raise DataError(f"{root} has {found} class folders instead of {info.classes}; {remedy}")
        expected = info.n_train if train else info.n_test
        if len(self._dataset) != expected:  # torchvision silently skips what is not a file
            raise DataError(f"{root} has {len(self._dataset):,} images instead of {expected:,}; {remedy}")
        self.labels = torch.tensor(self._dataset.targets, dtype=torch.int64)

    def __len__(self) -> int:
        return len(self.labels)

    def dataset(self, stopwatch: Stopwatch | None = None) -> Dataset[tuple[Tensor, int | Tensor]]:
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

    def close(self) -> None:
        """Does nothing: no file stays open between reads."""


@dataclass(frozen=True)
class _Loader:
    """torchvision's `pil_loader`, slowed by the throttle, timed, and with errors that name the file."""

    place: Place
    stopwatch: Stopwatch | None = None

    def __call__(self, path: str) -> Image.Image:
        stopwatch = self.stopwatch
        if stopwatch is None:
            return self._load(path)
        begun, read_before = perf_counter(), stopwatch.read_s
        stopwatch.wait("decode")
        image = self._load(path)
        stopwatch.decode_s += perf_counter() - begun - (stopwatch.read_s - read_before)
        return image

    def _load(self, path: str) -> Image.Image:
        try:
            begun = perf_counter()
            with Path(path).open("rb") as file:
                if self.place.throttle is not None:
                    self.place.reading(os.fstat(file.fileno()).st_size, 1)
                source: BinaryIO | TimedFile = file
                if self.stopwatch is not None:
                    self.stopwatch.wait("read")
                    self.stopwatch.read_s += perf_counter() - begun
                    source = TimedFile(file, self.stopwatch)
                with Image.open(source) as image:
                    converted: Image.Image = image.convert("RGB")
                    return converted
        except UnidentifiedImageError as error:
            raise unreadable(path, "it is empty, or not an image") from error
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            why = getattr(error, "strerror", None) or next(iter(str(error).splitlines()), type(error).__name__)
            raise unreadable(path, why) from error
