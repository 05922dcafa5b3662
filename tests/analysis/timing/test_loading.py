"""Where a batch's loading time goes, on traces whose stages are known."""

import json
import math
from typing import Any

import numpy as np
import pytest

from tests.analysis.verdict.test_verdict import GPU, delayed, run, verdict
from tests.series import made_steps
from vitprof.analysis.timing.loading import (
    STAGE_WORDS,
    Loading,
    heaviest,
    loading_of,
    shares_in_words,
    transform_times,
)
from vitprof.config import RunConfig
from vitprof.recording.verdict import Verdict

NAN = math.nan
LOOP, TWO_WORKERS = RunConfig(), RunConfig(loader="dataloader", workers=2)


def ms(loading: Loading) -> dict[str, float]:
    return {p.name: p.ms.value for p in loading.stages}


@pytest.fixture
def steps() -> dict[str, np.ndarray]:
    """40 batches that a worker makes in 10 ms (2 read, 5 decode, 1 transform, 0.5 collate), on a loop of 20 ms."""
    stages = {
        "read_s": 0.002,
        "decode_s": 0.005,
        "transform_s": 0.001,
        "collate_s": 0.0005,
        "hand_over_s": 0.003,
    }
    trace: dict[str, np.ndarray] = made_steps(
        [0.012] * 40, 0.008, queue_depth=[1.0, 0.0, 2.0, 1.0] * 10, **stages
    )
    made = {"made_start_s": trace["t_start_s"] - 0.001, "made_end_s": trace["t_start_s"] + 0.009}
    return trace | made


def test_every_part_of_the_steps_that_are_kept_has_its_milliseconds_and_its_share(
    steps: Any,
) -> None:
    loading = loading_of(steps, TWO_WORKERS)
    assert [p.name for p in loading.stages] == list(STAGE_WORDS)
    expected = {"read": 2, "decode": 5, "transform": 1, "collate": 0.5, "rest": 1.5, "hand_over": 3}
    unknown = {"sampler": math.nan}
    assert ms(loading) == pytest.approx(unknown | expected, nan_ok=True)
    assert {p.name: p.frac for p in loading.stages} == pytest.approx(
        unknown | {k: v / 13 for k, v in expected.items()}, nan_ok=True
    )
    assert (loading.stages[2].ms, loading.stages[2].words) == (pytest.approx((5, 5, 5)), "decoding")
    assert loading.busy_frac == pytest.approx(10 / (2 * 20))
    assert (loading.queue_depth, loading.queue_empty_frac) == (1.0, pytest.approx(10 / 39))
    assert (loading.n, loading.largest) == (39, "decoding")
    steps["warmup"][:10] = 1.0
    steps["read_s"][:10] = 9.0
    loading = loading_of(steps, LOOP)
    assert (loading.n, ms(loading)["read"]) == (30, pytest.approx(2))
    noisy = steps | {"decode_s": np.random.default_rng(0).exponential(0.005, 40)}
    decode = loading_of(noisy, LOOP).stages[2].ms
    assert decode.low < decode.value < decode.high


def test_what_the_loader_cannot_tell_is_not_available_and_never_zero(steps: Any) -> None:
    nothing = loading_of(made_steps([0.1] * 5, [0.1] * 5), LOOP)
    assert (nothing.n, nothing.largest) == (0, "")
    assert all(math.isnan(p.ms.value) and math.isnan(p.frac) for p in nothing.stages)
    assert all(
        math.isnan(v) for v in (nothing.busy_frac, nothing.queue_depth, nothing.queue_empty_frac)
    )
    steps["read_s"][:] = NAN  # read and decode in one go
    partly = loading_of(steps, LOOP)
    assert math.isnan(partly.stages[0].frac)
    assert ms(partly)["rest"] == pytest.approx(3.5)
    assert sum(p.frac for p in partly.stages if p.frac >= 0) == pytest.approx(1)
    assert loading_of({name: values[:0] for name, values in steps.items()}, LOOP).n == 0


def test_threads_that_fill_a_batch_together_leave_no_rest(steps: Any) -> None:
    """Four threads decode for 30 ms altogether while the batch is made in 10 ms."""
    steps["decode_s"] = np.full(40, 0.030)
    alone = loading_of(steps, LOOP)
    assert (ms(alone)["rest"], alone.busy_frac) == (0, pytest.approx(0.5))
    shared = loading_of(steps, RunConfig(loader="threads", workers=4))
    assert math.isnan(ms(shared)["rest"])
    assert shared.busy_frac == pytest.approx((2 + 30 + 1 + 0.5) / (4 * 20))


@pytest.mark.parametrize(
    ("seconds", "most", "words"),
    [
        ({"ToTensor": 0.001, "Crop": 0.003}, "Crop", "Crop 75%, ToTensor 25%"),
        (
            {f"T{i}": 0.001 for i in range(10)},
            "T0",
            "T0 10%, T1 10%, T2 10%, T3 10%, T4 10%, T5 10%, 4 more 40%",
        ),
        ({"Identity": 0.0}, None, ""),
    ],
)
def test_shares_of_transforms(seconds: dict[str, float], most: str | None, words: str) -> None:
    found = transform_times(
        {"transforms": {name: {"s_per_sample": s, "calls": 10} for name, s in seconds.items()}}
    )
    assert [(t.name, t.calls) for t in found] == [(name, 10) for name in seconds], (
        "in the order of the compose"
    )
    heavy = heaviest(found)
    assert (heavy and heavy.name, shares_in_words(found)) == (most, words)


def test_transforms_of_a_run_that_does_not_have_them() -> None:
    for facts in ({}, {"transforms": None}, {"transforms": [1]}, {"transforms": {"A": 1, "B": {}}}):
        assert (transform_times(facts), heaviest(())) == ((), None)


@pytest.mark.parametrize(
    ("load_ms", "kind"), [(8.1, "inconclusive"), (9.0, "moderately input-bound")]
)
def test_one_long_wait_is_named_with_the_share_without_it(load_ms: float, kind: str) -> None:
    quiet = run(703, parts={"read": load_ms}, compute=8.0, host=0.0)
    alone = verdict(quiet)
    v = verdict(delayed(quiet, 20.0 * (quiet["step"] == 350)))
    assert v.idle_frac > 0.7
    assert v.kind == kind, (
        "a loader that was stuck once stays starvation: nothing says that it was anything else"
    )
    assert (v.single_event.step, v.single_event.idle_s) == (350, pytest.approx(20.0, abs=0.01))
    assert v.single_event.idle_frac_without == pytest.approx(alone.idle_frac, abs=1e-3)
    assert "One wait of 20.0 s, in step 350, decides that: without it " in v.sentence
    assert repr(Verdict.from_dict(json.loads(json.dumps(v.to_dict())))) == repr(v)


@pytest.mark.parametrize("load_ms", [8.05, 10.1])
def test_many_waits_and_steps_of_a_steady_run_are_no_single_event(load_ms: float) -> None:
    for seed in range(5):
        noisy = run(200, parts={"read": load_ms}, compute=8.0, host=0.0, noise=0.2, rng=seed)
        assert verdict(noisy).single_event is None
    steps = run(703, parts={"read": 8.1}, compute=8.0, host=0.0)
    v = verdict(
        delayed(steps, 0.5 * (steps["step"] % 50 == 20)), GPU
    )  # without the longest the class is the same
    assert (v.kind, v.single_event) == ("input-bound", None)
    assert "decides" not in v.sentence
