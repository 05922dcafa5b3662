"""Finds patterns of a DataLoader's workers: they deliver in order, so the slowest one sets the pace."""

from __future__ import annotations

import math

import numpy as np

from vitprof.analysis.arrays import Floats, Mask, mean, median
from vitprof.analysis.signatures.signature import Trace, spread
from vitprof.analysis.thresholds import MIN_COST_FRAC, MIN_STEPS
from vitprof.formats import seconds
from vitprof.recording.verdict import Signature

MIN_PERIODS = 6
"""Rounds of all workers that a run needs for an autocorrelation at that lag."""
MIN_CORRELATION = 0.4
"""Least autocorrelation at the period. White noise has a standard error of 1/sqrt(n) (Bartlett 1946): 0.22 at 20 steps.
Four standard errors are required if that is more."""
RATE_MARGIN = 0.15
"""By how much the period must beat every lag that is not a multiple of it: slow drifts correlate at all lags alike."""
SLOWER_RATIO = 1.25
"""A slow worker takes at least this many times as long as the others. Of equally fast workers on a busy machine the
slowest median of 8 or more batches stays below (tests: 200 traces with 20% noise)."""
MIN_BATCHES = 8
"""Batches that each worker must have made."""
SLOW_WORKER_Z = 5.0
"""Robust z-score; Iglewicz and Hoaglin (1993) advise 3.5 for one value, and here the worst of several is tested."""


def worker_period(trace: Trace) -> Signature | None:
    """Finds a stall at every num_workers-th batch.

    Workers start together and take equally long, so their batches are ready together; the loop takes one after the
    other and then waits for the next round (pytorch issues 19836 and 20687). DataLoader(in_order=True) keeps the order.
    """
    workers = trace.config.workers or 0
    if workers < 2 or trace.n_steady < max(MIN_STEPS, MIN_PERIODS * workers):
        return None
    wait = trace.wait_s
    usable = trace.steady & np.isfinite(wait)
    if usable.sum() < max(MIN_STEPS, MIN_PERIODS * workers):
        return None
    clipped = np.minimum(wait, np.percentile(wait[usable], 95))  # one long stall must not decide
    epoch = trace.steps["epoch"]
    at = {lag: _correlation(clipped, usable, epoch, lag) for lag in range(1, 2 * workers)}
    others = max((r for lag, r in at.items() if lag % workers), default=-1.0)
    needed = max(MIN_CORRELATION, 4 / math.sqrt(usable.sum()))
    if not (at[workers] > needed and at[workers] > others + RATE_MARGIN):
        return None
    place = (np.arange(len(wait)) - np.maximum.accumulate(np.where(trace.first, np.arange(len(wait)), 0))) % workers
    folded = np.array([mean(wait[usable & (place == i)]) for i in range(workers)])
    stall = int(np.argmax(folded))
    others_s = median(wait[usable & (place != stall)])
    cost = (float(folded[stall]) - others_s) / workers
    if not cost >= MIN_COST_FRAC * trace.step_s:
        return None
    return Signature(
        name="worker-period",
        sentence=f"Every {_ordinal(workers)} batch stalls: {seconds(float(folded[stall]))} of waiting against "
        f"{seconds(others_s)} for the others. The {workers} workers deliver in order and finish together, so the loop "
        "takes one round and waits for the next: together they are slower than the training.",
        cost_s_per_step=cost,
        cost_frac=cost / trace.step_s,
        evidence={
            "period_steps": workers,
            "autocorrelation": at[workers],
            "stall_s": float(folded[stall]),
            "other_wait_s": others_s,
            "n_steps": int(usable.sum()),
        },
        based_on="PyTorch DataLoader, in_order=True; pytorch issues 19836, 20687 and 105203",
    )


def slow_worker(trace: Trace) -> Signature | None:
    """Finds one worker that takes longer than the others for batches of the same size.

    Batches are delivered in order, so the loop waits for it (pytorch issue 105203).
    """
    worker, samples = trace.column("worker"), np.maximum(trace.steps["samples"], 1)
    made = (trace.column("made_end_s") - trace.column("made_start_s")) / samples
    known = trace.steady & np.isfinite(worker) & np.isfinite(made)
    names = np.unique(worker[known])
    of = [made[known & (worker == name)] for name in names]
    if len(names) < 2 or known.sum() < MIN_STEPS or min(len(batches) for batches in of) < MIN_BATCHES:
        return None
    medians = np.array([median(batches) for batches in of])
    worst = int(np.argmax(medians))
    rest = np.delete(medians, worst)
    usual = median(rest)
    # of a median: about 1.25 standard errors of a mean
    error = 1.25 * float(np.median([spread(batches) for batches in of])) / math.sqrt(len(of[worst]))
    slower = float(medians[worst]) / usual if usual > 0 else math.nan
    if not (
        slower >= SLOWER_RATIO and medians[worst] - usual >= SLOW_WORKER_Z * error and rest.max() < usual * SLOWER_RATIO
    ):
        return None
    batch = mean(samples[known])
    excess_s = float(medians[worst] - usual) * batch / len(names)
    cost = min(excess_s, mean(trace.wait_s[trace.steady]))
    return Signature(
        name="slow-worker",
        sentence=f"Worker {names[worst]:.0f} takes {slower:.2g} times as long for a batch as the other "
        f"{len(names) - 1 if len(names) > 2 else 'one'} ({seconds(float(medians[worst]) * batch)} against "
        f"{seconds(usual * batch)}). Batches come in order, so all wait for it: look for a program that shares its "
        "core, or samples that only it gets.",
        cost_s_per_step=cost,
        cost_frac=cost / trace.step_s,
        evidence={
            "worker": float(names[worst]),
            "times_slower": slower,
            "made_s": float(medians[worst]) * batch,
            "others_made_s": usual * batch,
            "n_batches": len(of[worst]),
        },
        based_on="medians and MAD (Iglewicz and Hoaglin 1993); pytorch issue 105203",
    )


def _correlation(values: Floats, usable: Mask, epoch: Floats, lag: int) -> float:
    """Returns the Pearson correlation of values with those `lag` steps later in the epoch; 0 with too few pairs."""
    pairs = usable[:-lag] & usable[lag:] & (epoch[:-lag] == epoch[lag:])
    if pairs.sum() < MIN_STEPS / 2:
        return 0.0
    a, b = values[:-lag][pairs], values[lag:][pairs]
    scale = float(a.std() * b.std())
    return float(((a - a.mean()) * (b - b.mean())).mean()) / scale if scale > 0 else 0.0


def _ordinal(number: int) -> str:
    teens = number % 100 in (11, 12, 13)
    return f"{number}{'th' if teens else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"
