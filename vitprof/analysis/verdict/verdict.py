"""The verdict on a run: is the device starved by data loading, by which stage, and what would help. In one sentence."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vitprof.analysis.arrays import Series
from vitprof.analysis.bootstrap import Interval
from vitprof.analysis.signatures import find_signatures
from vitprof.analysis.signatures.resources import free_cores
from vitprof.analysis.thresholds import (
    EPOCH_STARTS_FRAC,
    INPUT_BOUND_FRAC,
    LAUNCH_BOUND_FRAC,
    MIN_STEPS,
    MODERATE_FRAC,
    WORTH_ADVICE_FRAC,
)
from vitprof.analysis.timing.exposure import Exposure, find_exposure
from vitprof.analysis.timing.gaps import RunGaps
from vitprof.analysis.timing.steady import Trace
from vitprof.analysis.verdict.advice import Alternative, advise
from vitprof.analysis.verdict.cause import Situation, find_cause, find_contention
from vitprof.analysis.verdict.headroom import Headroom, own_headroom
from vitprof.analysis.verdict.wording import (
    Device,
    SpeedUp,
    epoch_starts_count,
    event_words,
    find_device,
    not_measurable,
    too_few,
    verdict_sentence,
    waiting,
)
from vitprof.config import RunConfig
from vitprof.formats import percent
from vitprof.recording.columns import Phase
from vitprof.recording.verdict import Kind, Signature, Verdict


def judge(
    config: RunConfig,
    steps: Series,
    phases: Sequence[Phase],
    telemetry: Series,
    facts: Mapping[str, Any],
    *,
    headroom: Headroom | None = None,
    alternatives: Sequence[Alternative] = (),
    possible: Callable[[RunConfig], bool] | None = None,
    gaps: RunGaps | None = None,
) -> Verdict:
    """Returns the verdict on a finished (or stopped, or failed) run.

    `config` is the run's, resolved; `facts` holds its facts and its environment in one mapping. `headroom` is the
    speed-up that replaying batches measured, if it was; for a user's own script it is read from the facts.
    `alternatives` are other ways to run the same job, with predicted or measured speed. `possible` says whether a
    config can run on this machine; without it, nothing that needs extra packages is advised. `gaps` are the run's,
    if already known.

    The lower end of the 95% interval of the share of time that the device idled for data decides
    (`analysis.thresholds`). The verdict is inconclusive with too few steady steps, without device work, if the interval
    reaches from "not" to "input-bound", where the waits of the loop that trains are not known (`unmeasured`), and where
    the waits at epoch starts put the run into another class.
    """
    trace = Trace.of(steps, telemetry, config, facts)
    signatures = find_signatures(trace)
    device = find_device(config, facts)
    n = trace.n_steady
    if config.loader_only:
        return _inconclusive(
            "a loader-only run has no device work that could wait for data; run the same settings with training",
            device,
            n,
            signatures,
        )
    if reason := not_measurable(facts, len(steps["step"])):
        return _inconclusive(reason, device, n, signatures)
    if not n or n < MIN_STEPS:
        return _inconclusive(too_few(config, len(steps["step"]), n, MIN_STEPS), device, n, signatures)
    exposure = find_exposure(config, steps, phases, gaps)
    low, high = exposure.idle.low, exposure.idle.high
    if not math.isfinite(low):
        return _inconclusive("the device's times are not known for enough steps", device, n, signatures)
    kind = _kind(exposure)
    if exposure.starts.frac >= EPOCH_STARTS_FRAC and _kind(exposure.with_epoch_starts) != kind:
        reason = epoch_starts_count(exposure, device.words)
        return _inconclusive(reason, device, n, signatures, exposure)
    event = exposure.event
    if low < MODERATE_FRAC and high > INPUT_BOUND_FRAC:
        reason = (
            f"{device.words} {percent(exposure.idle.value)} of the time, {waiting(exposure)}{event_words(event)}, but "
            f"over {n} steps that may be anything from {percent(low)} to {percent(high)}; train for longer, or on a "
            "quieter machine"
        )
        return dataclasses.replace(_inconclusive(reason, device, n, signatures, exposure), single_event=event)
    sure = kind != "not input-bound" or high < MODERATE_FRAC
    contention = find_contention(config, trace, exposure, on_cpu=device.on_cpu)
    cause, cause_frac, cause_ms = find_cause(config, trace, exposure, kind, contention)
    speed_up = _speed_up(exposure, facts, headroom)
    situation = Situation(
        config=config,
        cause=cause,
        kind=kind,
        sure=sure,
        simulated=device.simulated,
        on_cpu=device.on_cpu,
        facts=facts,
        free_cores=free_cores(trace),
        samples_per_s=(float(steps["samples"][trace.steady].sum()) / float(np.nansum(steps["step_s"][trace.steady]))),
        signatures=signatures,
        causes=tuple(share.name for share in exposure.shares if share.frac >= WORTH_ADVICE_FRAC),
    )
    advice = advise(situation, alternatives=alternatives, possible=possible)
    sentence = verdict_sentence(
        config, device, kind, exposure, event, cause, cause_frac, speed_up, advice, contention, sure=sure
    )
    return dataclasses.replace(
        _verdict(kind, sentence, device, n, signatures, exposure),
        cause=cause,
        cause_frac=cause_frac,
        cause_ms_per_batch=cause_ms,
        speed_up_if_free=speed_up.value,
        speed_up_low=speed_up.low,
        speed_up_high=speed_up.high,
        speed_up_measured=speed_up.measured,
        advice=advice,
        single_event=event,
    )


def _kind(exposure: Exposure) -> Kind:
    """Returns the class of the run. Where both data and launches hold the device up, the larger of the two decides."""
    low = exposure.idle.low
    if exposure.paced.low >= LAUNCH_BOUND_FRAC and exposure.paced.value > exposure.idle.value:
        return "launch-bound"
    if low < MODERATE_FRAC:
        return "not input-bound"
    return "moderately input-bound" if low < INPUT_BOUND_FRAC else "input-bound"


def _inconclusive(
    reason: str, device: Device, n: int, signatures: tuple[Signature, ...], exposure: Exposure | None = None
) -> Verdict:
    return _verdict("inconclusive", f"Inconclusive: {reason}.", device, n, signatures, exposure)


def _verdict(
    kind: Kind, sentence: str, device: Device, n: int, signatures: tuple[Signature, ...], exposure: Exposure | None
) -> Verdict:
    """Returns a verdict with what was measured, without cause, gain and advice."""
    bare = Verdict(kind=kind, sentence=sentence, signatures=signatures, n_steps=n, simulated=device.simulated)
    if exposure is None:
        return bare
    return dataclasses.replace(
        bare,
        idle_frac=exposure.idle.value,
        idle_frac_low=exposure.idle.low,
        idle_frac_high=exposure.idle.high,
        host_frac=exposure.host.value,
        launch_frac=exposure.launches.value,
        shares=exposure.shares,
    )


def _speed_up(exposure: Exposure, facts: Mapping[str, Any], measured: Headroom | None) -> SpeedUp:
    """Returns what was measured in other runs or in a script's own, else an upper bound: the same steps without the
    time that the device idled for data.
    """
    if measured is not None and math.isfinite(measured.speed_up):
        gain = Interval(measured.speed_up, measured.speed_up_low, measured.speed_up_high)
        return SpeedUp(*gain, measured=True, other_runs=True)
    own = own_headroom(facts)
    if own is not None and math.isfinite(own.speed_up.value):
        return SpeedUp(*own.speed_up, measured=True)
    return SpeedUp(*Interval(*(1 / (1 - share) if share < 1 else math.inf for share in exposure.idle)), measured=False)
