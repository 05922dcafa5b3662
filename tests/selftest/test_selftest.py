"""The selftest's arithmetic, what it observes of a run, its report, its hogs, and that it leaves nothing behind. Real
cases: test_ground_truth."""

import contextlib
import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import ROOT
from tests.cli.json_objects import told as read_json
from tests.command_line import Call
from tests.engine_fixtures import descendants, digits_home, full_home, gone, wait_until  # noqa: F401
from tests.ui.dashboard import add_run
from vitprof import cli
from vitprof.config.resolve import resolve
from vitprof.cores import job_cores
from vitprof.errors import JobError
from vitprof.experiments.trials import Progress
from vitprof.selftest import CASES, QUICK, Case, Result, SelftestReport, driver, run_selftest
from vitprof.selftest.cases import Observed, case_result, compare, expected_ms, observe
from vitprof.store import RunStore

BY_NAME = {case.name: case for case in CASES}
ZERO = dict.fromkeys(
    ("launch_ms", "launching_ms", "idle_frac", "true_idle_frac", "fetch_ms", "start_s"), 0.0
)
KNOWN: dict[str, Any] = {
    "cause_ms": math.nan,
    "exposed_ms": {},
    "step_ms": 12.0,
    "cpu_ms": 5.0,
    "end_s": 1.0,
}
QUIET = Observed(kind="not input-bound", cause="", signatures=(), **ZERO, **KNOWN)
READ, HOGS, LAUNCHES = (
    BY_NAME["read, in the loop"],
    BY_NAME["other programs"],
    BY_NAME["launch-bound"],
)
PARTLY, HIDDEN = BY_NAME["partly hidden"], BY_NAME["fully hidden"]


def waiting(part: str, ms: float, **changes: Any) -> Observed:
    """A run whose verdict blames `part` for `ms`."""
    blamed: dict[str, Any] = {
        "kind": "input-bound",
        "cause": part,
        "cause_ms": ms,
        "exposed_ms": {part: ms},
    }
    return dataclasses.replace(QUIET, **blamed | changes)


def result(
    case: Case, wait_ms: float, reference: Observed, *slowed: Observed, **more: Any
) -> Result:
    return case_result(case, [compare(case, wait_ms, reference, seen) for seen in slowed], **more)


@given(
    fetch=st.integers(0, 50),
    compute=st.integers(1, 50),
    wait=st.integers(0, 50),
    makers=st.sampled_from([1, 2, 3]),
)
def test_that_is_what_a_device_idles_longer(
    fetch: int, compute: int, wait: int, makers: int
) -> None:
    """Against makers and a device played through, batch by batch."""
    n = 60  # batches, those of all makers the same number

    def idled(fetch: int) -> float:
        free = [0.0] * makers
        end, idle, counted = 0.0, 0.0, n // 2
        for batch in range(n):
            ready = free[batch % makers] = free[batch % makers] + fetch
            start = max(ready, end)
            if batch >= counted:
                idle += start - end
            end = start + compute
        return idle / (n - counted)

    if min(abs(f / makers - compute) for f in (fetch, fetch + wait)) < 1:
        return  # nearly in step: it takes long until one has caught up with the other
    assert idled(fetch + wait) - idled(fetch) == pytest.approx(
        expected_ms(wait, fetch, compute, makers), abs=1e-9
    )


def test_every_case_can_run_and_its_reference_differs_by_what_is_put_in_its_way_only() -> None:
    assert len(BY_NAME) == len(CASES)
    for case in CASES:
        reference, slowed = resolve(case.base).to_dict(), resolve(case.slowed).to_dict()
        different = {name for name in slowed if slowed[name] != reference[name]}
        assert different == set(case.changes)
        assert case.hogs != bool(different)
        assert case.compute_ms > 0
    assert any(not case.right for case in QUICK)


def test_a_right_verdict_is_right() -> None:
    slowed = waiting("read", 20.5, idle_frac=0.95, true_idle_frac=0.952, step_ms=22.0)
    found = result(READ, 20.0, waiting("transform", 0.5, fetch_ms=1.5), slowed)
    assert (found.ok, found.wrong, found.cause) == (True, "", "read")
    assert (found.expected_ms, found.reported_ms) == (pytest.approx(20.0), pytest.approx(20.5))
    assert found.tolerance_ms == pytest.approx(2.0)


