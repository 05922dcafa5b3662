"""Scripts on a GPU, watched: what idles and what works, beside what the device itself knows of its work."""

import json
import math
from typing import Any

import numpy as np
import pytest

from benchmarks.watch_matrix import BUSY, CASES, FRAMEWORKS, STARVED, run, wrong
from tests.nullcuda import N_BATCHES
from tests.watch.watching import Host

pytestmark = pytest.mark.measured
HELD = math.inf
"""Compute is held by what the device worked; beside the span of its kernels, which a slow host stretches by up to 4
points, it is in docs/gpu.md. Exposed waits are the device's own, within `POINTS` of `benchmarks.watch_matrix`."""


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_starved_gpu(host: Host, framework: str) -> None:
    """20 ms of waiting for 2 ms of work: the GPU idles as long as batches are made, but for work at the same time."""
    seen = run(host, framework.partition(",")[0], **STARVED, **FRAMEWORKS[framework])
    assert len(seen.all_steps["step"]) >= N_BATCHES - 2
    assert not wrong("starved", seen, HELD)
    assert seen.steps["compute_s"].min() > 0.0019


@pytest.mark.parametrize(
    "framework", [name for name, how in FRAMEWORKS.items() if not how and name != "quickstart"]
)
def test_a_busy_gpu(host: Host, framework: str) -> None:
    seen = run(host, framework, **BUSY)
    assert not wrong("busy", seen, HELD)
    assert seen.steps["compute_s"].min() > 0.0114, "12 ms of work, and no waiting"


def test_launches_that_take_longer_than_their_kernels_are_not_the_model(host: Host) -> None:
    """1 ms of kernels in 8 ms of launches: for how long the GPU idles inside the steps is not known."""
    sentence = run(host, "launch_bound").verdict().sentence
    assert "The GPU was idle for data" in sentence
    assert "The model takes the time" not in sentence


@pytest.mark.parametrize(
    ("script", "case"), [("in_a_stream", "starved"), ("graphed", "starved"), ("graphed", "busy")]
)
def test_work_in_another_stream_and_in_graphs(host: Host, script: str, case: str) -> None:
    seen = run(host, script, **CASES[case])
    assert len(seen.all_steps["step"]) >= N_BATCHES - 2
    assert not wrong(case, seen)


@pytest.mark.parametrize(
    "how", [{}, {"how": "joined"}, {"how": "after"}, {"beside_s": 0.03}], ids=repr
)
def test_a_stream_that_works_while_that_of_training_is_idle(
    host: Host, how: dict[str, Any]
) -> None:
    seen = run(host, "beside", **how)
    verdict = seen.verdict()
    assert seen.frac("gap_s") > 1 - seen.busy_frac + 0.2  # the figures of one stream are wrong
    assert seen.facts["side_stream_steps"] > 0.8 * len(seen.steps["step"])
    assert (verdict.kind, verdict.advice) == ("inconclusive", ())
    assert "The GPU works in another stream while that of the optimizer is idle" in verdict.sentence


def side_steps_are_of_hold_ups(seen: Any) -> bool:
    """Returns whether only such steps seem to work in a side stream whose host was held up between both launches."""
    steps = seen.all_steps
    held_up = steps["gap_s"] + steps["h2d_s"] > 0.03 * steps["step_s"]
    return bool(seen.facts.get("side_stream_steps", 0) <= held_up.sum())


def test_a_stream_that_works_in_a_marked_step_or_while_that_of_training_does_is_no_matter(
    host: Host,
) -> None:
    seen = run(host, "beside", how="marked")
    assert not wrong("busy", seen)
    assert side_steps_are_of_hold_ups(seen)
    # after a step's work, where the next one's is launched meanwhile: unless others hold the host up
    seen = run(host, "beside", **BUSY, beside_s=0.006, how="after")
    assert not wrong("busy", seen)
    assert side_steps_are_of_hold_ups(seen)


@pytest.mark.parametrize(
    "how",
    [{"host_s": 0.012, "device_s": 0.0}, {"host_s": 0.0, "device_s": 0.012}],
    ids=["host", "device"],
)
def test_what_comes_after_the_optimizer_is_no_step(host: Host, how: dict[str, float]) -> None:
    """12 ms of logging, or of metrics on the GPU, after 4 ms of work."""
    seen = run(host, "works_after", **how)
    outside_s = seen.steps[
        "outside_s"
    ]  # not known where something held the host up as it requested a batch
    assert np.isnan(outside_s).mean() < 0.2
    assert np.nanmin(outside_s) > 0.0114
    assert np.median(seen.steps["compute_s"]) < 0.012
    verdict = seen.verdict()
    assert verdict.kind in ("not input-bound", "moderately input-bound")
    assert "The GPU was idle for data" in verdict.sentence
    assert "The model takes the time" not in verdict.sentence


@pytest.mark.parametrize(("case", "ppm"), [("starved", -100), ("busy", 100)])
def test_the_clock_of_the_device_may_drift(host: Host, case: str, ppm: int) -> None:
    assert not wrong(
        case, run(host, "plain", **CASES[case], env={"NULLCUDA_DRIFT_PPM": str(ppm)})
    ), "shares are kept"
    ppm *= 5000  # by half
    rate = host.ok("clock_rate", watched=False, env={"NULLCUDA_DRIFT_PPM": str(ppm)}).returned
    assert float(rate) - 1 == pytest.approx(ppm / 1e6, rel=0.3)


def test_the_second_of_two_cards(host: Host) -> None:
    """The script keeps the first one current: the watch must not choose for it."""
    done = host.ok("on_the_second", env={"NULLCUDA_DEVICES": "2"})
    own = json.loads(done.returned)
    assert (done.note("environment")[0]["device"], own["current"], own["busy_s"][0]) == (
        "cuda:1",
        0,
        0.0,
    )
    assert own["busy_s"][1] > 0.99 * 0.004 * N_BATCHES  # whose length is calibrated
    assert np.median(done.steps["compute_s"]) > 0.0039


def test_headroom_is_without_the_copies_of_batches(host: Host) -> None:
    """Copies take 8 ms, the work 2 ms, and a batch is made in 10 ms meanwhile."""
    env = {"VITPROF_WATCH_HEADROOM": "1", "NULLCUDA_COPY_US": "4000"}
    done = host.ok("plain", env=env, wait_s=0.01, work_s=0.002, n_batches=320)
    facts = done.facts()
    assert facts.get("replay_refused") is None
    blocks = facts["replay"]
    step_s = {block: of["step_s"] / of["steps"] for block, of in blocks.items()}
    assert step_s["0"] > 0.01
    # in the first two every loss is copied back, too, in 4 ms
    assert 0.0019 < step_s["3"] < 0.006
    assert done.steps["h2d_s"][1:].min() > 0.0079, "steps on kept batches are no part of the run"
