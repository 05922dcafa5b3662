"""Finds other programs that take CPU while the job trains."""

from __future__ import annotations

import math

from vitprof.analysis.signatures.signature import Trace
from vitprof.analysis.thresholds import BUSY_PCT, OTHERS_CORES, OTHERS_CORES_FRAC
from vitprof.analysis.timing.others_cpu import OthersCpu, others_cpu
from vitprof.formats import number, percent
from vitprof.recording.verdict import Signature


def _others(trace: Trace) -> OthersCpu:
    return others_cpu(trace.steps, trace.telemetry, trace.facts)


def _cores(trace: Trace) -> float:
    return float(trace.facts.get("cpu_count") or math.nan)


def _lasts(found: OthersCpu, cores: float) -> bool:
    """Returns whether other programs take a good part of the CPU throughout; False if that is not known."""
    return found.lasting_cores >= max(OTHERS_CORES, OTHERS_CORES_FRAC * cores)


def free_cores(trace: Trace) -> float:
    """Returns how many cores are idle while the job trains; NaN if not known."""
    return _cores(trace) * (1 - _others(trace).machine_pct / 100)


def saturated(trace: Trace) -> bool:
    """Returns whether other programs take CPU that the job would use: a good part of it, while all cores are busy."""
    found = _others(trace)
    return _lasts(found, _cores(trace)) and found.machine_pct >= BUSY_PCT


def other_programs(trace: Trace) -> Signature | None:
    """Finds CPU taken by other programs: the whole machine's use minus the job's."""
    found, cores = _others(trace), _cores(trace)
    if not _lasts(found, cores):
        return None
    full = found.machine_pct >= BUSY_PCT
    effect = (
        "All cores are busy, so the job waits for cores: end those programs and measure again."
        if full
        else "Cores are still free, so this slows the job only a little."
    )
    share = percent(found.cores / cores)
    return Signature(
        name="other-programs",
        sentence=f"Other programs take {number(found.cores)} of the {cores:.0f} cores ({share}). {effect}",
        cost_s_per_step=math.nan,
        cost_frac=math.nan,
        evidence={
            "others_cores": found.cores,
            "others_cores_lasting": found.lasting_cores,
            "cores": cores,
            "machine_cpu_pct": found.machine_pct,
        },
        based_on="psutil: use of all cores minus that of the job's processes",
    )
