"""Finds steps that stall in a pattern: with the workers, at epoch starts, by the garbage collector.

Workers deliver in order, so the slowest one sets the pace.
"""

import math

import numpy as np

from vitprof.analysis.arrays import Floats, Mask, column, mean, median, spread
from vitprof.analysis.thresholds import MIN_COST_FRAC, MIN_STEPS
from vitprof.analysis.timing import slow_workers
from vitprof.analysis.timing.loader_queue import MOST_STEPS, without_excess
from vitprof.analysis.timing.steady import Trace
from vitprof.config import own_script
from vitprof.formats import number, ordinal, percent, seconds
from vitprof.recording.verdict import Signature

MIN_PERIODS = 6
"""Rounds of all workers that a run needs for an autocorrelation at that lag."""
MIN_CORRELATION = 0.4
"""Least autocorrelation at the period. White noise has a standard error of 1/sqrt(n) (Bartlett
1946): 0.22 at 20 steps. Four standard errors are required if that is more."""
RATE_MARGIN = 0.15
"""By how much the period must beat every lag that is not a multiple of it: slow drifts correlate at
all lags alike."""


SAME_WORKER_FRAC = 0.8
"""Share of the stalled batches from which they are one worker's. With `in_order=False` another one may come in its
place."""


def worker_period(trace: Trace) -> Signature | None:
    """Finds a stall at every num_workers-th batch, where it is not one slow worker's.

    Workers start together and take equally long, so their batches are ready together; the loop
    takes one after the other and then waits for the next round (pytorch issues 19836 and 20687).
    DataLoader(in_order=True) keeps the order. Or the batches of one of them take longer, without it being a
    slow worker: it is given larger samples.
    """
    workers = trace.config.workers or 0
    wait = trace.wait_s
    usable = trace.steady & np.isfinite(wait)
    if workers < 2 or usable.sum() < max(MIN_STEPS, MIN_PERIODS * workers):
        return None
    clipped = np.minimum(wait, np.percentile(wait[usable], 95))  # one long stall must not decide
    epoch = trace.steps["epoch"]
    at = {lag: _correlation(clipped, usable, epoch, lag) for lag in range(1, 2 * workers)}
    others = max((r for lag, r in at.items() if lag % workers), default=-1.0)
    needed = max(MIN_CORRELATION, 4 / math.sqrt(usable.sum()))
    if not (at[workers] > needed and at[workers] > others + RATE_MARGIN):
        return None
    at_step = np.arange(len(wait))
    begin_of_epoch = np.maximum.accumulate(np.where(trace.first, at_step, 0))
    place = (at_step - begin_of_epoch) % workers
    folded = np.array([mean(wait[usable & (place == i)]) for i in range(workers)])
    stall = int(np.argmax(folded))
    stall_s = float(folded[stall])
    others_s = median(wait[usable & (place != stall)])
    cost = (stall_s - others_s) / workers
    # "not at least": a cost that is not known is none, here and below
    if not cost >= MIN_COST_FRAC * trace.step_s:
        return None
    # last: it replays the loader's queue
    if slow_worker(trace) is not None:
        return None
    why = (
        f"The {workers} workers deliver in order and finish together, so the loop takes one round and waits "
        "for the next: together they are slower than the training."
    )
    slower = slow_workers.slower_batches(trace.steps, trace.steady)
    if slower is not None:
        of_stalls = column(trace.steps, "worker")[usable & (place == stall)]
        if not mean(of_stalls == slower.worker) > SAME_WORKER_FRAC:
            return None
        why = (
            f"It is worker {slower.worker}'s, whose batches take {slower.words}. The {workers} workers deliver in "
            "order, so the loop waits for it in each round: it is slower, or is given larger samples."
        )
    sentence = (
        f"Every {ordinal(workers)} batch stalls: {seconds(stall_s)} of waiting against "
        f"{seconds(others_s)} for the others. {why}"
    )
    evidence = {
        "period_steps": workers,
        "autocorrelation": at[workers],
        "stall_s": stall_s,
        "other_wait_s": others_s,
        "n_steps": int(usable.sum()),
    }
    source = "PyTorch DataLoader, in_order=True; pytorch issues 19836, 20687 and 105203"
    return Signature("worker-period", sentence, cost, cost / trace.step_s, evidence, source)


