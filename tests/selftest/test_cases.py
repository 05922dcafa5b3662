"""What is observed of a run whose steps are known: each waits, then computes for 5 ms, one after another."""

import pytest

from tests.ui.dashboard import add_run
from vitprof.errors import JobError
from vitprof.selftest import CASES
from vitprof.selftest.cases import observe
from vitprof.store import RunStore

READ = next(case for case in CASES if case.name == "read, in the loop")
WAIT_MS, COMPUTE_MS = 20.0, 5.0


def test_size_cause_and_times_are_those_of_the_steps(store: RunStore) -> None:
    run_id = add_run(store, wait_s=WAIT_MS / 1e3, strategy="per-sample", device=READ.base.device)
    seen = observe(store, run_id, READ)
    assert (seen.kind, seen.cause) == ("input-bound", "read")  # 3 ms of each wait; digits are not decoded
    assert seen.cause_ms == seen.exposed_ms["read"] == pytest.approx(3)
    assert (seen.step_ms, seen.fetch_ms) == (pytest.approx(WAIT_MS + COMPUTE_MS), pytest.approx(WAIT_MS))
    assert seen.idle_frac == pytest.approx(WAIT_MS / (WAIT_MS + COMPUTE_MS))
    assert seen.true_idle_frac == pytest.approx(1 - READ.compute_ms / (WAIT_MS + COMPUTE_MS))
    assert seen.end_s - seen.start_s == pytest.approx(34 * seen.step_ms / 1e3)  # 40 steps, 5 of them to warm up


def test_a_run_that_cannot_be_judged_is_refused(store: RunStore) -> None:
    with pytest.raises(JobError, match=r"its job did not finish \(failed\)"):
        observe(store, add_run(store, status="failed"), READ)
    with pytest.raises(JobError, match="too few steady steps"):
        observe(store, add_run(store, n=6), READ)
