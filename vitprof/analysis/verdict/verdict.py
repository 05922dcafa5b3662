"""The verdict on a run: is the device starved by data loading, by which stage, and what would help.

In one sentence.
"""

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
from vitprof.recording.verdict import Kind, Signature, Verdict

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
    """Returns the verdict on a finished (or stopped, or failed) run.

    `config` is resolved; `facts` holds the run's facts and its environment. `headroom` is the
    speed-up that replaying batches measured, if it was; for a user's own script it is read from the
    facts. `alternatives` are other ways to run the same job. `possible` says whether a config can
    run on this machine; without it, nothing that needs extra packages is advised. `gaps` are the
    run's, if already known.

    The lower end of the 95% interval of the share of time that the device idled for data decides
    (`analysis.thresholds`). Shares are of the wall clock of training: steady steps and epoch
    starts. The verdict is inconclusive with too few steady steps, without device work, if the
    interval reaches from "not" to "input-bound", and where the waits of the loop that trains are
    not known.
    """
    trace = Trace(steps, telemetry, config, facts)
    device = wording.find_device(config, facts, gpu_util_pct(telemetry, steps, phases, facts))
    bare = Verdict(
        kind="inconclusive",
        sentence="",
        signatures=find_signatures(trace),
        n_steps=trace.n_steady,
        simulated=device.simulated,
    )
    if reason := _why_not_measured(trace, device, phases, gaps):
        return _inconclusive(bare, reason)
    exposure = find_exposure(config, steps, phases, gaps)
    if reason := _no_interval(exposure):
        return _inconclusive(bare, reason)
    measured = dataclasses.replace(
        bare,
        idle_frac=exposure.idle.value,
        idle_frac_low=exposure.idle.low,
        idle_frac_high=exposure.idle.high,
        host_frac=exposure.host.value,
        launch_frac=exposure.launches.value,
        shares=exposure.shares,
        single_event=exposure.event,
    )
    held_up = _held_up(config, facts, exposure)
    if held_up and saturated(trace):  # by other programs, or by the loader: that cannot be told
        if _kind(exposure, 0.0) == "launch-bound":
            return _inconclusive(measured, no_verdict.held_up(held_up))
        held_up = 0.0
    kind = _kind(exposure, held_up)
    if reason := _why_no_class(trace, device, exposure, kind):
        return _inconclusive(measured, reason)
    contention = find_contention(trace, exposure.idle_ms, on_cpu=device.on_cpu)
    cause, cause_frac, cause_ms = find_cause(trace, exposure, kind, contention, held_up)
    caused = dataclasses.replace(
        measured, cause=cause, cause_frac=cause_frac, cause_ms_per_batch=cause_ms
    )
    undisturbed_frac = contention.idle_frac_without(exposure.idle_ms, exposure.step_s * 1e3)
    if cause == "cpu_contention" and undisturbed_frac < _edge(exposure.idle.low):
        return _inconclusive(caused, no_verdict.disturbed(device, exposure, undisturbed_frac))
    speed_up = wording.SpeedUp(math.nan, math.nan, math.nan, measured=False)
    if _gain_is_known(facts):
        speed_up = _speed_up(exposure, facts, headroom, held_up, device)
    situation = _situation(trace, device, exposure, kind, cause, held_up, bare.signatures)
    advice = advise(situation, alternatives=alternatives, possible=possible)
    return dataclasses.replace(
        caused,
        kind=kind,
        sentence=wording.verdict_sentence(
            situation, device, exposure, cause_frac, speed_up, advice, contention
        ),
        advice=advice,
        speed_up_if_free=speed_up.value,
        speed_up_measured=speed_up.measured,
        speed_up_low=speed_up.low,
        speed_up_high=speed_up.high,
    )


def _inconclusive(known: Verdict, reason: str) -> Verdict:
    """Returns `known` as a verdict without a class, for a `reason`."""
    words = reason if reason.startswith(no_verdict.HEADED) else f"inconclusive: {reason}"
    return dataclasses.replace(known, sentence=f"{words[0].upper()}{words[1:]}.")


def _why_not_measured(
    trace: Trace, device: wording.Device, phases: Sequence[Phase], gaps: RunGaps | None
) -> str:
    """Returns why the device's idle time is not known; "" if it may be."""
    facts = trace.facts
    if trace.config.loader_only:
        train = "run the same settings with training"
        return f"a loader-only run has no device work that could wait for data; {train}"
    n_all = len(trace.steps["step"])
    if reason := no_verdict.not_measurable(facts, n_all):
        return reason
    untimed = facts.get("untimed_device")
    n_steady = trace.n_steady
    if n_steady < thresholds.MIN_STEPS:
        starved_frac = math.nan
        if n_steady and not untimed:
            starved_frac = _starved(gaps or RunGaps.of(trace.steps, phases))
        few = no_verdict.too_few(
            trace.config, n_all, n_steady, thresholds.MIN_STEPS, device, starved_frac
        )
        return no_verdict.trained_again(facts) + few
    if untimed:
        waiting, idle = _waiting(trace.steps, trace.steady, facts)
        return no_verdict.untimed(str(untimed), waiting, idle, facts)
    return ""


