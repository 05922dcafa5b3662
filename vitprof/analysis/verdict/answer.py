"""One answer for a run: is the device starved, by what, how much is there to gain, and which fix?

Page, terminal, report and Markdown show the same `Answer`, made of the verdict and of the best
evidence there is. The words are made here too, so that a figure reads the same everywhere.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from vitprof.analysis import faster_while_busy, thresholds
from vitprof.analysis.faster_while_busy import WHILE_BUSY
from vitprof.analysis.verdict import idle_cost, rendering
from vitprof.analysis.verdict.advice_rules import END_OTHERS
from vitprof.config.device_rate import DeviceRate
from vitprof.formats import capitalised, count, number, percent
from vitprof.recording.columns import RunSummary
from vitprof.recording.idle_cost import IdleCost
from vitprof.recording.verdict import Advice, Signature, Verdict

Relation = faster_while_busy.Outcome | Literal["unneeded"]
"""How a fix compares with the job before it; "unneeded": undecided, but very likely within 5%."""
GAINLESS: dict[Relation, str] = {
    "equal": "is as fast, within 5%",
    "slower": "is slower",
    "unneeded": "very likely gains at most 5%",
}
"""How a fix compares that is not worth making -> what is said of it."""
WORTH_A_PIECE = 0.005
"""Share of the time below which a part of it is left out of the list in words: it reads as 0%."""
MOST_RUNS_NAMED = 6
"""Runs of a proof that are named where others ran between them; the rest are counted."""
MOST_CAUSES = 3
"""Causes that a line of words names; the rest are added up as "other"."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the training time."""

    name: str
    """A cause of idle time (`Verdict.shares`, other-programs, launches, between-steps), compute, or
    other."""
    words: str
    """What it is called: "transforms"."""
    frac: float
    """Its share of the training time, 0 to 1; all parts add up to 1."""

    @property
    def in_words(self) -> str:
        """Returns "transforms 52%"."""
        return f"{self.words} {percent(self.frac)}"


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What runs of a fix and of the job before it, which took turns, have shown."""

    words: str
    """The fix: "memory", "num_workers=2"."""
    key: str
    """The key of its trial in the tournament."""
    place: int | None
    """Its place among the verdict's advice, from 0; None where it is none of it."""
    relation: Relation
    """How the fix compares."""
    times: float
    """How many times as fast it is; while other programs ran only `low` is said."""
    low: float
    """Lower end of the 95% interval; where it is faster while busy, the bound."""
    high: float
    """Upper end of the 95% interval; NaN where it is faster while busy: no end is known."""
    others_cores: float
    """CPU cores that other programs used meanwhile, at least or on average; 0 where they used next to
    none."""
    tournament_id: int
    """The tournament in which they ran."""
    n_rounds: int = 0
    """Rounds that count; in each of them both ran once. 0 where that is not known."""
    run_ids: tuple[int, ...] = ()
    """The runs of both that count, by number."""
    patch_command: str = ""
    """What to type to have the fix as a patch of a user's script; "" where it cannot be one."""

    @property
    def quiet(self) -> bool:
        """Returns whether other programs left the machine alone."""
        return self.others_cores == 0


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """How fast the job would be with free data: no fix of its loading can gain more."""

    times: float
    low: float
    high: float
    measured: bool
    """Whether replayed batches have shown it; else it is computed from the waits."""
    disturbed: bool
    """Whether other programs slowed loading and training alike, so that it holds only with them."""
    of_quiet_machine: bool = False
    """Whether other programs are a cause of the waits, and it is computed without what they cost."""

    @property
    def most(self) -> float:
        """Returns the upper end of its interval; the figure itself where there is none."""
        # in this order: the end of an interval may be NaN
        return max(self.times, self.high)


