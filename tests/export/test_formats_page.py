"""docs/formats.md tells every column of every file, in the words of the records."""

from __future__ import annotations

import dataclasses

import pytest

from tests import ROOT
from vitprof.config import RunConfig
from vitprof.export.csv import STEPS_HEADER, SUMMARY_HEADER
from vitprof.export.tensorboard import STEP_TAGS, TELEMETRY_TAGS
from vitprof.export.tournament import TOURNAMENT_HEADER
from vitprof.export.trace import COUNTERS
from vitprof.recording.columns import (
    SCHEMA_VERSION,
    TELEMETRY_COLUMNS,
    RunSummary,
    StepRecord,
    TelemetrySample,
    columns,
)

TEXT = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")


def section(title: str) -> list[str]:
    """Rows of the tables under this heading."""
    body = TEXT.partition(f"# {title}\n")[2]
    assert body, title
    return [line for line in body.partition("\n#")[0].splitlines() if line.startswith("| `")]


def first(row: str) -> str:
    return row.split("`")[1]


def test_every_column_is_there_in_its_order() -> None:
    assert [first(row) for row in section("One row for each run: `csv`, `parquet`")] == list(SUMMARY_HEADER)
    assert [first(row) for row in section("One row for each step: `steps-csv`, `steps-parquet`")] == list(STEPS_HEADER)
    trials = section("One row for each setting of a tournament: `tournament --csv`")
    assert [first(row) for row in trials] == list(TOURNAMENT_HEADER)
    assert [first(row) for row in section("JSON")] == ["seq", *TELEMETRY_COLUMNS]


@pytest.mark.parametrize("record", [StepRecord, RunSummary, TelemetrySample], ids=lambda r: r.__name__)
def test_each_is_told_in_the_words_of_its_record(record: type) -> None:
    assert [c.name for c in columns(record) if f"| `{c.name}` | {c.doc} |" not in TEXT] == []


def test_settings_are_told_in_the_words_of_the_config() -> None:
    settings = [f for f in dataclasses.fields(RunConfig) if f.name != "name"]
    assert [f.name for f in settings if f"| `{f.name}` | {f.metadata['description']} |" not in TEXT] == []


def test_counters_tags_and_the_version_are_there() -> None:
    assert [first(row) for row in section("Trace")] == list(COUNTERS)
    assert [name for column, name in COUNTERS.items() if f"| `{column}` | {name} |" not in TEXT] == []
    tags = {**{c: tag for c, (tag, _) in STEP_TAGS.items()}, **TELEMETRY_TAGS}
    assert section("TensorBoard") == [f"| `{column}` | `{tag}` |" for column, tag in tags.items()]
    assert f"**Schema version {SCHEMA_VERSION}**" in TEXT
