"""Accelerators that can be imitated: how long one takes for a step and for a copy.

They answer "would my loader feed such a GPU?" where there is none. Everything measured on one is called simulated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from vitprof.config.bounds import DEVICE_BOUNDS
from vitprof.errors import ConfigError

SIMULATED = "simulated:"
COUNTER_WINDOW_S = 1 / 6
"""How far back a utilisation counter looks. NVML's reference says of `nvmlUtilization_t`: percent of time over the past
sample period during which one or more kernels was executing; the period is between 1/6 s and 1 s, by product."""


@dataclass(frozen=True)
class Accelerator:
    """An accelerator that takes `step_s + sample_s * batch` for each step."""

    name: str
    step_s: float
    """Seconds for each step, whatever the batch."""
    sample_s: float
    """Seconds for each sample, on top."""
    origin: str
    """Where the figures come from."""
    pinned_bytes_per_s: float = 12e9
    """Copies out of page-locked memory. PCIe 3.0 x16 carries 15.75 GB/s; about 12 are seen in practice."""
    pageable_bytes_per_s: float = 6e9
    """Copies out of other memory, which the driver first moves to a page-locked buffer of its own."""
    copy_latency_s: float = 10e-6
    """From the call to the first byte."""
    queue_steps: int = 3
    """Steps that may be queued: CUDA holds about 1,000 launches, and a step of a small ViT is some 300."""

    @property
    def times(self) -> str:
        """Returns what a step takes, in words."""
        return f"{self.step_s * 1e3:g} ms a step and {self.sample_s * 1e6:g} us a sample"

    def compute_s(self, samples: int) -> float:
        """Returns seconds for a step of training on `samples`."""
        return self.step_s + self.sample_s * samples

    def copy_s(self, n_bytes: int, *, pinned: bool) -> float:
        """Returns seconds for a copy of `n_bytes` to the device."""
        return self.copy_latency_s + n_bytes / (self.pinned_bytes_per_s if pinned else self.pageable_bytes_per_s)


PRESETS: dict[str, Accelerator] = {
    a.name: a
    for a in (
        Accelerator(
            "rtx2060-article",
            step_s=66e-3,
            sample_s=70e-6,
            origin="fitted to an article's in-memory column on an RTX 2060 (largest error 14%); copies as PCIe 3.0 x16",
        ),
    )
}
"""Accelerators by name. Those that were measured say on what and with which command."""


def is_simulated(device: str) -> bool:
    """Returns whether `device` names an accelerator that is only imitated."""
    return device.startswith(SIMULATED)


def accelerator(device: str) -> Accelerator:
    """Returns what `device` ("simulated:NAME" or "simulated:A_MS,B_US") means. Raises `ConfigError`."""
    name = device.removeprefix(SIMULATED)
    if name in PRESETS:
        return PRESETS[name]
    try:
        step_ms, sample_us = (float(part) for part in name.split(","))
    except ValueError:
        step_ms = sample_us = math.nan
    step, sample = DEVICE_BOUNDS["step_ms"], DEVICE_BOUNDS["sample_us"]
    fits = step.least <= step_ms <= step.most and sample.least <= sample_us <= sample.most
    if not fits or step_ms + sample_us == 0:
        raise ConfigError(
            "device",
            device,
            f"choose {SIMULATED}{' or '.join(PRESETS)}, or give milliseconds for each step (up to {step.most:,}) "
            f"and microseconds for each sample (up to {sample.most:,}), such as {SIMULATED}66,70",
        )
    return Accelerator(name, step_ms / 1e3, sample_us / 1e6, "as given")
