"""`strategies`: what there is to choose, and what of it can run here."""

from __future__ import annotations

import pytest

from tests.cli.json_objects import told as read_json
from tests.command_line import Call, succeeds
from vitprof.config.strategies import STRATEGIES
from vitprof.recording.columns import SCHEMA_VERSION


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


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["--dataset", "cats"], "--dataset cats: choose one of digits, mnist, photos"),
        (["--n-images", "x"], "--n-images x: give a whole number from 1 to 10,000,000"),
        (["--n-images", "5"], "--n-images 5: digits always has 60000; leave it out"),
        (["--dataset", "photos", "--n-images", "0"], "--n-images 0: give a whole number from 1 to 10,000,000"),
    ],
)
def test_strategies_with_a_bad_value(call: Call, args: list[str], complaint: str) -> None:
    assert call("strategies", *args) == (2, "", f"vitprof: {complaint}\n")
