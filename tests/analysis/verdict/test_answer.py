"""The four answers on a run: what counts as the best evidence, and figures that agree with each other."""

import dataclasses
import math

import pytest

from vitprof.analysis.faster_while_busy import WHILE_BUSY
from vitprof.analysis.verdict import answer as answers
from vitprof.analysis.verdict.advice_rules import END_OTHERS
from vitprof.analysis.verdict.answer import Proof, answer_of, answer_of_tournament, answer_so_far
from vitprof.recording.verdict import (
    Advice,
    Gain,
    LateRanks,
    NoVerdict,
    OtherPrograms,
    Share,
    Verdict,
)

MEMORY = Advice({"strategy": "memory"}, "strategy memory", "All samples are in memory then.")
WORKERS = Advice({}, "setting num_workers=2", "Two cores are free.", {"num_workers": 2}, 1.5)
BLUR = Advice(
    {},
    "a lighter GaussianBlur, or the non-random transforms done once, in advance",
    "89% of the training time goes into transforms, 78% of that into GaussianBlur.",
    most_times=3.22,
    in_short="a lighter GaussianBlur",
)
STARVED = Verdict(
    kind="input-bound",
    device="gpu",
    idle_frac=0.74,
    idle_frac_low=0.72,
    idle_frac_high=0.75,
    n_judged=145,
    copies_included=True,
    host_frac=0.01,
    cause="transform",
    cause_frac=0.7,
    shares=(
        Share("transform", 0.7, 9.0, 9.0),
        Share("decode", 0.27, 3.0, 3.0),
        Share("transfer", 0.03, 0.3, 0.3),
    ),
    gain=Gain(3.8, 3.6, 3.9, basis="estimate"),
    advice=(MEMORY, WORKERS),
    simulated=False,
)
PROVEN = Proof(
    words="memory, batch 128",
    key="memory/b128/w-/as-is",
    place=0,
    relation="faster",
    times=3.1,
    low=2.4,
    high=3.7,
    others_cores=0.0,
    tournament_id=4,
)


def test_the_parts_of_the_time_add_up_and_make_the_idle_share() -> None:
    answer = answer_of(STARVED)
    assert math.fsum(part.frac for part in answer.parts) == pytest.approx(1)
    waits = [part.frac for part in answer.parts if part.name in ("transform", "decode", "transfer")]
    assert math.fsum(waits) == pytest.approx(answer.frac)
    assert answer.waits_for == "data and copies"
    words = answers.causes_in_words(answer)
    assert words == "transforms 52%, decoding 20%, copies 2.2%, other 1.0%"


def test_small_causes_are_added_up() -> None:
    shares = tuple(Share(name, 0.2, 1.0, 1.0) for name in ("read", "decode", "collate", "rest"))
    verdict = dataclasses.replace(STARVED, idle_frac=0.5, shares=shares, host_frac=0.1)
    named = answers.named_parts(answer_of(verdict))
    assert [part.name for part in named][-2:] == [answers.OTHER, answers.COMPUTE]
    assert len(named) == answers.MOST_CAUSES + 2
    assert math.fsum(part.frac for part in named) == pytest.approx(1)


def test_without_a_proof_the_most_that_there_is_to_gain_stands_alone() -> None:
    answer = answer_of(STARVED)
    assert answers.gain_in_words(answer) == "up to 3.80x (estimated, with free data)"
    assert answers.fix_in_words(answer) == "strategy memory"
    assert answer.fix is not None
    assert answer.fix.place == 0


def test_a_proof_on_a_quiet_machine_wins_over_a_larger_one_while_others_ran() -> None:
    disturbed = dataclasses.replace(PROVEN, times=3.6, low=3.5, high=3.75, others_cores=1.2)
    answer = answer_of(STARVED, [disturbed, PROVEN])
    assert answer.proof == PROVEN
    assert answers.gain_in_words(answer) == (
        "3.10x (proven, 95%: 2.40 to 3.70); up to 3.80x (estimated, with free data)"
    )
    alone = answer_of(STARVED, [disturbed])
    said = answers.gain_in_words(alone)
    assert said.startswith("at least 3.5x (in tournament 4, while other programs ran)")
    assert "proven" not in said


