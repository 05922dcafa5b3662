"""JSON of runs is JSON: every reader takes it, nothing in it is NaN; docs/formats.md has every column of every file."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from docs.hooks import columns
from tests import ROOT
from tests.export.test_csv import EXAMPLE
from tests.export.written import written
from tests.ui.dashboard import add_run
from vitprof.config import RunConfig
from vitprof.export import run_object, runs_json, write_runs_json
from vitprof.export.csv import STEPS_HEADER, SUMMARY_HEADER
from vitprof.export.tensorboard import STEP_TAGS, TELEMETRY_TAGS
from vitprof.export.tournament import TOURNAMENT_HEADER
from vitprof.export.trace import COUNTERS
from vitprof.recording.columns import SCHEMA_VERSION, STEP_COLUMNS, SUMMARY_COLUMNS, TELEMETRY_COLUMNS, Phase
from vitprof.store import RunStore


def test_the_json_object_of_a_run_is_valid_json_with_null_for_what_is_not_available() -> None:
    found = json.loads(json.dumps(run_object(EXAMPLE), allow_nan=False))
    assert {"schema_version", "run_id", "name", "status", "config", "environment", "summary"} <= set(found)  # issue 2
    assert (found["schema_version"], found["run_id"], found["status"]) == (SCHEMA_VERSION, 7, "done")
    assert RunConfig.from_dict(found["config"]) == EXAMPLE.config
    assert list(found["summary"]) == list(SUMMARY_COLUMNS)
    assert found["summary"]["test_accuracy"] is None
    assert (found["error"], found["notices"]) == (None, ["no GPU"])
    failed = run_object(dataclasses.replace(EXAMPLE, summary=None, status="failed", error="out of memory"))
    assert (failed["status"], failed["error"]) == ("failed", "out of memory")
    assert failed["summary"] is None


def no_constant(name: str) -> None:
    pytest.fail(f"{name} is no JSON")


def test_runs_with_their_steps_are_strict_json_with_moments_since_the_run_began(store: RunStore) -> None:
    run_id = add_run(store, n=6, wait_s=0.25)
    told = {"transforms": {"Crop": {"s_per_sample": 0.001, "calls": 9}}, "made_s": math.inf}
    nan = {"odd": math.nan, "deep": [1.0, -math.inf, (math.inf, "Größe")]}
    store.update_run(run_id, phases=[Phase("startup", 100.5, 101.0)], environment=nan, facts=told)
    (run,) = json.loads(written(write_runs_json, store, [store.run(run_id)]), parse_constant=no_constant)["runs"]
    assert run["environment"] == {"odd": None, "deep": [1.0, None, [None, "Größe"]]}
    assert run["facts"] == told | {"made_s": None}
    assert run["phases"] == [{"name": "startup", "t_start_s": 0.5, "t_end_s": 1.0}]
    assert (list(run["steps"]), list(run["telemetry"])) == (list(STEP_COLUMNS), ["seq", *TELEMETRY_COLUMNS])
    assert {len(column) for column in run["steps"].values()} == {6}
    assert run["steps"]["step"] == list(range(6))
    assert run["steps"]["t_start_s"] == pytest.approx([0.255 * i for i in range(6)])
    assert run["steps"]["worker"] == [None] * 6
    assert (run["telemetry"]["t_s"], run["telemetry"]["gpu_util_pct"]) == ([0.0], [None])


def test_without_steps_there_are_only_figures(store: RunStore) -> None:
    found = json.loads(runs_json(store, [store.run(add_run(store)), store.run(add_run(store))]))
    assert found["schema_version"] == SCHEMA_VERSION
    assert [run["run_id"] for run in found["runs"]] == [1, 2]
    assert (found["runs"][0]["steps"], found["runs"][0]["telemetry"]) == (None, None)


TEXT = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8") + columns()


def section(title: str) -> list[str]:
    """Rows of the tables under this heading."""
    body = TEXT.partition(f"# {title}\n")[2]
    assert body, title
    return [line for line in body.partition("\n#")[0].splitlines() if line.startswith("| `")]


def first(row: str) -> str:
    return row.split("`")[1]


def test_every_column_is_there_in_its_order() -> None:
    assert [first(row) for row in section("Columns of a run")] == list(SUMMARY_HEADER)
    assert [first(row) for row in section("Columns of a step")] == list(STEPS_HEADER)
    assert [first(row) for row in section("Columns of telemetry")] == list(TELEMETRY_COLUMNS)
    trials = section("One row for each setting of a tournament: `tournament --csv`")
    assert [first(row) for row in trials] == list(TOURNAMENT_HEADER)


def test_counters_tags_and_the_version_are_there() -> None:
    tags = [tag for tag, _ in STEP_TAGS.values()] + list(TELEMETRY_TAGS.values())
    assert [tag for tag in tags if f"| `{tag}` |" not in TEXT] == []
    assert [name for name in COUNTERS.values() if f"| {name} |" not in TEXT] == []
    assert f"**Schema version {SCHEMA_VERSION}**" in TEXT
