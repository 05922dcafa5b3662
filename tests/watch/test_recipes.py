"""Loops of frameworks and people, watched: every step is seen, and the data wait is that of the loop's own timer."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import ROOT
from tests.watch.recipes import BATCH, BY_HAND, FETCH_AHEAD, FRAMEWORKS, N_STEPS, SKIPPED
from tests.watch.watching import Host

MOST_POINTS = 0.03


@pytest.fixture(scope="module")
def host(frameworks: Host) -> Host:
    return frameworks.running("tests.watch.recipes")


def check(host: Host, function: str) -> None:
    told = host.run(function)
    assert told.status == 0, told.complaint
    assert "vitprof" not in told.complaint
    truth, steps = json.loads(told.returned), told.steps
    assert truth["steps"] == N_STEPS
    assert N_STEPS - len(steps["step"]) in (0, 1), (
        "the last one, where the loop leaves its iterator before the end"
    )
    one_by_one = [BATCH] * (N_STEPS // 2)
    ahead = [2 * BATCH, *one_by_one[2:], 0]
    of_an_epoch = ahead if function.removeprefix("by_") in FETCH_AHEAD else one_by_one
    expected = [*of_an_epoch, *of_an_epoch][: len(steps["step"])]
    assert steps["samples"].tolist() == expected, "no batch of a validation"
    if function != "by_ultralytics":  # its iterator has no end
        assert (
            steps["epoch"].tolist()
            == np.repeat([0, 1], N_STEPS // 2).tolist()[: len(steps["step"])]
        )
    (environment,) = told.note("environment")
    assert environment["watched"]["batch_size"] == BATCH
    counted = (steps["step"] >= SKIPPED) & (steps["step"] != N_STEPS // 2)
    waited, took = (float(steps[name][counted].sum()) for name in ("data_wait_s", "step_s"))
    assert abs(waited / took - truth["wait"]) < MOST_POINTS


@pytest.mark.measured
@pytest.mark.parametrize("function", BY_HAND)
def test_training_is_seen_whoever_makes_the_iterator_and_steps(host: Host, function: str) -> None:
    check(host, function)


@pytest.mark.measured
def test_gradients_that_change_nothing_are_no_training(host: Host) -> None:
    assert host.ok("only_validation").columns == []


@pytest.mark.measured
@pytest.mark.frameworks
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_framework(host: Host, framework: str) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed: .ci/versions newest installs it")
    check(host, f"by_{framework}")


@pytest.mark.measured
@pytest.mark.frameworks
def test_ray_train(tmp_path: Path) -> None:
    """It kills the process that has trained: the run is partly watched, with all of its steps."""
    pytest.importorskip("ray.train.torch", reason=".ci/versions newest installs it")
    script = f"from tests.watch import recipes; recipes.by_ray({str(tmp_path)!r})"
    command = [
        sys.executable,
        "-m",
        "vitprof",
        "watch",
        "--json",
        f"{tmp_path}/run.json",
        "--",
        sys.executable,
    ]
    done = subprocess.run(
        [*command, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    truth = json.loads((tmp_path / "told").read_text(encoding="utf-8"))
    run = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert run["summary"]["n_steps"] == truth["steps"] == N_STEPS
    assert run["summary"]["data_wait_frac"] == pytest.approx(truth["wait"], abs=MOST_POINTS)
    assert "partly watched" in done.stderr