@dataclass(frozen=True, kw_only=True)
class Fix:
    """What to change."""

    words: str
    """The change: "strategy memory", "num_workers=2"."""
    place: int | None
    """Its place among the verdict's advice, from 0; None where a tournament found it."""
    most_times: float
    """How many times as fast it may be, estimated from the stages; NaN if that is not known."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The four answers on a run."""

    headline: str
    """The verdict in a word or two."""
    reason: str
    """The first sentence of the verdict: the figure, or why there is none."""
    details: str
    """What the verdict says beyond the four answers; "" without."""
    is_conclusive: bool
    """Whether there is a verdict. If not, only headline, reason and details are filled in."""
    waits_for: str
    """What the idle share is of: "data", "data and copies", "kernel launches"."""
    frac: float
    """Share of the training time that the device waited for it: the figure of the verdict."""
    low: float
    """Lower end of its 95% interval."""
    high: float
    """Upper end of its 95% interval."""
    n_steps: int
    """Steps behind it."""
    parts: tuple[Part, ...]
    """The training time: what the device waits for, the largest first, then the rest, then compute."""
    ceiling: Ceiling | None
    """What there is to gain at most; None where that is little, or not known."""
    most_frac: float
    """Where the loader is not what the device waits for: what a faster one would gain at most, as a
    share of the speed; else NaN."""
    proof: Proof | None
    """The best proof of a gain; None without."""
    fix: Fix | None
    """The proven fix, else the first advice that no proof refuted."""
    remark: str
    """Why figures differ that a reader would expect to be alike; "" where they do not."""
    advice: tuple[Advice, ...]
    """All that is advised, the best first; `Fix.place` is a place in it."""
    signatures: tuple[Signature, ...]
    """Patterns found, the costliest first."""
    cost: IdleCost | None = None
    """What the idle time cost; None where that is not known, or not its own."""
    refuted: Mapping[int, Proof] = field(default_factory=dict)
    """Places of advice that runs have shown to gain nothing, and these proofs."""
    then: Fix | None = None
    """Where the fix is proven, an advice that no proof has decided and that may gain clearly more;
    where other programs hide what is slow, one that helps in any case; None without one."""


COMPUTE = "compute"
BETWEEN = "between-steps"
LAUNCHES = "launches"
OTHERS = "other-programs"
OTHER = "other"
PART_WORDS = rendering.CAUSE_NAMES | {
    "transfer": "copies",
    "epoch_start": "epoch starts",
    "loading": "loading",
    "rest": "Python in the loader",
    OTHERS: "other programs",
    LAUNCHES: "launching kernels",
    BETWEEN: "between steps",
    COMPUTE: "computes",
}
"""Name of a part -> what it is called."""


OF_THE_RUN = "this run's waits"
OF_THE_BASELINE = "the waits of the baseline's fastest run"
"""What an estimate of the gain with free data follows from: on the page of a run, and on that of a
tournament."""
OTHER_BATCH = (
    "That is more than free data alone would gain: with another batch size the model's own work on a "
    "sample takes another time, too."
)
CLEARLY_MORE = rendering.WORTH_SAYING
"""How many times a proven gain an advice may gain at least to be said beside it."""


def answer_of(
    verdict: Verdict,
    proofs: Sequence[Proof] = (),
    *,
    summary: RunSummary | None = None,
    rate: DeviceRate | None = None,
) -> Answer:
    """Returns the answer on a run, made of its verdict and what proofs have shown.

    The best evidence wins: a proof on a quiet machine over one while other programs ran, over
    headroom, over an estimate. `summary`: the run's figures; without them the answer does not say
    what the idle time cost. `rate`: the price of an hour of one device, if one is given.
    """
    return _answer(verdict, proofs, summary=summary, rate=rate)


