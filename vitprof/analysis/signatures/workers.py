"""Finds what the workers of a watched script use too much of: shared memory, memory, threads."""

import math

from vitprof.analysis import thresholds
from vitprof.analysis.arrays import mean
from vitprof.analysis.timing.steady import Trace
from vitprof.analysis.timing.worker_use import (
    WorkerMemory,
    shared_memory_peak,
    worker_cores,
    worker_memory,
)
from vitprof.formats import number, percent, seconds, size
from vitprof.recording.verdict import Signature

FULL_FRAC = 0.8
"""Share of /dev/shm in use from which it is named. Batches differ in size, as with padding: what is a fourth larger
than what was seen fills the rest."""
LEAST_GROWTH_BYTES = 50 * 2**20
"""Growth of a worker below which nothing is told: allocators keep as much."""
OWN_THREADS = 3
"""Threads of a worker without any of a library: its own, one that puts batches into the queue, and one that gives out
the descriptors of their memory."""
MORE_THAN_ONE_CORE = 1.1
"""Cores that a worker keeps busy from which its threads work at once. A tenth is for putting batches into the queue,
and for clock ticks."""
WAITING_THREADS = 0.5
"""Threads of workers that wait for a core, by mean, from which there are too many of them: with fewer, cores are free
as they are needed."""


def shared_memory_full(trace: Trace) -> Signature | None:
    """Finds a /dev/shm that is nearly full: where it is, a worker that writes a batch to it ends with a bus
    error (SIGBUS; pytorch issue 5040)."""
    peak = shared_memory_peak(trace.telemetry)
    if not trace.config.workers or peak is None or not peak.frac >= FULL_FRAC:
        return None
    sentence = (
        f"/dev/shm was {percent(peak.frac)} full at its peak ({size(peak.used_bytes)} of "
        f"{size(peak.size_bytes)}, all programs together). Batches cross from their workers there: where it is "
        "full, a worker ends with a bus error. Fewer workers, a smaller prefetch_factor or a smaller batch take "
        "less; a container has 64 MiB unless it is given more (docker run --shm-size)."
    )
    evidence = {"used_bytes": peak.used_bytes, "size_bytes": peak.size_bytes}
    source = "statvfs of /dev/shm with each sample; pytorch issue 5040"
    return Signature("shared-memory-full", sentence, math.nan, math.nan, evidence, source)


def worker_memory_growth(trace: Trace) -> Signature | None:
    """Finds workers whose private memory grows and grows.

    A forked worker shares the main process's memory until one of them writes to it, and Python writes to
    each object that it looks at, as it counts references: a Dataset's list of file names is copied page by
    page (pytorch issue 13246).
    """
    memory = worker_memory(trace.telemetry)
    workers = trace.config.workers
    if not workers or memory is None or not memory.grows:
        return None
    if memory.grown_bytes < LEAST_GROWTH_BYTES:
        return None
    rate = memory.bytes_per_s
    full_in_s = memory.available_bytes / (rate.value * workers)
    of_all = "Its one worker's" if workers == 1 else f"Each of the {workers} workers'"
    sentence = (
        f"{of_all} private memory grows by {size(rate.value * 3600)} an hour "
        f"({size(rate.low * 3600)} to {size(rate.high * 3600)}), {size(memory.grown_bytes)} so far."
        f"{_why(trace, memory)}{_until_full(trace, memory, full_in_s)}"
    )
    evidence = {
        "bytes_per_s": rate.value,
        "bytes_per_s_low": rate.low,
        "bytes_per_s_high": rate.high,
        "grown_bytes": memory.grown_bytes,
        "rss_bytes_per_s": memory.rss_bytes_per_s,
        "shared_bytes": memory.shared_bytes,
        "full_in_s": full_in_s,
        "n_samples": memory.n_samples,
    }
    source = "smaps_rollup of each worker, every 15 s; pytorch issue 13246"
    return Signature("worker-memory", sentence, math.nan, math.nan, evidence, source)


def _is_copied(trace: Trace, memory: WorkerMemory) -> bool:
    of_batch = trace.facts.get("handed_over") or {}
    return memory.is_copied and of_batch.get("start_method") == "fork"


def _why(trace: Trace, memory: WorkerMemory) -> str:
    """Returns where the growth comes from, as far as that is known."""
    if _is_copied(trace, memory):
        return (
            " The total memory of a worker does not grow: it copies what it shares with the main process as it reads "
            "that (copy-on-write, pytorch issue 13246), such as a list of Python objects; arrays are not copied."
        )
    if not memory.is_copied:
        return " The total memory of a worker grows, too: it keeps some of what it makes."
    return ""


def _until_full(trace: Trace, memory: WorkerMemory, full_in_s: float) -> str:
    """Returns when memory is full at this rate; of copies, whether there is room for all of them."""
    if not math.isfinite(full_in_s):
        return ""
    to_copy = memory.shared_bytes * (trace.config.workers or 1)
    if _is_copied(trace, memory) and to_copy < memory.available_bytes:
        return f" At most {size(memory.shared_bytes)} more can be copied by each, and there is room for that."
    return f" At this rate memory is full in {seconds(full_in_s)}."


def worker_threads(trace: Trace) -> Signature | None:
    """Finds workers whose threads work at once, and wait for cores that there are not.

    PyTorch sets one thread for itself in a worker; OpenCV and NumPy's libraries begin one for each core, in
    each worker.
    """
    workers = trace.config.workers
    cores = worker_cores(trace.facts)
    if not workers or trace.n_steady < thresholds.MIN_STEPS:
        return None
    threads = mean(trace.while_training("worker_threads")[1])
    busy = mean(trace.while_training("worker_cpu_pct")[1]) / 100
    waiting = mean(trace.while_training("workers_cpu_wait_pct")[1]) / 100
    are_many = threads > OWN_THREADS and threads * workers > cores
    if not (are_many and busy > MORE_THAN_ONE_CORE and waiting >= WAITING_THREADS):
        return None
    torch_threads = int((trace.facts.get("handed_over") or {}).get("torch_threads") or 0)
    whose = ""
    if torch_threads == 1:
        whose = " PyTorch has one of them: the others are a library's."
    elif torch_threads > 1:
        whose = f" PyTorch is set to {torch_threads} there."
    sentence = (
        f"Each of the {workers} workers has {threads:.0f} threads and keeps {number(busy)} cores busy, and "
        f"{number(waiting)} of their threads wait for one of the {cores:.0f} cores at any time.{whose} To try: "
        "one thread in each worker, by OMP_NUM_THREADS=1, or cv2.setNumThreads(0) and torch.set_num_threads(1) in "
        "worker_init_fn."
    )
    evidence = {
        "worker_threads": threads,
        "worker_cores": busy,
        "waiting_threads": waiting,
        "cores": cores,
        "n_steps": trace.n_steady,
    }
    source = "/proc/PID/stat and schedstat of the workers while it trains"
    return Signature("worker-threads", sentence, math.nan, math.nan, evidence, source)