def test_a_wrong_one_is_told() -> None:
    for slowed, wrong in (
        (waiting("read", 23.0), "the size found was off by +3.00 ms, where 2.00 ms are allowed"),
        (
            waiting("decode", 20.0),
            "the verdict blamed decoding, expected reading; the size found was off by -20.00 ms",
        ),
        (
            waiting("read", 20.0, idle_frac=0.9, true_idle_frac=0.95),
            "an idle share of 90.0% instead of 95.0%",
        ),
        (waiting("", 20.0, kind="inconclusive"), "the verdict was inconclusive, expected reading"),
        (waiting("read", math.nan), "the size found was off by +nan"),
    ):
        found = result(READ, 20.0, dataclasses.replace(QUIET, fetch_ms=1.5), slowed)
        assert (found.ok, wrong in found.wrong) == (False, True), found.wrong


def test_what_is_hidden_must_cost_nothing() -> None:
    fine = result(HIDDEN, 8.0, QUIET, waiting("read", 0.02, kind="not input-bound"))
    assert (fine.ok, fine.cause, fine.tolerance_ms) == (True, "", 0.3)
    blamed = result(HIDDEN, 8.0, QUIET, waiting("read", 1.0))
    assert (blamed.cause_ok, blamed.size_ok) == (False, False)


def test_launches_are_compared_with_what_they_really_took() -> None:
    """On a busy machine a wait of 4 ms takes 4.6: the device had to wait that much longer inside its steps."""
    found = dataclasses.replace(QUIET, kind="launch-bound", cause="launches", launch_ms=3.6)
    late = result(LAUNCHES, math.nan, QUIET, dataclasses.replace(found, launching_ms=4.6))
    assert (late.expected_ms, late.ok) == (pytest.approx(3.6), True)
    assert not result(LAUNCHES, math.nan, QUIET, dataclasses.replace(found, launching_ms=4.0)).ok


def test_hogs_are_compared_with_what_the_device_idled_longer() -> None:
    reference, slowed = (
        waiting("transform", 9.0, step_ms=11.0),
        waiting("cpu_contention", 15.0, step_ms=26.0),
    )
    assert result(HOGS, math.nan, reference, slowed).ok
    busy_before = dataclasses.replace(reference, cause="cpu_contention", cause_ms=5.0)
    assert compare(HOGS, math.nan, busy_before, slowed).reported_ms == pytest.approx(10.0)
    by_signature = dataclasses.replace(slowed, cause="transform", signatures=("other-programs",))
    assert compare(HOGS, math.nan, reference, by_signature).cause_ok
    longer = dataclasses.replace(
        slowed, cpu_ms=7.0
    )  # work that took longer beside hogs did not wait
    assert compare(HOGS, math.nan, reference, longer).expected_ms == pytest.approx(13.0)


def test_medians_decide_and_most_rounds_name_the_cause() -> None:
    good, bad = waiting("read", 20.0), waiting("decode", 90.0)
    assert not result(READ, 20.0, QUIET, good, bad).cause_ok
    found = result(READ, 20.0, QUIET, bad, good, good, retries=2)
    assert (found.cause, found.cause_ok, found.rounds, found.retries) == ("read", True, 3, 2)
    assert "other programs" not in result(READ, 20.0, QUIET, bad).wrong
    assert (
        "programs took 1.9 cores"
        in result(READ, 20.0, dataclasses.replace(QUIET, others_cores=1.9), bad).wrong
    )


def of_case(name: str, **changes: Any) -> Result:
    fine = result(BY_NAME[name], 20.0, QUIET, waiting("read", 20.0, fetch_ms=2.0))
    return dataclasses.replace(
        fine, **{"cause_ok": True, "size_ok": True, "idle_ok": True} | changes
    )


FINE = of_case("read, in the loop")


def test_the_report_in_one_line_and_as_plain_values() -> None:
    failed = of_case("slow drive", failure="its job did not finish", error_ms=math.nan)
    assert SelftestReport((FINE,), 1.0, 1).sentence == "self-test passed: 1 of 1"
    report = SelftestReport((FINE, failed), 2.0, 2)
    assert report.sentence == "self-test failed: 1 of 2: slow drive (its job did not finish)"
    stopped = SelftestReport((FINE,), 1.0, 2)
    assert "stopped" in stopped.sentence
    assert (report.ok, stopped.ok) == (False, False)
    plain = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert plain["results"][1]["error_ms"] is None
    assert [r["ok"] for r in plain["results"]] == [True, False]


