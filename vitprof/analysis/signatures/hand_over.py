"""Finds what batches take to cross from their workers: time for many tensors, and descriptors."""

import math

from vitprof.analysis.arrays import column, mean
from vitprof.analysis.thresholds import MIN_STEPS, MODERATE_FRAC
from vitprof.analysis.timing.hand_over import descriptors_of
from vitprof.analysis.timing.steady import Trace
from vitprof.formats import percent, seconds, size
from vitprof.program import program
from vitprof.recording.verdict import Signature

MANY = 16
"""Tensors of a batch. A dict of a few, for each of a few kinds of input, is usual."""
OPEN_FRAC = 0.5
"""Share of the descriptors that a process may have open, from which batches that hold them are named. The other half
is for the files of the dataset, the pipes of the workers, and the batches that the script itself keeps."""


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


def open_descriptors(trace: Trace) -> Signature | None:
    """Finds batches that can hold more than half of a process's descriptors open, before it ends with "Too many
    open files" or "received 0 items of ancdata" (pytorch issue 973)."""
    held = descriptors_of(trace.facts, trace.config)
    if held is None or not held.frac > OPEN_FRAC:
        return None
    where = "in each worker" if held.in_worker else "in the process that trains"
    sentence = (
        f"Batches that are ready can hold {held.most:,} descriptors open {where} ({held.batches} batches of "
        f"{held.of_batch:,} tensors), {percent(held.frac)} of the {held.limit:,} that it may have: at the limit "
        f'a script ends with "Too many open files". Fewer tensors in a batch need fewer ({program()} tournament '
        "--vary pack=on); ulimit -n raises the limit; torch.multiprocessing.set_sharing_strategy"
        "('file_system') needs none."
    )
    evidence = {
        "descriptors_most": held.most,
        "descriptors_of_batch": held.of_batch,
        "descriptor_limit": held.limit,
        "batches": held.batches,
    }
    source = "workers x prefetch_factor x tensors; pytorch issue 973"
    return Signature("open-descriptors", sentence, math.nan, math.nan, evidence, source)
