"""Finds what the machine gives over a run: a page cache that fills, memory that grows, cores that
others take.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitprof.analysis import arrays, thresholds
from vitprof.analysis.timing import loading, steady, worker_use
from vitprof.config import own_script
from vitprof.config.parts import LOADERS, STORAGES
from vitprof.formats import cores as cores_in_words
from vitprof.formats import seconds, size
from vitprof.recording.verdict import CoresTaken, Program, Signature

MIN_CPU_SAMPLES = 10
"""Two seconds of telemetry at the usual 5 a second; a quartile of fewer samples says little."""
LASTING_PERCENTILE = 25


@dataclass(frozen=True)
class OthersCpu:
    """The CPU that other programs used over the steady state; NaN where not known."""

    cores: float
    """Mean, in cores: the figure that is shown, and by which runs are compared. A program that
    takes two cores half of the time takes as much from a job as one that takes one core all the
    time. May be slightly below 0: the machine and the job are read a moment apart."""
    lasting_cores: float
    """Lower quartile, in cores: in three quarters of the samples they took at least this. It says
    whether there is a lasting neighbour: a short burst raises the mean, but not this."""
    machine_pct: float
    """Median use of all cores together, the job's included, in percent: whether cores were left
    over."""


def others_cpu(
    steps: arrays.Series, telemetry: arrays.Series, environment: Mapping[str, Any]
) -> OthersCpu:
    """Returns what other programs used: the use of the whole machine minus that of the job's
    processes.

    `steps` needs t_start_s, epoch and warmup; `telemetry` t_s, cpu_pct and job_cpu_pct;
    `environment` cpu_count. The quartile and the machine's use are NaN with fewer than
    `MIN_CPU_SAMPLES`.
    """
    cores = float(environment.get("cpu_count") or math.nan)
    inside = steady.while_steady(steps, telemetry["t_s"])
    machine_pct = telemetry["cpu_pct"][inside]
    job_pct = telemetry["job_cpu_pct"][inside]
    others = (machine_pct * cores - job_pct) / 100
    known = np.isfinite(others)
    if known.sum() < MIN_CPU_SAMPLES:
        return OthersCpu(arrays.mean(others), math.nan, math.nan)
    lasting = float(np.percentile(others[known], LASTING_PERCENTILE))
    return OthersCpu(arrays.mean(others), lasting, float(np.median(machine_pct[known])))


def _others(trace: steady.Trace) -> OthersCpu:
    return others_cpu(trace.steps, trace.telemetry, trace.facts)


def _cores(trace: steady.Trace) -> float:
    return float(trace.facts.get("cpu_count") or math.nan)


def _lasts(others: OthersCpu, cores: float) -> bool:
    return others.lasting_cores >= max(
        thresholds.OTHERS_CORES, thresholds.OTHERS_CORES_FRAC * cores
    )


def free_cores(trace: steady.Trace) -> float:
    """Returns how many of the job's cores are idle while it trains; NaN if not known."""
    machine_cores = _cores(trace)
    idle = machine_cores * (1 - _others(trace).machine_pct / 100)
    job_cores = float(trace.facts.get("job_cpu_count") or math.nan)
    # it has all of them, or it is not known how many
    if not job_cores < machine_cores:
        return idle
    _, used_pct = trace.while_training("job_cpu_pct")
    unused_by_job = max(0.0, job_cores - arrays.mean(used_pct) / 100)
    return min(idle, unused_by_job)


def saturated(trace: steady.Trace) -> bool:
    """Returns whether other programs take CPU that the job would use.

    They do where they take a good part of it, while all cores are busy.
    """
    found = _others(trace)
    return _lasts(found, _cores(trace)) and found.machine_pct >= thresholds.BUSY_PCT


def waiting_frac(trace: steady.Trace) -> float:
    """Returns the share of making a batch in which no thread for it used a core or waited for one.

    NaN if not known.
    """
    making = trace.facts.get("making") or {}
    if "made_s" not in making:  # a built-in job
        return math.nan
    queued_s = making.get("queued_s")
    if queued_s is None or not math.isfinite(queued_s):
        # an older run, a system that does not count it for a thread, or programs that did the work: what the whole
        # job waited
        queued_s = _queued(trace) * trace.step_s * making["batches"]
    if not math.isfinite(queued_s):
        if not _others(trace).machine_pct < thresholds.BUSY_PCT:
            return math.nan
        queued_s = 0.0  # with cores left over nobody waits for one
    return max(0.0, 1 - float((making["cpu_s"] + queued_s) / making["made_s"]))