def _why_no_class(trace: Trace, device: wording.Device, exposure: Exposure, kind: Kind) -> str:
    """Returns why the idle time that was measured puts the run into no class; "" if it does."""
    idle, low, high = exposure.idle
    waits = wording.waits(device, exposure, percent(idle))
    if low < thresholds.MODERATE_FRAC and high > thresholds.INPUT_BOUND_FRAC:
        return (
            f"{waits}, but over {trace.n_steady} steps that may be anything from {percent(low)} to "
            f"{percent(high)}; train for longer, or on a quieter machine"
        )
    outside_loader = wording.outside_loader(trace.facts)
    if outside_loader and kind != "input-bound":
        return f"{waits}; {outside_loader}"
    return ""


def _gain_is_known(facts: Mapping[str, Any]) -> bool:
    """Returns whether it can be told what free data would gain.

    It cannot where batches may be prepared between the loader and the model, and where other ranks,
    which this one waits for, were not seen.
    """
    others_known = facts.get("world_size", 1) < 2 or facts.get("ranks")
    return bool(others_known) and not wording.outside_loader(facts)


def _situation(
    trace: Trace,
    device: wording.Device,
    exposure: Exposure,
    kind: Kind,
    cause: str,
    held_up: float,
    signatures: tuple[Signature, ...],
) -> advice_rules.Situation:
    """Returns the judged run as far as advice and the sentence depend on it."""
    config = trace.config
    if slowest := wording.slowest_loader(trace.facts):
        config = own_script.with_loader(config, {"watched": slowest})
    large = [share for share in exposure.shares if share.frac >= thresholds.WORTH_ADVICE_FRAC]
    if cause == "held_up":  # the shares are of little time
        large = []
    steps = trace.steps
    counted = training(steps)
    samples = float(steps["samples"][counted].sum())
    return advice_rules.Situation(
        config=config,
        cause=cause,
        kind=kind,
        sure=kind != "not input-bound" or exposure.idle.high < thresholds.MODERATE_FRAC,
        simulated=device.simulated,
        on_cpu=device.on_cpu,
        facts=trace.facts,
        free_cores=free_cores(trace),
        waiting_frac=waiting_frac(trace),
        held_up_frac=held_up,
        idle_ms=exposure.idle_ms,
        step_ms=trace.step_s * 1e3,
        samples_per_s=samples / float(np.nansum(steps["step_s"][counted])),
        signatures=signatures,
        causes=tuple(share.name for share in large),
    )


def _starved(gaps: RunGaps) -> float:
    """Returns the share of the time idle for data in few steady steps, if each was mostly that; NaN
    else.
    """
    steady = gaps.steady
    idle_s = steady.exposed_wait_ns / 1e9 + steady.by_step("h2d")
    whole_s = steady.idle_s + steady.compute_ns / 1e9
    mostly_idle = bool((idle_s > 0.5 * whole_s).all())
    if len(idle_s) < thresholds.LEAST_STARVED_STEPS or not mostly_idle:
        return math.nan
    return float(idle_s.sum() / whole_s.sum())


def _waiting(
    steps: arrays.Series, steady: arrays.Mask, facts: Mapping[str, Any]
) -> tuple[float, float]:
    """Returns the share of the loop's time that it waits for data, and of the device's idle time in
    it.

    The second is an estimate: as if each step's work took the device as long as the sampled ones
    did (`estimated_step_s`). NaN without two steady steps in a row.
    """
    rows = np.flatnonzero(steady[:-1] & steady[1:])
    if not len(rows):
        return math.nan, math.nan
    since_s = steps["t_start_s"]
    wait_s = steps["data_wait_s"]
    step_s = float(facts.get("estimated_step_s") or math.nan)
    got_s = since_s + wait_s
    behind_s = step_s * np.arange(len(got_s))
    # the device begins each step once it has its batch, in order
    done_s = np.maximum.accumulate(got_s - behind_s) + behind_s + step_s
    before_done_s = np.concatenate([[-math.inf], done_s[:-1]])
    idle_s = np.clip(got_s - before_done_s, 0.0, wait_s)
    took_s = float((since_s[rows + 1] - since_s[rows]).sum())
    return float(wait_s[rows].sum()) / took_s, float(idle_s[rows].sum()) / took_s


