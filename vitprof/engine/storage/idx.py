"""Samples one by one from MNIST's IDX files, as torchvision's own Dataset gives them.

torchvision reads the whole file into memory when the Dataset is made; what takes time for each sample is the conversion
to a PIL image, ToTensor and Normalize, as in the article that the strategies begin with.
"""

from __future__ import annotations

import copy

from torch import Tensor
from torch.utils.data import Dataset
from torchvision import datasets, transforms

from vitprof.config.catalog import DatasetInfo
from vitprof.engine.data import read_split
from vitprof.engine.storage import Pixels, Place
from vitprof.engine.storage.timed import TimedCompose
from vitprof.errors import DataError
from vitprof.measure.stopwatch import Stopwatch

ROTATION_DEG = 15
PADDING_PX = 2
"""Random crops are taken from the image with a black border this wide."""


class IdxStorage:
    """`torchvision.datasets.MNIST` with the transforms that every tutorial uses.

    With `augment` they rotate, crop and (where a mirrored image keeps its class) flip at random. Raises a `DataError`
    that names a missing or damaged file.
    """

    pixels: Pixels = "normalised"

    def __init__(self, info: DatasetInfo, place: Place, train: bool, *, augment: bool = False) -> None:
        steps = [transforms.ToTensor(), transforms.Normalize(info.mean, info.std)]
        if augment:
            flip = [transforms.RandomHorizontalFlip()] if info.flips else []
            crop = transforms.RandomCrop(info.image_size, padding=PADDING_PX)
            steps = [transforms.RandomRotation(ROTATION_DEG), crop, *flip, *steps]
        try:
            self._dataset = datasets.MNIST(
                str(place.root), train=train, transform=transforms.Compose(steps), download=False
            )
            if len(self._dataset.data) != len(self._dataset.targets):
                raise ValueError("images and labels do not belong together")
        except Exception as error:  # torchvision raises whatever its parser stumbles over
            read_split(place.root, train)  # raises an error that names the file
            raise DataError(
                f"torchvision cannot read {place.root} ({error}); delete it and it is made again"
            ) from error
        self.labels: Tensor = self._dataset.targets

    def __len__(self) -> int:
        return len(self.labels)

    def dataset(self, stopwatch: Stopwatch | None = None) -> Dataset[tuple[Tensor, int | Tensor]]:
        dataset = self._dataset
        if stopwatch is not None:
            # Nothing is read any more: time outside the transforms is the conversion from array to PIL image.
            stopwatch.noted, stopwatch.rest = ("transform",), "decode"
            dataset = copy.copy(dataset)
            dataset.transform = TimedCompose(dataset.transform, stopwatch)
        return dataset  # type: ignore[no-any-return]

    def close(self) -> None:
        """Does nothing: torchvision has read the files."""
