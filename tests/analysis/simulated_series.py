"""Series of steps whose true figures are known, to count how often an interval holds the truth.

`python -m tests.analysis.simulated_series 2000` prints the table of docs/self-test.md.
"""

import functools
import sys
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vitprof.analysis import intervals
from vitprof.analysis.arrays import Floats, Mask

LENGTHS = (20, 40, 80, 160, 400)
SHAPES = (
    "independent",
    "AR(1) 0.5",
    "AR(1) 0.8",
    "bursts",
    "1 epoch",
    "2 epochs",
    "3 epochs",
    "6 epochs",
)
FIGURES = ("rate", "share")
SIGMA = 0.5
"""Of the log-normal time of a step; 0.3 beside bursts and epoch starts."""
BURST = 8
"""Every eighth step takes about as many times as long."""
START = 10.0
"""What the first step of a later epoch takes, on average, as a multiple of others; log-normal with
sigma 0.3."""


@dataclass(frozen=True)
class Simulated:
    """Many series of one shape."""

    part: Floats
    """(series, steps)"""
    whole: Floats
    apart: Mask | None
    truth: float


@dataclass(frozen=True)
class Coverage:
    """What came of the intervals of many series."""

    held: float
    """Share of the intervals that hold the truth, of those that were given."""
    given: float
    """Share of the series that have an interval."""
    width: float
    """Median width, as a multiple of what it takes for 95 of 100 if the distribution of the
    estimate is known."""


def simulated(shape: str, figure: str, steps: int, series: int) -> Simulated:
    rng = np.random.default_rng([steps, SHAPES.index(shape)])
    if "epoch" in shape:
        return _epochs(rng, int(shape.split(maxsplit=1)[0]), figure, steps, series)
    times, mean = _times(rng, shape, steps, series)
    if figure == "rate":
        return Simulated(np.ones_like(times), times, None, 1 / mean)
    waits = _waits(times)
    return Simulated(waits, waits + 1, None, _true_share(shape))


def starved(memory: float, steps: int, series: int) -> Simulated:
    """Steps that idle for 83 to 97% of their time each, the more alike the larger `memory` is."""
    rng = np.random.default_rng([steps, round(100 * memory)])
    share = 1 / (1 + np.exp(-(2.5 + 0.3 * _alike(rng, memory, steps, series))))
    whole = _log_normal(_alike(rng, memory, steps, series), 0.3)
    many = 1 / (1 + np.exp(-(2.5 + 0.3 * rng.standard_normal(1_000_000))))
    return Simulated(share * whole, whole, None, float(many.mean()))


def coverage(shape: str, figure: str, steps: int, series: int) -> Coverage:
    return covered(simulated(shape, figure, steps, series), figure)


def covered(of: Simulated, figure: str) -> Coverage:
    ends = intervals.share_ends if figure == "share" else intervals.ratio_ends
    # A wait that did not occur in any of the steps cannot be known of.
    seen = of.part.sum(axis=1) > 0
    part = of.part[seen]
    whole = of.whole[seen]
    low, high = ends(part, whole, of.apart)
    known = np.isfinite(low) & np.isfinite(high)
    held = (low <= of.truth) & (of.truth <= high)
    estimates = part.sum(axis=1) / whole.sum(axis=1)
    oracle = np.quantile(estimates, 0.975) - np.quantile(estimates, 0.025)
    width = float(np.median((high - low)[known]) / oracle)
    return Coverage(float(held[known].mean()), float(known.mean()), width)


def _times(rng: np.random.Generator, shape: str, steps: int, series: int) -> tuple[Floats, float]:
    """Returns the times of steps, (series, steps), and their true mean."""
    if shape == "bursts":
        begins = rng.integers(BURST, size=(series, 1))
        slow = (np.arange(steps) + begins) % BURST == 0
        times = _log_normal(rng.standard_normal((series, steps)), 0.3)
        return np.where(slow, BURST * times, times), (BURST - 1 + BURST) / BURST
    memory = float(shape.split()[1]) if shape.startswith("AR") else 0.0
    return _log_normal(_alike(rng, memory, steps, series), SIGMA), 1.0


def _alike(rng: np.random.Generator, memory: float, steps: int, series: int) -> Floats:
    """Returns standard normal values, (series, steps), of AR(1) with that coefficient."""
    noise = rng.standard_normal((series, steps))
    for i in range(1, steps):
        noise[:, i] = memory * noise[:, i - 1] + np.sqrt(1 - memory**2) * noise[:, i]
    return noise


def _waits(times: Floats) -> Floats:
    """Returns the part of loading times that the device waits for: it computes as long as a batch
    takes on average."""
    return np.maximum(3 * times - 3, 0.0)


@functools.cache
def _true_share(shape: str) -> float:
    # the marginal distribution is the same whatever the autocorrelation
    one = "bursts" if shape == "bursts" else "independent"
    times, _ = _times(np.random.default_rng(1), one, 8, 250_000)
    wait = float(_waits(times).mean())
    return wait / (wait + 1)


def _epochs(
    rng: np.random.Generator, epochs: int, figure: str, steps: int, series: int
) -> Simulated:
    starts = np.zeros(steps, dtype=bool)
    starts[[round(steps * epoch / epochs) for epoch in range(1, epochs)]] = True
    n = int(starts.sum())
    usual = _log_normal(rng.standard_normal((series, steps)), 0.3)
    start = START * _log_normal(rng.standard_normal((series, steps)), 0.3)
    if figure == "rate":
        times = np.where(starts, start, usual)
        return Simulated(np.ones_like(times), times, starts, steps / (steps - n + n * START))
    waits = np.where(starts, start, 0.1 * usual)
    wait = 0.1 * (steps - n) + START * n
    return Simulated(waits, waits + 1, starts, wait / (wait + steps))


def _log_normal(noise: npt.NDArray[np.float64], sigma: float) -> Floats:
    """Returns values of mean 1."""
    return np.asarray(np.exp(sigma * noise - sigma**2 / 2))


def main(series: int) -> None:
    for shape in SHAPES:
        for figure in FIGURES:
            cells = [coverage(shape, figure, steps, series) for steps in LENGTHS]
            words = (f"{c.held:.3f} ({c.given:.0%}, {c.width:.2f})" for c in cells)
            sys.stdout.write(f"| {shape}, {figure} | {' | '.join(words)} |\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
