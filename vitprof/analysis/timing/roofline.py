"""The roofline of loading: how many samples a second each stage could make with the cores that the job has, beside the
device's rate and what was reached. The lowest is the bottleneck (as in Williams, Waterman and Patterson 2009).
"""

import math
from dataclasses import dataclass

import numpy as np

from vitprof import formats
from vitprof.analysis.arrays import Series, known
from vitprof.analysis.timing.loading import Loading
from vitprof.analysis.timing.steady import steady_state

DRIVE = "the drive, nothing cached"
LOADER = "the loader, all of these"
TRANSFER = "transfer"
DEVICE = "the device"
LEAST_FRAC = 0.01
"""A stage with less of the loader's time has no bar."""
MOST_BELOW = 0.95
"""A loader whose stages say less than this share of what was reached has no roofline: batches differ by that."""
LEAST_BATCHES = 20
"""Fewer measured batches give no roofline."""


@dataclass(frozen=True)
class Roof:
    """What one stage alone could make."""

    name: str
    stage: str
    """Name of the stage in `Loading.stages`, or "drive"; empty for the loader, the transfer and the device."""
    samples_per_s: float
    words: str
    """What a sample or a batch takes there."""


@dataclass(frozen=True)
class Roofline:
    """The roofs of a run, in the order of a batch's way."""

    roofs: tuple[Roof, ...]
    reached_per_s: float
    """Samples/s in steady state."""
    cores: int
    core_s: float
    """Seconds of a core for a sample: all that the loader does."""
    batch: float
    """Samples in a batch."""

    def of(self, name: str) -> Roof:
        return next(roof for roof in self.roofs if roof.name == name)

    @property
    def lowest(self) -> Roof:
        """Returns the bottleneck: of the loader, the transfer and the device."""
        return min((r for r in self.roofs if not r.stage), key=lambda r: r.samples_per_s)

    @property
    def cores_needed(self) -> int:
        """Returns the cores with which the loader would keep up with the device."""
        return math.ceil(self.of(DEVICE).samples_per_s * self.core_s)

    @property
    def sentence(self) -> str:
        """Returns what the device and the loader take, and how many cores would be enough."""
        device = self.of(DEVICE)
        loader = self.of(LOADER)
        largest = max(
            (r for r in self.roofs if r.stage and r.name != DRIVE),
            key=lambda r: 1 / r.samples_per_s,
        )
        took = formats.seconds(self.batch / device.samples_per_s)
        first = f"The device takes {took} for {self.batch:.0f} samples; the loader takes "
        first += f"{formats.seconds(self.core_s)} for a sample, most of it {largest.name}. "
        if loader.samples_per_s >= device.samples_per_s:
            return f"{first}It makes {self.cores} at a time: {self.cores_needed} at a time feed the device."
        return f"{first}It makes {self.cores} at a time; to feed the device it would have to make {self.cores_needed}."


def roofline_of(
    loading: Loading,
    steps: Series,
    cores: int,
    drive_per_s: float = math.nan,
    sample_bytes: float = math.nan,
) -> Roofline | None:
    """Returns the roofline of a run's steady state; `cores`: those that load; `drive_per_s`: bytes/s of the drive,
    which is never named as the bottleneck: files that are cached do not need it. None where the loader's stages or the
    device's time were not measured, or what was reached is more than the loader's stages say that it can make.
    Stages are timed by the clock: workers that wait for a core make them longer.
    """
    keep = steady_state(steps)
    samples = steps["samples"][keep]
    step_s = steps["step_s"][keep]
    batch = float(np.mean(samples)) if len(samples) else math.nan
    # a sampler and the hand-over take time of the loop's process, however many cores make batches
    of_the_loop = ("sampler", "hand_over")
    made = [s for s in loading.stages if s.name not in of_the_loop and s.ms.value > 0]
    copied, computed = (_mean(steps[name][keep]) for name in ("h2d_s", "compute_s"))
    if not made or loading.n < LEAST_BATCHES or not computed > 0 or not batch > 0:
        return None
    of_stage = [(stage.words, stage.name, stage.ms.value / 1e3 / batch) for stage in made]
    core_s = math.fsum(seconds for _, _, seconds in of_stage)
    reached = float(np.sum(samples) / np.sum(step_s))
    if cores / core_s < MOST_BELOW * reached:
        return None
    of_stage = [each for each in of_stage if each[2] >= LEAST_FRAC * core_s] + [
        (LOADER, "", core_s)
    ]
    roofs = list[Roof]()
    if drive_per_s > 0 and sample_bytes > 0:
        words = f"{formats.size(drive_per_s)}/s, {formats.size(sample_bytes)} for a sample"
        roofs.append(Roof(DRIVE, "drive", drive_per_s / sample_bytes, words))
    roofs += [
        Roof(words, name, cores / s, f"{formats.seconds(s)} for a sample")
        for words, name, s in of_stage
    ]
    for name, seconds in ((TRANSFER, copied), (DEVICE, computed)):
        if seconds > 0:
            roofs.append(Roof(name, "", batch / seconds, f"{formats.seconds(seconds)} for a batch"))
    return Roofline(tuple(roofs), reached, cores, core_s, batch)


def _mean(values: object) -> float:
    measured = known(np.asarray(values, dtype=np.float64))
    return float(np.mean(measured)) if len(measured) >= LEAST_BATCHES else math.nan
