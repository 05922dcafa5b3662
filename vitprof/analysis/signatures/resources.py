"""Finds what the machine gives over a run: a page cache that fills, memory that grows, cores that others take."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitprof.analysis import arrays, thresholds
from vitprof.analysis.timing import loading, steady
from vitprof.config.parts import LOADERS, STORAGES
from vitprof.formats import number, percent, seconds, size
from vitprof.recording.verdict import Signature

MIN_CPU_SAMPLES = 10
"""Two seconds of telemetry at the usual 5 a second; a quartile of fewer samples says little."""
LASTING_PERCENTILE = 25


@dataclass(frozen=True)
class OthersCpu:
    """The CPU that other programs used over the steady state; NaN where not known."""

    cores: float
    """Mean, in cores, as it is shown and compared; slightly below 0 where machine and job are read a moment apart."""
    lasting_cores: float
    """Lower quartile, in cores: whether there is a lasting neighbour; a short burst raises the mean, but not this."""
    machine_pct: float
    """Median use of all cores together, the job's included, in percent: whether cores were left over."""


def others_cpu(
    steps: arrays.Series, telemetry: arrays.Series, environment: Mapping[str, Any]
) -> OthersCpu:
    """Returns what other programs used: the whole machine's use minus that of the job's processes. `telemetry` needs
    t_s, cpu_pct and job_cpu_pct. Quartile and machine's use are NaN below `MIN_CPU_SAMPLES`.
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


def _lasts(found: OthersCpu, cores: float) -> bool:
    return found.lasting_cores >= max(thresholds.OTHERS_CORES, thresholds.OTHERS_CORES_FRAC * cores)


def free_cores(trace: steady.Trace) -> float:
    """Returns how many of the job's cores are idle while it trains; NaN if not known."""
    idle = _cores(trace) * (1 - _others(trace).machine_pct / 100)
    mine = float(trace.facts.get("job_cpu_count") or math.nan)
    if not mine < _cores(trace):
        return idle
    _, used_pct = trace.while_training("job_cpu_pct")
    return min(idle, max(0.0, mine - arrays.mean(used_pct) / 100))


def saturated(trace: steady.Trace) -> bool:
    """Returns whether other programs take CPU that the job would use: a good part of it, while all cores are busy."""
    found = _others(trace)
    return _lasts(found, _cores(trace)) and found.machine_pct >= thresholds.BUSY_PCT


def waiting_frac(trace: steady.Trace) -> float:
    """Returns the share of making a batch in which its thread neither used nor waited for a core; NaN if not known."""
    if not (making := trace.facts.get("making")):
        return math.nan
    of_job = (
        _queued(trace) * trace.step_s * making["batches"]
    )  # of older runs, or where a thread's is not counted
    queued_s = [s for s in (making.get("queued_s"), of_job) if s is not None and math.isfinite(s)][
        :1
    ]
    if not queued_s and not _others(trace).machine_pct < thresholds.BUSY_PCT:
        return math.nan
    return max(0.0, 1 - float((making["cpu_s"] + sum(queued_s)) / making["made_s"]))


def _queued(trace: steady.Trace, column: str = "job_cpu_wait_pct") -> float:
    """Returns how many threads of the job waited for a core, on average; NaN where that is not counted."""
    return arrays.mean(trace.while_training(column)[1]) / 100


@dataclass(frozen=True)
class Contention:
    """The time that a run lost to other programs that keep the CPU busy."""

    waited_ms: float
    """Milliseconds of a batch's idle time in which loading waited for a core; NaN if not known."""
    of_training_too: bool
    """Whether training on the CPU waited for cores as well: the idle share would not fall without other programs."""

    def inflates(self, idle_ms: float) -> bool:
        """Returns whether that is a good part (`QUEUED_FRAC`) of `idle_ms`, the idle milliseconds a batch."""
        return self.waited_ms > 0 and self.waited_ms >= thresholds.QUEUED_FRAC * idle_ms

    def idle_frac_without(self, idle_ms: float, step_ms: float) -> float:
        """Returns the idle share of a step if other programs had not taken the cores that loading waited for."""
        return max(0.0, (idle_ms - self.waited_ms) / (step_ms - self.waited_ms))


def find_contention(trace: steady.Trace, idle_ms: float, *, on_cpu: bool) -> Contention:
    """Returns what others cost of `idle_ms` a batch; a batch's wait is one worker's share. `on_cpu`: the CPU trains."""
    if not saturated(trace):
        return Contention(0.0, on_cpu)
    config = trace.config
    column = "job_cpu_wait_pct"
    if config.workers and LOADERS[config.loader or ""].made_by == "processes":
        column = "workers_cpu_wait_pct"  # what the loop's own process waits costs little: it waits for them
    makers = 1 if loading.synchronous(config) else max(1, config.workers or 1)
    return Contention(min(_queued(trace, column) * trace.step_s * 1e3 / makers, idle_ms), on_cpu)


def other_programs(trace: steady.Trace) -> Signature | None:
    """Finds CPU taken by other programs: the whole machine's use minus the job's."""
    found = _others(trace)
    cores = _cores(trace)
    queued = _queued(trace)
    if not _lasts(found, cores):
        return None
    full = found.machine_pct >= thresholds.BUSY_PCT
    effect = "Cores are still free: the job need not wait for one, though it may run slower."
    if full and queued < thresholds.OTHERS_CORES_FRAC:
        effect = "All cores are busy, but the job hardly waits for one."
    elif full:
        waits = "" if math.isnan(queued) else ", and the job waits for cores"
        effect = f"All cores are busy{waits}: end those programs and measure again."
    taken = f"{number(found.cores)} of the {cores:.0f} cores ({percent(found.cores / cores)})"
    evidence = {
        "others_cores": found.cores,
        "others_cores_lasting": found.lasting_cores,
        "cores": cores,
    }
    evidence |= {"machine_cpu_pct": found.machine_pct}
    source = "psutil: use of all cores minus that of the job's processes"
    return Signature(
        "other-programs",
        f"Other programs take {taken}. {effect}",
        math.nan,
        math.nan,
        evidence,
        source,
    )


