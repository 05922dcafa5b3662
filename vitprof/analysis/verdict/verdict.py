"""The verdict on a run: is the device starved by data loading, by which stage, and what would help. In one sentence."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vitprof.analysis import arrays, thresholds
from vitprof.analysis.signatures import find_signatures
from vitprof.analysis.signatures.resources import (
    Contention,
    find_contention,
    free_cores,
    saturated,
    waiting_frac,
)
from vitprof.analysis.timing.gaps import RunGaps
from vitprof.analysis.timing.loading import Exposure, find_exposure, synchronous
from vitprof.analysis.timing.steady import Trace, training
from vitprof.analysis.timing.summary import gpu_util_pct
from vitprof.analysis.verdict import advice_rules, no_verdict, wording
from vitprof.analysis.verdict.advice import Alternative, advise
from vitprof.analysis.verdict.headroom import Headroom, own_headroom
from vitprof.config import RunConfig, own_script
from vitprof.formats import percent
from vitprof.recording.columns import TIMED_STAGES, Phase
from vitprof.recording.verdict import Kind, Verdict

CPU_WORK = (*(stage for stage in TIMED_STAGES if stage != "read"), "rest", "loading", "hand_over")
"""Stages of loading that are CPU work; a read mostly waits."""


def judge(
    config: RunConfig,
    steps: arrays.Series,
    phases: Sequence[Phase],
    telemetry: arrays.Series,
    facts: Mapping[str, Any],
    *,
    headroom: Headroom | None = None,
    alternatives: Sequence[Alternative] = (),
    possible: Callable[[RunConfig], bool] | None = None,
    gaps: RunGaps | None = None,
) -> Verdict:
    """Returns the verdict on a run that has ended. `config` is resolved; `facts` has its environment too. `headroom` is
    the measured speed-up (an own script's is in the facts), `alternatives` other ways to run the same job, `possible`
    whether a config can run here, `gaps` the run's. The lower end of the 95% interval of the share of time idle for
    data decides (`analysis.thresholds`). It is inconclusive with too few steady steps, without device work, if the
    interval reaches from "not" to "input-bound", and where the loop's waits are not known. Shares are of the wall clock
    of training: steady steps and epoch starts.
    """
    trace = Trace(steps, telemetry, config, facts)
    n = trace.n_steady
    n_all = len(steps["step"])
    device = wording.find_device(config, facts, gpu_util_pct(telemetry, steps, phases, facts))
    found = find_signatures(trace)
    simulated = device.simulated
    bare = Verdict(
        kind="inconclusive", sentence="", signatures=found, n_steps=n, simulated=simulated
    )

    def inconclusive(reason: str, **measured: Any) -> Verdict:
        words = reason if reason.startswith(no_verdict.HEADED) else f"inconclusive: {reason}"
        return dataclasses.replace(bare, sentence=f"{words[0].upper()}{words[1:]}.", **measured)

    if config.loader_only:
        train = "run the same settings with training"
        return inconclusive(
            f"a loader-only run has no device work that could wait for data; {train}"
        )
    if reason := no_verdict.not_measurable(facts, n_all):
        return inconclusive(reason)
    if n < thresholds.MIN_STEPS:
        known = n and not facts.get("untimed_device")
        starved = _starved(gaps or RunGaps.of(steps, phases)) if known else math.nan
        few = no_verdict.too_few(config, n_all, n, thresholds.MIN_STEPS, device, starved)
        return inconclusive(no_verdict.trained_again(facts) + few)
    if untimed := facts.get("untimed_device"):
        return inconclusive(
            no_verdict.untimed(str(untimed), *_waiting(steps, trace.steady, facts), facts)
        )
    exposure = find_exposure(config, steps, phases, gaps)
    idle, low, high = exposure.idle
    if not math.isfinite(low):
        return inconclusive("the device's times are not known for enough steps")
    measured: dict[str, Any] = {"idle_frac": idle, "idle_frac_low": low, "idle_frac_high": high}
    measured |= {"host_frac": exposure.host.value, "launch_frac": exposure.launches.value}
    measured |= {"shares": exposure.shares, "single_event": exposure.event}
    held_up = _held_up(config, facts, exposure)
    if held_up and saturated(trace):  # their doing, or the loader's
        if _kind(exposure, 0.0) == "launch-bound":
            return inconclusive(no_verdict.held_up(held_up), **measured)
        held_up = 0.0
    kind = _kind(exposure, held_up)
    if low < thresholds.MODERATE_FRAC and high > thresholds.INPUT_BOUND_FRAC:
        reason = (
            f"{wording.waits(device, exposure, percent(idle))}, but over {n} steps that may be anything from "
            f"{percent(low)} to {percent(high)}; train for longer, or on a quieter machine"
        )
        return inconclusive(reason, **measured)
    outside_loader = wording.outside_loader(facts)
    if outside_loader and kind != "input-bound":
        return inconclusive(
            f"{wording.waits(device, exposure, percent(idle))}; {outside_loader}", **measured
        )
    if slowest := wording.slowest_loader(facts):
        config = own_script.with_loader(config, {"watched": slowest})
    contention = find_contention(trace, exposure.idle_ms, on_cpu=device.on_cpu)
    cause, cause_frac, cause_ms = find_cause(trace, exposure, kind, contention, held_up)
    without = contention.idle_frac_without(exposure.idle_ms, exposure.step_s * 1e3)
    measured |= {"cause": cause, "cause_frac": cause_frac, "cause_ms_per_batch": cause_ms}
    if cause == "cpu_contention" and without < _edge(low):
        return inconclusive(no_verdict.disturbed(device, exposure, without), **measured)
    speed_up = _speed_up(exposure, facts, headroom, held_up, device)
    counted = training(steps)
    others_known = facts.get("world_size", 1) < 2 or facts.get("ranks")
    if outside_loader or not others_known:  # what free data would gain is not known
        speed_up = wording.SpeedUp(math.nan, math.nan, math.nan, measured=False)
    situation = advice_rules.Situation(
        config=config,
        cause=cause,
        kind=kind,
        sure=kind != "not input-bound" or high < thresholds.MODERATE_FRAC,
        simulated=device.simulated,
        on_cpu=device.on_cpu,
        facts=facts,
        free_cores=free_cores(trace),
        waiting_frac=waiting_frac(trace),
        held_up_frac=held_up,
        idle_ms=exposure.idle_ms,
        step_ms=trace.step_s * 1e3,
        samples_per_s=float(steps["samples"][counted].sum())
        / float(np.nansum(steps["step_s"][counted])),
        signatures=bare.signatures,
        causes=()  # of little time
        if cause == "held_up"
        else tuple(
            share.name for share in exposure.shares if share.frac >= thresholds.WORTH_ADVICE_FRAC
        ),
    )
    advice = advise(situation, alternatives=alternatives, possible=possible)
    sentence = wording.verdict_sentence(
        situation, device, exposure, cause_frac, speed_up, advice, contention
    )
    measured |= {"speed_up_if_free": speed_up.value, "speed_up_measured": speed_up.measured}
    measured |= {"speed_up_low": speed_up.low, "speed_up_high": speed_up.high}
    return dataclasses.replace(bare, kind=kind, sentence=sentence, advice=advice, **measured)


def _starved(gaps: RunGaps) -> float:
    """Returns the share of the time idle for data in few steady steps, if each was mostly that; NaN else."""
    steady = gaps.steady
    idle_s = steady.exposed_wait_ns / 1e9 + steady.by_step("h2d")
    whole_s = steady.idle_s + steady.compute_ns / 1e9
    most = len(idle_s) >= thresholds.LEAST_STARVED_STEPS and bool((idle_s > 0.5 * whole_s).all())
    return float(idle_s.sum() / whole_s.sum()) if most else math.nan


def _waiting(
    steps: arrays.Series, steady: arrays.Mask, facts: Mapping[str, Any]
) -> tuple[float, float]:
    """Returns the share of the loop's time that it waits for data, and an estimate of the device's idle time in it, if
    each step's work takes the device as long as the sampled ones did (`estimated_step_s`).
    """
    rows = np.flatnonzero(steady[:-1] & steady[1:])
    since_s = steps["t_start_s"]
    wait_s = steps["data_wait_s"]
    step_s = float(facts.get("estimated_step_s") or math.nan)
    got_s = since_s + wait_s
    behind_s = step_s * np.arange(len(got_s))
    done_s = (
        np.maximum.accumulate(got_s - behind_s) + behind_s + step_s
    )  # each begins once it has its batch, in order
    idle_s = np.clip(got_s - np.concatenate([[-math.inf], done_s[:-1]]), 0.0, wait_s)
    took_s = float((since_s[rows + 1] - since_s[rows]).sum())
    return (
        (float(wait_s[rows].sum()) / took_s, float(idle_s[rows].sum()) / took_s)
        if len(rows)
        else (math.nan,) * 2
    )


def _held_up(config: RunConfig, facts: Mapping[str, Any], exposure: Exposure) -> float:
    """Returns the share of the time in which the loader's threads or workers keep Python from launching the model's
    work; 0 where that is little, not known, or of no matter since the device sets the pace. Not in a thread of the
    dashboard's: others of its threads may want Python's lock.
    """
    off_cpu = float(facts.get("held_up_frac") or 0.0)
    none = config.replay or config.isolation == "thread" or synchronous(config)
    if off_cpu < thresholds.HELD_UP_FRAC or not exposure.host_paced or none:
        return 0.0
    held_up = off_cpu * (1 - exposure.idle.value - exposure.outside.value)
    return min(held_up, exposure.paced.value) if math.isfinite(exposure.launches.value) else held_up


def _kind(exposure: Exposure, held_up: float) -> Kind:
    low = exposure.idle.low + held_up
    paced = exposure.paced
    if (
        paced.low - held_up >= thresholds.LAUNCH_BOUND_FRAC
        and paced.value - held_up > exposure.idle.value + held_up
    ):
        return "launch-bound"
    if low < thresholds.MODERATE_FRAC:
        return "not input-bound"
    return "moderately input-bound" if low < thresholds.INPUT_BOUND_FRAC else "input-bound"


def _edge(low: float) -> float:
    """Returns where the class of a run begins whose idle share is at least `low`."""
    return max(
        (edge for edge in (thresholds.MODERATE_FRAC, thresholds.INPUT_BOUND_FRAC) if edge <= low),
        default=0.0,
    )


def find_cause(
    trace: Trace, exposure: Exposure, kind: Kind, contention: Contention, held_up: float
) -> tuple[str, float, float]:
    """Returns the cause, its share of the idle time and its ms a batch; other programs only on a device."""
    if kind == "launch-bound":
        return "launches", 1.0, exposure.paced.value * trace.step_s * 1e3
    if held_up > exposure.idle.value:
        return "held_up", held_up / (held_up + exposure.idle.value), held_up * trace.step_s * 1e3
    if not exposure.shares:
        return "", math.nan, math.nan
    largest = exposure.shares[0]
    if largest.name == "read" and trace.config.location == "slow-drive":
        return "slow_drive", largest.frac, largest.exposed_ms
    if (
        largest.name in CPU_WORK
        and contention.inflates(largest.exposed_ms)
        and not contention.of_training_too
    ):
        return "cpu_contention", contention.waited_ms / exposure.idle_ms, contention.waited_ms
    return largest.name, largest.frac, largest.exposed_ms


def _speed_up(
    exposure: Exposure,
    facts: Mapping[str, Any],
    measured: Headroom | None,
    held_up: float,
    device: wording.Device,
) -> wording.SpeedUp:
    """Returns what was measured, else an upper bound: the same steps without the time idle for data, and `held_up`. A
    headroom is one of the steady steps: where epochs begin with long waits it is what the steps between would gain. One
    of other runs above that bound is none: they lost more to loading.
    """
    shares = [share + held_up for share in exposure.idle]
    bound = arrays.Interval(*(1 / (1 - share) if share < 1 else math.inf for share in shares))
    own = own_headroom(facts)
    gain = arrays.UNKNOWN
    if measured is not None and math.isfinite(measured.speed_up):
        gain = arrays.Interval(measured.speed_up, measured.speed_up_low, measured.speed_up_high)
    elif own is not None:
        measured = None
        gain = own.speed_up
    bounded = measured is not None and not device.on_cpu and not exposure.host_paced
    if bounded and gain.low > bound.high:
        gain = arrays.UNKNOWN
    if math.isfinite(gain.value) and exposure.starts.frac < thresholds.EPOCH_STARTS_FRAC:
        return wording.SpeedUp(*gain, measured=True, other_runs=measured is not None)
    return wording.SpeedUp(*bound, measured=False, between=gain.value)
