"""The values of samples, and where the transforms of a Dataset begin to be random."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Dataset, Subset
from torchvision import transforms
from torchvision.transforms import v2

from vitprof.forms.script.sample_values import different, narrowest, storage_point

RESIZE, TENSOR = transforms.Resize((8, 12)), transforms.ToTensor()


class Images(Dataset[Any]):
    """Images of two sizes, as torchvision's datasets hand them to a transform.

    `noisy`: another one each time.
    """

    def __init__(self, *steps: Any, name: str = "transform", noisy: bool = False) -> None:
        self.name = name
        self.noise = itertools.count() if noisy else itertools.repeat(0)
        setattr(self, name, transforms.Compose(steps))

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        size = (20, 30 + 10 * (index % 2), 3)
        pixels = np.random.default_rng(index).integers(0, 99, size) + next(self.noise)
        return getattr(self, self.name)(Image.fromarray(pixels.astype(np.uint8))), index


def class_name(transform: Any) -> str:
    return type(transform).__name__


def of(dataset: Any) -> tuple[int, str, Any, float]:
    found = storage_point(dataset, range(4), class_name)
    assert found is not None
    value = found["value"]
    return (
        found["same"],
        value["kinds"][0],
        (value["least_shape"], value["largest_shape"]),
        value["bytes"],
    )


def test_before_the_first_random_transform() -> None:
    crop, flip = transforms.RandomResizedCrop(8), transforms.RandomHorizontalFlip(0.01)
    assert of(Images(crop, TENSOR)) == (0, "PIL image", ([20, 30, 3], [20, 40, 3]), 2100)
    assert of(Images(RESIZE, flip, TENSOR)) == (1, "PIL image", ([8, 12, 3], [8, 12, 3]), 288)
    assert of(Images(RESIZE, TENSOR, lambda x: x + torch.rand(()))) == (
        2,
        "tensor",
        ([3, 8, 12], [3, 8, 12]),
        1152,
    )
    assert of(Images(RESIZE, TENSOR))[0] == 2, "none is random"


@pytest.mark.parametrize("outer", [lambda d: Subset(d, range(4)), lambda d: ConcatDataset([d, d])])
def test_in_the_dataset_that_others_read(outer: Any) -> None:
    inner = Images(RESIZE, v2.ColorJitter(0.1), name="tfms")
    assert of(outer(inner))[:2] == (1, "PIL image")
    assert isinstance(inner.tfms, transforms.Compose), "put back"


def test_where_it_cannot_be_told() -> None:
    assert storage_point(Images(RESIZE, noisy=True), range(4), class_name) is None
    assert storage_point(Images(RESIZE, name="of_its_own"), range(4), class_name) is None
    assert storage_point([1, 2, 3, 4], range(4), class_name) is None


@pytest.mark.parametrize(
    ("values", "narrow"),
    [
        (torch.arange(2048) % 256 / 255, "uint8"),  # ToTensor
        (
            (torch.arange(3 * 2048) % 256 / 255).reshape(3, 32, 64)
            * torch.tensor([1.7, 2, 3]).reshape(3, 1, 1),
            "uint8",
        ),
        (torch.rand(3, 32, 64, generator=torch.Generator().manual_seed(0)), ""),
        (torch.arange(512) % 256 / 255, ""),  # too few to tell
        (torch.full((99,), -5), "int8"),
        (torch.full((99,), 1 << 40), ""),
        (torch.full((99,), 300, dtype=torch.int16), ""),
        (torch.zeros(99, dtype=torch.uint8), ""),
        (torch.tensor(3), ""),
        (np.arange(99), "uint8"),
        (np.array(["a"] * 99), ""),
    ],
)
def test_the_narrowest_type_that_holds_the_values(values: Any, narrow: str) -> None:
    assert narrowest(values) == narrow


def test_samples_are_compared_leaf_by_leaf() -> None:
    image = Image.new("RGB", (2, 3))
    a = {"x": torch.tensor([1.0, float("nan")]), "y": [np.arange(3), float("nan"), image]}
    assert different(a, a | {"y": [np.arange(3), float("nan"), image.copy()]}) == []
    assert different(a, a | {"y": [np.arange(4), 0.0, Image.new("RGB", (3, 2))]}) == [
        "['y'][0]",
        "['y'][1]",
        "['y'][2]",
    ]
    assert different(a, {"x": 1}) == [""]
