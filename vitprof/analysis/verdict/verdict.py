"""The verdict on a run: is the device starved by data loading, by which stage, and what helps."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vitprof.analysis import arrays, rank_report, thresholds
from vitprof.analysis.signatures import find_signatures
from vitprof.analysis.signatures.resources import free_cores, named_cores_taken, waiting_frac
from vitprof.analysis.timing.gaps import RunGaps
from vitprof.analysis.timing.steady import Trace
from vitprof.analysis.verdict import advice_rules, no_verdict, rendering
from vitprof.analysis.verdict.advice import advise
from vitprof.analysis.verdict.evidence import Evidence, slowest_loader
from vitprof.analysis.verdict.headroom import Headroom
from vitprof.config import RunConfig, own_script
from vitprof.recording.columns import Phase
from vitprof.recording.verdict import OF_OTHER_PROGRAMS, Verdict


def judge(
    config: RunConfig,
    steps: arrays.Series,
    phases: Sequence[Phase],
    telemetry: arrays.Series,
    facts: Mapping[str, Any],
    *,
    headroom: Headroom | None = None,
    possible: Callable[[RunConfig], bool] | None = None,
    gaps: RunGaps | None = None,
) -> Verdict:
    """Returns the verdict on a finished (or stopped, or failed) run.

    `config` is resolved; `facts` holds the run's facts and its environment. `headroom` is the
    speed-up that replaying batches measured, if it was; for a user's own script it is read from the
    facts. `possible` says whether a config can run on this machine; without it, nothing that needs
    extra packages is advised. `gaps` are the run's, if already known.

    The lower end of the 95% interval of the share of time that the device idled for data decides
    (`analysis.thresholds`). Shares are of the wall clock of training: steady steps and epoch
    starts. The verdict is inconclusive where a rule of `no_verdict` says why; it then has what was
    measured before that rule.
    """
    evidence = Evidence(Trace(steps, telemetry, config, facts), phases, headroom, gaps)
    verdict = Verdict(
        kind="inconclusive",
        device=evidence.device,
        device_name=str(facts.get("untested_device") or ""),
        n_ranks=int(facts.get("world_size") or 1),
        late_ranks=rank_report.late_ranks(facts),
        replay=config.replay or "",
        cores_taken=named_cores_taken(evidence.trace),
        signatures=find_signatures(evidence.trace),
        n_steps=evidence.trace.n_steady,
        simulated=evidence.device == "simulated",
    )
    for rules, with_figures in (
        (no_verdict.NOT_MEASURED, _with_idle_time),
        (no_verdict.NO_CLASS, _with_cause),
        (no_verdict.NOT_ITS_OWN, _with_class),
    ):
        reason = no_verdict.why_none(rules, evidence)
        if reason is not None:
            return _in_words(dataclasses.replace(verdict, why_none=reason))
        verdict = with_figures(verdict, evidence)
    situation = _situation(evidence, verdict)
    advice = advise(situation, possible=possible)
    return _in_words(dataclasses.replace(verdict, advice=advice))


def _in_words(verdict: Verdict) -> Verdict:
    """Returns the verdict with its sentence."""
    return dataclasses.replace(verdict, sentence=rendering.render(verdict).whole)


def _with_idle_time(verdict: Verdict, evidence: Evidence) -> Verdict:
    """Returns the verdict with how long the device idled, and for what."""
    exposure = evidence.exposure
    copies_frac = sum(share.frac for share in exposure.shares if share.name == "transfer")
    return dataclasses.replace(
        verdict,
        idle_frac=exposure.idle.value,
        idle_frac_low=exposure.idle.low,
        idle_frac_high=exposure.idle.high,
        n_judged=exposure.n + exposure.starts.n,
        copies_included=copies_frac >= thresholds.COPIES_TOLD_FRAC,
        between_frac=exposure.between.value,
        epoch_starts=exposure.starts,
        host_frac=exposure.host.value,
        launch_frac=exposure.launches.value,
        paced_frac=exposure.paced.value,
        paced_frac_low=exposure.paced.low,
        paced_frac_high=exposure.paced.high,
        host_paced=exposure.host_paced,
        gpu_util_frac=evidence.gpu_util_frac,
        outside_frac=evidence.outside_frac,
        asleep_frac=evidence.asleep_frac,
        left_early_frac=evidence.left_early_frac,
        before_model_frac=evidence.before_model_frac,
        shares=exposure.shares,
        slowest_loader=evidence.slowest_loader,
        single_event=exposure.event,
    )


def _with_cause(verdict: Verdict, evidence: Evidence) -> Verdict:
    """Returns the verdict with what the idle time is for."""
    cause, cause_frac, cause_ms = evidence.cause
    taken = evidence.cores_taken if cause in OF_OTHER_PROGRAMS else verdict.cores_taken
    return dataclasses.replace(
        verdict,
        held_up=evidence.held_up,
        shares_cpu_with=evidence.shares_cpu_with,
        cause=cause,
        of_own_script=own_script.is_own_script(evidence.config),
        cause_part=evidence.cause_part,
        cause_frac=cause_frac,
        cause_ms_per_batch=cause_ms,
        other_programs=evidence.other_programs,
        cores_taken=taken,
    )


def _with_class(verdict: Verdict, evidence: Evidence) -> Verdict:
    """Returns the verdict with its class, and with what free data would gain."""
    return dataclasses.replace(verdict, kind=evidence.kind, gain=evidence.gain)


def _situation(evidence: Evidence, verdict: Verdict) -> advice_rules.Situation:
    """Returns the judged run as far as advice depends on it."""
    config = evidence.config
    loader = evidence.facts.get("watched") or {}
    if slowest := slowest_loader(evidence.facts):
        loader = slowest
        config = own_script.with_loader(config, {"watched": slowest})
    causes = [s.name for s in verdict.shares if s.frac >= thresholds.WORTH_ADVICE_FRAC]
    if verdict.cause == "held_up":  # the shares are of little time
        causes = []
    return advice_rules.Situation(
        config=config,
        cause=verdict.cause,
        kind=verdict.kind,
        sure=rendering.is_sure(verdict),
        simulated=verdict.simulated,
        on_cpu=evidence.on_cpu,
        facts=evidence.facts,
        free_cores=free_cores(evidence.trace),
        waiting_frac=waiting_frac(evidence.trace),
        idle_ms=evidence.exposure.idle_ms,
        step_ms=evidence.trace.step_s * 1e3,
        samples_per_s=evidence.samples_per_s,
        signatures=verdict.signatures,
        sampler_ms=evidence.sampler_ms,
        causes=tuple(causes),
        exposed_ms={share.name: share.exposed_ms for share in verdict.shares},
        waited_fracs={share.name: share.frac * verdict.idle_frac for share in verdict.shares},
        loader=loader,
        is_unclear=verdict.is_of_other_programs and evidence.is_unclear,
    )
