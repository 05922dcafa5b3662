"""`doctor`: a verdict for each thing, and an exit status."""

from __future__ import annotations

import pytest

from tests.command_line import Call
from vitprof.jobs import preflight
from vitprof.jobs.preflight import Check


def test_each_thing_has_a_verdict(call: Call) -> None:
    status, out, _ = call("doctor")
    checks = list(preflight.examine())
    assert status == any(check.verdict == "bad" for check in checks)
    assert {c.what for c in checks} >= {"packages", "PyTorch", "NVML", "shared memory", "disk", "database"}
    assert all(check.what in out and check.verdict in out for check in checks)


def test_bad_news_is_exit_status_1(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = [Check("disk", "/a/[b]/c", "ok", ""), Check("database", "cannot be [/used]", "bad", "move it away")]
    monkeypatch.setattr(preflight, "examine", lambda: iter(checks))
    status, out, err = call("doctor")
    assert (status, err) == (1, "")
    assert all(text in out for text in ("/a/[b]/c", "cannot be [/used]", "bad: move it away"))
