"""Finds single steps that take long: the run's first batch, the first of each epoch, and lone spikes of the host."""

from __future__ import annotations

import numpy as np

from vitprof.analysis.arrays import mean, median
from vitprof.analysis.signatures.signature import Trace, spread
from vitprof.analysis.thresholds import MIN_COST_FRAC, MIN_STEPS
from vitprof.formats import number, percent, seconds
from vitprof.recording.verdict import Signature

SPIKE_Z = 8.0
"""Robust z-score of a spike. Iglewicz and Hoaglin (1993) advise 3.5; it is higher here because hundreds of steps are
tested and their times have long tails."""
FIRST_BATCH_S = 0.5
"""Seconds below which a first batch is not reported: forking 2 workers takes 0.03 of the time that spawning them takes
(measured)."""
FIRST_BATCH_TIMES = 10.0
"""Steps that it must cost as well: the time of fewer is soon made up for."""
FEW_EPOCHS = 3
MIN_SPIKES = 6
MAX_SPACING_VARIATION = 0.2
"""Coefficient of variation of the steps between spikes. Spikes at random have 1 (exponential waiting times); a counter
that triggers at a threshold, as CPython's collector does, has nearly 0."""
SPIKE_STEP_FRAC = 0.2
"""A spike costs at least this share of a step: a full collection was measured to take 63 to 220 ms."""


def first_batch(trace: Trace) -> Signature | None:
    """Finds a first batch of the run that costs far more than the others.

    Workers start and import, files are opened, caches fill.
    """
    if trace.n_steady < MIN_STEPS:
        return None
    wait, step = float(trace.steps["data_wait_s"][0]), trace.step_s
    usual = median(trace.steps["data_wait_s"][trace.steady])
    cost = wait - usual
    if not (cost >= FIRST_BATCH_S and cost >= FIRST_BATCH_TIMES * step):
        return None
    workers = trace.config.workers or 0
    method = trace.config.start_method
    if workers and trace.config.loader == "dataloader":
        cause = f"starting {workers} worker process{'es' if workers > 1 else ''}"
        cause += f" by {method} (fork is the fastest)" if method in ("spawn", "forkserver") else ""
    else:
        cause = "opening the storage and its first reads"
    n = len(trace.steps["step"])
    return Signature(
        name="first-batch",
        sentence=f"The first batch took {seconds(wait)}, a later one {seconds(usual)}: {cause}. It is paid once for "
        f"each run and left out of all steady figures; it makes short trials look slower.",
        cost_s_per_step=cost / n,
        cost_frac=cost / (cost + n * step),
        evidence={"first_batch_s": wait, "usual_wait_s": usual, "n_steps": n},
        based_on="Measured here: fork starts workers in 0.03 of the time that spawn takes",
    )


def epoch_start(trace: Trace) -> Signature | None:
    """Finds first batches of later epochs that cost far more than other batches.

    Workers start again, or queues are empty.
    """
    later = np.flatnonzero(trace.first)[1:]
    if not len(later) or trace.n_steady < MIN_STEPS:
        return None
    wait = trace.steps["data_wait_s"]
    usual, noise = median(wait[trace.steady]), spread(wait[trace.steady])
    restart = median(wait[later])
    excess = restart - usual
    # a few restarts may be stalls like any other: they must be longer than all of those
    usual_stall = float(np.percentile(wait[trace.steady], 100 if len(later) < FEW_EPOCHS else 99))
    steps_of_an_epoch = mean(np.diff(np.flatnonzero(trace.first)).astype(float))
    epoch_s = steps_of_an_epoch * trace.step_s + excess
    if not (excess > SPIKE_Z * noise and restart > usual_stall and excess >= MIN_COST_FRAC * epoch_s):
        return None
    restarted = (trace.config.workers or 0) > 0 and trace.config.persistent_workers is False
    why = (
        "The worker processes end with each epoch and are started again (persistent_workers is off)."
        if restarted
        else "Nothing is loaded ahead across the end of an epoch, so the queue is empty."
    )
    return Signature(
        name="epoch-start",
        sentence=f"Each epoch begins with a wait of {seconds(restart)} (median of {len(later)}; other batches: "
        f"{seconds(usual)}), {percent(excess / epoch_s)} of an epoch. {why}",
        cost_s_per_step=excess / steps_of_an_epoch,
        cost_frac=excess / epoch_s,
        evidence={
            "epoch_start_s": restart,
            "usual_wait_s": usual,
            "n_epochs": len(later),
            "steps_of_an_epoch": steps_of_an_epoch,
            "workers_restarted": float(restarted),
        },
        based_on="PyTorch issue 15849 (persistent_workers); measured here: 0.2x with persistent workers",
    )


def garbage_collection(trace: Trace) -> Signature | None:
    """Finds lone spikes in the host's part of a step, evenly spaced and outside the data wait.

    CPython's collector stops the thread whenever enough objects were made, so after about the same number of steps each
    time. Large trainers switch it off and collect on a schedule (torchtitan pull request 148).
    """
    host = trace.column("host_s")
    known = trace.steady & np.isfinite(host)
    if known.sum() < MIN_STEPS:
        return None
    usual, noise = median(host[known]), spread(host[known])
    spikes = known & (host - usual > np.maximum(SPIKE_Z * noise, SPIKE_STEP_FRAC * trace.step_s))
    at = np.flatnonzero(spikes)
    if len(at) < MIN_SPIKES or len(at) > known.sum() / 4:
        return None
    alone = np.diff(at)
    period = mean(alone.astype(float))
    if alone.min() < 2 or float(alone.std()) > MAX_SPACING_VARIATION * period:
        return None
    wait = trace.steps["data_wait_s"]
    waits = wait[spikes] - median(wait[known])
    excess = float((host[spikes] - usual).mean())
    if mean(waits) > excess / 4:  # the data come late in the same steps: not the collector
        return None
    cost = excess * len(at) / float(known.sum())
    if not cost >= MIN_COST_FRAC * trace.step_s:
        return None
    return Signature(
        name="garbage-collection",
        sentence=f"About every {number(period)} steps one takes {seconds(excess)} longer in Python, not for data "
        f"({len(at)} times): this is what Python's garbage collector looks like when it goes through all objects. "
        "gc.freeze() after start-up, or collecting on a schedule, takes it out of the steps.",
        cost_s_per_step=cost,
        cost_frac=cost / trace.step_s,
        evidence={
            "period_steps": period,
            "spike_s": excess,
            "n_spikes": len(at),
            "spacing_variation": float(alone.std()) / period,
        },
        based_on="CPython gc, generation 2; torchtitan pull request 148; measured on 2 cores (63 to 220 ms)",
    )