FASTER_EPOCH = 2.0
"""Least ratio of cold to warm read times. Measured: 4.5 to 14; slow drifts exceed 1.5 by chance."""
FALLING_TREND = -0.5
"""Rank correlation of read time with time, within a pass, below which reads get faster; standard error at 40: 0.16."""
MIN_TREND_STEPS = 40
MIN_MEMORY_SAMPLES = 40
MIN_SPAN_S = 60.0
"""Growth is reported for a minute, so a minute must be seen; starting workers and filling queues take seconds."""
MIN_GROWTH_BYTES = 64 * 2**20
"""Growth in a run below which nothing is reported: allocators and queues take as much."""
MIN_GROWTH_PER_H = 0.1
"""Growth in an hour, of the job's memory, below which nothing is reported: 3.4 times its memory in a day."""
T_95 = 2.1
"""Student's t for a 95% interval over 20 blocks."""


def cold_to_warm(trace: steady.Trace) -> Signature | None:
    """Finds reads (or waits) that get faster after the first pass, or within it: the page cache fills."""
    if (
        trace.n_steady < thresholds.MIN_STEPS
        or _access(trace) == "memory"
        or trace.config.location == "ram-disk"
    ):
        return None
    read = arrays.column(trace.steps, "read_s")
    read_known = bool(np.isfinite(read[trace.steady]).any())
    value = (read if read_known else trace.steps["data_wait_s"]) / np.maximum(
        trace.steps["samples"], 1
    )
    usable = trace.steady & np.isfinite(value)
    epoch = trace.steps["epoch"]
    samples = trace.steps["samples"]
    first = usable & (epoch == epoch[0])
    later = usable & (epoch > epoch[0])
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
    clear = np.percentile(value[first], 25) > np.percentile(value[later], 75)
    batch = arrays.mean(samples[first])
    cost = (arrays.mean(value[first]) - arrays.mean(value[later])) * batch
    step = arrays.mean(trace.steps["step_s"][first])
    if not (clear and cold >= FASTER_EPOCH * warm and cost >= thresholds.MIN_COST_FRAC * step):
        return None
    what = "Reading a batch" if read_known else "The wait for a batch"
    when = (
        "at first, {} towards the end of the same pass"
        if within
        else "in the first epoch, {} in later ones"
    )
    sentence = (
        f"{what} took {seconds(cold * batch)} {when.format(seconds(warm * batch))}: the first pass reads the drive, "
        "after that the files are in the system's page cache. Steady figures mix both; page_cache=warm or "
        "page_cache=cold measures one of them."
    )
    faster = cold / warm if warm > 0 else math.nan
    evidence = {"cold_s": cold * batch, "warm_s": warm * batch, "times_faster": faster}
    evidence |= {"within_first_epoch": float(within), "read_measured": float(read_known)}
    source = "Measured here: a cold read takes 4.5 to 14 times a warm one; Mohan et al., VLDB 2021 (fetch stalls)"
    return Signature("cold-to-warm", sentence, cost, cost / step, evidence, source)


def memory_growth(trace: steady.Trace) -> Signature | None:
    """Finds memory of the job that grows steadily, as of lists that forked workers share (pytorch issue 13246)."""
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
    if low * 3600 < MIN_GROWTH_PER_H * usual or low < slope / 2:
        return None
    total = trace.facts.get("memory_bytes")
    left_s = (float(total) - float(rss[-1])) / slope if total else math.nan
    full = (
        f" At this rate the machine's {size(float(total))} are full in {seconds(left_s)}."
        if total
        else ""
    )
    if trace.config.loader == "dataloader" and (trace.config.workers or 0) > 0:
        shared = "Workers that share Python lists with the main process copy them as they read them"
        full += f" {shared}; arrays are not copied."
    sentence = (
        f"The job's memory grows by {size(slope * 60)} a minute ({size(low * 60)} to {size(high * 60)}), {size(grown)} "
        f"so far, and does not level off.{full}"
    )
    evidence = {
        "bytes_per_s": slope,
        "bytes_per_s_low": low,
        "bytes_per_s_high": high,
        "grown_bytes": grown,
    }
    evidence |= {"full_in_s": left_s, "n_samples": len(t)}
    source = (
        "pytorch issue 13246 (copy-on-write of reference counts); least squares over block means"
    )
    return Signature("memory-growth", sentence, math.nan, math.nan, evidence, source)


def _access(trace: steady.Trace) -> str:
    storage = STORAGES.get(trace.config.storage or "")
    return storage.access if storage is not None else ""


def _rank_correlation(values: arrays.Floats) -> float:
    return float(np.corrcoef(np.argsort(np.argsort(values)), np.arange(len(values)))[0, 1])


def _slope(t: arrays.Floats, values: arrays.Floats) -> tuple[float, float, float]:
    """Returns the least-squares slope and its 95% interval, over 20 means of blocks of neighbours."""
    blocks = min(20, len(t))
    x, y = (
        arrays.block_sums(each, blocks) / arrays.block_sums(np.ones(len(t)), blocks)
        for each in (t, values)
    )
    x = x - x.mean()
    slope = float((x * y).sum() / (x * x).sum())
    residual = y - y.mean() - slope * x
    error = math.sqrt(float((residual**2).sum()) / max(1, blocks - 2) / float((x * x).sum()))
    return slope, slope - T_95 * error, slope + T_95 * error
