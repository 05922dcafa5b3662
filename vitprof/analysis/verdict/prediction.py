"""Predicts what another strategy would reach from one profiled run and a loader-only run, without training it.

The profile gives a sample's time on the device (compute), the loader-only run its time to load (fetch) and to copy
(H2D). How the three make up a step depends on what overlaps what:

| where | loader, transfer | a step takes |
|---|---|---|
| an asynchronous device | blocking copy | max(fetch, compute) + h2d: the copy begins when the device is free |
| | pinned, same stream | max(fetch, compute + h2d) |
| | a stream of its own | max(fetch, compute, h2d) |
| | resident | max(fetch, compute) |
| the CPU | in the loop | fetch + compute |
| | in the background | from max(fetch, compute) to fetch + compute, depending on free cores |

An asynchronous device computes the previous step while the loop fetches. A loader in the loop cannot fetch while the
loop launches a step, so its launch time is added to fetch. The mean of a maximum is larger than the maximum of the
means; that is ignored, because a queue between the two evens out single steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vitprof.analysis.arrays import BOOTSTRAP_RESAMPLES, MIN_BLOCKS, Floats, Series, known, median
from vitprof.analysis.intervals import draws
from vitprof.analysis.timing import loading, steady
from vitprof.config import RunConfig
from vitprof.formats import percent

UNVERIFIED_ERROR = 0.1
"""Relative error that is assumed until `ENOUGH_VERIFIED` predictions have been checked by a run."""
ENOUGH_VERIFIED = 3
WELL_VERIFIED = 10
"""Checked predictions from which an error below `UNVERIFIED_ERROR` is believed."""
HIGH_ERROR_PCT = 90
"""Percentile of the errors seen that widens an interval: half of all errors would exceed the median."""


@dataclass(frozen=True)
class Prediction:
    """The expected throughput of a strategy that was not run."""

    samples_per_s: float
    low: float
    """Lower end of the 95% interval: 1,000 draws of where the two runs' figures may be
    (`intervals.draws`), widened by `Calibration.expected_error`."""
    high: float


@dataclass(frozen=True)
class Calibration:
    """How good the predictions were that have been checked by a run."""

    n: int
    median_abs_error: float
    """Median of |predicted - measured| / measured; NaN without any."""
    inside_frac: float
    """Share of the measured figures inside the predicted interval; NaN without any."""
    high_abs_error: float = np.nan
    """90th percentile of the same errors; NaN without any."""

    @property
    def expected_error(self) -> float:
        """Returns the relative error that the next prediction is unlikely to exceed, by which its
        interval is widened.

        It is 10% until three predictions have been checked, then the 90th percentile of the errors
        seen, but not under 10% until ten have been checked.
        """
        if self.n < ENOUGH_VERIFIED:
            return UNVERIFIED_ERROR
        return (
            self.high_abs_error
            if self.n >= WELL_VERIFIED
            else max(self.high_abs_error, UNVERIFIED_ERROR)
        )

    @property
    def sentence(self) -> str:
        if not self.n:
            return f"No prediction has been checked here yet: an error of {percent(self.expected_error)} is assumed."
        return (
            f"Checked here so far: {self.n}. Off by {percent(self.median_abs_error)} (median); "
            f"{percent(self.inside_frac)} of what was measured lay in its interval."
        )


def calibration(checked: Sequence[tuple[float, float, float, float]]) -> Calibration:
    """Returns the errors of checked predictions, each (predicted, low, high, measured) in samples/s."""
    if not checked:
        return Calibration(0, np.nan, np.nan)
    predicted, low, high, measured = np.array(checked, dtype=float).T
    error = np.abs(predicted - measured) / measured
    inside = (low <= measured) & (measured <= high)
    middle, most = np.percentile(error, (50, HIGH_ERROR_PCT))
    return Calibration(len(checked), float(middle), float(inside.mean()), float(most))


def predict(
    profile: Series,
    micro: Series,
    config: RunConfig,
    *,
    profile_transfer: str,
    on_cpu: bool,
    cores: int,
    expected_error: float = UNVERIFIED_ERROR,
) -> Prediction | None:
    """Returns the expected throughput of `config` (resolved); None if one of the two runs has fewer
    steady steps than an interval needs.

    `profile` are the steps of the profiled run, whose transfer was `profile_transfer`, and `micro`
    those of the loader-only run of `config`: both (n,) columns of `StepRecord`, at the same batch
    size. `on_cpu` says whether the CPU trains, on `cores` cores. The interval is widened by the
    relative `expected_error` on both sides.
    """
    profiled = _steady(profile)
    loaded = _steady(micro)
    blocking = config.transfer == "blocking"
    # At the median for each sample: a copy is not longer only because the host read its end late.
    h2d_steps = loaded["samples"] * float(
        np.nan_to_num(median(loaded["h2d_s"] / loaded["samples"]))
    )
    seconds = loaded["step_s"] - (np.nan_to_num(loaded["h2d_s"]) if blocking else 0.0)
    launch_s = (
        0.0 if on_cpu or not loading.synchronous(config) else _launch_s(profile, profile_transfer)
    )
    if min(len(profiled["samples"]), len(loaded["samples"])) < MIN_BLOCKS:
        return None
    # Two runs are independent: with the same draws for both the interval was too wide, or too narrow.
    compute = _draws(profiled["compute_s"], profiled["samples"], seed=0)
    fetch = _draws(seconds, loaded["samples"], seed=1)
    h2d = _draws(h2d_steps, loaded["samples"], seed=1)
    launch_s_per_sample = launch_s / loaded["samples"].mean()
    fetch = fetch + launch_s_per_sample
    if on_cpu:
        low, high = _on_cpu(fetch, compute, config, cores)
        # The truth may be anywhere in the range: each draw takes a random place in it, the estimate the middle.
        place = np.random.default_rng(1).random(len(low))
        place[0] = 0.5
        takes = low + place * (high - low)
    else:
        takes = _beside(fetch, compute, h2d, config)
    best, worst = np.percentile(1 / takes, [97.5, 2.5])
    limit = (
        np.inf if on_cpu else float(np.percentile(1 / compute, 97.5))
    )  # no loader is faster than the device
    estimate = 1 / float(takes[0])
    return Prediction(
        samples_per_s=estimate,
        low=min(float(worst), estimate) / (1 + expected_error),
        high=max(min(max(float(best), estimate) * (1 + expected_error), limit), estimate),
    )


def _steady(steps: Series) -> dict[str, Floats]:
    keep = steady.steady_state(steps) & np.isfinite(steps["step_s"]) & (steps["samples"] > 0)
    return {name: values[keep] for name, values in steps.items()}


def _launch_s(profile: Series, transfer: str) -> float:
    """Returns the seconds of host work to launch a step.

    They are those of the quickest step: a full launch queue makes the others wait.
    """
    got = steady.got_s(profile)
    begun = np.maximum(got, profile["compute_start_s"]) if transfer == "blocking" else got
    launch = known(got + profile["host_s"] - begun)
    return max(0.0, float(launch.min())) if len(launch) else 0.0


def _draws(part: Floats, samples: Floats, *, seed: int) -> Floats:
    """Returns the seconds a sample, and draws of where the truth may be; the estimate first."""
    return np.maximum(draws(part, samples, BOOTSTRAP_RESAMPLES, seed), 0.0)


def _beside(fetch: Floats, compute: Floats, h2d: Floats, config: RunConfig) -> Floats:
    if config.transfer == "blocking":
        return np.asarray(np.maximum(fetch, compute) + h2d)
    if config.transfer == "pinned":
        return np.maximum(fetch, compute + h2d)
    if config.transfer == "stream":
        return np.asarray(np.maximum.reduce([fetch, compute, h2d]))
    return np.maximum(fetch, compute)


def _on_cpu(fetch: Floats, compute: Floats, config: RunConfig, cores: int) -> tuple[Floats, Floats]:
    """Returns the least and the most seconds that a sample may take where the CPU trains."""
    both = fetch + compute
    if loading.synchronous(config):
        return both, both
    workers = (config.workers or 1) if config.loader != "ahead" else 1
    threads = config.threads or cores
    # All work, spread over all cores without a pause. In the loader-only run every worker was busy.
    work = (min(workers, cores) * fetch + threads * compute) / cores
    least = np.minimum(np.maximum.reduce([fetch, compute, work]), both)
    without_a_core = min(1.0, max(0.0, (workers + threads - cores) / workers))
    return least, least + without_a_core * (both - least)