def _answer(
    verdict: Verdict,
    proofs: Sequence[Proof],
    *,
    summary: RunSummary | None = None,
    rate: DeviceRate | None = None,
    of_tournament: bool = False,
) -> Answer:
    """Returns the answer on a run, or on the baseline of the tournament that made the proof."""
    text = rendering.render(verdict)
    reason = text.sentences[0] if text.sentences else ""
    conclusive = verdict.is_conclusive and verdict.device is not None
    waits_for = "data and copies" if verdict.copies_included else "data"
    low = verdict.idle_frac_low
    high = verdict.idle_frac_high
    if verdict.kind == "launch-bound":
        waits_for = PART_WORDS[LAUNCHES]
        low = verdict.paced_frac_low
        high = verdict.paced_frac_high
    proof = best_proof(proofs) if conclusive else None
    ceiling = _ceiling(verdict) if conclusive else None
    parts = _parts(verdict) if conclusive else ()
    cost = None
    if conclusive and summary is not None:
        evidence = _evidence(proof, ceiling)
        cost = idle_cost.idle_cost_of(verdict, summary, _shares(parts), evidence, rate)
    remark = ""
    fix = _fix(verdict, proofs, proof) if conclusive else None
    then = _then(verdict, proofs, proof) if conclusive else None
    if proof is not None and ceiling is not None:
        if _is_of_a_busy_baseline(proof, ceiling) and not of_tournament:
            remark = _busy_in_words(proof)
            proof = None
        else:
            remark = _above_the_ceiling(proof, ceiling, of_tournament=False)
            ceiling = None if remark else ceiling
    return Answer(
        headline=text.headline,
        reason=reason,
        details=" ".join([*text.details, *_late_ranks(verdict)]),
        is_conclusive=conclusive,
        waits_for=waits_for,
        frac=verdict.stated_idle_frac,
        low=low,
        high=high,
        n_steps=verdict.n_judged,
        parts=parts,
        ceiling=ceiling,
        most_frac=_most_frac(verdict) if conclusive else math.nan,
        proof=proof,
        fix=fix,
        remark=remark,
        advice=verdict.advice,
        signatures=verdict.signatures,
        cost=cost,
        refuted=refuted_by(proofs),
        then=then,
    )


def answer_of_tournament(baseline: Verdict, found: Proof | None, *, same_batch: bool) -> Answer:
    """Returns the answer of a tournament: how its baseline was starved, by the verdict on the
    fastest run of it, and what the recommended setting gains against it.

    `found`: None where the baseline itself is recommended, or nothing is. `same_batch`: whether both
    have the same batch size.
    """
    answer = _answer(baseline, () if found is None else (found,), of_tournament=True)
    fix = None
    if found is not None and found.relation in ("faster", WHILE_BUSY):
        fix = Fix(words=found.words, place=None, most_times=math.nan)
    then = answer.then
    # other settings than the recommended one were compared, too: their advice may be decided
    if then is not None and _can_be_run(answer.advice, then):
        then = None
    return replace(
        answer, fix=fix, then=then, remark=_tournament_remark(baseline, answer, same_batch)
    )


def _tournament_remark(baseline: Verdict, answer: Answer, same_batch: bool) -> str:
    """Returns why the gain of a tournament's answer has no ceiling beside it; "" where it has one."""
    ceiling = _ceiling(baseline)
    if not answer.remark or answer.proof is None or ceiling is None:
        return ""
    if same_batch:
        return _above_the_ceiling(answer.proof, ceiling, of_tournament=True)
    # free data are no bound then, and an interval that reaches above it needs no reason
    return OTHER_BATCH if _as_said(answer.proof) > ceiling.most else ""


def answer_so_far(
    n_steps: int,
    waits_frac: float,
    idle_frac: float,
    *,
    training_s: float = math.nan,
    rate: DeviceRate | None = None,
    n_devices: int = 1,
    simulated: bool = False,
) -> Answer:
    """Returns what is known of a run that goes on: how long the device waited for data, and the most
    that there is to gain.

    `waits_frac`, `idle_frac`: the share of the time in which the device waited for data, and in
    which it was idle for any reason. `training_s`: that time, in seconds. `rate`: the price of an
    hour of each of the `n_devices`, if one is given.
    """
    other_frac = max(0.0, idle_frac - waits_frac)
    ceiling = None
    if thresholds.MODERATE_FRAC <= waits_frac < 1:
        most = 1 / (1 - waits_frac)
        ceiling = Ceiling(times=most, low=most, high=most, measured=False, disturbed=False)
    compute_frac = max(0.0, 1 - waits_frac - other_frac)
    shares: idle_cost.Shares = {
        "compute": compute_frac,
        "waiting": waits_frac,
        "other": other_frac,
    }
    cost = idle_cost.idle_cost_so_far(
        training_s, shares, rate, n_devices=n_devices, simulated=simulated
    )
    return Answer(
        headline="So far",
        reason="",
        details="",
        is_conclusive=True,
        waits_for="data",
        frac=waits_frac,
        low=math.nan,
        high=math.nan,
        n_steps=n_steps,
        parts=(
            _part("loading", waits_frac, "waits for data"),
            _part(OTHER, other_frac, "idle otherwise"),
            _part(COMPUTE, compute_frac),
        ),
        ceiling=ceiling,
        most_frac=math.nan,
        proof=None,
        fix=None,
        remark="",
        advice=(),
        signatures=(),
        cost=cost,
    )


