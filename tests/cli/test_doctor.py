"""`doctor`: a verdict for each thing, and an exit status."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.json_objects import told
from tests.command_line import Call
from vitprof.jobs import preflight
from vitprof.jobs.preflight import MachineCheck
from vitprof.recording.columns import SCHEMA_VERSION


def test_each_thing_has_a_verdict(call: Call) -> None:
    status, out, _ = call("doctor")
    checks = list(preflight.examine())
    assert status == any(check.verdict == "bad" for check in checks)
    assert {c.name for c in checks} >= {"packages", "PyTorch", "NVML", "shared memory", "disk", "database"}
    assert all(check.name in out and check.verdict in out for check in checks)


def test_bad_news_is_exit_status_1(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = [
        MachineCheck("disk", "/a/[b]/c", "ok", ""),
        MachineCheck("database", "cannot be [/used]", "bad", "move it away"),
    ]
    monkeypatch.setattr(preflight, "examine", lambda: iter(checks))
    status, out, err = call("doctor")
    assert (status, err) == (1, "")
    assert all(text in out for text in ("/a/[b]/c", "cannot be [/used]", "bad: move it away"))


@pytest.mark.parametrize(("verdict", "status"), [("note", 0), ("bad", 1)])
def test_as_json_it_says_the_same(call: Call, monkeypatch: pytest.MonkeyPatch, verdict: Any, status: int) -> None:
    checks = [
        MachineCheck("disk", "9 GiB free in /a/[b]", "ok", ""),
        MachineCheck("NVML", "no driver", verdict, "install one"),
    ]
    monkeypatch.setattr(preflight, "examine", lambda: iter(checks))
    ended, out, err = call("doctor", "--json")
    assert (ended, err) == (status, "")
    assert told("doctor", out) == {
        "schema_version": SCHEMA_VERSION,
        "checks": [
            {"name": "disk", "found": "9 GiB free in /a/[b]", "verdict": "ok", "meaning": ""},
            {"name": "NVML", "found": "no driver", "verdict": verdict, "meaning": "install one"},
        ],
    }
