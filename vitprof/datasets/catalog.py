"""The data sets that can be chosen by name: vitprof's, and a user's own."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from vitprof.choices import Catalog, by_name, chosen
from vitprof.datasets.own import registry
from vitprof.errors import ConfigError


@dataclass(frozen=True)
class DatasetInfo:
    """What is known about a data set before it exists on disk."""

    name: str
    title: str
    kind: Literal["idx", "jpeg"]
    """Format of its own files: MNIST's four IDX files, or JPEG files of many sizes in a folder for each class."""
    image_size: int
    """Side of the square images that loaders deliver, in pixels. Images of kind "jpeg" are cropped to it."""
    channels: int
    classes: int
    n_train: int
    n_test: int
    mean: tuple[float, ...]
    """Mean of the pixels scaled to 0..1, for each channel; subtracted on the device (torchvision's `Normalize`)."""
    std: tuple[float, ...]
    """Standard deviation of the pixels scaled to 0..1, for each channel; divides them once the mean is subtracted."""
    flips: bool
    any_size: bool
    """Whether it can be made with any number of images."""
    note: str
    own_bytes: int = 0
    """Bytes of a user's own image files (`vitprof.datasets.own`); 0: vitprof makes or downloads the set."""
    own_made_bytes: int = 0
    """Those of them that are unpacked or converted first; to the others it makes links."""

    @property
    def directory(self) -> str:
        """Returns the name of its directory. Sets of different sizes have different ones."""
        if self.own_bytes:
            return f"own-{self.name}"
        return f"{self.name}-{self.n_train}" if self.any_size else self.name


DIGITS = DatasetInfo(
    name="digits",
    title="digits (made here)",
    kind="idx",
    image_size=28,
    channels=1,
    classes=10,
    n_train=60_000,
    n_test=10_000,
    # MNIST's well-known ones, which it imitates, and with which the article on whole data sets in memory normalises
    mean=(0.1307,),
    std=(0.3081,),
    flips=False,
    any_size=False,
    note="Rendered glyphs 0-9 with random distortion and noise, in MNIST's own file format. Made on first use.",
)
MADE_HERE = by_name(
    DIGITS,
    replace(
        DIGITS,
        name="mnist",
        title="MNIST (downloaded)",
        note="The real MNIST, downloaded by torchvision on first use. Without a network choose digits.",
    ),
    DatasetInfo(
        name="photos",
        title="photos (made here, JPEG)",
        kind="jpeg",
        image_size=224,
        channels=3,
        classes=100,
        n_train=10_000,
        n_test=1_000,
        # ImageNet's, as in torchvision's reference training.
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        flips=True,
        any_size=True,
        note="Images with the statistics of photographs, about 500 x 375, JPEG quality 90, 100 classes, one folder "
        "each. Made on first use: about 0.1 MB and 2 ms of one core for each image.",
    ),
)


def _own_info(name: str) -> DatasetInfo:
    """Returns a data set of the user's, also one that was removed: its runs know it. Raises KeyError."""
    own = registry.everything()[name]
    kind, _, path = own.without_secrets().spec.partition(":")
    return replace(
        MADE_HERE["photos"],
        name=own.name,
        title=f"{own.name} (your own, {kind})",
        image_size=own.image_size,
        classes=own.classes,
        n_train=own.n_train,
        n_test=own.n_test,
        any_size=False,
        note=f"Your own images: {path}. They are read where they are, or unpacked once.",
        own_bytes=own.n_bytes,
        own_made_bytes=own.n_bytes if own.made_bytes is None else own.made_bytes,
    )


DATASETS: Mapping[str, DatasetInfo] = Catalog(MADE_HERE, _own_info, registry.listed)


def dataset_info(name: str, n_images: int | None = None) -> DatasetInfo:
    """Returns the data set called `name`, with `n_images` training images (and a tenth of that to test)
    if that is given.

    Raises `ConfigError` for an unknown name, or if the number of images cannot be chosen.
    """
    info = chosen(DATASETS, "dataset", name)
    if n_images is None:
        return info
    if not info.any_size:
        raise ConfigError("n_images", n_images, f"{name} always has {info.n_train}; leave it out")
    return replace(info, n_train=n_images, n_test=max(1, n_images // 10))