def _evidence(proof: Proof | None, ceiling: Ceiling | None) -> idle_cost.Evidence:
    """Returns by how much the job was seen to be faster. What was measured while other programs ran
    is not counted: without them it may be another figure."""
    proven_times = math.nan
    if proof is not None and proof.quiet:
        proven_times = proof.times
    measured_times = math.nan
    if ceiling is not None and ceiling.measured and not ceiling.disturbed:
        measured_times = ceiling.times
    return idle_cost.Evidence(proven_times, measured_times)


def _shares(parts: Sequence[Part]) -> idle_cost.Shares:
    """Returns the training time in few parts: all that is waited for is one of them."""
    launches_frac = math.fsum(part.frac for part in parts if part.name == LAUNCHES)
    between_frac = math.fsum(part.frac for part in parts if part.name == BETWEEN)
    compute_frac = math.fsum(part.frac for part in parts if part.name == COMPUTE)
    apart = (LAUNCHES, BETWEEN, COMPUTE)
    waiting_frac = math.fsum(part.frac for part in parts if part.name not in apart)
    return {
        "compute": compute_frac,
        "waiting": waiting_frac,
        "launches": launches_frac,
        "between-steps": between_frac,
    }


def best_proof(proofs: Sequence[Proof]) -> Proof | None:
    """Returns the proof of a gain that counts most: one on a quiet machine, then the largest gain
    that is sure; None without a gain."""
    gains = [proof for proof in proofs if proof.relation in ("faster", WHILE_BUSY)]
    return max(gains, key=lambda proof: (proof.quiet, proof.low), default=None)


def _ceiling(verdict: Verdict) -> Ceiling | None:
    is_slow = verdict.kind in ("input-bound", "moderately input-bound")
    if not is_slow or verdict.gain is None:
        return None
    others = verdict.other_programs
    if verdict.is_of_other_programs:
        return _ceiling_without_others(verdict)
    return Ceiling(
        times=verdict.gain.times,
        low=verdict.gain.low,
        high=verdict.gain.high,
        measured=verdict.gain.basis != "estimate",
        disturbed=others is not None and others.slow_training_too,
    )


def _ceiling_without_others(verdict: Verdict) -> Ceiling | None:
    """Returns how fast the job would be with free data and without other programs, which are a cause of
    its waits; None where they may have hidden what else takes the time, or slow training, too."""
    others = verdict.other_programs
    if verdict.cause != "cpu_contention" or others is None or others.slow_training_too:
        return None
    if not others.idle_frac_without < 1:
        return None
    times = 1 / (1 - others.idle_frac_without)
    return Ceiling(
        times=times, low=times, high=times, measured=False, disturbed=False, of_quiet_machine=True
    )


def _most_frac(verdict: Verdict) -> float:
    if verdict.kind not in ("not input-bound", "launch-bound") or verdict.replay:
        return math.nan
    frac = rendering.most_gain_frac(verdict)
    return frac if math.isfinite(frac) else math.nan


def _as_said(proof: Proof) -> float:
    """Returns how many times as fast a fix is, as it is said."""
    return proof.times if proof.quiet else proof.low


def _is_of_a_busy_baseline(proof: Proof, ceiling: Ceiling) -> bool:
    """Returns whether a proof while other programs ran gained more than was measured with free data: these
    slowed the job before the fix more than the job with it."""
    is_known = ceiling.measured and not ceiling.disturbed
    return is_known and not proof.quiet and _as_said(proof) > ceiling.most