def test_the_sentence_is_as_bad_as_the_worst_case() -> None:
    failed = of_case("slow drive", failure="its job did not finish")
    busy = of_case("partly hidden", cause="collate", cause_ok=False, others_cores=1.5)
    assert busy.status == "disturbed"
    n = len((FINE, busy))
    assert SelftestReport((FINE, busy), 2.0, n).sentence.startswith(
        "self-test is undecided: 1 of 2"
    )
    worst = SelftestReport((FINE, busy, failed), 2.0, 3).sentence
    assert worst.startswith(
        "self-test failed: 1 of 3: slow drive (its job did not finish); undecided: partly hidden ("
    )


def test_the_bar_and_the_time_left_are_of_what_is_to_come() -> None:
    jobs = Progress("read, in the loop, reference run", 3, 15, 0.2, run_id=4)
    assert math.isnan(
        driver.overall(dataclasses.replace(jobs, done=0, fraction=0.0), 0.1, 1.0).seconds_left
    )
    found = driver.overall(jobs, 0.1, 12.0)
    assert (found.fraction, found.seconds_left) == (pytest.approx(0.28), pytest.approx(48.0))
    more = driver.overall(dataclasses.replace(jobs, done=16, fraction=16 / 15), 0.1, 64.0)
    assert more.fraction < 1, "rounds that were added go on"


class FakeSelftest(driver.Selftest):
    """A self-test that runs no jobs: what each observes, by the names of cases, in turns."""

    observations: dict[str, list[Observed | JobError]]
    ran: list[str]

    def prepare(self) -> None:
        return

    def _observe(self, case: Case) -> Observed:
        observed = QUIET if self.ran[-1] == "reference" else self.observations[case.name].pop(0)
        if isinstance(observed, JobError):
            raise observed
        return observed


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeSelftest]:
    def run_trials(manager: Any, trials: Any, group_key: str, *, watch: Any, **more: Any) -> Any:
        for trial in trials:
            watch(trial, 1)
            FakeSelftest.ran.append(
                trial.role if trial.role == "reference" else trial.words.partition(", slowed")[0]
            )
            yield trial, 1

    monkeypatch.setattr(driver, "run_trials", run_trials)
    monkeypatch.setattr(driver, "Selftest", FakeSelftest)
    FakeSelftest.ran = []
    return FakeSelftest


RIGHT = {
    "partly hidden": waiting("read", 8.0),
    "fully hidden": waiting("read", 0.0, kind="not input-bound"),
}


def test_cases_share_their_reference_in_every_round(fake: type[FakeSelftest]) -> None:
    fake.observations = {name: [right] * 2 for name, right in RIGHT.items()}
    report = run_selftest([PARTLY, HIDDEN], rounds=2)
    assert report.sentence == "self-test passed: 2 of 2"
    assert fake.ran == ["reference", "partly hidden", "fully hidden"] * 2


def test_only_what_is_not_right_is_run_again(fake: type[FakeSelftest]) -> None:
    spoilt = waiting("read", 11.0)
    fake.observations = {
        "partly hidden": [
            spoilt,
            JobError("killed"),
            RIGHT["partly hidden"],
            RIGHT["partly hidden"],
        ]
    }
    fake.observations["fully hidden"] = [RIGHT["fully hidden"]]
    report = run_selftest([PARTLY, HIDDEN], rounds=1)
    assert report.ok
    assert [(r.case, r.rounds, r.retries) for r in report.results] == [
        ("partly hidden", 3, 3),
        ("fully hidden", 1, 0),
    ]


def test_what_stays_wrong_fails_and_a_stop_leaves_what_was_found(fake: type[FakeSelftest]) -> None:
    fake.observations = {"partly hidden": [JobError("its job did not finish")] * 4}
    report = run_selftest([PARTLY], rounds=1)
    assert report.sentence == "self-test failed: 1 of 1: partly hidden (its job did not finish)"
    fake.ran, fake.observations = [], {name: [right] for name, right in RIGHT.items()}
    report = run_selftest([PARTLY, HIDDEN], rounds=1, stop=lambda: len(fake.ran) == 3)
    assert [r.case for r in report.results] == ["partly hidden"]
    assert "stopped" in report.sentence


