"""The answer as Markdown, and what it says to type next."""

import dataclasses
import re

import pytest

from tests.analysis.verdict.test_answer import PROVEN, STARVED, WORKERS
from tests.export.test_tables import EXAMPLE
from vitprof.analysis.verdict.advice_rules import END_OTHERS
from vitprof.analysis.verdict.answer import Proof, answer_of
from vitprof.config.own_script import own_config
from vitprof.export.markdown import answer_markdown, meanwhile_command, next_command
from vitprof.recording.columns import RunSummary
from vitprof.recording.verdict import Advice, EpochStarts, NoVerdict
from vitprof.store import StoredRun

LIGHTER = Advice({}, "a lighter Crop_2", "50% of the training time goes into transforms.")
LOADER = {"watched": {"dataset": "Photos", "loader": "DataLoader"}, "cpu_count": 2}


def watched(**facts: object) -> StoredRun:
    given = {"command": "python train.py", **facts}
    return dataclasses.replace(EXAMPLE, config=own_config("mine"), facts=given, environment=LOADER)


def test_a_starved_script_in_at_most_twelve_lines() -> None:
    verdict = dataclasses.replace(STARVED, advice=(WORKERS, LIGHTER))
    text = answer_markdown(watched(), answer_of(verdict))
    lines = text.splitlines()
    assert len(lines) <= 12
    assert lines[0].startswith("**Input-bound.** The GPU was idle for data and copies 74%")
    assert "- By what? transforms 52%, decoding 20%, copies 2.2%, other 1.0%" in lines
    assert "- Gain? up to 3.80x (estimated, with free data)" in lines
    assert "- Fix? num\\_workers=2 (up to about 1.50x)" in lines
    (step,) = [line for line in lines if line.startswith("- **Next:** `")]
    assert step.endswith("tournament --vary workers=2 -- python train.py`")
    assert lines[-1].startswith("_vitprof ")


def test_the_steps_are_those_of_the_first_line() -> None:
    """74% was said of 145 steps, measured in 142."""
    verdict = dataclasses.replace(STARVED, n_judged=145, epoch_starts=EpochStarts(n=3))
    summary = dataclasses.replace(RunSummary(), n_steps=150, n_steady_steps=142)
    run = dataclasses.replace(watched(), verdict=verdict, summary=summary)
    first, *_, last = answer_markdown(run, answer_of(verdict)).splitlines()
    assert "145 steps" in first
    assert ": 142 steady steps and 3 epoch starts on " in last


def test_names_of_a_user_are_no_markup() -> None:
    verdict = dataclasses.replace(STARVED, advice=(LIGHTER,))
    assert "a lighter Crop\\_2" in answer_markdown(watched(), answer_of(verdict))


def test_without_a_verdict_the_reason_comes_first_and_no_advice() -> None:
    why = NoVerdict("too_few_steps", n_steps=9, n_steady=4, needed=20)
    verdict = dataclasses.replace(STARVED, kind="inconclusive", why_none=why)
    text = answer_markdown(watched(), answer_of(verdict))
    assert text.startswith("**Inconclusive.** 9 steps were recorded")
    assert "Fix?" not in text
    assert "tournament" not in text


OF_SCRIPT = dataclasses.replace(PROVEN, words="workers 2", place=0, patch_command="vitprof patch 4")


@pytest.mark.parametrize(
    ("proofs", "command"),
    [
        ([], "tournament --vary workers=2 -- python train.py"),
        ([OF_SCRIPT], "vitprof patch 4"),
        ([dataclasses.replace(OF_SCRIPT, patch_command="")], ""),
        ([dataclasses.replace(OF_SCRIPT, others_cores=0.8)], "-- python train.py"),
    ],
)
def test_what_to_type_proves_the_fix_or_writes_a_proven_one(
    proofs: list[Proof], command: str
) -> None:
    verdict = dataclasses.replace(STARVED, advice=(WORKERS,))
    assert next_command(watched(), answer_of(verdict, proofs)).endswith(command)


def test_a_cause_that_others_make_unclear_is_watched_again() -> None:
    answer = answer_of(dataclasses.replace(STARVED, cause="unclear", advice=(END_OTHERS,)))
    assert next_command(watched(), answer).endswith("watch -- python train.py")
    fetches = {"watched": {"dataset": "Photos", "loader": "DataLoader", "prefetch_factor": 2}}
    run = dataclasses.replace(watched(), environment=fetches | {"cpu_count": 2})
    now = meanwhile_command(run, answer)
    assert re.search(r"tournament --vary workers=[\d,]+ -- python train.py$", now)
    assert meanwhile_command(watched(), answer_of(STARVED)) == ""


def test_a_job_of_vitprofs_own_is_proven_by_a_button() -> None:
    assert next_command(EXAMPLE, answer_of(STARVED)) == ""