def _busy_in_words(proof: Proof) -> str:
    times = times_in_words(proof)
    return (
        f"While other programs ran, {proof.words} was {times} as fast (tournament "
        f"{proof.tournament_id}): they slow the job without it more."
    )


def _above_the_ceiling(proof: Proof, ceiling: Ceiling, *, of_tournament: bool) -> str:
    """Returns why a proven gain, or the upper end of its interval, is above what free data would
    gain; "" where neither is.

    `of_tournament`: whether it is said on the page of the tournament that has shown the gain.
    """
    of = OF_THE_BASELINE if of_tournament else OF_THE_RUN
    most = f"{number(ceiling.times)}x that free data would gain by {of}"
    if ceiling.measured:
        most = f"{number(ceiling.times)}x that was measured with free data"
    if _as_said(proof) > ceiling.most:
        times = capitalised(times_in_words(proof))
        if of_tournament:
            return (
                f"{times} is more than the {most}: the machine was faster or slower in other runs."
            )
        return (
            f"{times} is more than the {most}: the machine was faster or slower at one of the two "
            f"times. Compare the figures of tournament {proof.tournament_id}."
        )
    if proof.quiet and proof.high > ceiling.most:
        return (
            f"The interval of the gain reaches above the {most}, because its rounds differ: more "
            "rounds make it narrower."
        )
    return ""


def _parts(verdict: Verdict) -> tuple[Part, ...]:
    """Returns the training time in parts, which add up to 1."""
    waits = _waits(verdict)
    host_frac = _known(verdict.host_frac)
    bubbles_frac = _known(verdict.launch_frac)
    between_frac = _between(verdict, host_frac)
    rest = [
        _part(LAUNCHES, host_frac + bubbles_frac),
        _part(BETWEEN, between_frac),
    ]
    found = [*waits, *(part for part in rest if part.frac > 0)]
    taken = math.fsum(part.frac for part in found)
    return (*found, _part(COMPUTE, max(0.0, 1 - taken)))


def _between(verdict: Verdict, host_frac: float) -> float:
    """Returns the share of the time between steps, at most what is left of the time.

    Where the CPU trains it is counted by another clock than the rest.
    """
    left = 1 - _known(verdict.idle_frac) - host_frac
    return max(0.0, min(_known(verdict.outside_frac), left))


def _waits(verdict: Verdict) -> list[Part]:
    """Returns what the device waited for, the longest first.

    Where other programs took the cores of the loader, its stages are added up: which of them
    takes long without these programs is not known.
    """
    idle_frac = _known(verdict.idle_frac)
    if verdict.cause == "cpu_contention":
        of_others = min(1.0, verdict.cause_frac) * idle_frac
        return [_part(OTHERS, of_others), _part("loading", idle_frac - of_others)]
    if verdict.cause == "unclear":
        return [_part("loading", idle_frac, UNCLEAR)]
    if not verdict.shares:
        return [_part("loading", idle_frac)] if idle_frac > 0 else []
    parts = []
    for share in verdict.shares:
        words = ""
        if share.name == verdict.cause:
            words = _stage_words(verdict)
        elif share.name == "read" and verdict.of_own_script:
            words = READS["dataset"]
        parts.append(_part(share.name, share.frac * idle_frac, words))
    return parts


def _stage_words(verdict: Verdict) -> str:
    """Returns what the stage that is waited for most is called, with what does the work: "decoding
    (PIL)", "dataset (waiting)"; "" where its usual name says all."""
    part = verdict.cause_part
    if verdict.cause == "read":
        return READS.get(part, f"reading ({part})" if part else "")
    if verdict.cause == "decode" and part:
        return f"decoding ({part})"
    return ""


UNCLEAR = "loading (stage unclear)"
"""What loading is called where other programs make it unclear which stage of it takes longest."""
READS = {"waits": "dataset (waiting)", "dataset": "dataset"}
"""`Verdict.cause_part` of a user's own script that reads -> what its share of the time is called."""


def _part(name: str, frac: float, words: str = "") -> Part:
    return Part(name=name, words=words or PART_WORDS.get(name, name), frac=frac)


