"""The words on the picture for a talk: the verdicts' own figures, and a ratio only where one is sure."""

import dataclasses
import math

import pytest

from tests.ui.dashboard import add_run
from vitprof.analysis.compare.comparison import RunComparison
from vitprof.config import own_script
from vitprof.export.talk import Part, change_in_words, talk, times, title_of
from vitprof.recording.verdict import NoVerdict, Verdict
from vitprof.store import RunStore, StoredRun

STARVED = Verdict(kind="input-bound", device="gpu", idle_frac=0.7, simulated=False)
FED = Verdict(kind="not input-bound", device="gpu", idle_frac=0.003, simulated=False)
DISTURBED = Verdict(
    kind="inconclusive", device="gpu", why_none=NoVerdict("disturbed"), simulated=False
)
LAUNCHED = Verdict(
    kind="launch-bound", device="simulated", idle_frac=0.01, paced_frac=0.6, simulated=True
)


def gain(ratio: float, relation: str) -> RunComparison:
    return RunComparison(ratio, ratio, ratio, relation)  # type: ignore[arg-type]


def test_the_title_is_the_verdict() -> None:
    words = "The GPU waits for data 70% of the time"
    assert title_of([STARVED], "now", None) == words
    both = title_of([STARVED, FED], "with memory", gain(3.31, "faster"))
    assert both == f"{words}; with memory 0.3%: 3.3x faster"
    back = title_of([FED, STARVED], "with per-sample", gain(0.3, "slower"))
    assert back == "The GPU waits for data 0.3% of the time; with per-sample 70%: 3.3x slower"
    assert title_of([LAUNCHED], "now", None) == (
        "The simulated GPU waits for Python to launch kernels 60% of the time"
    )


@pytest.mark.parametrize("relation", ["equal", "undecided", "unknown", "not comparable"])
def test_no_ratio_where_none_is_sure(relation: str) -> None:
    title = title_of([STARVED, FED], "with memory", gain(3.31, relation))
    assert title == "The GPU waits for data 70% of the time; with memory 0.3%"
    assert title == title_of([STARVED, FED], "with memory", None)


def test_a_run_without_a_verdict_has_no_figure() -> None:
    assert title_of([DISTURBED], "now", None) == (
        "Disturbed: how long the device waits is not certain"
    )
    only = title_of([STARVED, DISTURBED], "with memory", gain(2.0, "faster"))
    assert only == "The GPU waits for data 70% of the time"


def test_ratios_have_the_digits_that_they_need() -> None:
    assert [times(ratio) for ratio in (1.04, 1.3, 3.31, 9.94, 33.4)] == [
        "1.04x",
        "1.3x",
        "3.3x",
        "9.9x",
        "33x",
    ]


def test_what_the_other_run_does_is_said_in_a_few_words(store: RunStore) -> None:
    run = store.run(add_run(store))

    def other(**changes: object) -> StoredRun:
        config = dataclasses.replace(run.config, **changes)  # type: ignore[arg-type]
        return dataclasses.replace(run, run_id=9, config=config)

    assert change_in_words(run, other(strategy="memory", loader="batch")) == "with memory"
    assert change_in_words(run, other(workers=4)) == "with workers 4"
    assert change_in_words(run, other(batch_size=64, seed=7)) == "with batch size 64 and seed 7"
    assert change_in_words(run, other(dataset="photos", strategy="memory")) == "run 9"
    assert change_in_words(run, other()) == "run 9"
    script = dataclasses.replace(run, config=own_script.own_config("python train.py", workers=0))
    more = dataclasses.replace(
        script, run_id=9, config=own_script.own_config("python train.py", workers=2)
    )
    assert change_in_words(script, more) == "with num_workers 2"


def test_a_picture_of_runs_of_a_store(store: RunStore) -> None:
    slow = store.run(add_run(store, n=100))
    fast = store.run(add_run(store, n=100, wait_s=0.0001, strategy="memory"))
    assert slow.verdict is None
    parts = [
        Part(run, store.steps(run.id), verdict)
        for run, verdict in (
            (slow, STARVED),
            (fast, dataclasses.replace(FED, copies_included=True)),
        )
    ]
    made = talk(parts, gain(1.96, "faster"))
    assert made is not None
    assert made.name == f"vitprof-run-{slow.id}-and-{fast.id}"
    assert [lane.says for lane in made.lanes] == ["waits for data 70%", "waits for data 0.3%"]
    assert made.meanings == {"data": "waits for data and copies"}
    assert made.alt == (
        "The GPU waits for data 70% of the time; with memory 0.3%: 2.0x faster. now: waits for data "
        "70%. with memory: waits for data 0.3%."
    )
    assert made.note.startswith(f"vitprof, runs {slow.id} and {fast.id}: digits, batch ")
    assert made.figure().layout.width == 1280
    (alone,) = talk(parts[:1]).lanes  # type: ignore[union-attr]
    assert alone.name == "now"


def test_no_picture_of_a_run_that_trained_nothing_or_was_not_timed(store: RunStore) -> None:
    loaded = store.run(add_run(store, loader_only=True))
    assert talk([Part(loaded, store.steps(loaded.id), STARVED)]) is None
    untimed = store.run(add_run(store))
    steps = store.steps(untimed.id)
    steps["compute_s"][:] = steps["compute_start_s"][:] = steps["step_s"][:] = math.nan
    assert talk([Part(untimed, steps, STARVED)]) is None


def test_two_runs_of_unlike_length_are_shown_doing_the_same_work(store: RunStore) -> None:
    """Strips of 24.5 and 18.7 s stood under a title of 1.09x: one of the runs had other steps."""
    short = store.run(add_run(store, n=50))
    long = store.run(add_run(store, n=100))
    made = talk([Part(run, store.steps(run.id), STARVED) for run in (short, long)])
    assert made is not None
    n_samples = 50 * short.config.batch_size
    assert made.strips == f"{n_samples:,}<br>samples"
    first, second = (lane.strip.end_s[-1] for lane in made.lanes)
    assert first == pytest.approx(second), "steps of one length"
    words = [note.text for note in made.figure().layout.annotations]
    assert words.count(made.strips) == 2
    alone = talk([Part(long, store.steps(long.id), STARVED)])
    assert alone is not None
    assert alone.strips == "whole run"
