"""`selftest --gpu`: a line for each case, the file, what to read, and exit statuses."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.json_objects import told as read_json
from tests.command_line import Call, one_line, succeeds
from vitprof.cli import doctor
from vitprof.errors import DeviceError
from vitprof.selftest import Outcome, SelftestReport
from vitprof.selftest.gpu.driver import GPU_CASES


def made(*statuses: Any, stopped: bool = False) -> Callable[..., SelftestReport[Outcome]]:
    def run(*, progress: Any, ended: Callable[[Outcome], None], stop: Callable[[], bool]) -> SelftestReport[Outcome]:
        outcomes = tuple(
            Outcome(
                status, "something", "wrong" * (status == "failed"), case=case.name, expected=case.expected, seconds=1.0
            )
            for case, status in zip(GPU_CASES.values(), statuses, strict=False)
        )
        for outcome in outcomes:
            ended(outcome)
        if stopped:
            signal.raise_signal(signal.SIGTERM)
            assert stop()
        return SelftestReport(
            outcomes, 1.0, len(GPU_CASES) if stopped else len(outcomes), stopped, {"device_name": "a GPU"}
        )

    return run


def test_a_line_for_each_case_then_the_file(call: Call, vitprof_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "run_gpu_selftest", made("passed", "not run"))
    out = succeeds(call, "selftest", "--gpu")
    lines = out.splitlines()
    assert lines[0].startswith("PASSED: clock mapping. Expected: ")
    assert lines[1].startswith("NOT RUN: known idle.")
    assert lines[2].startswith("selftest on the GPU passed: 1 of 2")
    assert lines[3] == f"Figures for a bug report: {vitprof_home / 'selftest-gpu.json'}"
    assert lines[4].startswith("Read docs/gpu.md next")
    assert read_json("selftest-gpu", (vitprof_home / "selftest-gpu.json").read_text())["ok"]


def test_a_failed_case_is_a_failed_command(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "run_gpu_selftest", made("passed", "failed"))
    status, out, _ = call("selftest", "--gpu", "--json")
    assert status == 1
    assert [result["status"] for result in read_json("selftest-gpu", out)["results"]] == ["passed", "failed"]


def test_a_stop_shows_what_is_known(call: Call, vitprof_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "run_gpu_selftest", made("passed", stopped=True))
    status, out, _ = call("selftest", "--gpu")
    assert status == 130
    assert "stopped after 1 of 6 cases: 1 passed" in out
    monkeypatch.setattr(doctor, "run_gpu_selftest", made(stopped=True))
    assert call("selftest", "--gpu")[:2] == (130, "")


def test_no_gpu_is_one_line(call: Call, vitprof_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*args: Any, **kwargs: Any) -> SelftestReport[Outcome]:
        raise DeviceError("selftest --gpu needs an NVIDIA GPU")

    monkeypatch.setattr(doctor, "run_gpu_selftest", none)
    assert call("selftest", "--gpu") == (1, "", "vitprof: selftest --gpu needs an NVIDIA GPU\n")
    assert not (vitprof_home / "selftest-gpu.json").exists()


def test_there_is_no_quick_form(call: Call) -> None:
    assert "leave one of the two out" in one_line(call, "selftest", "--gpu", "--quick")
