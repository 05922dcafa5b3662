"""What a device did in three kinds: shares that add up, and a stretch that is typical of its run."""

import numpy as np
import pytest

from tests.series import made_steps
from vitprof.analysis.timing import activity
from vitprof.analysis.timing.activity import (
    ACTIVITIES,
    stretch_length,
    typical_stretch,
    whole_run,
)
from vitprof.recording.columns import Phase


def shares(found: activity.Stretch) -> list[float]:
    lengths_s = found.end_s - found.start_s
    return [float(lengths_s[found.kind == at].sum()) / found.length_s for at in range(3)]


@pytest.mark.parametrize("n", [1, 50, 1000])
def test_a_whole_run_is_columns_of_shares_that_add_up(n: int) -> None:
    steps = made_steps([0.02] * n, 0.01, h2d=0.01)
    strip = whole_run(steps)
    assert len(strip.start_s) <= 160
    assert (strip.start_s[0], strip.end_s[-1]) == (0, pytest.approx(0.04 * n))
    assert strip.shares.sum(axis=0) == pytest.approx(1)
    assert strip.shares[:, -1] == pytest.approx([0.25, 0.75, 0]), "copies are waits for data"
    assert ACTIVITIES == ("compute", "data", "other")


def test_an_evaluation_is_other_work() -> None:
    steps = made_steps([0.5] * 4, [0.5] * 4)
    for name in ("t_start_s", "compute_start_s"):
        steps[name][2:] += 3.0
    strip = whole_run(steps)
    assert strip.shares[2] == pytest.approx([0, 0, 0.75, 0])


def test_a_run_without_device_times_or_steps_is_an_empty_strip() -> None:
    steps = made_steps([0.1, 0.1], np.nan)
    assert whole_run(steps).shares.shape == (3, 0)
    assert np.isnan(stretch_length([made_steps([], [])]))
    assert typical_stretch(made_steps([], []), (), 0.2) is None


@pytest.mark.parametrize(
    ("steps_s", "n", "length_s"),
    [
        ([0.013, 0.004], 150, 0.2),
        ([0.1], 100, 1.0),  # 200 ms would show two steps
        ([0.0005, 0.0006], 1000, 0.02),  # and here 400, too narrow to see
        ([0.0005, 0.1], 3000, 1.0),  # the slow one's rhythm first
        ([0.013], 10, 0.1),  # no longer than the run
    ],
)
def test_a_stretch_is_200_ms_unless_that_shows_no_rhythm(
    steps_s: list[float], n: int, length_s: float
) -> None:
    runs = [made_steps([step_s / 2] * n, step_s / 2) for step_s in steps_s]
    assert stretch_length(runs) == length_s


def test_the_stretch_that_is_shown_is_like_the_whole_training() -> None:
    waits = np.full(400, 0.01)
    waits[:100] = 0.001
    waits[100:150] = 0.1
    steps = made_steps(waits, 0.01, warmup=5)
    usual = waits[5:].sum() / (waits[5:].sum() + 0.01 * 395)
    found = typical_stretch(steps, (), 0.2)
    assert found is not None
    assert shares(found)[1] == pytest.approx(usual, abs=0.06)
    assert sum(shares(found)) == pytest.approx(1)
    assert found.start_s[1:] == pytest.approx(found.end_s[:-1])
    assert found.start_s[0] == 0
    assert found.end_s[-1] == pytest.approx(0.2)


def test_a_stretch_begins_after_the_warm_up_and_has_no_evaluation() -> None:
    steps = made_steps([0.01] * 60, 0.01, warmup=30)
    for name in ("t_start_s", "compute_start_s"):
        steps[name][45:] += 5.0
    evaluation = Phase(
        "evaluate", float(steps["t_start_s"][45]) - 4.9, float(steps["t_start_s"][45])
    )
    found = typical_stretch(steps, [evaluation], 0.2)
    assert found is not None
    assert shares(found) == pytest.approx([0.5, 0.5, 0])
    assert typical_stretch(steps, [evaluation], 0.5) is None, "no part is that long"
