"""Schemas of what commands print: whole and closed. Their commands' tests hold outputs against them
(`json_objects.told`)."""

import json
import math
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import typer

from tests.cli.json_objects import schema, told
from tests.command_line import Call, one_line, succeeds
from tests.ui.dashboard import add_run
from vitprof.cli import app
from vitprof.cli.schema import PRINTED
from vitprof.jobs.finalise import settle
from vitprof.store import RunStore

OPEN = {
    "Environment",
    "Facts",
    "WatchedLoader",
    "LoaderWaits",
    "TransformTime",
    "Making",
    "StageUse",
    "OtherProgram",
    "HandedOver",
    "SlowSample",
    "SlowSamples",
    "WorkerSamples",
    "TraceSource",
    "LateBatches",
    "LateBatch",
    "ProcessSeen",
    "MachineSeen",
    "ReplayBlock",
    "Causal",
    "CausalLook",
    "CausalBlock",
    "Stop",
}
OPEN |= {"RankFacts", "OfRank", "NodeFacts", "RestartFacts"}
"""Facts that depend on device and versions."""


def objects(value: Any) -> Iterator[dict[str, Any]]:
    """Every schema of an object with fields, wherever in a schema."""
    if isinstance(value, dict):
        if "properties" in value and isinstance(value["properties"], dict):
            yield value
        for one in value.values():
            yield from objects(one)


def test_every_command_with_json_has_a_schema() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    asked = {name for name, one in commands.items() if any("--json" in p.opts for p in one.params)}
    assert {"run", "watch", "check", "tournament"} <= asked
    assert asked <= {command.split()[0] for _, command in PRINTED.values()}


@pytest.mark.parametrize("name", PRINTED)
def test_a_schema_is_one_and_allows_no_field_that_it_does_not_describe(name: str) -> None:
    found = schema(name)
    jsonschema.Draft202012Validator.check_schema(found)
    assert "schema_version" in found["required"]
    for one in objects(found):
        opened = one["additionalProperties"]
        assert opened is False or any(one is found["$defs"].get(known) for known in OPEN), one
        assert all(p["description"] for p in one["properties"].values()), one["properties"]


def test_runs_of_every_kind_are_as_their_schema_says(call: Call, mine: RunStore) -> None:
    """With a verdict, without any step, and with steps and telemetry."""
    whole = add_run(mine, device="simulated:5,0")
    mine.update_run(whole, **settle(mine, whole, 100.0, 101.0))
    mine.tag(whole, ["kept"])
    mine.update_run(
        add_run(mine, n=0, status="failed"), error="no disk", environment={"odd_s": math.nan}
    )
    no_loader = {"watched": {"dataset": None, "batch_size": None, "num_workers": 0}}
    mine.update_run(add_run(mine, n=0), environment=no_loader)
    listed = told("runs", call("runs", "--json")[1])["runs"]
    found = [(run["verdict"] is None, run["tags"], run["environment"]) for run in listed]
    assert found == [(True, [], no_loader), (True, [], {"odd_s": None}), (False, ["kept"], {})]
    for one in ("1", "2"):
        told("runs-one", call("runs", one, "--json")[1])
        told("export", call("export", one, "--format", "json", "--steps")[1])


def test_the_command_prints_them(call: Call) -> None:
    out = succeeds(call, "schema")
    assert all(f"\n{name} " in out for name in PRINTED)
    status, out, err = call("schema", "check")
    assert (status, err, json.loads(out)) == (0, "", schema("check"))
    assert "there is no nothing; choose one of run, runs, " in one_line(call, "schema", "nothing")
