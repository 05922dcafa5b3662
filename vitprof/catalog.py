"""What can be chosen by name: data sets and models. Facts only, so that the dashboard can list them without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vitprof.errors import ConfigError


@dataclass(frozen=True)
class DatasetInfo:
    """The facts about a data set that hold before it exists on disk."""

    name: str
    title: str
    image_size: int
    """Side of the square images as stored, in pixels."""
    channels: int
    classes: int
    n_train: int
    n_test: int
    mean: float
    """Mean of the pixels scaled to 0..1; subtracted on the device (torchvision's `Normalize`)."""
    std: float
    """Standard deviation of the pixels scaled to 0..1; divided by after the mean was subtracted."""
    note: str


# mean and std are MNIST's well-known ones for both: digits imitates it, and the article normalises with them
# (REFERENCE.md section 1).
DATASETS: dict[str, DatasetInfo] = {
    d.name: d
    for d in (
        DatasetInfo(
            name="digits",
            title="digits (made here)",
            image_size=28,
            channels=1,
            classes=10,
            n_train=60_000,
            n_test=10_000,
            mean=0.1307,
            std=0.3081,
            note="Rendered glyphs 0-9 with random distortion and noise, in MNIST's own file format. Made on first use.",
        ),
        DatasetInfo(
            name="mnist",
            title="MNIST (downloaded)",
            image_size=28,
            channels=1,
            classes=10,
            n_train=60_000,
            n_test=10_000,
            mean=0.1307,
            std=0.3081,
            note="The real MNIST, downloaded by torchvision on first use. Without a network choose digits.",
        ),
    )
}


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
    """"mlp" is the article's Linear-GELU-Linear, "linear" the usual LayerNorm and one Linear."""
    scale: float
    """What attention logits are multiplied by."""
    lr: float
    """Learning rate for Adam that goes with it."""


# "tiny" is REFERENCE.md section 1 to the letter, its attention scale dim**-0.5 included (the usual one is
# dim_head**-0.5). The others are DeiT's widths (Touvron et al. 2021, arXiv:2012.12877, table 1) at patch 16.
MODELS: dict[str, ModelPreset] = {
    m.name: m
    for m in (
        ModelPreset("tiny", "ViT tiny (28 px, patch 7, dim 64)", 28, 7, 64, 6, 8, 8, 128, "mlp", 64**-0.5, 3e-3),
        ModelPreset("ti/16", "ViT-Ti/16 (224 px, dim 192)", 224, 16, 192, 12, 3, 64, 768, "linear", 64**-0.5, 5e-4),
        ModelPreset("s/16", "ViT-S/16 (224 px, dim 384)", 224, 16, 384, 12, 6, 64, 1536, "linear", 64**-0.5, 5e-4),
        ModelPreset("b/16", "ViT-B/16 (224 px, dim 768)", 224, 16, 768, 12, 12, 64, 3072, "linear", 64**-0.5, 5e-4),
    )
}


def dataset_info(name: str) -> DatasetInfo:
    """The data set called `name`. Raises `ConfigError` that lists the names there are."""
    try:
        return DATASETS[name]
    except KeyError:
        raise ConfigError("dataset", name, f"choose one of {', '.join(DATASETS)}") from None


def model_preset(name: str) -> ModelPreset:
    """The model called `name`. Raises `ConfigError` that lists the names there are."""
    try:
        return MODELS[name]
    except KeyError:
        raise ConfigError("model", name, f"choose one of {', '.join(MODELS)}") from None