@pytest.mark.measured
def test_hogs_end_when_who_started_them_is_killed() -> None:
    """Those that are busy, and those that wait."""
    script = """
import time
from vitprof.selftest.interference import BusyCores
with BusyCores() as waiting, BusyCores() as busy:
    busy.begin()
    print(*(hog.pid for hogs in (waiting, busy) for hog in hogs._hogs), flush=True)
    time.sleep(600)
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, env=env, text=True
    ) as parent:
        hogs = [psutil.Process(int(word)) for word in parent.stdout.readline().split()]
        parent.kill()
    assert len(hogs) == 4 * job_cores()
    assert gone(hogs)


def test_the_command_shows_a_line_for_each_case_and_one_last(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def shown(report: SelftestReport, *args: str) -> tuple[int, str]:
        def made(*given: Any, progress: Any, stop: Any) -> SelftestReport:
            asked.extend(given)
            if report.stopped:
                signal.raise_signal(signal.SIGTERM)
                assert stop()
            return report

        monkeypatch.setattr(cli.doctor, "run_selftest", made)
        status, out, _ = call("selftest", *args)
        return status, out

    status, out = shown(SelftestReport((FINE,), 1.0, 1), "--quick")
    assert (status, out.splitlines()[-1], asked) == (0, "self-test passed: 1 of 1", [QUICK, 1])
    assert "PASSED: read, in the loop. reading, 20.00 of 19.00 ms, idle 0.0% (0.0%)\n" in out
    failed = SelftestReport((of_case("read, in the loop", size_ok=False),), 1.0, 1)
    status, out = shown(failed)
    assert (status, out.splitlines()[-1]) == (1, failed.sentence)
    status, out = shown(failed, "--json")
    assert (status, read_json("selftest", out)["sentence"]) == (1, failed.sentence)
    status, out = shown(SelftestReport((FINE,), 1.0, 2, stopped=True))
    assert (status, out.splitlines()[-1]) == (130, "self-test stopped after 1 of 2 cases: 1 passed")
    assert shown(SelftestReport((), 1.0, 2, stopped=True), "--json") == (130, "")


@pytest.mark.measured
@pytest.mark.usefixtures("full_home")
def test_an_interrupted_selftest_leaves_nothing_behind(tmp_path: Path) -> None:
    """SIGTERM, which is taken like Ctrl-C: a shell's background job has SIGINT ignored, and so have its children."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}
    command = [sys.executable, "-m", "vitprof", "selftest"]
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as selftest:
        jobs = wait_until(lambda: descendants(selftest.pid), "a job")
        assert list(temporary.iterdir())
        with contextlib.suppress(ProcessLookupError):
            selftest.terminate()
        out, err = selftest.communicate(timeout=60)
    assert (selftest.returncode, err.splitlines()[-1], out) == (130, "vitprof: interrupted", "")
    assert gone(jobs)
    assert not list(temporary.iterdir())


WAIT_MS, COMPUTE_MS = 20.0, 5.0
"""Of a run whose steps are known: each waits, then computes, one after another."""


def test_size_cause_and_times_are_those_of_the_steps(store: RunStore) -> None:
    run_id = add_run(store, wait_s=WAIT_MS / 1e3, strategy="per-sample", device=READ.base.device)
    seen = observe(store, run_id, READ)
    assert (seen.kind, seen.cause) == (
        "input-bound",
        "read",
    )  # 3 ms of each wait; digits are not decoded
    assert seen.cause_ms == seen.exposed_ms["read"] == pytest.approx(3)
    assert (seen.step_ms, seen.fetch_ms) == (
        pytest.approx(WAIT_MS + COMPUTE_MS),
        pytest.approx(WAIT_MS),
    )
    assert seen.idle_frac == pytest.approx(WAIT_MS / (WAIT_MS + COMPUTE_MS))
    assert seen.true_idle_frac == pytest.approx(1 - READ.compute_ms / (WAIT_MS + COMPUTE_MS))
    assert seen.end_s - seen.start_s == pytest.approx(
        34 * seen.step_ms / 1e3
    )  # 40 steps, 5 of them to warm up


def test_a_run_that_cannot_be_judged_is_refused(store: RunStore) -> None:
    with pytest.raises(JobError, match=r"its job did not finish \(failed\)"):
        observe(store, add_run(store, status="failed"), READ)
    with pytest.raises(JobError, match="too few steady steps"):
        observe(store, add_run(store, n=6), READ)
