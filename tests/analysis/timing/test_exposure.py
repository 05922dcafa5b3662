"""Whether one step decides the class of a run."""

from __future__ import annotations

import json

import pytest

from tests.analysis.verdict.test_verdict import GPU, delayed, run, verdict
from vitprof.recording.verdict import Verdict


@pytest.mark.parametrize(("load_ms", "kind"), [(8.1, "inconclusive"), (9.0, "moderately input-bound")])
def test_one_long_wait_is_named_with_the_share_without_it(load_ms: float, kind: str) -> None:
    quiet = run(703, parts={"read": load_ms}, compute=8.0, host=0.0)
    alone = verdict(quiet)
    v = verdict(delayed(quiet, 20.0 * (quiet["step"] == 350)))
    assert v.idle_frac > 0.7
    assert v.kind == kind, "a loader that was stuck once stays starvation: nothing says that it was anything else"
    assert v.single_event is not None
    assert (v.single_event.step, v.single_event.idle_s) == (350, pytest.approx(20.0, abs=0.01))
    assert v.single_event.idle_frac_without == pytest.approx(alone.idle_frac, abs=1e-3)
    assert ", waiting for data (one wait of 20.0 s, in step 350, decides that: " in v.sentence
    assert Verdict.from_dict(json.loads(json.dumps(v.to_dict()))) == v


def test_many_waits_are_no_single_event() -> None:
    """Every 50th step waits for 0.5 s: without the longest the class is the same."""
    steps = run(703, parts={"read": 8.1}, compute=8.0, host=0.0)
    v = verdict(delayed(steps, 0.5 * (steps["step"] % 50 == 20)), GPU)
    assert (v.kind, v.single_event) == ("input-bound", None)
    assert "decides" not in v.sentence


@pytest.mark.parametrize("load_ms", [7.0, 8.05, 8.4, 10.1, 16.0])
def test_no_step_of_a_steady_run_decides_it(load_ms: float) -> None:
    for seed in range(5):
        noisy = run(200, parts={"read": load_ms}, compute=8.0, host=0.0, noise=0.2, rng=seed)
        assert verdict(noisy).single_event is None