def _held_up(config: RunConfig, facts: Mapping[str, Any], exposure: Exposure) -> float:
    """Returns the share of the time in which the loader keeps Python from launching the model's
    work.

    Its threads or workers do. 0 where that is little, not known, or of no matter since the device
    sets the pace. Not in a thread of the dashboard's: others of its threads may want Python's lock.
    """
    if config.replay or config.isolation == "thread" or synchronous(config):
        return 0.0
    off_cpu = float(facts.get("held_up_frac") or 0.0)
    if off_cpu < thresholds.HELD_UP_FRAC or not exposure.host_paced:
        return 0.0
    held_up = off_cpu * (1 - exposure.idle.value - exposure.outside.value)
    if math.isfinite(exposure.launches.value):
        return min(held_up, exposure.paced.value)
    return held_up


def _kind(exposure: Exposure, held_up: float) -> Kind:
    """Returns the class of a run; launches that the loader held up (`held_up`) count as idle for
    data.
    """
    low = exposure.idle.low + held_up
    least_paced = exposure.paced.low - held_up
    if _pace_decides(exposure, held_up) and least_paced >= thresholds.LAUNCH_BOUND_FRAC:
        return "launch-bound"
    if low < thresholds.MODERATE_FRAC:
        return "not input-bound"
    return "moderately input-bound" if low < thresholds.INPUT_BOUND_FRAC else "input-bound"


def _no_interval(exposure: Exposure) -> str:
    """Returns why the figures that decide have no interval; "" where they have."""
    if not math.isfinite(exposure.idle.value):
        return "the device's times are not known for enough steps"
    unknown_pace = _pace_decides(exposure, 0.0) and not math.isfinite(exposure.paced.low)
    if unknown_pace or not math.isfinite(exposure.idle.low):
        return no_verdict.too_alike(exposure.n)
    return ""


def _pace_decides(exposure: Exposure, held_up: float) -> bool:
    """Returns whether the run may be launch-bound, by the estimates of what the device waits
    for."""
    paced = exposure.paced.value - held_up
    return paced >= thresholds.LAUNCH_BOUND_FRAC and paced > exposure.idle.value + held_up


def _edge(low: float) -> float:
    """Returns where the class of a run begins whose idle share is at least `low`."""
    edges = (thresholds.MODERATE_FRAC, thresholds.INPUT_BOUND_FRAC)
    return max((edge for edge in edges if edge <= low), default=0.0)


def find_cause(
    trace: Trace, exposure: Exposure, kind: Kind, contention: Contention, held_up: float
) -> tuple[str, float, float]:
    """Returns the cause (`Verdict.cause`), its share of the idle time and the milliseconds a batch
    that it costs.

    Other programs are the cause only if the idle time would fall without them. Where the CPU trains
    it would not: they slow loading and training alike.
    """
    if kind == "launch-bound":
        return "launches", 1.0, exposure.paced.value * trace.step_s * 1e3
    if held_up > exposure.idle.value:
        return "held_up", held_up / (held_up + exposure.idle.value), held_up * trace.step_s * 1e3
    if not exposure.shares:
        return "", math.nan, math.nan
    largest = exposure.shares[0]
    # its own limit, whatever the CPU does meanwhile
    if largest.name == "read" and trace.config.location == "slow-drive":
        return "slow_drive", largest.frac, largest.exposed_ms
    inflated = largest.name in CPU_WORK and contention.inflates(largest.exposed_ms)
    if inflated and not contention.of_training_too:
        return "cpu_contention", contention.waited_ms / exposure.idle_ms, contention.waited_ms
    return largest.name, largest.frac, largest.exposed_ms


def _speed_up(
    exposure: Exposure,
    facts: Mapping[str, Any],
    measured: Headroom | None,
    held_up: float,
    device: wording.Device,
) -> wording.SpeedUp:
    """Returns what was measured in other runs or in a script's own, else an upper bound.

    The bound: the same steps without the time that the device idled for data, and without
    `held_up`. A headroom is one of the steady steps: where epochs begin with long waits it is what
    the steps between would gain. One of other runs above that bound is none: they lost more to
    loading.
    """
    idle = exposure.idle
    bound = arrays.Interval(
        _without(idle.value + held_up), _without(idle.low + held_up), _without(idle.high + held_up)
    )
    own = own_headroom(facts)
    gain = arrays.UNKNOWN
    if measured is not None and math.isfinite(measured.speed_up):
        gain = arrays.Interval(measured.speed_up, measured.speed_up_low, measured.speed_up_high)
    elif own is not None:  # measured in this very run, which lost as much to loading
        measured = None
        gain = own.speed_up
    # where the CPU trains, or the host sets the pace, loading slows the steps themselves down: no
    # bound
    bounded = measured is not None and not device.on_cpu and not exposure.host_paced
    if bounded and gain.low > bound.high:
        gain = arrays.UNKNOWN
    if math.isfinite(gain.value) and exposure.starts.frac < thresholds.EPOCH_STARTS_FRAC:
        return wording.SpeedUp(*gain, measured=True, other_runs=measured is not None)
    return wording.SpeedUp(*bound, measured=False, between=gain.value)


def _without(share: float) -> float:
    """Returns how many times as fast a job is without this `share` of its time."""
    return 1 / (1 - share) if share < 1 else math.inf
