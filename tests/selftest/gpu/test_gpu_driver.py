"""The driver: cases in processes that answer, hang or die, and stop; the report; and a case that raises. The cases
themselves: tests/nullcuda/test_selftest.py."""

import dataclasses
import json
import math
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from tests.engine_fixtures import descendants
from vitprof.errors import DataError, DeviceError
from vitprof.experiments.trials import Progress
from vitprof.measure.devices import CpuDevice
from vitprof.selftest.gpu import device_cases, driver
from vitprof.selftest.gpu.bench import Bench
from vitprof.selftest.gpu.driver import GPU_CASES, TOTAL_S, GpuCase, run_case, run_gpu_selftest
from vitprof.selftest.report import CaseOutcome, SelftestReport, machine_facts, plain


def case(name: str, limit_s: float = 20.0) -> GpuCase:
    return GpuCase(name=name, expected="something", limit_s=limit_s, run=GPU_CASES["copies"].run)


CHILD = """
import json, sys, time
name = sys.argv[1]
if name == "hangs":
    time.sleep(600)
if name == "dies":
    sys.exit("Segmentation fault")
outcome = {"status": "passed", "measured": name, "wrong": "", "figures": {}}
message = {"facts": {"device_name": "a GPU"}, "outcome": outcome}
print(json.dumps({"error": "no GPU here; do this"} if name == "no GPU" else message))
"""


def run(*cases: GpuCase, **options: Any) -> SelftestReport[CaseOutcome]:
    return run_gpu_selftest(
        cases, child=lambda name, folder: [sys.executable, "-c", CHILD, name, folder], **options
    )


def test_a_case_that_hangs_or_dies_has_failed_and_the_others_go_on() -> None:
    ended: list[CaseOutcome] = []
    cases = (case("a"), case("hangs", 0.3), case("no GPU"), case("dies"), case("c"))
    report = run(*cases, ended=ended.append)
    assert [(outcome.case, outcome.status, outcome.wrong) for outcome in report.results] == [
        ("a", "passed", ""),
        ("hangs", "failed", "it took longer than 0 s"),
        ("no GPU", "failed", "no GPU here; do this"),
        ("dies", "failed", "its process ended: exit status 1, Segmentation fault"),
        ("c", "passed", ""),
    ]
    assert ended == list(report.results)
    assert not report.ok
    assert report.sentence.startswith(
        "self-test on the GPU failed: 3 of 5: hangs (it took longer than 0 s); no GPU ("
    )
    assert report.machine["device_name"] == "a GPU"


@pytest.mark.parametrize(
    ("name", "error"), [("no GPU", "^no GPU here; do this$"), ("dies", "exit status 1")]
)
def test_without_a_device_nothing_is_run(name: str, error: str) -> None:
    with pytest.raises(DeviceError, match=error):
        run(case(name), case("a"))


def test_a_stop_ends_the_process_and_keeps_what_is_known() -> None:
    ended: list[CaseOutcome] = []
    shown: list[Progress] = []
    report = run(
        case("a", 100),
        case("hangs", 50),
        ended=ended.append,
        stop=lambda: bool(ended),
        progress=shown.append,
    )
    assert report.stopped
    assert not report.ok
    assert report.sentence == "self-test on the GPU stopped after 1 of 2 cases: 1 passed"
    assert not descendants()
    assert (shown[0].words, shown[0].done, shown[0].total) == ("a", 0, 2)
    assert (shown[-1].words, shown[-1].fraction) == ("hangs", 0.5)


def test_the_cases_fit_into_five_minutes_and_a_line_has_everything() -> None:
    assert (TOTAL_S, len(GPU_CASES)) == (300, 6)
    outcome = CaseOutcome("passed", "11 of 12 GB/s", case="copies", expected="something")
    assert outcome.words == "PASSED: copies. Expected: something. Measured: 11 of 12 GB/s."
    failed = CaseOutcome(
        "failed", "1 of 12 GB/s", "only 8% is reached", case="copies", expected="something"
    )
    assert failed.words.endswith("Measured: 1 of 12 GB/s: only 8% is reached.")


def test_the_sentence_the_advice_and_the_file(
    vitprof_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-11111111-2222-3333-4444-555555555555")
    monkeypatch.setenv("CUDA_SECRET", "secret")
    passed, not_run = (
        CaseOutcome("passed", f"room in {vitprof_home}", case="a"),
        CaseOutcome("not run", wrong="x", case="b"),
    )
    report = SelftestReport(
        (passed, not_run), 12.0, 2, machine=machine_facts({"device_name": "a GPU"})
    )
    assert report.ok
    assert report.sentence == "self-test on the GPU passed: 1 of 2; not run: b"
    assert report.advice.startswith("Read docs/gpu.md next")
    path = report.write()
    assert path == vitprof_home / "selftest-gpu.json"
    values = json.loads(path.read_text())
    assert values["machine"]["variables"]["CUDA_VISIBLE_DEVICES"] == "GPU-UUID"
    assert values["results"][0]["measured"] == "room in VITPROF_HOME"
    assert "secret" not in path.read_text()
    assert str(vitprof_home) not in path.read_text()
    assert [result["status"] for result in values["results"]] == ["passed", "not run"]
    wrong = SelftestReport(
        (CaseOutcome("failed", figures={"x": float("nan")}),),
        1.0,
        1,
        machine={"device_name": "a GPU"},
    )
    assert "send the file in with a bug report" in wrong.advice
    assert json.loads(wrong.to_json())["results"][0]["figures"] == {"x": None}


def test_the_union_of_kernels() -> None:
    assert (device_cases.union([(5, 7), (0, 2), (1, 3), (1.5, 1.7)]), device_cases.union([])) == (
        5,
        0,
    )


def test_a_case_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    no_memory = DeviceError(
        "CUDA out of memory on stand-in: it asked for 2 GiB more; try batch size 64"
    )
    for error, status in (
        (DataError("no room"), "failed"),
        (ValueError("a bug"), "failed"),
        (no_memory, "not run"),
    ):
        fails = dataclasses.replace(GPU_CASES["copies"], run=Mock(side_effect=error))
        monkeypatch.setitem(GPU_CASES, "copies", fails)
        outcome = run_case("copies", Bench(CpuDevice(time.perf_counter)))
        assert (outcome.status, str(error) in outcome.wrong) == (status, True)


def test_without_a_gpu_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        DeviceError, match=r"needs an NVIDIA GPU .* sees none; `python -m vitprof doctor` says more"
    ):
        driver.open_bench("cuda:0", Path())


def test_outcomes_are_json() -> None:
    outcome = CaseOutcome("failed", "x", "y", {"a": math.nan, "b": (1, math.inf), "c": {"d": 2}})
    message = json.loads(json.dumps(plain(outcome.to_dict()), allow_nan=False))
    assert message["figures"] == {"a": None, "b": [1, None], "c": {"d": 2}}
    assert CaseOutcome(**message).status == "failed"
