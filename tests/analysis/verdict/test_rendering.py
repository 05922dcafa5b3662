"""A verdict in words: every reason, cause and config has some; they follow from its fields."""

import dataclasses
import math
import re
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.series import made_steps, made_telemetry
from vitprof.analysis.timing.loading import STAGE_WORDS
from vitprof.analysis.timing.summary import summarise
from vitprof.analysis.verdict.no_verdict import too_few
from vitprof.analysis.verdict.rendering import CAUSE_NAMES, CLASSES, NO_VERDICT, render
from vitprof.analysis.verdict.verdict import judge
from vitprof.config import RunConfig
from vitprof.config.bounds import RUN_BOUNDS
from vitprof.config.resolve import resolve, run_name
from vitprof.recording.verdict import (
    Advice,
    Gain,
    NoVerdict,
    NoVerdictReason,
    OtherPrograms,
    SlowestLoader,
    Verdict,
    advised_workers,
)

DIGITS = 60_000


def steps_for(config: RunConfig, needed: int) -> int:
    """Returns the number of steps that are asked for."""
    return too_few(config, 1, 0, {}, needed=needed).train_for


def counted(n_train: int, batch_size: int, warmup: int, needed: int) -> int:
    """Returns the same by counting: a step is steady past the warm-up, and where it is not the first of many."""
    in_epoch = math.ceil(n_train / batch_size)
    steady = step = 0
    while steady < needed:
        steady += step >= warmup and (step % in_epoch > 0 or in_epoch == 1)
        step += 1
    return step


@given(st.integers(1, 60), st.integers(1, 70), st.integers(0, 90), st.integers(1, 30))
def test_the_steps_to_train_for_are_those_that_counting_finds(
    n: int, batch: int, warmup: int, needed: int
) -> None:
    config = RunConfig(dataset="photos", n_images=n, batch_size=batch, warmup_steps=warmup)
    assert steps_for(config, needed) == counted(n, batch, warmup, needed)


@pytest.mark.parametrize("batch_size", [1, 128, DIGITS // 2, DIGITS])
def test_the_longest_warm_up_is_not_counted_through(batch_size: int) -> None:
    config = RunConfig(batch_size=batch_size)
    object.__setattr__(
        config, "warmup_steps", 10**30
    )  # refused today: a store may hold what an older version took
    assert 10**30 + 20 <= steps_for(config, 20) < 2 * 10**30


@pytest.mark.parametrize("end", ["least", "most"])
@pytest.mark.parametrize("budget", ["epochs", "steps", "seconds"])
def test_every_config_gets_words(end: str, budget: str) -> None:
    ends = {name: getattr(bounds, end) for name, bounds in RUN_BOUNDS.items()}
    values = {name: int(value) if RUN_BOUNDS[name].whole else value for name, value in ends.items()}
    values |= dict.fromkeys({"epochs", "steps", "seconds", "n_images"} - {budget})
    config = dataclasses.replace(resolve(RunConfig(strategy="hdf5", batch_size=1)), **values)
    for n in (0, 1, 3, 40):
        steps, telemetry = (
            made_steps([0.002] * n, 0.008, samples=1, warmup=config.warmup_steps),
            made_telemetry(),
        )
        assert summarise(config, steps, telemetry, (), {}, t_origin_s=0.0, t_end_s=1.0).n_steps == n
        assert judge(config, steps, (), telemetry, {}).sentence.endswith(".")
    assert run_name(dataclasses.replace(config, name=""))


def test_the_classes_are_those_of_the_thresholds() -> None:
    assert (
        CLASSES
        == "under 5% of the time idle for data is not input-bound, 5 to 20% moderately, over 20% input-bound"
    )


def test_every_reason_and_every_cause_has_words() -> None:
    assert set(NO_VERDICT) == set(get_args(NoVerdictReason))
    causes = ("epoch_start", "held_up", "slow_drive", "cpu_contention", "unclear", "launches")
    assert {*causes, "loading", "transfer", *STAGE_WORDS} <= set(CAUSE_NAMES)


@pytest.mark.parametrize("reason", get_args(NoVerdictReason))
def test_a_reason_is_told_in_short_sentences(reason: NoVerdictReason) -> None:
    why = NoVerdict(reason, n=2, n_steps=30, n_steady=9, needed=20, frac=0.4, what="mps")
    verdict = Verdict(
        kind="inconclusive",
        why_none=why,
        device="gpu",
        idle_frac=0.1,
        before_model_frac=0.2,
        left_early_frac=0.2,
        simulated=False,
    )
    text = render(verdict)
    assert text.details == ()
    assert text.whole.endswith(".")
    for said in re.split(r"\. (?=[A-Z0-9])", text.whole):
        assert len(said.split()) <= 20, said


def test_a_verdict_of_an_older_version_is_told_as_it_was_then() -> None:
    stored = {
        "kind": "input-bound",
        "sentence": "Input-bound: the GPU is idle 80% of the time; try 4 workers.",
        "simulated": False,
        "idle_frac": 0.8,
        "cause": "decode",
        "speed_up_if_free": 5.0,
        "speed_up_low": 4.0,
        "speed_up_high": 6.0,
        "speed_up_measured": False,
    }
    verdict = Verdict.from_dict(stored)
    gain = verdict.gain
    assert gain is not None
    assert (gain.times, gain.low, gain.high, gain.basis) == (5.0, 4.0, 6.0, "estimate")
    text = render(verdict)
    assert text.headline == "Input-bound"
    assert text.sentences == ("The GPU is idle 80% of the time; try 4 workers.",)
    assert text.details == ()


CPU_JOB = Verdict(
    kind="input-bound",
    device="cpu",
    idle_frac=0.5,
    idle_frac_low=0.4,
    idle_frac_high=0.6,
    n_judged=60,
    cause="transform",
    cause_frac=0.9,
    shares_cpu_with="training",
    gain=Gain(2.0, 1.5, 2.5, basis="estimate"),
    other_programs=OtherPrograms(0.4, slow_training_too=True),
    simulated=False,
)


def test_what_is_shown_follows_from_the_fields_alone() -> None:
    text = render(CPU_JOB)
    assert text.whole == (
        "Input-bound. Training on the CPU was stalled for data 50% of the time (40-60%, 60 steps). "
        "Transforms on the CPU were 90% of that. With free data this job would run about 2.00x as "
        "fast: loading and training share the CPU. That was measured while other programs ran; "
        "on a quiet machine it may differ."
    )
    assert text.details == text.sentences[2:], "what the four answers do not say"
    assert text.brief.endswith("(40-60%, 60 steps).")
    # the sentence of the record is for readers of the file; nothing here reads it
    assert render(dataclasses.replace(CPU_JOB, sentence="Something else.")) == text


def test_loaders_of_one_class_are_told_apart() -> None:
    alone = dataclasses.replace(CPU_JOB, slowest_loader=SlowestLoader("Local", 0.27))
    assert "27% of the wait was for the loader of Local." in render(alone).sentences
    third = SlowestLoader("Local", 0.27, nth=3, n_alike=6)
    of_six = render(dataclasses.replace(CPU_JOB, slowest_loader=third))
    assert "27% of the wait was for the 3rd of 6 loaders of Local." in of_six.sentences


def test_the_advised_numbers_of_workers_are_fields() -> None:
    advice = (
        Advice({}, "setting num_workers=4 in the DataLoader", "Why.", arguments={"num_workers": 4}),
        Advice({}, "a faster decoder", "Why."),
    )
    assert advised_workers(advice) == (4,)
