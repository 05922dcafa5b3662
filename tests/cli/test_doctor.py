"""`doctor`: a verdict for each thing; `strategies`: what there is to choose, and what of it can run here."""

from typing import Any

import pytest

from tests.cli.json_objects import told
from tests.cli.json_objects import told as read_json
from tests.command_line import Call, succeeds
from vitprof.config.strategies import STRATEGIES
from vitprof.jobs import preflight
from vitprof.jobs.preflight import MachineCheck
from vitprof.recording.columns import SCHEMA_VERSION


def test_each_thing_has_a_verdict(call: Call) -> None:
    status, out, _ = call("doctor")
    checks = list(preflight.examine())
    assert status == any(check.verdict == "bad" for check in checks)
    assert {c.name for c in checks} >= {"packages", "PyTorch", "NVML", "shared memory", "disk", "database"}
    assert all(check.name in out and check.verdict in out for check in checks)


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


def test_strategies(call: Call) -> None:
    out = succeeds(call, "strategies")
    assert all(name in out for name in STRATEGIES)
    out = succeeds(call, "strategies", "--json")
    listed = read_json("strategies", out)
    assert listed["schema_version"] == SCHEMA_VERSION
    assert [s["name"] for s in listed["strategies"]] == list(STRATEGIES)
    first = listed["strategies"][0]
    assert {"storage", "location", "loader", "transfer", "what", "when", "costs", "origin", "defaults"} <= first.keys()


def test_strategies_says_what_can_run_here_for_the_data_set(call: Call) -> None:
    listed = read_json("strategies", call("strategies", "--json")[1])["strategies"]
    dali = next(s for s in listed if s["name"] == "dali")
    assert (dali["available"], dali["availability"]) == (False, "bad")
    assert dali["reason"] == "it cannot load digits; choose the data set photos"
    assert dali["reason"] in call("strategies")[1]
    photos = read_json("strategies", call("strategies", "--dataset", "photos", "--n-images", "50", "--json")[1])
    assert photos["dataset"] == "photos"
    assert {s["name"]: s["storage"] for s in photos["strategies"]}["lmdb"] == "lmdb-encoded"
    assert all(s["availability"] in ("ok", "note", "bad") for s in photos["strategies"])
