"""The driver: cases in a process that answers, hangs or dies, the time that there is, stop; and the report."""

from __future__ import annotations

import json
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.engine_fixtures import descendants
from vitprof.errors import DataError, DeviceError, JobStopped
from vitprof.selftest.gpu import (
    GPU_CASES,
    TOTAL_S,
    GpuCase,
    GpuReport,
    Line,
    Outcome,
    driver,
    leftovers,
    run_gpu_selftest,
    scripts,
)
from vitprof.selftest.gpu.case import OPENING_S
from vitprof.selftest.gpu.host import Host
from vitprof.selftest.gpu.report import machine_facts


def case(name: str, budget_s: float = 20.0, **changes: Any) -> GpuCase:
    return GpuCase(name=name, expected="something", budget_s=budget_s, **{"run": "x.y"} | changes)


CHILD = textwrap.dedent(
    """
    import json, sys, time
    def tell(**message):
        print(json.dumps(message), flush=True)
    tell(device={"device_name": "a GPU", "gpus": 1})
    for name in sys.argv[1:]:
        tell(began=name)
        if name == "hangs":
            time.sleep(600)
        if name == "dies":
            sys.exit("Segmentation fault")
        tell(ended=name, outcome={"status": "passed", "measured": name, "reason": "", "figures": {}})
    """
)


def child(device: str, names: Sequence[str]) -> list[str]:
    return [sys.executable, "-c", CHILD, *names]


def run(*cases: GpuCase, **options: Any) -> GpuReport:
    return run_gpu_selftest(lambda config: "", cases, **{"child": child} | options)


def said(report: GpuReport) -> list[tuple[str, str, str]]:
    return [(line.case.name, line.outcome.status, line.outcome.reason) for line in report.lines]


