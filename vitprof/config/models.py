"""The models that can be chosen by name."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from vitprof.choices import Catalog, by_name
from vitprof.datasets.own import specs
from vitprof.errors import ConfigError


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


def model_preset(name: str) -> ModelPreset:
    """Returns the model called `name`. Raises `ConfigError`."""
    if name not in MODELS:
        more = "torchvision:NAME, timm:NAME, or file.py:FUNCTION"
        raise ConfigError("model", name, f"choose one of {', '.join(MODELS)}, {more}")
    return MODELS[name]


def model_words(name: str) -> str:
    """Returns a model as a caption has it."""
    return name if is_foreign(name) else f"ViT {name}"
