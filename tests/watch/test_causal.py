"""A causal profile against pipelines whose truth is known: simulated ones, whose stages can be made faster."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.watch.pipelines import LOADER, Pipeline, facts_of, run
from tests.watch.watching import Host
from vitprof.analysis.verdict.causal import causal_profile
from vitprof.watch import fetch_times
from vitprof.watch.causal_ledger import CAUSAL, PROCESS, STAGES, Ledger, Maker, SharedWords
from vitprof.watch.events import Description
from vitprof.watch.patches.causal import (
    BLOCK_STEPS,
    MOST_TRIES,
    CausalHooks,
    CausalPlan,
)

IN_SERIES = Pipeline({"read": 0.006, "transform": 0.005, "collate": 0.002, "compute": 0.009})
PIPELINES = {
    "in series": IN_SERIES,
    "loading hides": Pipeline({"read": 0.006, "transform": 0.004, "compute": 0.015}, 1),
    "two workers": Pipeline({"read": 0.024, "transform": 0.012, "compute": 0.009}, 2),
}
N_STEPS = 2600
N_TRUE = 2500
RUNS = 5
TRIED = (0.25, 0.5)


def profile_of(pipeline: Pipeline, n_steps: int, seed: int) -> Any:
    environment = {"job_cpu_count": 64, "watched": {"num_workers": pipeline.workers}}
    blocks = run(pipeline, n_steps, seed, is_profiled=True).blocks
    return causal_profile({"causal": facts_of(blocks)}, environment)


def truth(pipeline: Pipeline) -> dict[tuple[str, float], float]:
    """Returns the share of a step that is saved where a stage really is faster."""
    usual_s = run(pipeline, N_TRUE, 1).step_s
    return {
        (stage, fraction): 1 - run(pipeline, N_TRUE, 1, faster={stage: fraction}).step_s / usual_s
        for stage in pipeline.costs
        for fraction in TRIED
    }


def test_the_truth_is_in_nearly_all_intervals_and_what_hides_saves_nothing() -> None:
    held = Counter[bool]()
    claimed = Counter[bool]()
    for name, pipeline in PIPELINES.items():
        true = truth(pipeline)
        for seed in range(RUNS):
            profile = profile_of(pipeline, N_STEPS, seed)
            assert not profile.why_unknown, name
            for gain in profile.stages:
                for fraction, saved in zip(TRIED, (gain.quarter, gain.half), strict=True):
                    is_held = saved.low <= true[gain.stage, fraction] <= saved.high
                    held[is_held] += 1
                if true[gain.stage, 0.25] < 0.005:
                    claimed[gain.outcome == "saves"] += 1
    n = held.total()
    assert n >= 100
    assert held[True] / n >= 0.91, "95 of 100; by chance 91 in one of 20 tests"
    assert claimed.total() >= 15
    assert claimed[True] <= 2, (
        "of 15 that save nothing: one in 40 by chance, three in one of 20 tests"
    )


class Played:
    """Steps of a loop without workers, on a played clock."""

    def __init__(self, workers: int = 0) -> None:
        self.now_s = 0.0
        self.told: list[dict[str, Any]] = []
        self.words = SharedWords([0.0] * 4)
        self.plan = CausalPlan(self.words, self.told.append)
        self.plan.begin(LOADER, {"num_workers": workers, "prefetch_factor": 2 if workers else None})

    def step(self, read_s: float = 0.02, compute_s: float = 0.06) -> tuple[int, bool]:
        """Returns the number of its block, and whether it settles."""
        self.plan.worked(self.now_s)
        settles = self.plan.request(self.now_s)
        self.now_s += read_s
        self.plan.maker.made(read_s, 0.0, 0.0)
        self.plan.made(read_s, 0.0, 0.0)
        self.plan.received(self.now_s)
        self.now_s += compute_s
        return self.plan.block, settles

    def blocks(self) -> list[dict[str, Any]]:
        return [facts["block"] for facts in self.told if "block" in facts]


def test_each_stage_that_takes_a_while_seems_faster_equally_often() -> None:
    played = Played()
    for _ in range(1000):
        played.step()
    (look,) = [facts["look"] for facts in played.told if "look" in facts]
    assert look["tried"] == ["read", "compute"]
    assert look["stage_s"]["read"] == pytest.approx(0.02 * look["steps"])
    blocks = played.blocks()
    rounds = blocks[-1]["round"] - 1
    whole = [block for block in blocks if block["round"] <= rounds]
    cells = Counter((block["stage"], block["fraction"]) for block in whole)
    each = {(stage, fraction): rounds for stage in ("read", "compute") for fraction in TRIED}
    assert cells == {**each, ("", 0.0): 2 * rounds}
    assert len({tuple((b["stage"], b["fraction"]) for b in whole if b["round"] == n)
                for n in range(1, rounds + 1)}) > 1, "in another order each time"  # fmt: skip


def test_a_block_says_what_its_steps_would_have_taken() -> None:
    played = Played()
    for _ in range(600):
        played.step()
    for block in played.blocks():
        saved = {"read": 0.02, "compute": 0.06, "": 0.0}[block["stage"]] * block["fraction"]
        assert block["steps"] >= BLOCK_STEPS
        assert block["wall_s"] / block["steps"] == pytest.approx(0.08)
        assert block["effective_s"] / block["steps"] == pytest.approx(0.08 - saved)
        assert block["saved_s"] == pytest.approx(block["fraction"] * block["stage_s"])


def test_only_blocks_without_a_speed_up_are_of_the_run() -> None:
    played = Played()
    seen: dict[int, set[bool]] = {}
    for _ in range(300):
        block, settles = played.step()
        seen.setdefault(block, set()).add(settles)
    faster = [block["fraction"] > 0 for block in played.blocks()]
    numbers = sorted(seen)[1 : len(faster) + 1]  # the first one is the look at the stages
    assert [number % 2 == 1 for number in numbers] == faster
    assert all(settling == {True, False} for settling in list(seen.values())[:-1])


def test_a_block_begins_by_using_up_the_batches_that_are_ready() -> None:
    played = Played(workers=2)
    compute = STAGES.index("compute") + 1
    at_once = []
    for _ in range(12):
        played.step()
        at_once.append(played.words.fraction_of(compute) > 0.9)
    assert at_once == [True] * 5 + [False] * 7


def test_what_is_between_steps_begins_a_block_anew_and_its_time_is_no_stages() -> None:
    played = Played()
    for _ in range(60):
        played.step()
    n_blocks = len(played.blocks())
    for _ in range(4):
        played.step()
    played.plan.interrupt()
    assert played.words.are_off
    played.now_s += 30.0  # an evaluation
    while len(played.blocks()) < n_blocks + 8:
        played.step()
    assert all(block["wall_s"] < 5 for block in played.blocks())
    assert all(block["stage_s"] < 5 for block in played.blocks())


def test_epochs_that_are_shorter_than_a_block_are_said() -> None:
    played = Played(workers=2)
    for _ in range(MOST_TRIES):
        assert not played.plan.refused
        for _ in range(8):
            played.step()
        played.plan.interrupt()
    assert played.plan.refused.startswith("a block needs 39 steps")
    assert played.told[-1] == {"refused": played.plan.refused}
    block, settles = played.step()
    assert (block % 2, settles) == (0, False)


def test_a_refusal_ends_the_pauses() -> None:
    played = Played()
    while not played.words.fraction_of(STAGES.index("read") + 1):
        played.step()
    played.plan.refuse("")
    assert played.words.fraction_of(STAGES.index("read") + 1) == 0.0
    n_told = len(played.told)
    for _ in range(100):
        played.step()
    assert len(played.told) == n_told


TRAIN = Description(LOADER, "loader", {"num_workers": 0})
VALIDATION = Description(LOADER + 1, "loader", {"num_workers": 3})


def hooks() -> CausalHooks:
    found = CausalHooks(CausalPlan(SharedWords([0.0] * 3), lambda facts: None))
    found.plan.begin(TRAIN.number, TRAIN.facts)
    return found


def test_batches_that_nobody_trains_on_are_in_no_block() -> None:
    noted = hooks()
    for loader, gradients in ((VALIDATION, True), (TRAIN, False), (None, True)):
        noted.before_request(loader, gradients=gradients)
        assert noted.requested(1.0) == 0
        noted.received(1.1, None)
    noted.before_request(TRAIN, gradients=True)
    assert noted.requested(2.0) > 0


def test_a_loader_that_is_made_anew_for_an_epoch_goes_on() -> None:
    noted = hooks()
    again = Description(LOADER + 5, "loader", dict(TRAIN.facts))
    noted.breaks(again)
    noted.before_request(again, gradients=True)
    assert noted.requested(2.0) > 0


def test_what_a_worker_had_settled_travels_with_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    times = (0.1, 0.02, 0.01, 5.0, 5.13, 1, (), None, None, None)
    monkeypatch.setattr(PROCESS, "maker", None)
    plain = ("batch", fetch_times.bytes_to_send(times))
    assert fetch_times.passed_on(plain) is None
    assert fetch_times.passed_on("an error") is None
    shared = SharedWords([0.0] * 3)
    maker = Maker(Ledger(shared, 1), is_worker=True)
    monkeypatch.setattr(PROCESS, "maker", maker)
    shared.speed_up(STAGES.index("read") + 1, 0.5)
    maker.made(8.0, 0.0, 0.0)
    delivered = ("batch", fetch_times.bytes_to_send(times))
    passed_on = fetch_times.passed_on(delivered)
    assert passed_on is not None
    assert passed_on[1] == 4.0
    batch, made = fetch_times.unpacked(delivered)
    assert batch == "batch"
    assert made is not None
    assert made[:4] == times[:4]
    assert made[4] == passed_on[0], "made is what is passed on, after the pause"


@pytest.mark.measured
@pytest.mark.parametrize(("workers", "start_method"), [(0, None), (2, "fork")])
def test_a_real_script_has_blocks_and_its_batches_and_losses_are_its_own(
    host: Host, tmp_path: Path, workers: int, start_method: str | None
) -> None:
    script = host.running("tests.watch.stages_script")
    arguments: dict[str, Any] = {"workers": workers, "steps": 300, "start_method": start_method}
    told = script.ok("train", **arguments, env={CAUSAL: str(tmp_path / "owed")})
    plain = script.ok("train", **arguments, watched=False)
    assert told.returned.split()[1] == plain.returned.split()[1]
    fact = told.facts()["causal"]
    assert fact["refused"] is None
    assert {"read", "transform", "compute"} <= set(fact["look"]["tried"])
    tried = [block for block in fact["blocks"] if block["fraction"]]
    assert tried
    assert len(told.steps["step"]) < 300, "steps beside pauses are no steps of the run"
    for block in tried:
        assert block["saved_s"] == pytest.approx(block["fraction"] * block["stage_s"], rel=0.3)
