"""The data sets, models and slow drives that can be chosen by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from vitprof.errors import ConfigError
from vitprof.sets import registry, specs

if TYPE_CHECKING:
    from vitprof.config import RunConfig


T = TypeVar("T", bound=Any)


def by_name(*entries: T) -> dict[str, T]:
    return {entry.name: entry for entry in entries}


class Catalog(Mapping[str, T]):
    """What can be chosen by name: vitprof's `own`, and what `find` returns or raises KeyError for.

    `listed`: names for `find` that are shown in lists; it may know others.
    """

    def __init__(
        self, own: Mapping[str, T], find: Callable[[str], T], listed: Callable[[], Iterable[str]]
    ) -> None:
        self._own = own
        self._find = find
        self._listed = listed

    def __getitem__(self, name: str) -> T:
        if name in self._own:
            return self._own[name]
        return self._find(name)

    def __iter__(self) -> Iterator[str]:
        return iter((*self._own, *self._listed()))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def chosen(known: Mapping[str, T], field: str, name: str) -> T:
    """Returns the entry called `name`.

    Raises `ConfigError` about `field` that lists the known names for any other name.
    """
    if name not in known:
        raise ConfigError(field, name, f"choose one of {', '.join(known)}")
    return known[name]


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
    """Bytes of a user's own image files (`vitprof.sets`); 0: vitprof makes or downloads the set."""

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
    kind, _, path = own.spec.partition(":")
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
    )


DATASETS: Mapping[str, DatasetInfo] = Catalog(MADE_HERE, _own_info, registry.listed)


@dataclass(frozen=True)
class ModelPreset:
    """The shape of a Vision Transformer."""

    name: str
    title: str
    image_size: int
    """Side of the square input in pixels. Other images are resized to it on the device."""
    patch_size: int
    dim: int
    depth: int
    heads: int
    dim_head: int
    mlp_dim: int
    head: Literal["mlp", "linear"]
    """Classification head: "mlp" is the article's Linear-GELU-Linear, "linear" the usual LayerNorm and one Linear."""
    scale: float
    lr: float


# "tiny" is exactly the model of the article on whole data sets in memory, its attention scale dim**-0.5 included (the
# usual one is dim_head**-0.5). The others are DeiT's widths (Touvron et al. 2021, arXiv:2012.12877, table 1), patch 16.
VITS = by_name(
    ModelPreset(
        "tiny", "ViT tiny (28 px, patch 7, dim 64)", 28, 7, 64, 6, 8, 8, 128, "mlp", 64**-0.5, 3e-3
    ),
    ModelPreset(
        "ti/16",
        "ViT-Ti/16 (224 px, dim 192)",
        224,
        16,
        192,
        12,
        3,
        64,
        768,
        "linear",
        64**-0.5,
        5e-4,
    ),
    ModelPreset(
        "s/16",
        "ViT-S/16 (224 px, dim 384)",
        224,
        16,
        384,
        12,
        6,
        64,
        1536,
        "linear",
        64**-0.5,
        5e-4,
    ),
    ModelPreset(
        "b/16",
        "ViT-B/16 (224 px, dim 768)",
        224,
        16,
        768,
        12,
        12,
        64,
        3072,
        "linear",
        64**-0.5,
        5e-4,
    ),
)


MODEL_LIBRARIES = ("torchvision", "timm")


def _foreign(name: str) -> ModelPreset:
    if not is_foreign(name):
        raise KeyError(name)
    return replace(VITS["ti/16"], name=name, title=name, patch_size=1, lr=1e-3)


MODELS: Mapping[str, ModelPreset] = Catalog(VITS, _foreign, tuple)


def is_foreign(model: str) -> bool:
    """Returns whether a model is one of a library, or made by a function of the user's: `engine.foreign_models`."""
    library, _, name = model.partition(":")
    if name and library in MODEL_LIBRARIES:
        return True
    return specs.FUNCTION.fullmatch(model) is not None


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


def model_preset(name: str) -> ModelPreset:
    """Returns the model called `name`. Raises `ConfigError`."""
    if name not in MODELS:
        more = "torchvision:NAME, timm:NAME, or file.py:FUNCTION"
        raise ConfigError("model", name, f"choose one of {', '.join(MODELS)}, {more}")
    return MODELS[name]


def model_words(name: str) -> str:
    """Returns a model as a caption has it."""
    return name if is_foreign(name) else f"ViT {name}"


@dataclass(frozen=True)
class SlowDrive:
    """The speed of a slow drive."""

    mb_s: float
    """Bandwidth in MB/s (10^6 bytes), shared by all readers."""
    latency_ms: float
    """Time to open a file and get its first byte."""
    serial: bool
    """True: one file after another, as with a disk's head. False: readers wait independently, as on a network."""

    def files_on_the_way(self, file_bytes: float) -> float:
        """Returns how many files of that size its bandwidth delivers while one of them is opened."""
        return self.mb_s * 1e6 * self.latency_ms / 1e3 / max(file_bytes, 1.0)


# network-drive: the article on a mounted network drive (`strategies.ARTICLE_DRIVE`). 24 min an epoch from the mounted
#   drive, 3 min from the local disk, 5,981 files: (24 - 3) * 60 s / 5,981 = 211 ms more for each file. The article
#   gives no bandwidth; 30 MB/s is assumed, at which a JPEG file of 100 KB takes 3.3 ms, and 207 ms are left for opening
#   it. This assumes readers that wait one after another, as in the article's notebook; several readers overlap, since
#   the time goes into round trips to the server.
# mechanical-disk: typical of 7,200 rpm: half a turn takes 60 s / 7,200 / 2 = 4.2 ms and an average seek 8 ms;
#   sequential reads reach 150 MB/s.
SLOW_DRIVES: dict[str, SlowDrive] = {
    "network-drive": SlowDrive(30.0, 207.0, serial=False),
    "mechanical-disk": SlowDrive(150.0, 12.0, serial=True),
}


def slow_drive(config: RunConfig) -> SlowDrive:
    """Returns the drive that the resolved `config` asks for: its preset, with the values that `config` sets."""
    drive = SLOW_DRIVES[config.slow_drive or "network-drive"]
    if config.slow_mb_s is not None:
        drive = replace(drive, mb_s=config.slow_mb_s)
    if config.slow_latency_ms is not None:
        drive = replace(drive, latency_ms=config.slow_latency_ms)
    return drive