def _queued(trace: steady.Trace, column: str = "job_cpu_wait_pct") -> float:
    """Returns how many threads of the job waited for a core, on average; NaN where that is not
    counted.
    """
    return arrays.mean(trace.while_training(column)[1]) / 100


@dataclass(frozen=True)
class Contention:
    """The time that a run lost to other programs that keep the CPU busy."""

    waited_ms: float
    """Milliseconds of each batch's idle time in which loading was ready to run but had no core. NaN
    if the system does not count that, 0 if no other program took much."""
    of_training_too: bool
    """Whether training waited for cores as well, because the CPU trains: without the other programs
    the device would idle the same share of a shorter time."""

    def inflates(self, idle_ms: float) -> bool:
        """Returns whether that is a good part of `idle_ms`, the idle milliseconds a batch
        (`QUEUED_FRAC`).
        """
        return self.waited_ms > 0 and self.waited_ms >= thresholds.QUEUED_FRAC * idle_ms

    def idle_frac_without(self, idle_ms: float, step_ms: float) -> float:
        """Returns the idle share of a step if other programs had not taken the cores that loading
        waited for.
        """
        return max(0.0, (idle_ms - self.waited_ms) / (step_ms - self.waited_ms))


def find_contention(trace: steady.Trace, idle_ms: float, *, on_cpu: bool) -> Contention:
    """Returns what other programs cost of `idle_ms`, the idle milliseconds a batch.

    `on_cpu`: the CPU trains.
    """
    if not saturated(trace):
        return Contention(0.0, on_cpu)
    return Contention(min(making_waited_ms(trace), idle_ms), on_cpu)


def making_waited_ms(trace: steady.Trace) -> float:
    """Returns for how long threads waited for a core while a batch was made, milliseconds, whoever had the cores. NaN
    where that is not counted.

    Workers wait concurrently, so a batch's wait is one worker's share of the total.
    """
    config = trace.config
    column = "job_cpu_wait_pct"
    if config.workers and LOADERS[config.loader or ""].made_by == "processes":
        # what the loop's own process waits for cores costs little: it waits for the workers
        column = "workers_cpu_wait_pct"
    makers = max(1, config.workers or 1)
    if loading.synchronous(config):
        makers = 1
    return _queued(trace, column) * trace.step_s * 1e3 / makers


def programs_seen(trace: steady.Trace) -> tuple[Program, ...]:
    """Returns the other programs that took most, the largest first; none where they were not looked at."""
    return programs_of(trace.facts.get("other_programs") or ())


def programs_of(seen: Sequence[Mapping[str, Any]]) -> tuple[Program, ...]:
    """Returns the programs of the fact "other_programs"."""
    return tuple(
        Program(str(p["name"]), int(p["pid"]), float(p["cores"]), int(p.get("processes") or 1))
        for p in seen
    )


def cores_taken(trace: steady.Trace) -> CoresTaken:
    """Returns what other programs took of the cores; figures are NaN where that is not known."""
    return CoresTaken(_others(trace).cores, _cores(trace), programs_seen(trace))


def named_cores_taken(trace: steady.Trace) -> CoresTaken | None:
    """Returns what other programs took of the cores; None where that is too little to be said, or
    not known.

    By the mean, as Compare judges it: what takes the cores half of the time takes as much as what
    takes half of them all the time.
    """
    taken = cores_taken(trace)
    return taken if taken.cores >= thresholds.OTHERS_CORES else None


def cores_taken_in_words(taken: CoresTaken) -> str:
    """Returns "Other programs used 1.4 of 2 cores. Over the whole run: chrome 0.6 (process 312).".

    The cores are those of the steady state, as all figures of a run. Which programs took them is
    known for the time from the run's start on.
    """
    used = f"Other programs used {cores_in_words(taken.cores, taken.of_cores)}."
    named = programs_in_words(taken.programs)
    return f"{used} Over the whole run: {named}." if named else used


def other_programs(trace: steady.Trace) -> Signature | None:
    """Finds CPU taken by other programs all the time, and says what that did to the job.

    How much they took is in the verdict (`Verdict.cores_taken`).
    """
    others = _others(trace)
    cores = _cores(trace)
    queued = _queued(trace)
    if not _lasts(others, cores):
        return None
    full = others.machine_pct >= thresholds.BUSY_PCT
    if not full:
        effect = "Cores were still free: the job need not wait for one, though it may run slower."
    elif queued < thresholds.OTHERS_CORES_FRAC:
        effect = "All cores were busy, but the job hardly waited for one."
    elif math.isnan(queued):
        effect = "All cores were busy: end those programs and measure again."
    else:
        effect = "All cores were busy, and the job waited for them: end those programs and measure again."
    evidence = {
        "others_cores": others.cores,
        "others_cores_lasting": others.lasting_cores,
        "cores": cores,
        "machine_cpu_pct": others.machine_pct,
    }
    source = "psutil: use of all cores minus that of the job's processes"
    return Signature(
        "other-programs",
        f"Other programs ran all the time. {effect}",
        math.nan,
        math.nan,
        evidence,
        source,
    )