def slow_worker(trace: Trace) -> Signature | None:
    """Finds one worker whose samples take longer than those of the others.

    Batches are delivered in order, so the loop waits for it (pytorch issue 105203).
    """
    found = slow_workers.slow_worker(trace.steps, trace.steady, trace.facts)
    if found is None:
        return None
    excess_s = found.excess_s(trace.steps)
    cost = min(mean(excess_s[trace.steady]), mean(trace.wait_s[trace.steady]))
    cost_frac = cost / trace.step_s
    gain = ""
    waits_frac, saved_frac = without_excess(
        excess_s[-MOST_STEPS:], trace.facts, trace.facts, trace.steps
    )
    if math.isfinite(saved_frac):
        cost_frac = saved_frac
        gain = (
            f" With all as fast about {percent(waits_frac)} of the waits for data would go, and "
            f"{percent(saved_frac)} of the time."
        )
    if not cost_frac >= MIN_COST_FRAC:
        return None
    ratio = found.times_slower
    evidence = {
        "worker": float(found.worker),
        "times_slower": ratio.value,
        "times_slower_low": ratio.low,
        "times_slower_high": ratio.high,
        "sample_s": found.sample_s,
        "others_sample_s": found.others_sample_s,
        "n_batches": found.n_batches,
        "false_alarms": slow_workers.FALSE_ALARMS,
    }
    source = "batches of all workers by round, Student's t over blocks; pytorch issue 105203"
    sentence = f"{found.sentence}{gain}"
    return Signature("slow-worker", sentence, cost_frac * trace.step_s, cost_frac, evidence, source)


def _correlation(values: Floats, usable: Mask, epoch: Floats, lag: int) -> float:
    """Returns the Pearson correlation of values with those `lag` steps later in the epoch; 0 with
    too few pairs.
    """
    pairs = usable[:-lag] & usable[lag:] & (epoch[:-lag] == epoch[lag:])
    if pairs.sum() < MIN_STEPS / 2:
        return 0.0
    a = values[:-lag][pairs]
    b = values[lag:][pairs]
    scale = float(a.std() * b.std())
    return float(((a - a.mean()) * (b - b.mean())).mean()) / scale if scale > 0 else 0.0


SPIKE_Z = 8.0
"""Robust z-score of a spike. Iglewicz and Hoaglin (1993) advise 3.5; it is higher here because
hundreds of steps are tested and their times have long tails."""
FIRST_BATCH_S = 0.5
"""Seconds below which a first batch is not reported: forking 2 workers takes 0.03 of the time that
spawning them takes (measured)."""
FIRST_BATCH_TIMES = 10.0
"""Steps that it must cost as well: the time of fewer is soon made up for."""
SKIPPED_BATCHES = 2
"""Batches more than a step usually takes from which those before the first step were skipped, as
where an epoch is resumed in its middle."""
FEW_STEPS = 2
"""With fewer steps in an epoch an iteration is begun for each batch."""
FEW_EPOCHS = 3
"""With fewer epoch starts the longest stall of all steps is the measure, not the 99th
percentile."""
MIN_SPIKES = 6
MAX_SPACING_VARIATION = 0.2
"""Coefficient of variation of the steps between spikes. Spikes at random have 1 (exponential
waiting times); a counter that triggers at a threshold, as CPython's collector does, has nearly
0."""
SPIKE_STEP_FRAC = 0.2
"""A spike costs at least this share of a step: a full collection was measured to take 63 to 220
ms."""


def first_batch(trace: Trace) -> Signature | None:
    """Finds a first batch of the run that costs far more than the others.

    Workers start and import, files are opened, caches fill.
    """
    if trace.n_steady < MIN_STEPS:
        return None
    wait = float(trace.steps["data_wait_s"][0])
    step = trace.step_s
    usual = median(trace.steps["data_wait_s"][trace.steady])
    cost = wait - usual
    if not (cost >= FIRST_BATCH_S and cost >= FIRST_BATCH_TIMES * step):
        return None
    workers = trace.config.workers
    method = trace.config.start_method
    cause = "opening the storage and its first reads"
    if workers and trace.config.loader == "dataloader":
        cause = f"starting {workers} worker process{'es' if workers > 1 else ''}"
        if method in ("spawn", "forkserver"):
            cause += f" by {method} (fork is the fastest)"
    samples = trace.steps["samples"]
    skipped = round(float(samples[0]) / max(1.0, median(samples[trace.steady]))) - 1
    if skipped >= SKIPPED_BATCHES:
        cause = f"{skipped:,} batches before it were skipped"
    n = len(trace.steps["step"])
    sentence = (
        f"The first batch took {seconds(wait)}, a later one {seconds(usual)}: {cause}. It is the "
        "run's start-up, which no figure of training has in it; it makes short trials look slower."
    )
    evidence = {"first_batch_s": wait, "usual_wait_s": usual, "n_steps": n}
    source = "Measured here: fork starts workers in 0.03 of the time that spawn takes"
    return Signature("first-batch", sentence, cost / n, cost / (cost + n * step), evidence, source)