@pytest.fixture(autouse=True)
def _no_time_left_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A case has its own time and no more."""
    monkeypatch.setattr(driver, "OPENING_S", -1000.0)


@pytest.mark.slow
def test_a_case_that_hangs_or_dies_has_failed_and_the_others_go_on() -> None:
    told: list[str] = []
    report = run(
        case("a"), case("hangs", 0.3), case("b"), case("dies"), case("c"), told=lambda line: told.append(line.case.name)
    )
    assert said(report) == [
        ("a", "passed", ""),
        ("hangs", "failed", "it took longer than 0 s"),
        ("b", "passed", ""),
        ("dies", "failed", "its process ended: exit status 1, Segmentation fault"),
        ("c", "passed", ""),
    ]
    assert told == ["a", "hangs", "b", "dies", "c"]
    assert not report.ok
    assert report.sentence == "selftest on the GPU failed: hangs, dies; 3 of 5 passed"
    assert report.machine["device_name"] == "a GPU"


def test_without_a_device_nothing_is_run() -> None:
    def none(device: str, names: Sequence[str]) -> list[str]:
        return [sys.executable, "-c", """print('{"error": "no GPU here; do this"}')"""]

    with pytest.raises(DeviceError, match=r"^no GPU here; do this$"):
        run(case("a"), child=none)
    with pytest.raises(DeviceError, match=r"could not be opened: exit status 3$"):
        run(case("a"), child=lambda device, names: [sys.executable, "-c", "raise SystemExit(3)"])


def test_a_device_that_one_case_takes_away_fails_the_others() -> None:
    opened = 0

    def once(device: str, names: Sequence[str]) -> list[str]:
        nonlocal opened
        opened += 1
        return child(device, names) if opened == 1 else [sys.executable, "-c", """print('{"error": "gone"}')"""]

    assert said(run(case("dies"), case("a"), case("b"), child=once))[1:] == [
        ("a", "failed", "gone"),
        ("b", "failed", "gone"),
    ]


def test_what_comes_after_the_five_minutes_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "TOTAL_S", 0.0)
    report = run(case("a"), case("b"), case("c", on_device=False))
    assert said(report) == [(name, "not run", "the time limit of 0 minutes was reached") for name in "abc"]


def test_a_stop_ends_the_process_and_keeps_what_is_known() -> None:
    lines: list[Line] = []
    report = run(case("a"), case("hangs"), told=lines.append, stop=lambda: bool(lines))
    assert report.stopped
    assert not report.ok
    assert report.sentence == "selftest on the GPU stopped after 1 of 2 cases: 1 passed"
    assert not descendants()


class Quiet(Host):
    """A host that starts nothing."""

    ended = 0

    def end_jobs(self) -> None:
        self.ended += 1


@pytest.mark.parametrize(
    ("does", "outcome"),
    [
        (lambda host: Outcome("passed", host.facts["device_name"]), ("passed", "")),
        (lambda host: host.until(lambda: False), ("failed", "it took longer than 0 s")),
        (lambda host: (_ for _ in ()).throw(DataError("no room")), ("failed", "no room")),
        (lambda host: (_ for _ in ()).throw(OSError("no room")), ("failed", "OSError: no room")),
    ],
    ids=["passed", "late", "failed", "system"],
)
def test_cases_that_start_jobs(
    does: Callable[[Host], Any], outcome: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts: list[Quiet] = []

    def quiet(host: Host) -> Host:
        hosts.append(Quiet(host.device, host.directory, host.script, host.facts, host.stop))
        return hosts[0]

    monkeypatch.setattr(scripts, "every_script", does)
    report = run(case("jobs", 0.1, on_device=False, run="scripts.every_script"), host=quiet)
    assert said(report) == [("jobs", *outcome)]
    assert hosts[0].ended == 1
    assert not hosts[0].directory.exists()


def test_a_stop_in_a_case_that_starts_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(host: Host) -> Outcome:
        raise JobStopped("stopped")

    monkeypatch.setattr(leftovers, "nothing_left", stopped)
    report = run(case("a"), case("jobs", on_device=False, run="leftovers.nothing_left"))
    assert (report.stopped, len(report.lines)) == (True, 1)


def test_progress_tells_what_is_left() -> None:
    told: list[Any] = []
    run(case("a", 100.0), case("b", 50.0), progress=told.append)
    assert (told[0].words, told[0].done, told[0].total, told[0].left_s) == ("opening the device", 0, 2, 150.0)
    assert {progress.words for progress in told[1:]} <= {"opening the device", "a", "b"}


def test_a_case_gets_what_those_before_it_left_and_never_more_than_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "OPENING_S", 15.0)
    cases = [case("a", 40.0), case("b", 20.0), case("c", 500.0)]
    work = driver._Work(Path(), cases, lambda progress: None, lambda line: None, lambda: False)
    a, b, c = (work._ends_s(one) - work.began_s for one in cases)
    assert (a, b, c) == (55.0, 75.0, TOTAL_S)
    work.began_s -= 100
    assert work._ends_s(cases[1]) - work.began_s == pytest.approx(120.0, abs=5)


def test_the_budgets_fit_into_the_five_minutes() -> None:
    assert OPENING_S + sum(case.budget_s for case in GPU_CASES) <= TOTAL_S
    assert len({case.name for case in GPU_CASES}) == len(GPU_CASES)


def line(name: str, status: Any, **changes: Any) -> Line:
    return Line(case(name), Outcome(status, **changes), 1.0)


def test_a_line_says_all() -> None:
    assert line("copies", "passed", measured="11 of 12 GB/s").words == (
        "PASSED: copies. Expected: something. Measured: 11 of 12 GB/s."
    )
    failed = line("copies", "failed", measured="1 of 12 GB/s", reason="only 8% is reached")
    assert failed.words.endswith("Measured: 1 of 12 GB/s: only 8% is reached.")
    assert line("x", "not run", reason="no DALI").words == "NOT RUN: x. Expected: something. Measured: no DALI."


def test_the_sentence_the_advice_and_the_file(vitprof_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-11111111-2222-3333-4444-555555555555")
    monkeypatch.setenv("CUDA_SECRET", "secret")
    passed, left = line("a", "passed", measured=f"room in {vitprof_home}"), line("b", "not run", reason="one GPU")
    report = GpuReport((passed, left), machine_facts({"device_name": "a GPU"}), 12.0, 2)
    assert report.ok
    assert report.sentence == "selftest on the GPU passed: 1 of 2; not run: b"
    assert report.advice.startswith("Read docs/gpu.md next")
    path = report.write()
    assert path == vitprof_home / "selftest-gpu.json"
    plain = json.loads(path.read_text())
    assert plain["machine"]["variables"]["CUDA_VISIBLE_DEVICES"] == "GPU-UUID"
    assert plain["results"][0]["measured"] == "room in VITPROF_HOME"
    assert "secret" not in path.read_text()
    assert str(vitprof_home) not in path.read_text()
    assert [result["status"] for result in plain["results"]] == ["passed", "not run"]
    wrong = GpuReport((line("a", "failed", figures={"x": float("nan")}),), {}, 1.0, 1)
    assert "send the file in with a bug report" in wrong.advice
    assert json.loads(wrong.to_json())["results"][0]["figures"] == {"x": None}


def test_a_read_only_home_says_what_to_do(read_only_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITPROF_HOME", str(read_only_dir / "home"))
    with pytest.raises(Exception, match="cannot write to"):
        GpuReport((), {}, time.monotonic(), 0).write()
