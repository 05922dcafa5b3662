"""Simulated accelerators: how long each takes for a step and for a copy.

They answer "would my loader feed such a GPU?" where there is none. Everything measured on one is marked
as simulated.

No measurements of these very models on each of these cards are published. What is published is the
training throughput on one card for each model (`MEASURED`) and every card's peak rates (`CARDS`). The
measured time for a sample is divided by the smaller of two ratios of the cards, that of arithmetic rates
and that of memory bandwidths (the roofline model: Williams, Waterman and Patterson 2009). This gives an
A100 828 images/s of ViT-B/16 and an H100 1.7 times that; NVIDIA's NeMo documentation has an H100 at 2.06
times an A100 with ViT g/14, whose larger matrices are bound by arithmetic.
"""

import math
from dataclasses import dataclass
from typing import Literal

from vitprof import choices
from vitprof.config import bounds, models
from vitprof.errors import ConfigError

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
    link_bytes_per_s: float

    def flop_per_s(self, precision: Precision) -> float:
        """Returns the peak rate in that precision."""
        if precision == "fp32":
            return self.fp32_flop_per_s
        if precision == "tf32":
            # half of bf16's (A100: 156 of 312 TFLOP/s, NVIDIA)
            return max(self.fp32_flop_per_s, self.bf16_flop_per_s / 2)
        return self.bf16_flop_per_s


CARDS = choices.by_name(
    # NVIDIA's Ada GPU architecture paper; clocks of its laptop page. 3,072 cores x 2 x 1.89 GHz, the middle of the 1.47
    # to 2.37 GHz that a laptop's power limit decides.
    Card("rtx4060-laptop", "laptop RTX 4060", 11.6e12, 23.2e12, 256e9, 15.75e9),
    # NVIDIA's Turing GPU architecture paper. The second rate is that of fp16: Turing has no bf16.
    Card("rtx2060-article", "RTX 2060", 6.45e12, 25.8e12, 336e9, 15.75e9),
    # NVIDIA's data sheets, SXM with 80 GB
    Card("a100", "A100", 19.5e12, 312e12, 2039e9, 31.5e9),
    Card("h100", "H100", 67e12, 989e12, 3350e9, 63e9),
)
"""Name in a device, such as h100 in `simulated:h100` -> card."""

# NVIDIA's Ampere GA102 GPU architecture paper
RTX_3090 = Card("rtx3090", "RTX 3090", 35.6e12, 71e12, 936e9, 31.5e9)


@dataclass(frozen=True)
class PublishedMeasurement:
    """A published measurement of training on one card."""

    card: Card
    precision: Precision
    sample_s: float
    source: str


TIMM = "timm's table of training on an RTX 3090 (PyTorch 1.12, AMP)"
MEASURED: dict[str, PublishedMeasurement] = {
    "tiny": PublishedMeasurement(
        CARDS["rtx2060-article"],
        "fp32",
        70e-6,
        "a published table of seconds for an epoch on an RTX 2060 (docs/simulated.md)",
    ),
    "ti/16": PublishedMeasurement(RTX_3090, "bf16", 1 / 2293.54, TIMM),
    "s/16": PublishedMeasurement(RTX_3090, "bf16", 1 / 1052.92, TIMM),
    "b/16": PublishedMeasurement(RTX_3090, "bf16", 1 / 390.86, TIMM),
}
"""Model -> measurement. timm: results/benchmark-train-amp-nchw-pt112-cu113-rtx3090.csv (batches of 512, 384 and 192,
in fp16). The article's figure is the slope of its in-memory column, see `vitprof.config.accelerators`."""


