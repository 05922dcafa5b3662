"""Finds batches that take long to cross from a worker for what they are made of."""

from vitprof.analysis.arrays import column, mean
from vitprof.analysis.thresholds import MIN_STEPS, MODERATE_FRAC
from vitprof.analysis.timing.steady import Trace
from vitprof.formats import percent, seconds, size
from vitprof.program import program
from vitprof.recording.verdict import Signature

MANY = 16
"""Tensors of a batch. A dict of a few, for each of a few kinds of input, is usual."""


def many_tensors(trace: Trace) -> Signature | None:
    """Finds batches of many tensors whose hand-over the loop waits for.

    Each tensor is a segment of shared memory and a descriptor of its own: packed into one they cross in a
    fraction of the time (rf-detr issue 1399: 114 tensors, 1.25 to 1.67 times as fast).
    """
    of_batch = trace.facts.get("handed_over") or {}
    n_tensors = int(of_batch.get("tensors") or 0)
    dtypes = of_batch.get("dtypes") or {}
    if n_tensors < MANY or not trace.config.workers or trace.n_steady < MIN_STEPS:
        return None
    handing_s = mean(column(trace.steps, "hand_over_s")[trace.steady])
    cost_frac = handing_s / trace.step_s
    if not cost_frac >= MODERATE_FRAC:
        return None
    of_each = f"{len(dtypes)}, one for each dtype" if len(dtypes) > 1 else "one"
    sentence = (
        f"A batch has {n_tensors} tensors ({size(of_batch.get('bytes'))}), and each crosses from its "
        f"worker by itself: the loop waits {seconds(handing_s)} for a batch that is made, "
        f"{percent(cost_frac)} of a step. To try them packed into {of_each}: "
        f"{program()} tournament --vary pack=on."
    )
    evidence = {
        "tensors": n_tensors,
        "dtypes": len(dtypes),
        "hand_over_s": handing_s,
        "n_steps": trace.n_steady,
    }
    source = "PyTorch's shared memory, a descriptor for each tensor; rf-detr issue 1399"
    return Signature("many-tensors", sentence, handing_s, cost_frac, evidence, source)