def epoch_start(trace: Trace) -> Signature | None:
    """Finds first batches of later epochs that cost far more than other batches.

    Workers start again, or queues are empty.
    """
    later = np.flatnonzero(trace.first)[1:]
    if not len(later) or trace.n_steady < MIN_STEPS:
        return None
    wait = trace.steps["data_wait_s"]
    steps_of_an_epoch = _steps_of_an_epoch(trace)
    for_each_batch = steps_of_an_epoch < FEW_STEPS  # as with next(iter(loader))
    usual = median(wait[trace.steady])
    other = "other batches"
    if for_each_batch:
        made_s = trace.steps["made_end_s"][later] - trace.steps["made_start_s"][later]
        usual = median(made_s)
        other = "making a batch"
    restart = median(wait[later])
    excess = restart - usual
    epoch_s = steps_of_an_epoch * trace.step_s
    if not for_each_batch:
        epoch_s += excess
    if not excess >= MIN_COST_FRAC * epoch_s:
        return None
    if not for_each_batch:
        # a few restarts may be stalls like any other: they must be longer than all of those
        percentile = 100 if len(later) < FEW_EPOCHS else 99
        usual_stall = float(np.percentile(wait[trace.steady], percentile))
        if not (restart > usual_stall and excess > SPIKE_Z * spread(wait[trace.steady])):
            return None
    why = "Nothing is loaded ahead across the end of an epoch, so the queue is empty."
    if (trace.config.workers or 0) > 0 and trace.config.persistent_workers is False:
        why = "The worker processes end with each epoch and are started again (persistent_workers is off)."
    sampler_s = median(np.nan_to_num(column(trace.steps, "sampler_s"))[later])
    if 2 * sampler_s > excess:
        why = f"The sampler took {seconds(sampler_s)} of it, in the process that trains."
    sentence = (
        f"Each epoch begins with a wait of {seconds(restart)} (median of {len(later)}; {other}: "
        f"{seconds(usual)}), {percent(excess / epoch_s)} of an epoch. {why}"
    )
    evidence = {
        "epoch_start_s": restart,
        "usual_wait_s": usual,
        "n_epochs": len(later),
        "steps_of_an_epoch": steps_of_an_epoch,
        "sampler_s": sampler_s,
    }
    source = "PyTorch issue 15849 (persistent_workers); measured here: 0.2x with persistent workers"
    return Signature(
        "epoch-start", sentence, excess / steps_of_an_epoch, excess / epoch_s, evidence, source
    )


def _steps_of_an_epoch(trace: Trace) -> float:
    """Returns how many steps an epoch has on average. The last one counts where it is longer than all others: a second
    loader may be begun right after the first one."""
    starts = np.flatnonzero(trace.first)
    lengths = np.diff(starts).astype(float)
    last = float(len(trace.first) - starts[-1])
    return mean(np.append(lengths, last) if last > lengths.max() else lengths)


def garbage_collection(trace: Trace) -> Signature | None:
    """Finds lone spikes in the host's part of a step, evenly spaced and outside the data wait.

    CPython's collector stops the thread whenever enough objects were made, so after about the same
    number of steps each time. Large trainers switch it off and collect on a schedule (torchtitan
    pull request 148).
    """
    host = column(trace.steps, "host_s")
    # at the end of an epoch workers end, and scripts validate and save
    ends_epoch = np.append(trace.first[1:], True)
    known = trace.steady & np.isfinite(host) & ~ends_epoch
    if known.sum() < MIN_STEPS:
        return None
    usual = median(host[known])
    least_spike_s = max(SPIKE_STEP_FRAC * trace.step_s, SPIKE_Z * spread(host[known]))
    spikes = known & (host - usual > least_spike_s)
    at = np.flatnonzero(spikes)
    # more than every fourth step is how the loop works, no spike
    if len(at) < MIN_SPIKES or len(at) > known.sum() / 4:
        return None
    spacing = np.diff(at)
    period = mean(spacing.astype(float))
    uneven = float(spacing.std())
    # lone ones: none right after another
    if spacing.min() < 2 or uneven > MAX_SPACING_VARIATION * period:
        return None
    wait = trace.steps["data_wait_s"]
    waits = wait[spikes] - median(wait[known])
    excess = float((host[spikes] - usual).mean())
    if mean(waits) > excess / 4:  # the data come late in the same steps: not the collector
        return None
    cost = excess * len(at) / float(known.sum())
    likeness = "this is what Python's garbage collector looks like"
    if own_script.is_own_script(trace.config):
        likeness = (
            "logging or saving every so many steps looks like this, and so does Python's garbage "
            "collector"
        )
    if not cost >= MIN_COST_FRAC * trace.step_s:
        return None
    sentence = (
        f"About every {number(period)} steps one takes {seconds(excess)} longer in Python, not for "
        f"data ({len(at)} times): {likeness} when it goes through all objects. gc.freeze() after "
        "start-up, or collecting on a schedule, takes that out of the steps."
    )
    evidence = {
        "period_steps": period,
        "spike_s": excess,
        "n_spikes": len(at),
        "spacing_variation": uneven / period,
    }
    source = (
        "CPython gc, generation 2; torchtitan pull request 148; measured on 2 cores (63 to 220 ms)"
    )
    return Signature("garbage-collection", sentence, cost, cost / trace.step_s, evidence, source)