def forward_macs(model: models.ModelPreset, image_size: int) -> float:
    """Returns the multiplications in one forward pass of one image, without those of the embedding and
    the head.
    """
    tokens = (image_size // model.patch_size) ** 2 + 1
    inner = model.heads * model.dim_head
    # of a token in a layer: the projections to and from attention and the MLP, then attention itself
    weights = 4 * model.dim * inner + 2 * model.dim * model.mlp_dim
    attention = 2 * tokens * inner
    return model.depth * tokens * (weights + attention)


def step_figures(
    card: Card, model: str, image_size: int, precision: Precision
) -> tuple[float, float]:
    """Returns the seconds that a training step of `model` takes on `card`, with images of `image_size`
    pixels a side: for each step, and for each sample. Raises `ConfigError` for a model without figures.
    """
    if model not in MEASURED:
        why = f"a card's times are known for {', '.join(MEASURED)}; give those of {model}: {SIMULATED}A_MS,B_US"
        raise ConfigError("device", f"{SIMULATED}{card.name}", why)
    preset = models.MODELS[model]
    known = MEASURED[model]
    arithmetic = card.flop_per_s(precision) / known.card.flop_per_s(known.precision)
    bandwidth = card.memory_bytes_per_s / known.card.memory_bytes_per_s
    bandwidth *= VALUE_BYTES[known.precision] / VALUE_BYTES[precision]
    size = forward_macs(preset, image_size) / forward_macs(preset, preset.image_size)
    step_s = preset.depth * LAUNCHES_PER_LAYER * LAUNCH_S
    sample_s = known.sample_s * size / min(arithmetic, bandwidth)
    return step_s, sample_s


SIMULATED = "simulated:"
FIGURES = "="
"""Separates the name of a card from its figures for one model: `simulated:h100=3,7.02`."""
COUNTER_WINDOW_S = 1 / 6
"""The least seconds over which a utilisation counter averages. NVML's reference says of
`nvmlUtilization_t`: percent of time over the past sample period during which one or more kernels was
executing; the period is between 1/6 s and 1 s, by product."""
LONGEST_WINDOW_S = 1.0
"""The most seconds over which it averages."""
LAUNCHING = ",launch="
"""Precedes the milliseconds that the host needs to launch a step: `simulated:1,0,launch=4`."""
LINK_SHARE = 0.76
"""Share of a PCIe link's rate that copies from page-locked memory reach: about 12 of 15.75 GB/s in practice."""


@dataclass(frozen=True)
class Accelerator:
    """An accelerator that takes `step_s + sample_s * batch` for each step."""

    name: str
    step_s: float
    """Seconds for each step, whatever the batch size."""
    sample_s: float
    """Additional seconds for each sample."""
    origin: str
    pinned_bytes_per_s: float = 12e9
    """Rate of copies from page-locked memory. PCIe 3.0 x16 carries 15.75 GB/s; about 12 are reached in practice."""
    pageable_bytes_per_s: float = 6e9
    """Rate of copies from other memory, which the driver first moves to a page-locked buffer of its own."""
    copy_latency_s: float = 10e-6
    launch_s: float = 0.0
    """Seconds that the host needs to launch a training step; a forward pass takes a third of that. 0: no time."""
    queue_steps: int = 3
    """Most steps that can be queued: CUDA holds about 1,000 launches, and a step of a small ViT is some 300."""

    @property
    def times(self) -> str:
        launching = f", launched in {self.launch_s * 1e3:g} ms" if self.launch_s else ""
        return f"{self.step_s * 1e3:g} ms a step and {self.sample_s * 1e6:g} µs a sample{launching}"

    def compute_s(self, samples: int) -> float:
        """Returns the seconds of device work in a training step on `samples` samples."""
        return self.step_s + self.sample_s * samples

    def span_s(self, samples: int) -> float:
        """Returns the seconds from one step to the next if only the device and its launches take time."""
        return max(self.compute_s(samples), self.launch_s)

    def copy_s(self, n_bytes: int, *, pinned: bool) -> float:
        """Returns the seconds that a copy of `n_bytes` to the device takes, from page-locked memory if
        `pinned`.
        """
        bytes_per_s = self.pinned_bytes_per_s if pinned else self.pageable_bytes_per_s
        return self.copy_latency_s + n_bytes / bytes_per_s


ARTICLE = "rtx2060-article"
ARTICLE_FIGURES = (
    66e-3,
    70e-6,
    "fitted to a published table of seconds for an epoch on an RTX 2060 (largest error 14%; docs/simulated.md)",
)
"""Seconds for each step and each sample, and their origin, of the one card that was measured with one of these models
(`tiny`): they fit the article's table of seconds for an epoch by batch size. 66 ms a step are far more than launching
takes; they are kept as measured."""


DERIVED = "derived from published training throughput, TFLOP/s and memory bandwidth (vitprof.config.accelerators)"


def is_simulated(device: str) -> bool:
    return device.startswith(SIMULATED)


def is_given(device: str) -> bool:
    """Returns whether `device` is a simulated accelerator that gives times instead of a name:
    `simulated:A_MS,B_US`.
    """
    return is_simulated(device) and FIGURES not in device.partition(LAUNCHING)[0] and "," in device


def device_of_times(step_ms: float, sample_us: float, launch_ms: float = 0.0) -> str:
    """Returns the name of the device that takes these times for each step, each sample, and to launch a step."""
    device = f"{SIMULATED}{step_ms:.6g},{sample_us:.6g}"
    if launch_ms:
        device += f"{LAUNCHING}{launch_ms:.6g}"
    return device


def device_for(device: str, model: str, image_size: int, precision: Precision) -> str:
    """Returns `device`; if it is a card's name, with the card's times for this model added:
    `simulated:h100=3,7.02`.

    So a run records which figures (ms a step, us a sample) it was made with, even if later versions have
    better ones.
    """
    if not is_simulated(device):
        return device
    card = CARDS.get(device.removeprefix(SIMULATED))
    if card is None:
        return device
    step_s, sample_s = step_figures(card, model, image_size, precision)
    if (card.name, model, image_size) == (ARTICLE, "tiny", models.MODELS["tiny"].image_size):
        step_s, sample_s, _ = ARTICLE_FIGURES
    rounded = (float(f"{value:.3g}") for value in (step_s * 1e3, sample_s * 1e6))
    return f"{device}{FIGURES}{','.join(f'{value:g}' for value in rounded)}"


def card_of(device: str) -> Card | None:
    """Returns the card that `device` simulates; None for a device given by its times, and for real devices."""
    if not is_simulated(device):
        return None
    name = device.removeprefix(SIMULATED).partition(FIGURES)[0]
    return CARDS.get(name)


def as_requested(device: str) -> str:
    """Returns a card's device without the figures that `device_for` added; any other device unchanged."""
    if card_of(device) is None or LAUNCHING in device:
        return device
    return device.partition(FIGURES)[0]


def device_in_words(device: str) -> str:
    """Returns a device in words, such as "simulated H100"; unchanged if it is no card's."""
    card = card_of(device)
    return device if card is None else f"simulated {card.title}"


def accelerator(device: str) -> Accelerator:
    """Returns the accelerator that `device` names.

    That is `simulated:NAME` (that card with the model `tiny` in fp32), `simulated:A_MS,B_US`, or
    `simulated:NAME=A_MS,B_US`. After the numbers may follow the time that the host needs to launch a
    step: `simulated:1,0,launch=C_MS`. Raises `ConfigError` for any other text.
    """
    rest, launched, launch = device.removeprefix(SIMULATED).partition(LAUNCHING)
    name, separator, figures = rest.partition(FIGURES)
    card = CARDS.get(name)
    if card is not None and not separator and not launched:
        tiny = models.MODELS["tiny"]
        return accelerator(device_for(device, tiny.name, tiny.image_size, "fp32"))
    step_ms, sample_us = _numbers(figures if separator else name)
    launch_ms = 0.0
    if launched:
        launch_ms, _ = _numbers(f"{launch},0")
    step = bounds.DEVICE_BOUNDS["step_ms"]
    sample = bounds.DEVICE_BOUNDS["sample_us"]
    # NaN, for what is no number, is in no range
    in_range = (
        step.least <= step_ms <= step.most
        and sample.least <= sample_us <= sample.most
        and step.least <= launch_ms <= step.most
    )
    takes_no_time = step_ms + sample_us == 0
    unknown_card = separator and card is None
    if not in_range or takes_no_time or unknown_card:
        allowed = (
            f"choose {SIMULATED}NAME ({', '.join(CARDS)}), or give milliseconds for each step (up to "
            f"{step.most:,}) and microseconds for each sample (up to {sample.most:,}), such as "
            f"{SIMULATED}66,70; add {LAUNCHING}C for C milliseconds that launching a step takes"
        )
        raise ConfigError("device", device, allowed)
    step_s = step_ms / 1e3
    sample_s = sample_us / 1e6
    launch_s = launch_ms / 1e3
    if card is None:
        return Accelerator(name, step_s, sample_s, "as given", launch_s=launch_s)
    article_step_s, article_sample_s, article = ARTICLE_FIGURES
    is_the_articles = (step_s, sample_s) == (article_step_s, article_sample_s)
    return Accelerator(
        card.title,
        step_s,
        sample_s,
        article if is_the_articles else DERIVED,
        pinned_bytes_per_s=LINK_SHARE * card.link_bytes_per_s,
        launch_s=launch_s,
    )


def _numbers(text: str) -> tuple[float, float]:
    """Returns the two numbers of "66,70"; NaN for what is none."""
    try:
        step_ms, sample_us = (float(part) for part in text.split(","))
    except ValueError:
        return math.nan, math.nan
    return step_ms, sample_us
