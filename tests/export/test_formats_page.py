"""The tables that the site adds to docs/formats.md have every column of every file, in the words of the records."""

from __future__ import annotations

from docs.hooks import columns
from tests import ROOT
from vitprof.export.csv import STEPS_HEADER, SUMMARY_HEADER
from vitprof.export.tensorboard import STEP_TAGS, TELEMETRY_TAGS
from vitprof.export.tournament import TOURNAMENT_HEADER
from vitprof.export.trace import COUNTERS
from vitprof.recording.columns import SCHEMA_VERSION, TELEMETRY_COLUMNS

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