MOST_NAMED = 3
"""Other programs that a sentence names at most."""


def programs_in_words(programs: Sequence[Program], most: int = MOST_NAMED) -> str:
    """Returns other programs with their cores: "chrome 0.6 (3 processes), train.py 0.4 (process 99)"."""
    named = []
    for program in programs[:most]:
        which = f"process {program.pid}"
        if program.processes > 1:
            which = f"{program.processes:,} processes"
        named.append(f"{program.name} {program.cores:.1f} ({which})")
    return ", ".join(named)


FASTER_EPOCH = 2.0
"""Cold reads take at least this many times as long as warm ones. Measured: 4.5 to 14 times. A
margin of 1.5, which is enough for wall time on a noisy machine, is exceeded by chance where times
drift slowly (2 of 1,200 synthetic traces)."""
FALLING_TREND = -0.5
"""Rank correlation of read time with time, within one pass, below which reads get faster. At 40
steps of noise its standard error is 0.16."""
MIN_TREND_STEPS = 40
MIN_MEMORY_SAMPLES = 40
MIN_SPAN_S = 60.0
"""Growth is reported for a minute, so a minute must be seen. Starting workers and filling queues
take seconds."""
MIN_GROWTH_BYTES = 64 * 2**20
"""Growth in a run below which nothing is reported: allocators and queues take as much."""
MIN_GROWTH_PER_H = 0.1
"""Growth in an hour, as a share of the job's memory, below which nothing is reported. A job that
grows by less runs for a day in 3.4 times its memory."""
T_95 = 2.1
"""Student's t for a 95% interval over 20 blocks."""


def cold_to_warm(trace: steady.Trace) -> Signature | None:
    """Finds reads (or waits, where the loader cannot tell) that get faster after the first pass, or
    within it.

    The first pass reads the drive, later ones the system's page cache.
    """
    from_memory = _access(trace) == "memory" or trace.config.location == "ram-disk"
    if from_memory or trace.n_steady < thresholds.MIN_STEPS:
        return None
    if saturated(trace):  # reads get faster as other programs leave it a core, too
        return None
    read_s = arrays.column(trace.steps, "read_s")
    read_known = bool(np.isfinite(read_s[trace.steady]).any())
    if not read_known:
        read_s = trace.steps["data_wait_s"]
    value = read_s / np.maximum(trace.steps["samples"], 1)
    usable = trace.steady & np.isfinite(value)
    epoch = trace.steps["epoch"]
    samples = trace.steps["samples"]
    first = usable & (epoch == epoch[0])
    later = usable & (epoch > epoch[0])
    # the run ended in its first pass, or just after it: the pass itself is looked at
    within = later.sum() < thresholds.MIN_STEPS / 2
    if within:
        at = np.flatnonzero(first)
        if len(at) < MIN_TREND_STEPS or not _rank_correlation(value[at]) < FALLING_TREND:
            return None
        fifth = len(at) // 5
        rows = np.arange(len(usable))
        first = np.isin(rows, at[:fifth])
        later = np.isin(rows, at[-fifth:])
    if min(first.sum(), later.sum()) < thresholds.MIN_STEPS / 4:
        return None
    cold = arrays.median(value[first])
    warm = arrays.median(value[later])
    # three quarters of the cold ones are slower than three quarters of the warm ones
    clear = np.percentile(value[first], 25) > np.percentile(value[later], 75)
    batch = arrays.mean(samples[first])
    cost = (arrays.mean(value[first]) - arrays.mean(value[later])) * batch
    step = arrays.mean(trace.steps["step_s"][first])
    if not (clear and cold >= FASTER_EPOCH * warm and cost >= thresholds.MIN_COST_FRAC * step):
        return None
    what = "Reading a batch" if read_known else "The wait for a batch"
    if within:
        when = f"at first, {seconds(warm * batch)} towards the end of the same pass"
    else:
        when = f"in the first epoch, {seconds(warm * batch)} in later ones"
    why = (
        "the first pass reads the drive, after that the files are in the system's page cache. "
        "Steady figures mix both; page_cache=warm or page_cache=cold measures one of them."
    )
    if own_script.is_own_script(trace.config):
        why = (
            "the first pass reads the drive or fills a cache, later ones find their samples in "
            "memory. Steady figures mix both."
        )
    sentence = f"{what} took {seconds(cold * batch)} {when}: {why}"
    faster = cold / warm if warm > 0 else math.nan
    evidence = {
        "cold_s": cold * batch,
        "warm_s": warm * batch,
        "times_faster": faster,
        "within_first_epoch": float(within),
        "read_measured": float(read_known),
    }
    source = "Measured here: a cold read takes 4.5 to 14 times a warm one; Mohan et al., VLDB 2021 (fetch stalls)"
    return Signature("cold-to-warm", sentence, cost, cost / step, evidence, source)