def _late_ranks(verdict: Verdict) -> list[str]:
    """Returns which ranks hold up the others: "Rank 1 holds up the others 30% of the time."."""
    late = verdict.late_ranks
    if late is None or not verdict.is_conclusive:
        return []
    who = "The last rank, another one each time, holds"
    if len(late.ranks) == 1:
        who = f"Rank {late.ranks[0]} holds"
    elif late.ranks:
        who = f"Ranks {', '.join(map(str, late.ranks))} hold"
    return [f"{who} up the others {percent(late.frac)} of the time."]


def _known(frac: float) -> float:
    return frac if math.isfinite(frac) else 0.0


def _fix(verdict: Verdict, proofs: Sequence[Proof], proven: Proof | None) -> Fix | None:
    if proven is not None:
        return Fix(words=proven.words, place=proven.place, most_times=math.nan)
    refuted = refuted_by(proofs)
    for place, advice in enumerate(verdict.advice):
        if place not in refuted:
            words = advice.in_short or _in_short(advice)
            return Fix(words=words, place=place, most_times=advice.most_times)
    return None


def refuted_by(proofs: Sequence[Proof]) -> dict[int, Proof]:
    """Returns the places of advice that gains nothing, each with the newest proof of that."""
    refuted: dict[int, Proof] = {}
    for proof in proofs:
        if proof.place is not None and proof.relation in GAINLESS:
            refuted.setdefault(proof.place, proof)
    return refuted


def _then(verdict: Verdict, proofs: Sequence[Proof], proven: Proof | None) -> Fix | None:
    """Returns the advice that may gain most, where that is clearly more than the proven fix gains
    and no proof has decided it; None without one.

    A gain while other programs ran is a lower bound: nothing is clearly more than that. Where they
    hide what is slow, it is what helps in any case.
    """
    if proven is None:
        return _in_any_case(verdict, proofs)
    if not proven.quiet:
        return None
    decided = {proof.place for proof in proofs if proof.relation != "undecided"}
    least_times = CLEARLY_MORE * max(proven.times, proven.high)
    found = None
    for place, advice in enumerate(verdict.advice):
        if place in decided or not advice.most_times >= least_times:
            continue
        if found is None or advice.most_times > found.most_times:
            words = advice.in_short or _in_short(advice)
            found = Fix(words=words, place=place, most_times=advice.most_times)
    return found


def _in_any_case(verdict: Verdict, proofs: Sequence[Proof]) -> Fix | None:
    """Returns the first setting that is advised besides ending other programs; None where that is not
    advised first, or runs have shown that no setting gains anything."""
    if not verdict.advice or verdict.advice[0] != END_OTHERS:
        return None
    refuted = refuted_by(proofs)
    for place, advice in enumerate(verdict.advice):
        if advice.settings and place not in refuted:
            return Fix(words=_in_short(advice), place=place, most_times=math.nan)
    return None


def _can_be_run(advice: Sequence[Advice], fix: Fix) -> bool:
    """Returns whether a run can show what an advised fix gains: a setting of vitprof's own job, or an
    argument of a script's DataLoader."""
    if fix.place is None:
        return False
    advised = advice[fix.place]
    return bool(advised.settings or advised.arguments)


def _in_short(advice: Advice) -> str:
    """Returns an advice as what is written: "num_workers=2" for "setting num_workers=2 in the
    DataLoader"."""
    if not advice.arguments:
        return advice.words
    return advice.words.removeprefix("setting ").removesuffix(" in the DataLoader")


# The answers in words.


def interval_in_words(answer: Answer) -> str:
    """Returns "95%: 72% to 75%, 145 steps"."""
    spread = f"95%: {percent(answer.low)} to {percent(answer.high)}, "
    if not math.isfinite(answer.low):
        spread = ""
    return f"{spread}{answer.n_steps:,} steps"


