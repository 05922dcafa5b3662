"""What other programs take of the machine while the job trains."""

from __future__ import annotations

import math

import numpy as np

from vitprof.analysis.signatures.signature import Signature, Trace
from vitprof.analysis.thresholds import BUSY_PCT, OTHERS_CORES, OTHERS_CORES_FRAC
from vitprof.formats import number, percent

MIN_CPU_SAMPLES = 10
"""Two seconds of telemetry at the usual 5 a second."""
LOW_PERCENTILE = 25
"""Others must take this much in three quarters of the samples: a short burst is not a neighbour."""


def others_cores(trace: Trace) -> tuple[float, float, float]:
    """Returns cores that other programs take (median, lower quartile) and the machine's use in percent; NaN if not
    known.
    """
    t, cpu = trace.while_training("cpu_pct")
    t_job, job = trace.while_training("job_cpu_pct")
    cores = trace.facts.get("cpu_count")
    both = np.isin(t, t_job)
    if not cores or both.sum() < MIN_CPU_SAMPLES:
        return math.nan, math.nan, math.nan
    others = cpu[both] * float(cores) / 100 - job[np.isin(t_job, t)] / 100
    return float(np.median(others)), float(np.percentile(others, LOW_PERCENTILE)), float(np.median(cpu[both]))


def free_cores(trace: Trace) -> float:
    """Returns how many cores nobody uses while the job trains; NaN if not known."""
    *_, busy_pct = others_cores(trace)
    return float(trace.facts.get("cpu_count") or math.nan) * (1 - busy_pct / 100)


def saturated(trace: Trace) -> bool:
    """Returns whether other programs take CPU that the job would use: a good part of it, and all cores are busy."""
    _, low, busy_pct = others_cores(trace)
    cores = float(trace.facts.get("cpu_count") or math.nan)
    return low >= max(OTHERS_CORES, OTHERS_CORES_FRAC * cores) and busy_pct >= BUSY_PCT


def other_programs(trace: Trace) -> Signature | None:
    """CPU taken by other programs: the whole machine's use minus the job's."""
    taken, low, busy_pct = others_cores(trace)
    cores = float(trace.facts.get("cpu_count") or math.nan)
    if not low >= max(OTHERS_CORES, OTHERS_CORES_FRAC * cores):
        return None
    full = busy_pct >= BUSY_PCT
    effect = (
        "All cores are busy, so the job waits for cores: end those programs and measure again."
        if full
        else "Cores are still free, so this slows the job only a little."
    )
    return Signature(
        name="other-programs",
        sentence=f"Other programs take {number(taken)} of the {cores:.0f} cores ({percent(taken / cores)}). {effect}",
        cost_s_per_step=math.nan,
        cost_frac=math.nan,
        evidence={"others_cores": taken, "others_cores_low": low, "cores": cores, "machine_cpu_pct": busy_pct},
        based_on="psutil: use of all cores minus that of the job's processes",
    )
