"""What idle devices cost: of runs that go on, since when they are starved; of ended ones, hours by name."""

import math
from typing import Any

import numpy as np
import pytest

from vitprof.analysis.machines import BUCKET_S, NOW, LiveIdle, Spent, costs


def steps(shares: list[float], first: int = 0, t: float = 1000.0) -> dict[str, Any]:
    """Steps of a second each, `BUCKET_S` for each share of them that is idle."""
    wait = np.repeat(np.array(shares, dtype=float), int(BUCKET_S))
    n = first + np.arange(len(wait))
    return {
        "step": n.astype(float),
        "t_start_s": t + n,
        "step_s": np.ones(len(wait)),
        "exposed_wait_s": wait,
    }


def added(*parts: dict[str, Any]) -> LiveIdle:
    idle = LiveIdle()
    for part in parts:
        idle.add(part)
    return idle


def test_the_share_is_that_of_now_and_starved_is_since_it_began() -> None:
    t = 34 * BUCKET_S  # where a part begins
    idle = added(steps([0.0] * 10 + [0.5] * 10, t=t))
    assert idle.share == pytest.approx(0.5)
    assert idle.starved_s() == 10 * BUCKET_S
    assert idle.idle_s == pytest.approx(5 * BUCKET_S)
    assert added(steps([0.5] * 10 + [0.0] * 10, t=t)).starved_s() == 0
    assert added(steps([0.5] * 10 + [0.0] + [0.5] * NOW, t=t)).starved_s() == NOW * BUCKET_S
    assert added(steps([0.9], t=t)).starved_s() == BUCKET_S


def test_only_the_time_that_was_trained_counts_as_starved() -> None:
    """30 s were said of a job that had trained for 10 s."""
    ten = {name: values[:10] for name, values in steps([0.9], t=34 * BUCKET_S + 5).items()}
    assert added(ten).starved_s() == 10
    assert added(steps([0.9] * 2, t=34 * BUCKET_S + 5)).starved_s() == 2 * BUCKET_S


def test_steps_may_come_in_any_parts() -> None:
    whole = steps([0.1, 0.4, 0.3])
    cut = [
        {name: values[a:b] for name, values in whole.items()}
        for a, b in ((0, 7), (7, 7), (7, 80), (80, 90))
    ]
    one, several = added(whole), added(*cut)
    assert (several.last, several.steps) == (89, 90)
    assert several.share == pytest.approx(one.share)
    assert several.idle_s == pytest.approx(one.idle_s)


def test_what_is_not_known_is_not_starved() -> None:
    unknown = steps([0.5] * 4)
    unknown["exposed_wait_s"][::2] = np.nan
    assert math.isnan(added(unknown).share)
    assert added(unknown).starved_s() == 0
    assert math.isnan(added().share)


def test_costs_are_device_hours_by_name_and_unknown_ones_are_apart() -> None:
    def spent(machine: str, devices: int, hours: float, idle: float) -> Spent:
        return Spent(machine, "ada", "", devices, hours * 3600, idle)

    runs = [
        spent("a", 8, 1, 0.5),
        spent("a", 1, 2, math.nan),
        spent("b", 1, 10, 0.1),
        spent("b", 1, math.nan, 0.1),
    ]
    first, second = costs(runs, lambda each: each.machine)
    assert (first.name, first.runs, first.device_hours, first.idle_hours, first.unknown_hours) == (
        "a",
        2,
        10,
        4,
        2,
    )
    assert first.idle_frac == 0.5
    assert (second.name, second.runs, second.idle_frac) == ("b", 1, pytest.approx(0.1))
    (every,) = costs(runs, lambda each: each.user)
    assert every.idle_hours == pytest.approx(5)
    assert math.isnan(costs([spent("c", 1, 1, math.nan)], lambda each: each.machine)[0].idle_frac)
