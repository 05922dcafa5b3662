"""Simulated accelerators: how long each takes for a step and for a copy.

They answer "would my loader feed such a GPU?" where there is none. Everything measured on one is marked as simulated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from vitprof.config.bounds import DEVICE_BOUNDS
from vitprof.config.cards import CARDS, Card, Precision, step_figures
from vitprof.config.catalog import MODELS
from vitprof.errors import ConfigError

SIMULATED = "simulated:"
FIGURES = "="
"""Separates the name of a card from its figures for one model: `simulated:h100=3,7.02`."""
COUNTER_WINDOW_S = 1 / 6
"""Seconds over which a utilisation counter averages. NVML's reference says of `nvmlUtilization_t`: percent of time over
the past sample period during which one or more kernels was executing; the period is between 1/6 s and 1 s, by product.
"""
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
    """Where the figures come from."""
    pinned_bytes_per_s: float = 12e9
    """Rate of copies from page-locked memory. PCIe 3.0 x16 carries 15.75 GB/s; about 12 are reached in practice."""
    pageable_bytes_per_s: float = 6e9
    """Rate of copies from other memory, which the driver first moves to a page-locked buffer of its own."""
    copy_latency_s: float = 10e-6
    """Seconds from the call to the first byte of a copy."""
    launch_s: float = 0.0
    """Seconds that the host needs to launch a training step; a forward pass takes a third of that. 0: no time."""
    normalise_s: float = 0.0
    """Seconds of device work to normalise a batch: in the step, or beside it in a stream of its own. 0: included in the
    step's time."""
    gather_s: float = 0.0
    """Seconds of device work to gather a batch from a set that is on the device."""
    queue_steps: int = 3
    """Most steps that can be queued: CUDA holds about 1,000 launches, and a step of a small ViT is some 300."""

    @property
    def times(self) -> str:
        """Returns how long a step takes, in words."""
        launching = f", launched in {self.launch_s * 1e3:g} ms" if self.launch_s else ""
        return f"{self.step_s * 1e3:g} ms a step and {self.sample_s * 1e6:g} µs a sample{launching}"

    def compute_s(self, samples: int) -> float:
        """Returns the seconds of device work in a training step on `samples` samples."""
        return self.step_s + self.sample_s * samples

    def span_s(self, samples: int) -> float:
        """Returns the seconds from one step to the next if only the device and its launches take time."""
        return max(self.compute_s(samples), self.launch_s)

    def copy_s(self, n_bytes: int, *, pinned: bool) -> float:
        """Returns the seconds that a copy of `n_bytes` to the device takes, from page-locked memory if `pinned`."""
        return self.copy_latency_s + n_bytes / (self.pinned_bytes_per_s if pinned else self.pageable_bytes_per_s)


ARTICLE = "rtx2060-article"
ARTICLE_FIGURES = (66e-3, 70e-6, "fitted to an article's in-memory column on an RTX 2060 (largest error 14%)")
"""Seconds for each step and each sample, and their origin, of the one card that was measured with one of these models
(`tiny`): they fit the article's table of seconds for an epoch by batch size. 66 ms a step are far more than launching
takes; they are kept as measured."""


DERIVED = "derived from published training throughput, TFLOP/s and memory bandwidth (vitprof.config.cards)"


def is_simulated(device: str) -> bool:
    """Returns whether `device` names a simulated accelerator."""
    return device.startswith(SIMULATED)


def is_given(device: str) -> bool:
    """Returns whether `device` is a simulated accelerator that gives times instead of a name: `simulated:A_MS,B_US`."""
    return is_simulated(device) and FIGURES not in device.partition(LAUNCHING)[0] and "," in device


def given(step_ms: float, sample_us: float, launch_ms: float = 0.0) -> str:
    """Returns the name of the device that takes these times: milliseconds for each step, microseconds for each sample,
    and milliseconds that the host needs to launch a step.
    """
    return f"{SIMULATED}{step_ms:.6g},{sample_us:.6g}{f'{LAUNCHING}{launch_ms:.6g}' if launch_ms else ''}"


