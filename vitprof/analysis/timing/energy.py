"""The energy that the GPUs of a run used while it trained.

Telemetry samples a few times a second what a step of milliseconds uses, so energy is known of
stretches of training and never of a single gap.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vitprof.analysis.arrays import Floats, Mask, Series, column
from vitprof.analysis.timing import steady
from vitprof.analysis.timing.chain import evaluated
from vitprof.recording.columns import Phase

LONGEST_S = 2.0
"""Time between two samples of power (s) up to which the power between them is taken for known: NVML's
figure is a mean of up to a second."""
KNOWN_FRAC = 0.9
"""Share of the training time that telemetry must cover. The rest is taken to be like it."""


@dataclass(frozen=True, slots=True)
class TrainingEnergy:
    """What the GPUs of a run used in the training time, in joules; NaN where that is not known."""

    by_counter_j: float = math.nan
    by_power_j: float = math.nan
    """By samples of the power of one GPU; known only where `by_counter_j` is not."""
    n_gpus: int = 0
    """GPUs behind the figure."""


def training_energy(
    steps: Series,
    phases: Sequence[Phase],
    telemetry: Series,
    counted: Mask,
    training_s: float,
    *,
    shares_card: bool = False,
) -> TrainingEnergy:
    """Returns the energy of the steps in `counted`, (n,) bool, evaluations left out.

    The counter comes first: power is a sample of what was drawn, while the counter misses nothing.
    `training_s`: the time of these steps. `shares_card`: whether the device is a slice of a GPU,
    whose power is that of the whole card.
    """
    spans = _spans(steps, counted)
    if not len(spans) or not training_s > 0:
        return TrainingEnergy()
    apart = evaluated(phases) / 1e9
    gpus = column(telemetry, "energy_gpus")
    n_gpus = int(np.nanmax(gpus)) if np.isfinite(gpus).any() else 0
    curve = _by_counter(telemetry, n_gpus)
    joules = _used(curve, spans, apart, training_s)
    if math.isfinite(joules):
        return TrainingEnergy(by_counter_j=joules, n_gpus=n_gpus)
    if shares_card:
        return TrainingEnergy()
    joules = _used(_by_power(telemetry), spans, apart, training_s)
    if math.isfinite(joules):
        return TrainingEnergy(by_power_j=joules, n_gpus=1)
    return TrainingEnergy()


@dataclass(frozen=True, slots=True)
class _Curve:
    """What was used up to each of some moments, and for how long of the time before that is known.

    All arrays are (k,), in seconds and joules.
    """

    t_s: Floats
    joules: Floats
    known_s: Floats


def _spans(steps: Series, counted: Mask) -> Floats:
    """Returns when the time of each step begins and ends, (m, 2) s, on the monotonic clock."""
    spans = np.stack([steady.begin_s(steps), steady.end_s(steps)], axis=1)[counted]
    return np.asarray(spans[np.isfinite(spans).all(axis=1)])


def _by_counter(telemetry: Series, n_gpus: int) -> _Curve | None:
    """Returns the curve of the counters of all GPUs; None without two samples.

    A sample that lacks one of the GPUs says nothing. Nor does a stretch in which the sum falls: the
    telemetry began anew, as a script does that its launcher starts again.
    """
    joules = column(telemetry, "gpu_energy_j")
    at = np.isfinite(joules) & (column(telemetry, "energy_gpus") == n_gpus)
    used = np.diff(joules[at])
    return _curve(telemetry["t_s"][at], used, used >= 0)


def _by_power(telemetry: Series) -> _Curve | None:
    """Returns the curve of the integral of power samples (trapezoids); None without two samples."""
    power_w = column(telemetry, "gpu_power_w")
    at = np.isfinite(power_w)
    t_s = telemetry["t_s"][at]
    between_s = np.diff(t_s)
    mean_w = (power_w[at][1:] + power_w[at][:-1]) / 2
    return _curve(t_s, mean_w * between_s, between_s <= LONGEST_S)


def _curve(t_s: Floats, used_j: Floats, known: Mask) -> _Curve | None:
    """Returns a curve from what was used between neighbours of `t_s`, (k - 1,), where `known`."""
    if len(t_s) < 2:
        return None
    joules = np.concatenate([[0.0], np.cumsum(np.where(known, used_j, 0.0))])
    known_s = np.concatenate([[0.0], np.cumsum(np.where(known, np.diff(t_s), 0.0))])
    return _Curve(t_s, joules, known_s)


def _used(curve: _Curve | None, spans: Floats, apart: Floats, training_s: float) -> float:
    """Returns the joules in the spans, (m, 2) s, without those in `apart`, scaled to `training_s`;
    NaN where too little of that is known.
    """
    if curve is None:
        return math.nan
    outside = _without(curve, apart)
    begin_s, end_s = spans.T
    joules = float(
        (_at(outside, outside.joules, end_s) - _at(outside, outside.joules, begin_s)).sum()
    )
    known_s = float(
        (_at(outside, outside.known_s, end_s) - _at(outside, outside.known_s, begin_s)).sum()
    )
    if known_s < KNOWN_FRAC * training_s:
        return math.nan
    return joules * training_s / known_s


def _without(curve: _Curve, apart: Floats) -> _Curve:
    """Returns the curve on a clock that stops in the spans `apart`, (k, 2) s, sorted and disjoint."""
    if not len(apart):
        return curve
    t_s = np.union1d(curve.t_s, apart)
    middle_s = (t_s[1:] + t_s[:-1]) / 2
    begun = np.searchsorted(apart[:, 0], middle_s, side="right")
    last_end_s = np.where(begun > 0, apart[begun - 1, 1], -math.inf)
    outside = middle_s >= last_end_s
    joules = np.diff(_at(curve, curve.joules, t_s))
    known_s = np.diff(_at(curve, curve.known_s, t_s))
    return _Curve(
        t_s,
        np.concatenate([[0.0], np.cumsum(np.where(outside, joules, 0.0))]),
        np.concatenate([[0.0], np.cumsum(np.where(outside, known_s, 0.0))]),
    )


def _at(curve: _Curve, values: Floats, t_s: Floats) -> Floats:
    """Returns values of the curve at some moments; nothing is used before and after it."""
    return np.asarray(np.interp(t_s, curve.t_s, values))
