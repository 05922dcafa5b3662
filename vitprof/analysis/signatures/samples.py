"""Finds samples of a watched script that take several times as long as the others."""

from vitprof.analysis.timing import slow_samples
from vitprof.analysis.timing.steady import Trace
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
    source = "a replay of the loader's queue with these samples as fast as the median"
    cost_s = found.saved_frac * trace.step_s
    return Signature("slow-samples", found.sentence, cost_s, found.saved_frac, evidence, source)