def memory_growth(trace: steady.Trace) -> Signature | None:
    """Finds memory of the job that grows steadily while it trains.

    A list of Python objects that forked workers share is copied page by page (copy-on-write) as
    they count references to it (pytorch issue 13246). Anything that keeps tensors alive looks the
    same.
    """
    t, rss = trace.while_training("job_rss_bytes")
    if _access(trace) == "mapping":  # pages of the file count until all of it has been touched
        whole = np.flatnonzero(trace.first)
        if len(whole) < 2:
            return None
        past = t >= trace.steps["t_start_s"][whole[1]]
        t = t[past]
        rss = rss[past]
    if len(t) < MIN_MEMORY_SAMPLES or t[-1] - t[0] < MIN_SPAN_S:
        return None
    slope, low, high = _slope(t, rss)
    half = len(t) // 2
    _, early_low, _ = _slope(t[:half], rss[:half])
    _, late_low, _ = _slope(t[half:], rss[half:])
    grown = slope * float(t[-1] - t[0])
    usual = arrays.median(rss)
    # both halves: caches, pools and queues that fill once are no leak
    if not (min(low, early_low, late_low) > 0 and grown >= MIN_GROWTH_BYTES):
        return None
    # too little of the job's memory, or too rough a figure for a forecast
    if low * 3600 < MIN_GROWTH_PER_H * usual or low < slope / 2:
        return None
    total = trace.facts.get("memory_bytes")
    full_in_s = math.nan
    full = ""
    if total:
        full_in_s = (float(total) - float(rss[-1])) / slope
        full = f" At this rate the machine's {size(float(total))} are full in {seconds(full_in_s)}."
    # Where the memory of the workers was sampled, `workers.worker_memory_growth` knows.
    is_sampled = worker_use.worker_memory(trace.telemetry) is not None
    has_workers = trace.config.loader == "dataloader" and (trace.config.workers or 0) > 0
    if has_workers and not is_sampled:
        shared = "Workers that share Python lists with the main process copy them as they read them"
        full += f" {shared}; arrays are not copied."
    sentence = (
        f"The job's memory grows by {size(slope * 60)} a minute ({size(low * 60)} to "
        f"{size(high * 60)}), {size(grown)} so far, and does not level off.{full}"
    )
    evidence = {
        "bytes_per_s": slope,
        "bytes_per_s_low": low,
        "bytes_per_s_high": high,
        "grown_bytes": grown,
        "full_in_s": full_in_s,
        "n_samples": len(t),
    }
    source = (
        "pytorch issue 13246 (copy-on-write of reference counts); least squares over block means"
    )
    return Signature("memory-growth", sentence, math.nan, math.nan, evidence, source)


def _access(trace: steady.Trace) -> str:
    """Returns how the run's storage is read (`StoragePart.access`); "" where it is not one of
    vitprof's.
    """
    storage = STORAGES.get(trace.config.storage or "")
    return storage.access if storage is not None else ""


def _rank_correlation(values: arrays.Floats) -> float:
    return float(np.corrcoef(np.argsort(np.argsort(values)), np.arange(len(values)))[0, 1])


def _slope(t: arrays.Floats, values: arrays.Floats) -> tuple[float, float, float]:
    """Returns the least-squares slope and its 95% interval, over 20 block means.

    Neighbouring samples are not independent.
    """
    blocks = min(20, len(t))
    of_a_block = arrays.block_sums(np.ones(len(t)), blocks)
    x = arrays.block_sums(t, blocks) / of_a_block
    y = arrays.block_sums(values, blocks) / of_a_block
    x = x - x.mean()
    slope = float((x * y).sum() / (x * x).sum())
    residual = y - y.mean() - slope * x
    error = math.sqrt(float((residual**2).sum()) / max(1, blocks - 2) / float((x * x).sum()))
    return slope, slope - T_95 * error, slope + T_95 * error