def test_what_was_faster_while_other_programs_ran_is_evidence_and_no_firm_gain() -> None:
    busy = dataclasses.replace(
        PROVEN, relation="faster while busy", times=1.87, low=1.87, high=math.nan, others_cores=1.1
    )
    answer = answer_of(STARVED, [busy])
    assert answer.proof == busy
    assert answers.gain_in_words(answer) == (
        "at least 1.87x (in tournament 4, while other programs ran); "
        "up to 3.80x (estimated, with free data)"
    )
    larger = dataclasses.replace(busy, times=3.7, low=3.7)
    smaller_but_quiet = dataclasses.replace(PROVEN, times=1.5, low=1.4, high=1.6)
    assert answer_of(STARVED, [larger, smaller_but_quiet]).proof == smaller_but_quiet


@pytest.mark.parametrize(
    ("run_ids", "words"),
    [
        ((12, 13, 14, 15), "2 rounds, runs 12 to 15"),
        ((12, 14, 17, 19), "2 rounds, runs 12, 14, 17, 19"),
        ((1, 3, 5, 7, 9, 11, 13, 15), "2 rounds, runs 1, 3, 5, 7, 9, 11 and 2 more"),
        ((), ""),
    ],
)
def test_a_proof_names_its_rounds_and_its_runs(run_ids: tuple[int, ...], words: str) -> None:
    proof = dataclasses.replace(PROVEN, n_rounds=2, run_ids=run_ids)
    assert answers.proof_runs_in_words(proof) == words
    said = answers.proof_in_words(answer_of(STARVED, [proof]))
    assert said == f"3.10x (proven, 95%: 2.40 to 3.70{'; ' if words else ''}{words})"


@pytest.mark.parametrize("relation", ["equal", "slower", "unneeded"])
def test_an_advice_that_a_proof_refuted_is_not_the_fix(relation: answers.Relation) -> None:
    refuted = dataclasses.replace(PROVEN, relation=relation, times=1.0, low=0.98, high=1.02)
    answer = answer_of(STARVED, [refuted])
    assert answer.proof is None
    assert answers.fix_in_words(answer) == "num_workers=2 (up to about 1.50x)"
    undecided = dataclasses.replace(refuted, relation="undecided")
    assert answers.fix_in_words(answer_of(STARVED, [undecided])) == "strategy memory"


def test_no_ceiling_stands_below_a_proven_gain() -> None:
    above = dataclasses.replace(PROVEN, times=4.4, low=4.1, high=4.8)
    answer = answer_of(STARVED, [above])
    assert answer.ceiling is None
    assert "4.40x is more than the 3.80x" in answer.remark
    assert "by this run's waits" in answer.remark
    assert "tournament 4" in answer.remark


def test_no_ceiling_stands_below_the_upper_end_of_a_proven_gain() -> None:
    """3.39x (2.26 to 5.10) stood beside "up to 3.41x with free data"."""
    wide = dataclasses.replace(PROVEN, times=3.7, low=2.26, high=5.1)
    answer = answer_of(STARVED, [wide])
    assert answer.ceiling is None
    assert answers.gain_in_words(answer) == "3.70x (proven, 95%: 2.26 to 5.10)"
    assert answer.remark == (
        "The interval of the gain reaches above the 3.80x that free data would gain by this run's "
        "waits, because its rounds differ: more rounds make it narrower."
    )
    measured = dataclasses.replace(STARVED, gain=Gain(3.8, 3.6, 3.9, basis="other runs"))
    assert "the 3.80x that was measured with free data" in answer_of(measured, [wide]).remark


