"""Rounds on several nodes: settings are compared within nodes."""

import numpy as np
import pytest

from vitprof.analysis import faster
from vitprof.analysis.tournament.nodes import within_nodes

Runs = dict[str, dict[int, faster.RunBlocks]]


def blocks(per_s: np.ndarray) -> faster.RunBlocks:
    return faster.RunBlocks(np.ones(len(per_s)), 1 / per_s)


def made(
    speeds: dict[str, float], nodes: dict[int, float], seed: int = 0, noise: float = 0.02
) -> Runs:
    """Runs of settings in rounds, each on a node with a factor of its own; each run differs by `noise`."""
    rng = np.random.default_rng(seed)
    return {
        key: {
            n: blocks(speed * factor * np.exp(rng.normal(rng.normal(0, noise), noise, 20)))
            for n, factor in nodes.items()
        }
        for key, speed in speeds.items()
    }


NODES = {1: "a", 2: "b", 3: "a", 4: "b"}


def test_one_node_changes_nothing() -> None:
    runs = made({"x": 100, "y": 50}, {1: 1.0, 2: 1.0})
    assert within_nodes(runs, {key: {1: "a", 2: "a"} for key in runs}) == runs


def test_a_nodes_factor_is_taken_out_and_ratios_stay() -> None:
    runs = made({"x": 100, "y": 50, "z": 48}, {1: 1.0, 2: 3.0, 3: 1.0, 4: 3.0})
    alike = within_nodes(runs, dict.fromkeys(runs, NODES))
    for key, mine in alike.items():
        means = [run.per_s for run in mine.values()]
        assert max(means) / min(means) < 1.15, key
    for number in NODES:
        before, after = (
            each["x"][number].seconds / each["y"][number].seconds for each in (runs, alike)
        )
        np.testing.assert_allclose(before, after)


def test_an_uneven_run_does_not_say_how_fast_a_node_is() -> None:
    """A simulated device's speed is exact: the noise of a slow setting must not move it."""
    runs = made({"slow": 40}, {1: 1.0, 2: 1.2}, noise=0.2)
    runs["exact"] = {number: blocks(np.full(20, 100.0)) for number in (1, 2)}
    alike = within_nodes(runs, {key: {1: "a", 2: "b"} for key in runs})
    assert alike["exact"][1].per_s == pytest.approx(100, rel=0.02)
    assert alike["exact"][2].per_s == pytest.approx(100, rel=0.02)


def test_what_ran_on_one_node_only_is_compared_there() -> None:
    runs = made({"x": 100, "y": 50}, {1: 1.0, 2: 2.0})
    runs["cut"] = {1: blocks(np.full(20, 80.0))}
    alike = within_nodes(runs, {"x": {1: "a", 2: "b"}, "y": {1: "a", 2: "b"}, "cut": {1: "a"}})
    ratio = alike["cut"][1].per_s / alike["x"][1].per_s
    assert ratio == pytest.approx(80 / runs["x"][1].per_s, rel=1e-9)


def test_rounds_that_share_no_setting_with_the_others_are_left_out() -> None:
    runs = made({"x": 100, "y": 50}, {1: 1.0, 2: 1.0})
    runs |= {"alone": {3: blocks(np.full(20, 500.0))}}
    alike = within_nodes(runs, {"x": {1: "a", 2: "b"}, "y": {1: "a", 2: "b"}, "alone": {3: "c"}})
    assert alike["alone"] == {}
    assert set(alike["x"]) == {1, 2}


def test_equal_settings_are_seldom_called_different() -> None:
    """40 tournaments of two equal settings on two nodes, one of which is twice as fast: at most 5 in 40 at 95%."""
    wrong = 0
    for seed in range(40):
        runs = made({"x": 100, "y": 100}, {1: 1.0, 2: 2.0, 3: 1.0, 4: 2.0}, seed)
        alike = within_nodes(runs, dict.fromkeys(runs, NODES))
        found = faster.speeds(alike).ratio("x", "y")
        wrong += not found.low <= 1 <= found.high
    assert wrong <= 5