def named_parts(answer: Answer) -> list[Part]:
    """Returns the parts of the time that are worth a name: the causes of idle time, the longest
    first and the small ones added up as "other", then compute."""
    causes = [part for part in answer.parts if part.name != COMPUTE]
    compute = [part for part in answer.parts if part.name == COMPUTE]
    named = sorted(causes, key=lambda part: -part.frac)
    rest = named[MOST_CAUSES:]
    shown = [part for part in named[:MOST_CAUSES] if part.frac >= WORTH_A_PIECE]
    other_frac = math.fsum(part.frac for part in rest)
    if other_frac >= WORTH_A_PIECE:
        shown.append(_part(OTHER, other_frac))
    return shown + compute


def causes_in_words(answer: Answer) -> str:
    """Returns what the device waits for: "transforms 52%, decoding 20%, copies 2%"."""
    causes = [part for part in named_parts(answer) if part.name != COMPUTE]
    return ", ".join(part.in_words for part in causes)


def ceiling_in_words(answer: Answer) -> str:
    """Returns "up to 3.8x"; "" where nothing is known."""
    if answer.ceiling is None:
        return ""
    return f"up to {number(answer.ceiling.times)}x"


def ceiling_interval_in_words(answer: Answer) -> str:
    """Returns "estimated, 8.4 to 16.3 with free data"; without the interval where it is narrow."""
    ceiling = answer.ceiling
    if ceiling is None:
        return ""
    if ceiling.of_quiet_machine:
        return "estimated, with free data on a quiet machine"
    words = "with free data"
    if _needs_interval(ceiling, answer.proof):
        words = f"{number(ceiling.low)} to {number(ceiling.high)} {words}"
    if ceiling.disturbed:
        words += " while other programs run"
    return f"measured, {words}" if ceiling.measured else f"estimated, {words}"


def ceiling_beside_proof_in_words(answer: Answer) -> str:
    """Returns what a proven gain is held against: "up to 3.41x (3.27 to 3.55) with free data"; ""
    where nothing is known."""
    ceiling = answer.ceiling
    if ceiling is None:
        return ""
    interval = ""
    if _reaches_above(answer.proof, ceiling.times):
        interval = f" ({number(ceiling.low)} to {number(ceiling.high)})"
    return f"{ceiling_in_words(answer)}{interval} with free data"


def _needs_interval(ceiling: Ceiling, proof: Proof | None) -> bool:
    """Returns whether a ceiling is said with its interval: where that is wide, and where a proven
    gain, or its interval, would seem to be above the ceiling without it."""
    is_wide = ceiling.high > rendering.WORTH_AN_INTERVAL * ceiling.times
    return is_wide or _reaches_above(proof, ceiling.times)


def _reaches_above(proof: Proof | None, times: float) -> bool:
    """Returns whether a proven gain, or the upper end of its interval, is above so many times."""
    if proof is None:
        return False
    return _as_said(proof) > times or (proof.quiet and proof.high > times)


def most_in_words(answer: Answer) -> str:
    """Returns what a faster loader would gain where it is not waited for: "at most 6.0%"."""
    if not math.isfinite(answer.most_frac):
        return ""
    return f"at most {percent(answer.most_frac)}"


def proof_in_words(answer: Answer) -> str:
    """Returns "3.1x (proven, 95%: 2.4 to 5.9; 3 rounds, runs 12 to 17)"; "" without a proof."""
    proof = answer.proof
    if proof is None:
        return ""
    words = proof_conditions_in_words(proof)
    runs = proof_runs_in_words(proof)
    if runs:
        words += f"; {runs}"
    return f"{times_in_words(proof)} ({words})"


def times_in_words(proof: Proof) -> str:
    """Returns how many times as fast the fix is: "3.1x"; "at least 1.87x" while other programs
    ran."""
    if proof.quiet:
        return f"{number(proof.times)}x"
    return faster_while_busy.at_least_words(proof.low)


def proof_runs_in_words(proof: Proof) -> str:
    """Returns what a proof rests on: "3 rounds, runs 12 to 17"; "" where that is not known."""
    if not proof.n_rounds or not proof.run_ids:
        return ""
    rounds = count(proof.n_rounds, "round")
    first = min(proof.run_ids)
    last = max(proof.run_ids)
    if len(proof.run_ids) == last - first + 1:
        return f"{rounds}, runs {first} to {last}"
    shown = ", ".join(map(str, sorted(proof.run_ids)[:MOST_RUNS_NAMED]))
    n_more = len(proof.run_ids) - MOST_RUNS_NAMED
    more = f" and {n_more} more" if n_more > 0 else ""
    return f"{rounds}, runs {shown}{more}"


