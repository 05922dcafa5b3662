"""Adds tables that follow from types to two pages: json.md gets what commands print, formats.md columns of files."""

from __future__ import annotations

from typing import Any

from vitprof.cli.schema import PRINTED
from vitprof.config import descriptions
from vitprof.export.tables import ANSWER_DOCS, STEPS_HEADER, SUMMARY_HEADER
from vitprof.export.tournament import TOURNAMENT_HEADER, TrialFigures
from vitprof.export.trace import COUNTERS
from vitprof.recording import codec
from vitprof.recording.columns import RunSummary, StepRecord, TelemetrySample
from vitprof.recording.columns import columns as record_columns

RUN_WORDS = {
    "run_id": "number of the run in the store that it was read from",
    "name": "name of the run",
    "status": "queued, running, done, stopped, failed or interrupted",
    "created_utc": "when it was submitted, ISO 8601",
    "device_name": "name that the device reports",
    "error": "why it failed; else empty",
    "schema_version": "version of the columns",
    "simulated": "true where the device was only imitated",
    "verdict": "as the run's page has it: input-bound, moderately input-bound, not input-bound, launch-bound; almost "
    "certainly starved, disturbed, partly watched, not measurable here, inconclusive; empty without steps",
}
"""Columns that are no figures -> their meaning."""
TOURNAMENT_WORDS = {
    "tournament_id": "number of the tournament in the store",
    "tournament": "its name",
    "dataset": "data set",
    "device": "device, as requested",
}
WORDS = {
    "string": "text",
    "integer": "whole number",
    "boolean": "true or false",
    "object": "object",
    "array": "list",
}


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Returns a page with its tables; MkDocs calls this for each page."""
    made = {"json.md": tables, "formats.md": columns}.get(page.file.src_path)
    return markdown if made is None else f"{markdown}\n{made()}"


def columns() -> str:
    """Returns tables of the columns of runs, steps, tournaments and telemetry, with telemetry's names in traces."""
    settings = {name: text for name, text in descriptions().items() if name != "name"}
    of_run = RUN_WORDS | settings | _words(RunSummary) | ANSWER_DOCS
    lines = ["## Columns of a run", "", "| column | meaning |", "|---|---|"]
    lines += [f"| `{name}` | {_cell(of_run[name])} |" for name in SUMMARY_HEADER]
    lines += ["", "## Columns of a step", "", "| column | meaning |", "|---|---|"]
    of_step = RUN_WORDS | _words(StepRecord)
    lines += [f"| `{name}` | {_cell(of_step[name])} |" for name in STEPS_HEADER]
    lines += ["", "## Columns of a setting", "", "| column | meaning |", "|---|---|"]
    fields = codec.schema(TrialFigures, "trial")["properties"]
    of_setting = (
        RUN_WORDS | TOURNAMENT_WORDS | {name: fields[name]["description"] for name in fields}
    )
    lines += [f"| `{name}` | {_cell(of_setting[name])} |" for name in TOURNAMENT_HEADER]
    lines += ["", "## Columns of telemetry", "", "| column | meaning | counter of a trace |"]
    lines += ["|---|---|---|"]
    lines += [
        f"| `{name}` | {_cell(words)} | {COUNTERS.get(name, '')} |"
        for name, words in _words(TelemetrySample).items()
    ]
    return "\n".join(lines) + "\n"


def _words(record: type) -> dict[str, str]:
    return {column.name: column.doc for column in record_columns(record)}


def tables() -> str:
    """Returns which command prints what, and a table of the fields of every object, in Markdown."""
    lines = ["## What prints what", "", "| command | object | `vitprof schema` |", "|---|---|---|"]
    objects: dict[str, dict[str, Any]] = {}
    for name, (kind, command) in PRINTED.items():
        lines.append(f"| `vitprof {command}` | {_link(kind.__name__)} | `{name}` |")
        whole = codec.schema(kind, name)
        objects |= {kind.__name__: whole} | whole["$defs"]
    for name, one in objects.items():
        more = " Unknown fields are kept." if one["additionalProperties"] else ""
        lines += ["", f"## {name}", "", one.get("description", "") + more, ""]
        lines += ["| field | type | meaning |", "|---|---|---|"]
        for field, value in one["properties"].items():
            absent = "" if field in one.get("required", ()) else "; not always there"
            lines.append(
                f"| `{field}` | {_type(value)} | {_cell(value.get('description', ''))}{absent} |"
            )
    return "\n".join(lines) + "\n"


def _type(value: dict[str, Any]) -> str:
    if "$ref" in value:
        return _link(value["$ref"].rpartition("/")[2])
    if "anyOf" in value:
        return " or ".join(dict.fromkeys(_type(one) for one in value["anyOf"]))
    if "enum" in value or "const" in value:
        return ", ".join(
            f"`{one}`" if one else "empty text" for one in value.get("enum", [value.get("const")])
        )
    kind = value.get("type", "anything")
    if kind == "array":
        return f"list of {_type(value.get('items', {}))}"
    if kind == "object" and isinstance(inner := value.get("additionalProperties"), dict):
        return f"object, by name: {_type(inner)}"
    return " or ".join(WORDS.get(one, one) for one in (kind if isinstance(kind, list) else [kind]))


def _link(name: str) -> str:
    return f"[{name}](#{name.lower()})"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