@pytest.mark.parametrize(
    ("high", "interval"),
    [(3.8, ""), (3.85, " (3.60 to 3.90)"), (3.9, " (3.60 to 3.90)")],
)
def test_a_ceiling_below_the_end_of_a_gain_has_its_own_interval(high: float, interval: str) -> None:
    answer = answer_of(STARVED, [dataclasses.replace(PROVEN, high=high)])
    beside = answers.ceiling_beside_proof_in_words(answer)
    assert beside == f"up to 3.80x{interval} with free data"
    assert ("3.60 to 3.90 with free data" in answers.gain_in_words(answer)) is bool(interval)
    assert answer.remark == ""


def test_a_tournaments_own_page_speaks_of_its_baseline_and_sends_nobody_to_itself() -> None:
    above = dataclasses.replace(PROVEN, times=4.4, low=4.1, high=4.8)
    answer = answer_of_tournament(STARVED, above, same_batch=True)
    assert answer.ceiling is None
    assert answer.remark == (
        "4.40x is more than the 3.80x that free data would gain by the waits of the baseline's "
        "fastest run: the machine was faster or slower in other runs."
    )
    other_batch = answer_of_tournament(STARVED, above, same_batch=False)
    assert other_batch.remark == answers.OTHER_BATCH
    wide = dataclasses.replace(PROVEN, high=5.1)
    of_baseline = answer_of_tournament(STARVED, wide, same_batch=True).remark
    assert "baseline's fastest run" in of_baseline
    assert answer_of_tournament(STARVED, wide, same_batch=False).remark == ""
    assert answer_of_tournament(STARVED, PROVEN, same_batch=True).remark == ""


SMALL = dataclasses.replace(PROVEN, words="2 workers", place=None, times=1.09, low=1.03, high=1.16)


def test_beside_a_proven_fix_stands_what_may_gain_clearly_more() -> None:
    """The card said "2 workers", 1.09x, and a lighter blur, by hand 2.47x, stood far below."""
    verdict = dataclasses.replace(STARVED, advice=(BLUR,))
    answer = answer_of(verdict, [SMALL])
    assert answers.first_fix_in_words(answer) == "2 workers"
    assert answers.fix_in_words(answer) == (
        "2 workers, then a lighter GaussianBlur (up to about 3.22x by itself)"
    )
    assert dict(answers.lines(answer))["Fix?"] == answers.fix_in_words(answer)
    of_tournament = answer_of_tournament(verdict, SMALL, same_batch=True)
    assert answers.fix_in_words(of_tournament) == answers.fix_in_words(answer)


def test_what_runs_can_decide_is_said_as_another_way() -> None:
    many = dataclasses.replace(WORKERS, words="setting num_workers=8", most_times=2.5)
    verdict = dataclasses.replace(STARVED, advice=(WORKERS, many))
    answer = answer_of(verdict, [SMALL])
    assert answers.then_in_words(answer) == "or num_workers=8 (up to about 2.50x by itself)"
    decided = dataclasses.replace(SMALL, place=1, relation="equal", times=1.0)
    left = answer_of(verdict, [SMALL, decided])
    assert answers.then_in_words(left) == "or num_workers=2 (up to about 1.50x by itself)"
    undecided = dataclasses.replace(decided, relation="undecided")
    assert answer_of(verdict, [SMALL, undecided]).then == answer.then
    # a tournament has compared several of them, and shows one
    assert answer_of_tournament(verdict, SMALL, same_batch=True).then is None


@pytest.mark.parametrize(
    ("change", "proofs"),
    [
        ({"most_times": 1.2}, [SMALL]),  # no more than 1.16x may be
        ({"most_times": math.nan}, [SMALL]),
        ({}, []),  # it is the fix itself
        ({}, [dataclasses.replace(SMALL, others_cores=1.1)]),  # a lower bound
        ({}, [dataclasses.replace(SMALL, place=0)]),
    ],
)
def test_what_may_not_gain_clearly_more_does_not_stand_beside_a_fix(
    change: dict[str, float], proofs: list[Proof]
) -> None:
    advice = dataclasses.replace(BLUR, **change)  # type: ignore[arg-type]
    answer = answer_of(dataclasses.replace(STARVED, advice=(advice,)), proofs)
    assert answers.then_in_words(answer) == ""


