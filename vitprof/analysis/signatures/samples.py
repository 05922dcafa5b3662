"""Finds samples of a watched script that take several times as long as the others, batches that take
long at every k-th, and batches that come late.
"""

import numpy as np

from vitprof.analysis.thresholds import MIN_COST_FRAC, MIN_STEPS
from vitprof.analysis.timing import late_batches, periods, slow_samples
from vitprof.analysis.timing.loader_queue import MOST_STEPS, without_excess
from vitprof.analysis.timing.steady import Trace
from vitprof.formats import percent
from vitprof.recording.verdict import Signature


def slow_samples_seen(trace: Trace) -> Signature | None:
    """Finds slow samples that hold up the training: batches come in order, so all wait for the one with
    a slow sample (pytorch issues 105203 and 135409)."""
    found = slow_samples.slow_samples(trace.facts, trace.facts, trace.steps)
    if found is None or not found.sentence:
        return None
    slowest = found.slowest
    evidence = {
        "index": slowest.index,
        "times_median": slowest.ratio,
        "longest_s": slowest.longest_s,
        "median_s": found.median_s,
        "n_removed": found.removed,
        "waits_frac": found.waits_frac,
        "n_samples": found.timed,
    }
    if found.period is not None:
        evidence |= {
            "period": found.period.every,
            "period_first": found.period.first,
            "n_in_period": found.period.n,
            "period_s": found.period_s,
            "period_waits_frac": found.period_waits_frac,
        }
    source = "a replay of the loader's queue with these samples as fast as the median"
    cost_frac = found.costs_frac
    cost_s = cost_frac * trace.step_s
    return Signature("slow-samples", found.sentence, cost_s, cost_frac, evidence, source)


def periodic_batches_seen(trace: Trace) -> Signature | None:
    """Finds batches that take long to make at every k-th, such as where a shard is opened, or memory is collected.

    Where every k-th sample is slow, that is what is said.
    """
    of_samples = slow_samples.slow_samples(trace.facts, trace.facts, trace.steps)
    if of_samples is not None and of_samples.period is not None:
        return None
    found = periods.slow_batches(trace.steps, trace.steady)
    if found is None or trace.n_steady < MIN_STEPS:
        return None
    excess_s = found.excess_s[-MOST_STEPS:]
    waits_frac, saved_frac = without_excess(excess_s, trace.facts, trace.facts, trace.steps)
    if not saved_frac >= slow_samples.WORTH_SAYING:
        return None
    sentence = (
        f"{found.sentence} Without that about {percent(waits_frac)} of the waits for data would go, and "
        f"{percent(saved_frac)} of the time."
    )
    evidence = {
        "period": found.period.every,
        "period_first": found.period.first,
        "n_in_period": found.period.n,
        "batch_s": found.batch_s,
        "usual_s": found.usual_s,
        "waits_frac": waits_frac,
    }
    source = "a replay of the loader's queue with these batches as fast as the median"
    cost_s = saved_frac * trace.step_s
    return Signature("periodic-batches", sentence, cost_s, saved_frac, evidence, source)


def late_batches_seen(trace: Trace) -> Signature | None:
    """Finds batches that came late, and what was seen of the process that made them meanwhile."""
    found = late_batches.late_batches(trace.facts)
    if found is None:
        return None
    numbers = [batch["step"] for cluster in found.clusters for batch in cluster.batches]
    late = np.isin(trace.steps["step"], numbers) & trace.steady
    cost_s = float(np.nansum(trace.wait_s[late]))
    cost_frac = cost_s / (trace.n_steady * trace.step_s)
    if not cost_frac >= MIN_COST_FRAC:
        return None
    most = found.clusters[0]
    evidence = {
        "n_late": found.n,
        "waited_s": found.waited_s,
        "n_of_most": most.n,
        "waited_s_of_most": most.waited_s,
    }
    source = "looks at the processes of the script while it waited"
    per_step_s = cost_s / trace.n_steady
    return Signature("late-batches", found.sentence, per_step_s, cost_frac, evidence, source)
