"""`doctor`: a verdict for each thing; `strategies`: what there is to choose; `selftest --gpu`: a line for each case."""

import dataclasses
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.cli.json_objects import told as read_json
from tests.command_line import Call, succeeds
from vitprof.cli import doctor
from vitprof.config.strategies import STRATEGIES
from vitprof.errors import DeviceError
from vitprof.jobs import preflight
from vitprof.jobs.preflight import MachineCheck
from vitprof.recording.columns import SCHEMA_VERSION
from vitprof.selftest import CaseOutcome, SelftestReport
from vitprof.selftest.gpu.driver import GPU_CASES


def test_each_thing_has_a_verdict(call: Call) -> None:
    status, out, _ = call("doctor")
    checks = list(preflight.examine())
    assert status == any(check.verdict == "bad" for check in checks)
    assert {c.name for c in checks} >= {
        "packages",
        "PyTorch",
        "NVML",
        "shared memory",
        "disk",
        "database",
    }
    assert all(check.name in out and check.verdict in out for check in checks)


@pytest.mark.parametrize(("verdict", "status"), [("note", 0), ("bad", 1)])
def test_as_json_it_says_the_same(
    call: Call, monkeypatch: pytest.MonkeyPatch, verdict: Any, status: int
) -> None:
    disk = MachineCheck("disk", "9 GiB free in /a/[b]", "ok", "")
    checks = [disk, MachineCheck("NVML", "no driver", verdict, "install one")]
    monkeypatch.setattr(preflight, "examine", lambda: iter(checks))
    ended, out, err = call("doctor", "--json")
    assert (ended, err) == (status, "")
    found = read_json("doctor", out)
    assert found == {"schema_version": SCHEMA_VERSION, "checks": [*map(dataclasses.asdict, checks)]}


def test_strategies(call: Call) -> None:
    out = succeeds(call, "strategies")
    assert all(name in out for name in STRATEGIES)
    listed = read_json("strategies", succeeds(call, "strategies", "--json"))
    assert listed["schema_version"] == SCHEMA_VERSION
    assert [s["name"] for s in listed["strategies"]] == list(STRATEGIES)
    first = listed["strategies"][0]
    assert {
        "storage",
        "location",
        "loader",
        "transfer",
        "what",
        "when",
        "costs",
        "origin",
        "defaults",
    } <= first.keys()


def test_strategies_says_what_can_run_here_for_the_data_set(call: Call) -> None:
    listed = read_json("strategies", call("strategies", "--json")[1])["strategies"]
    dali = next(s for s in listed if s["name"] == "dali")
    assert (dali["available"], dali["availability"]) == (False, "bad")
    assert dali["reason"] == "it cannot load digits; choose the data set photos"
    assert dali["reason"] in call("strategies")[1]
    photos = read_json(
        "strategies", call("strategies", "--dataset", "photos", "--n-images", "50", "--json")[1]
    )
    assert photos["dataset"] == "photos"
    assert {s["name"]: s["storage"] for s in photos["strategies"]}["lmdb"] == "lmdb-encoded"
    assert all(s["availability"] in ("ok", "note", "bad") for s in photos["strategies"])


def outcome(case: Any, status: Any) -> CaseOutcome:
    wrong = "wrong" if status == "failed" else ""
    return CaseOutcome(
        status, "something", wrong, case=case.name, expected=case.expected, seconds=1.0
    )


def made(*statuses: Any, stopped: bool = False) -> Callable[..., SelftestReport[CaseOutcome]]:
    def run(
        *, progress: Any, ended: Callable[[CaseOutcome], None], stop: Callable[[], bool]
    ) -> SelftestReport[CaseOutcome]:
        outcomes = tuple(map(outcome, GPU_CASES.values(), statuses))
        for one in outcomes:
            ended(one)
        if stopped:
            signal.raise_signal(signal.SIGTERM)
            assert stop()
        planned = len(GPU_CASES) if stopped else len(outcomes)
        return SelftestReport(outcomes, 1.0, planned, stopped, {"device_name": "a GPU"})

    return run


def test_a_line_for_each_case_then_the_file(
    call: Call, vitprof_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "run_gpu_selftest", made("passed", "not run"))
    out = succeeds(call, "selftest", "--gpu")
    lines = out.splitlines()
    assert lines[0].startswith("PASSED: clock mapping. Expected: ")
    assert lines[1].startswith("NOT RUN: known idle.")
    assert lines[2].startswith("self-test on the GPU passed: 1 of 2")
    assert lines[3] == f"Figures for a bug report: {vitprof_home / 'selftest-gpu.json'}"
    assert lines[4].startswith("Read docs/gpu.md next")
    assert read_json("selftest-gpu", (vitprof_home / "selftest-gpu.json").read_text())["ok"]


def test_a_failed_case_is_a_failed_command(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "run_gpu_selftest", made("passed", "failed"))
    status, out, _ = call("selftest", "--gpu", "--json")
    assert status == 1
    assert [result["status"] for result in read_json("selftest-gpu", out)["results"]] == [
        "passed",
        "failed",
    ]


def test_a_stop_shows_what_is_known(
    call: Call, vitprof_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "run_gpu_selftest", made("passed", stopped=True))
    status, out, _ = call("selftest", "--gpu")
    assert status == 130
    assert "stopped after 1 of 6 cases: 1 passed" in out
    monkeypatch.setattr(doctor, "run_gpu_selftest", made(stopped=True))
    assert call("selftest", "--gpu")[:2] == (130, "")


def test_no_gpu_is_one_line(
    call: Call, vitprof_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    none = Mock(side_effect=DeviceError("selftest --gpu needs an NVIDIA GPU"))
    monkeypatch.setattr(doctor, "run_gpu_selftest", none)
    assert call("selftest", "--gpu") == (1, "", "vitprof: selftest --gpu needs an NVIDIA GPU\n")
    assert not (vitprof_home / "selftest-gpu.json").exists()