def test_stages_are_not_told_apart_where_other_programs_took_the_cores() -> None:
    verdict = dataclasses.replace(
        STARVED,
        cause="cpu_contention",
        cause_frac=0.5,
        other_programs=OtherPrograms(0.4, slow_training_too=True),
    )
    answer = answer_of(verdict)
    assert [part.name for part in answer.parts][:2] == [answers.OTHERS, "loading"]
    assert answer.ceiling is None, "without these programs it is another one"


def test_a_launch_bound_run_has_the_share_of_its_own_verdict() -> None:
    verdict = dataclasses.replace(
        STARVED,
        kind="launch-bound",
        idle_frac=0.03,
        idle_frac_low=0.02,
        idle_frac_high=0.04,
        host_frac=0.02,
        launch_frac=0.71,
        paced_frac=0.73,
        paced_frac_low=0.72,
        paced_frac_high=0.74,
    )
    answer = answer_of(verdict)
    assert (answer.frac, answer.waits_for) == (0.73, "launching kernels")
    (launching,) = [part for part in answer.parts if part.name == answers.LAUNCHES]
    assert launching.frac == pytest.approx(answer.frac)
    assert answers.gain_in_words(answer) == "at most 4.2% with a faster loader"


def test_the_stage_that_is_waited_for_most_says_what_does_the_work() -> None:
    share = (Share("read", 1.0, 9.0, 9.0),)
    reads = dataclasses.replace(STARVED, cause="read", cause_part="waits", shares=share)
    assert answers.causes_in_words(answer_of(reads)).startswith("dataset (waiting) 74%")
    of_storage = dataclasses.replace(reads, cause_part="HDF5")
    assert answers.causes_in_words(answer_of(of_storage)).startswith("reading (HDF5) 74%")


def test_without_a_verdict_there_is_the_reason_alone() -> None:
    why = NoVerdict("disturbed", n_steps=60, n_steady=55)
    verdict = dataclasses.replace(STARVED, kind="inconclusive", why_none=why)
    answer = answer_of(verdict, [PROVEN])
    assert answer.headline == "Disturbed"
    assert (answer.parts, answer.ceiling, answer.proof, answer.fix) == ((), None, None, None)
    assert answers.lines(answer) == []
    of_old = answer_of(
        Verdict.from_dict({"kind": "input-bound", "sentence": "a: b.", "simulated": False})
    )
    assert not of_old.is_conclusive


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ((1,), "Rank 1 holds up the others 30% of the time."),
        ((1, 3), "Ranks 1, 3 hold up the others 30% of the time."),
        ((), "The last rank, another one each time, holds up the others 30% of the time."),
    ],
)
def test_ranks_that_hold_up_the_others_are_in_the_details(
    ranks: tuple[int, ...], words: str
) -> None:
    late = LateRanks(ranks, "compute", 0.3, 0.25, 0.35)
    verdict = dataclasses.replace(STARVED, n_ranks=4, late_ranks=late)
    assert words in answer_of(verdict).details
    assert Verdict.from_dict(verdict.to_dict()).late_ranks == late


def test_while_a_run_goes_on_waits_and_the_most_to_gain_are_known() -> None:
    answer = answer_so_far(80, waits_frac=0.5, idle_frac=0.53)
    assert math.fsum(part.frac for part in answer.parts) == pytest.approx(1)
    assert answers.ceiling_in_words(answer) == "up to 2.00x"
    assert answer_so_far(80, waits_frac=0.01, idle_frac=0.02).ceiling is None