def proof_conditions_in_words(proof: Proof) -> str:
    """Returns how sure a proof is: "proven, 95%: 2.4 to 5.9"; "in tournament 3, while other programs
    ran", of which nothing follows for a quiet machine."""
    if proof.quiet:
        return f"proven, 95%: {number(proof.low)} to {number(proof.high)}"
    return f"in tournament {proof.tournament_id}, while other programs ran"


def gain_in_words(answer: Answer) -> str:
    """Returns what there is to gain, what is proven first: "proven 3.1x (2.4 to 5.9); up to 3.8x
    (with free data)"."""
    most = ceiling_in_words(answer)
    if most:
        most = f"{most} ({ceiling_interval_in_words(answer)})"
    by_loader = most_in_words(answer)
    if by_loader:
        by_loader += " with a faster loader"
    known = (proof_in_words(answer), most, by_loader)
    return "; ".join(words for words in known if words)


def fix_in_words(answer: Answer) -> str:
    """Returns what to change, and then what may gain more: "2 workers, then a lighter GaussianBlur (up
    to about 3.22x by itself)"; "" where nothing is advised."""
    return ", ".join(
        words for words in (first_fix_in_words(answer), then_in_words(answer)) if words
    )


def first_fix_in_words(answer: Answer) -> str:
    """Returns what to change first: "num_workers=2 (up to about 1.50x)"; "" where nothing is
    advised."""
    fix = answer.fix
    if fix is None:
        return ""
    if fix.most_times >= rendering.WORTH_SAYING:
        return f"{fix.words} (up to about {number(fix.most_times)}x)"
    return fix.words


def then_in_words(answer: Answer) -> str:
    """Returns which advice may gain clearly more than the proven fix: "then a lighter GaussianBlur
    (up to about 3.22x by itself)"; "" without one.

    Where runs can decide it, it may change what the fix changes: "or num_workers=4 (...)". Where other
    programs hide what is slow: "or strategy memory: it helps whichever stage is slow".
    """
    then = answer.then
    if answer.fix is None or then is None:
        return ""
    if math.isnan(then.most_times):
        return f"or {then.words}: it helps whichever stage is slow"
    joined = "or" if _can_be_run(answer.advice, then) else "then"
    return f"{joined} {then.words} (up to about {number(then.most_times)}x by itself)"


def other_advice(answer: Answer) -> list[Advice]:
    """Returns what else is advised than the fix, without what runs have shown to gain nothing."""
    in_fix = answer.fix.place if answer.fix is not None else None
    found = []
    for place, advice in enumerate(answer.advice):
        if place != in_fix and place not in answer.refuted:
            found.append(advice)
    return found


def refuted_in_words(answer: Answer) -> list[str]:
    """Returns the advice that runs have shown to gain nothing: "augmentation on the device is slower:
    0.821x (proven, 95%: 0.745 to 0.904)"."""
    found = []
    for place, proof in sorted(answer.refuted.items()):
        how = proof_conditions_in_words(proof)
        compares = f"{GAINLESS[proof.relation]}: {times_in_words(proof)} ({how})"
        found.append(f"{answer.advice[place].words} {compares}")
    return found


def cost_in_words(answer: Answer) -> str:
    """Returns what the idle time cost; "" where that is not known."""
    return "" if answer.cost is None else idle_cost.cost_in_words(answer.cost)


def lines(answer: Answer) -> list[tuple[str, str]]:
    """Returns the questions after the first, each with its answer; those that have none are left
    out. The first one is answered by headline and reason."""
    if not answer.is_conclusive:
        return []
    questions = (
        ("By what?", causes_in_words(answer)),
        ("Gain?", gain_in_words(answer)),
        ("Fix?", fix_in_words(answer)),
        ("Cost?", cost_in_words(answer)),
    )
    return [(question, words) for question, words in questions if words]
