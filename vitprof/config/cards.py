"""GPUs that can be simulated by name, and the derived time that a training step takes on each.

No measurements of these very models on each of these cards are published. What is published is the training throughput
on one card for each model (`MEASURED`) and every card's peak rates (`CARDS`). The measured time for a sample is divided
by the smaller of two ratios of the cards, that of arithmetic rates and that of memory bandwidths (the roofline model:
Williams, Waterman and Patterson 2009). This gives an A100 828 images/s of ViT-B/16 and an H100 1.7 times that; NVIDIA's
NeMo documentation has an H100 at 2.06 times an A100 with ViT g/14, whose larger matrices are bound by arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vitprof.config.catalog import MODELS, ModelPreset

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
VALUE_BYTES: dict[Precision, int] = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
"""Bytes of a value in each precision."""
LAUNCH_S = 10e-6
"""Seconds that PyTorch takes on the host to launch one kernel, about; assumed."""
LAUNCHES_PER_LAYER = 50
"""Kernels in a step for each layer, over forward, backward and optimizer: `tiny` with six layers has some 300."""


@dataclass(frozen=True)
class Card:
    """A GPU as its maker describes it."""

    name: str
    title: str
    fp32_flop_per_s: float
    """Peak rate of the CUDA cores, where PyTorch multiplies fp32 matrices unless TF32 is allowed."""
    bf16_flop_per_s: float
    """Peak rate of the tensor cores without sparsity, accumulating in fp32."""
    memory_bytes_per_s: float
    """Peak bandwidth of its memory."""
    link_bytes_per_s: float
    """Peak bandwidth of its PCIe link, one way."""
    source: str
    """Where the figures are published."""

    def flop_per_s(self, precision: Precision) -> float:
        """Returns the peak rate in that precision. TF32 has half of bf16's (A100: 156 of 312 TFLOP/s, NVIDIA)."""
        if precision == "fp32":
            return self.fp32_flop_per_s
        return max(self.fp32_flop_per_s, self.bf16_flop_per_s / 2) if precision == "tf32" else self.bf16_flop_per_s


CARDS: dict[str, Card] = {
    c.name: c
    for c in (
        Card(
            "rtx4060-laptop",
            "laptop RTX 4060",
            # 3,072 cores x 2 x 1.89 GHz, the middle of the 1.47 to 2.37 GHz that a laptop's power limit decides
            11.6e12,
            23.2e12,
            256e9,
            15.75e9,
            "NVIDIA's Ada GPU architecture paper; clocks of its laptop page",
        ),
        Card(
            "rtx2060-article",
            "RTX 2060 of the article",
            6.45e12,
            25.8e12,  # fp16: Turing has no bf16
            336e9,
            15.75e9,
            "NVIDIA's Turing GPU architecture paper",
        ),
        Card("a100", "A100", 19.5e12, 312e12, 2039e9, 31.5e9, "NVIDIA's A100 data sheet, SXM with 80 GB"),
        Card("h100", "H100", 67e12, 989e12, 3350e9, 63e9, "NVIDIA's H100 data sheet, SXM with 80 GB"),
    )
}
"""Name in a device, such as h100 in `simulated:h100` -> card."""

RTX_3090 = Card("rtx3090", "RTX 3090", 35.6e12, 71e12, 936e9, 31.5e9, "NVIDIA's Ampere GA102 GPU architecture paper")


@dataclass(frozen=True)
class Measured:
    """A published measurement of training on one card."""

    card: Card
    precision: Precision
    sample_s: float
    """Seconds for each sample."""
    source: str
    """Where it is published."""


TIMM = "timm's table of training on an RTX 3090 (PyTorch 1.12, AMP)"
MEASURED: dict[str, Measured] = {
    "tiny": Measured(CARDS["rtx2060-article"], "fp32", 70e-6, "the article's table of an RTX 2060"),
    "ti/16": Measured(RTX_3090, "bf16", 1 / 2293.54, TIMM),
    "s/16": Measured(RTX_3090, "bf16", 1 / 1052.92, TIMM),
    "b/16": Measured(RTX_3090, "bf16", 1 / 390.86, TIMM),
}
"""Model -> measurement. timm: results/benchmark-train-amp-nchw-pt112-cu113-rtx3090.csv (batches of 512, 384 and 192,
in fp16). The article's figure is the slope of its in-memory column, see `vitprof.config.accelerators`."""


def forward_macs(model: ModelPreset, image_size: int) -> float:
    """Returns the multiplications in one forward pass of one image, without those of the embedding and the head."""
    tokens = (image_size // model.patch_size) ** 2 + 1
    inner = model.heads * model.dim_head
    weights = 4 * model.dim * inner + 2 * model.dim * model.mlp_dim
    return model.depth * tokens * (weights + 2 * tokens * inner)


def step_figures(card: Card, model: str, image_size: int, precision: Precision) -> tuple[float, float]:
    """Returns how long a training step of `model` takes on `card`: seconds for each step and seconds for each sample.

    `image_size` is the side of the input in pixels. The module's docstring has the formula and its source.
    """
    preset, known = MODELS[model], MEASURED[model]
    arithmetic = card.flop_per_s(precision) / known.card.flop_per_s(known.precision)
    bandwidth = card.memory_bytes_per_s / known.card.memory_bytes_per_s
    bandwidth *= VALUE_BYTES[known.precision] / VALUE_BYTES[precision]
    size = forward_macs(preset, image_size) / forward_macs(preset, preset.image_size)
    return preset.depth * LAUNCHES_PER_LAYER * LAUNCH_S, known.sample_s * size / min(arithmetic, bandwidth)