def test_advice_that_runs_have_refuted_is_advised_no_more() -> None:
    """A report went on to advise first what had been measured to be 18% slower."""
    slower = dataclasses.replace(
        PROVEN, place=0, relation="slower", times=0.821, low=0.745, high=0.904
    )
    answer = answer_of(STARVED, (slower,))
    assert answer.fix is not None
    assert answer.fix.place == 1
    assert answers.other_advice(answer) == []
    assert answers.refuted_in_words(answer) == [
        "strategy memory is slower: 0.821x (proven, 95%: 0.745 to 0.904)"
    ]
    undecided = answer_of(STARVED, (dataclasses.replace(slower, relation="undecided"),))
    assert not undecided.refuted
    assert answers.other_advice(undecided) == [WORKERS]


def test_the_dataset_of_a_script_has_one_name_whether_it_is_the_cause_or_not() -> None:
    """Page and terminal called it "dataset" as the largest cause, and "reading" as a smaller one."""
    shares = (Share("transform", 0.9, 9.0, 9.0), Share("read", 0.1, 1.0, 1.0))
    own = dataclasses.replace(STARVED, shares=shares, of_own_script=True)
    assert "dataset 7.4%" in answers.causes_in_words(answer_of(own))
    assert "reading 7.4%" in answers.causes_in_words(
        answer_of(dataclasses.replace(own, of_own_script=False))
    )


def test_where_other_programs_hide_what_is_slow_a_fix_is_named_that_helps_in_any_case() -> None:
    """Beside other programs the demonstration ended without any fix."""
    hidden = dataclasses.replace(STARVED, cause="unclear", advice=(END_OTHERS, MEMORY))
    answer = answer_of(hidden)
    assert answers.fix_in_words(answer) == (
        "running again when quiet, or strategy memory: it helps whichever stage is slow"
    )
    assert answer.then is not None
    assert answer.then.place == 1
    refuted = dataclasses.replace(PROVEN, place=1, relation="slower", times=0.9)
    assert answers.fix_in_words(answer_of(hidden, (refuted,))) == "running again when quiet"
    busy = dataclasses.replace(
        PROVEN, place=1, relation=WHILE_BUSY, times=2.4, low=2.4, high=math.nan, others_cores=1.1
    )
    assert answers.fix_in_words(answer_of(hidden, (busy,))).startswith("memory")


def test_a_proof_beside_other_programs_does_not_replace_a_smaller_gain_that_was_measured() -> None:
    """ "At least 5.7x" stood beside 70% idle, of which free data make 3.3x."""
    measured = dataclasses.replace(STARVED, gain=Gain(3.31, 3.0, 3.7, basis="other runs"))
    busy = dataclasses.replace(
        PROVEN, relation=WHILE_BUSY, times=5.7, low=5.7, high=math.nan, others_cores=1.4
    )
    answer = answer_of(measured, (busy,))
    assert answers.gain_in_words(answer) == "up to 3.31x (measured, 3.00 to 3.70 with free data)"
    assert answer.fix is not None
    assert answer.fix.words == "memory, batch 128"
    assert answer.remark == (
        "While other programs ran, memory, batch 128 was at least 5.7x as fast (tournament 4): they slow "
        "the job without it more."
    )
    of_tournament = answer_of_tournament(measured, busy, same_batch=True)
    assert of_tournament.proof == busy, "its own page shows what it measured"


def test_where_other_programs_are_the_cause_the_gain_is_that_of_a_quiet_machine() -> None:
    others = OtherPrograms(idle_frac_without=0.7, slow_training_too=False)
    beside = dataclasses.replace(STARVED, cause="cpu_contention", other_programs=others)
    assert answers.gain_in_words(answer_of(beside)) == (
        "up to 3.33x (estimated, with free data on a quiet machine)"
    )
    slowed = dataclasses.replace(others, slow_training_too=True)
    answer = answer_of(dataclasses.replace(beside, other_programs=slowed))
    assert answer.ceiling is None, "training may be faster, too"
