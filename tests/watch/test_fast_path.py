"""Steps of a plain loop are recorded as those of any other, whatever comes between them."""

import numpy as np
import pytest

from tests.watch import events
from tests.watch.watching import Host, Told
from vitprof.watch.fast_path import SHORT_TIMES

SAME = ("rank", "step", "epoch", "samples", "loss", "warmup", "worker")
"""Columns that do not depend on how long anything takes."""


@pytest.fixture(scope="module")
def host(host: Host) -> Host:
    return host.running("tests.watch.events")


def train(host: Host, *names: str, workers: int = 0, never_plain: bool = False) -> Told:
    return host.ok("train", events=names, workers=workers, never_plain=never_plain)


def check(found: Told, expected: Told) -> None:
    """Steps and phases are the same, but for how long everything took, and how many batches were ready."""
    assert found.returned == expected.returned
    assert [phase["name"] for phase in found.note("phase")] == [
        phase["name"] for phase in expected.note("phase")
    ]
    steps = found.steps
    for name, column in expected.steps.items():
        if name in SAME:
            np.testing.assert_array_equal(steps[name], column, err_msg=name)
        else:
            assert np.isnan(steps[name]).tolist() == np.isnan(column).tolist(), name
    ends = steps["compute_start_s"] + steps["compute_s"]
    assert (np.diff(ends) >= steps["step_s"][1:] - 1e-9).all(), "no time belongs to two steps"
    stages_s = steps["read_s"] + steps["transform_s"] + steps["collate_s"]
    known = np.isnan(steps["worker"]) & np.isfinite(stages_s)
    assert (stages_s <= steps["made_end_s"] - steps["made_start_s"] + 1e-6)[known].all()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loop_is_plain_once_it_has_warmed_up(host: Host, workers: int) -> None:
    told = host.run("are_plain", workers=workers)
    n = events.PLAIN_STEPS
    assert told.returned == str([i >= 5 for i in range(n)] + [True] * n)
    assert len(told.steps["step"]) == 2 * n
    told = host.run("are_plain", workers=workers, never_plain=True)
    assert told.returned == str([False] * 2 * n)


@pytest.mark.parametrize(
    "event", ["begin_anew", "end_an_epoch", "begin_another_one_beside", "fail"]
)
def test_one_event_between_plain_steps(host: Host, event: str) -> None:
    """Other events would set right what this one leaves wrong."""
    check(train(host, event, event), train(host, event, event, never_plain=True))


@pytest.mark.parametrize("workers", [0, 1])
def test_all_events_one_after_another(host: Host, workers: int) -> None:
    names = [*events.EVENTS, *reversed(events.EVENTS)]
    if workers:  # its dataset is a copy
        names = [name for name in names if name not in ("read_another_loader_meanwhile", "fail")]
    check(
        train(host, *names, workers=workers), train(host, *names, workers=workers, never_plain=True)
    )


def test_a_loop_that_is_plain_for_moments_only_is_not_tried_for_ever(host: Host) -> None:
    assert host.run("tried", events=["check"] * (SHORT_TIMES - 1)).returned == "True"
    assert host.run("tried", events=["check"] * SHORT_TIMES).returned == "False"


@pytest.mark.parametrize("forks", [True, False])
def test_nothing_is_written_down_for_nobody(host: Host, forks: bool) -> None:
    assert host.run("left_alone", forks=forks).returned == "[True, False, False]"