def device_for(device: str, model: str, image_size: int, precision: Precision) -> str:
    """Returns `device`; if it is a card's name, with the card's times for this model added: `simulated:h100=3,7.02`.

    The times are milliseconds for each step and microseconds for each sample. With them a run records which figures it
    was made with, even if later versions have better ones.
    """
    card = CARDS.get(device.removeprefix(SIMULATED)) if is_simulated(device) else None
    if card is None:
        return device
    step_s, sample_s = _figures(card, model, image_size, precision)
    rounded = (float(f"{value:.3g}") for value in (step_s * 1e3, sample_s * 1e6))
    return f"{device}{FIGURES}{','.join(f'{value:g}' for value in rounded)}"


def card_of(device: str) -> Card | None:
    """Returns the card that `device` simulates; None for a device given by its times, and for real devices."""
    return CARDS.get(device.removeprefix(SIMULATED).partition(FIGURES)[0]) if is_simulated(device) else None


def as_asked(device: str) -> str:
    """Returns a card's device without the figures that `device_for` added; any other device unchanged."""
    return device if card_of(device) is None or LAUNCHING in device else device.partition(FIGURES)[0]


def device_in_words(device: str) -> str:
    """Returns a device in words, such as "simulated H100"; unchanged if it is no card's."""
    card = card_of(device)
    return device if card is None else f"simulated {card.title}"


def _figures(card: Card, model: str, image_size: int, precision: Precision) -> tuple[float, float]:
    if (card.name, model, image_size) == (ARTICLE, "tiny", MODELS["tiny"].image_size):
        return ARTICLE_FIGURES[:2]
    return step_figures(card, model, image_size, precision)


def accelerator(device: str) -> Accelerator:
    """Returns the accelerator that `device` names: `simulated:NAME`, `simulated:A_MS,B_US`, or
    `simulated:NAME=A_MS,B_US`.

    A name alone is that card with the model `tiny` in fp32. After the numbers may follow the time that the host needs
    to launch a step: `simulated:A_MS,B_US,launch=C_MS`. Raises `ConfigError` for any other text.
    """
    rest, launched, launch = device.removeprefix(SIMULATED).partition(LAUNCHING)
    name, separator, figures = rest.partition(FIGURES)
    card = CARDS.get(name)
    if card is not None and not separator and not launched:
        tiny = MODELS["tiny"]
        return accelerator(device_for(device, tiny.name, tiny.image_size, "fp32"))
    step_ms, sample_us = _numbers(figures if separator else name)
    launch_ms = _numbers(f"{launch},0")[0] if launched else 0.0
    step, sample = DEVICE_BOUNDS["step_ms"], DEVICE_BOUNDS["sample_us"]
    fits = step.least <= step_ms <= step.most and sample.least <= sample_us <= sample.most
    if not (fits and step.least <= launch_ms <= step.most) or step_ms + sample_us == 0 or (separator and card is None):
        raise ConfigError(
            "device",
            device,
            f"choose {SIMULATED}NAME ({', '.join(CARDS)}), or give milliseconds for each step (up to {step.most:,}) "
            f"and microseconds for each sample (up to {sample.most:,}), such as {SIMULATED}66,70; "
            f"add {LAUNCHING}C for C milliseconds that launching a step takes",
        )
    if card is None:
        return Accelerator(name, step_ms / 1e3, sample_us / 1e6, "as given", launch_s=launch_ms / 1e3)
    return Accelerator(
        card.title,
        step_ms / 1e3,
        sample_us / 1e6,
        ARTICLE_FIGURES[2] if (step_ms / 1e3, sample_us / 1e6) == ARTICLE_FIGURES[:2] else DERIVED,
        pinned_bytes_per_s=LINK_SHARE * card.link_bytes_per_s,
        launch_s=launch_ms / 1e3,
    )


def _numbers(text: str) -> tuple[float, float]:
    try:
        step_ms, sample_us = (float(part) for part in text.split(","))
    except ValueError:
        return math.nan, math.nan
    return step_ms, sample_us
