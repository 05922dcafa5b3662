"""Finds what batches take to cross from their workers: time for many tensors, pickling, and descriptors."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

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
        f"{percent(cost_frac)} of a step{_unpickled(of_batch)}. To try them packed into {of_each}: "
        f"{program()} tournament --vary pack=on."
    )
    evidence = {
        "tensors": n_tensors,
        "dtypes": len(dtypes),
        "hand_over_s": handing_s,
        "unpickle_s": float(of_batch.get("unpickle_s") or math.nan),
        "n_steps": trace.n_steady,
    }
    source = "PyTorch's shared memory, a descriptor for each tensor; rf-detr issue 1399"
    return Signature("many-tensors", sentence, handing_s, cost_frac, evidence, source)


def pickling_in_workers(trace: Trace) -> Signature | None:
    """Finds workers that pickle their batches for so long that they make fewer, where the loop waits for them.

    A worker pickles a batch in a thread of its own while it makes the next one. That thread holds Python's lock
    for most of its CPU time, and needs a core: where cores are free, at most its CPU time is what the next batch
    takes longer. (Where they are not, the thread also waits for one while it holds the lock: at a load of 6 on
    two cores, 9 ms of CPU made a batch 18 ms longer.) So the most that a step can gain is that time, divided by the
    workers, and no more than the loop waits for batches that are not made yet. It is named from the share of a step
    on from which a wait is moderate.
    """
    of_batch = trace.facts.get("handed_over") or {}
    cpu_s = float(of_batch.get("pickle_cpu_s") or math.nan)
    workers = trace.config.workers
    if not workers or not math.isfinite(cpu_s) or trace.n_steady < MIN_STEPS:
        return None
    steady = trace.steady
    made_s = mean(
        np.asarray(column(trace.steps, "made_end_s") - column(trace.steps, "made_start_s"))[steady]
    )
    handing_s = np.nan_to_num(column(trace.steps, "hand_over_s")[steady])
    not_made_s = mean(np.maximum(trace.wait_s[steady] - handing_s, 0.0))
    if not math.isfinite(made_s + not_made_s):
        return None
    cost_s = min(cpu_s / workers, not_made_s)
    cost_frac = cost_s / trace.step_s
    if cost_frac < MODERATE_FRAC:
        return None
    of_workers = "of a step" if workers == 1 else f"of a step with {workers} workers"
    sentence = (
        f"A worker takes {seconds(made_s)} to make a batch, and {seconds(cpu_s)} of CPU to pickle it. It pickles "
        "while it makes the next one, which then waits for Python's lock or for a core: where cores are free that "
        f"costs at most {seconds(cost_s)}, {percent(cost_frac)} {of_workers}. {_less_to_pickle(of_batch)}"
    )
    evidence = {
        "pickle_cpu_s": cpu_s,
        "pickle_s": float(of_batch.get("pickle_s") or math.nan),
        "made_s": made_s,
        "not_made_s": not_made_s,
        "n_steps": trace.n_steady,
    }
    source = "ForkingPickler.dumps in the thread of a worker's queue, in 8 of the first batches"
    return Signature("pickling", sentence, cost_s, cost_frac, evidence, source)


def pinning_holds_the_lock(trace: Trace) -> Signature | None:
    """Finds a thread that pins batches and holds Python's lock for long, which the training thread needs to launch
    work (pytorch issue 77139).

    It holds it while it unpickles a batch and while it frees one, and not while it copies one. How long the training
    thread waited for the lock cannot be seen, as a wait for the GPU looks the same. But it waits no longer than the
    other thread runs or waits for a core while it works. Named where unpickling alone takes the share of a step from
    which a wait is moderate: what copies batches without unpickling for long leaves the lock to others.
    """
    of_batch = trace.facts.get("handed_over") or {}
    unpickle_s = float(of_batch.get("unpickle_cpu_s") or math.nan)
    used_s = float(of_batch.get("pinning_cpu_s") or math.nan)
    queued_s = float(of_batch.get("pinning_queued_s") or 0.0)
    if of_batch.get("unpickled_in") != "pinning" or trace.n_steady < MIN_STEPS:
        return None
    # The first steps, of which these figures are, may work for longer than later ones.
    work_s = trace.step_s - mean(trace.steps["data_wait_s"][trace.steady])
    if not math.isfinite(unpickle_s + used_s + work_s):
        return None
    cost_s = min(used_s + queued_s, work_s)
    cost_frac = cost_s / trace.step_s
    if min(unpickle_s, used_s, work_s) / trace.step_s < MODERATE_FRAC:
        return None
    n_tensors = int(of_batch.get("tensors") or 0)
    less = "Fewer tensors take less."
    if n_tensors >= MANY:
        less = f"To try its {n_tensors} tensors packed: {program()} tournament --vary pack=on."
    sentence = (
        f"The thread that pins batches takes {seconds(unpickle_s)} of CPU to unpickle one, and holds Python's lock for "
        f"most of that: the training cannot launch work meanwhile. It runs for {seconds(used_s)} of a step's work, and "
        f"waits for a core for {seconds(queued_s)}: that costs at most {seconds(cost_s)}, {percent(cost_frac)} of a "
        f"step, and nothing where the GPU has enough work queued. {less}"
    )
    evidence = {
        "unpickle_cpu_s": unpickle_s,
        "pinning_cpu_s": used_s,
        "pinning_queued_s": queued_s,
        "work_s": work_s,
        "n_steps": trace.n_steady,
    }
    source = "schedstat of the thread that pins, over 16 of the first batches; pytorch issue 77139"
    return Signature("pinning-lock", sentence, cost_s, cost_frac, evidence, source)


def _less_to_pickle(of_batch: Mapping[str, Any]) -> str:
    """Returns what takes less of it."""
    n_tensors = int(of_batch.get("tensors") or 0)
    if n_tensors >= MANY:
        return f"To try its {n_tensors} tensors packed: {program()} tournament --vary pack=on."
    return (
        f"What collate has not put into shared memory is copied there ({size(of_batch.get('bytes'))} at most): "
        "PyTorch's default_collate puts it there as it stacks the samples."
    )


def _unpickled(of_batch: Mapping[str, Any]) -> str:
    """Returns what of that wait is unpickling, where the loop does it itself."""
    unpickle_s = float(of_batch.get("unpickle_s") or math.nan)
    if of_batch.get("unpickled_in") != "training" or not math.isfinite(unpickle_s):
        return ""
    return f" (unpickling one takes {seconds(unpickle_s)})"


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
