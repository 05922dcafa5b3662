"""Adds to the page json.md what commands print with `--json`, made from the types of `vitprof.cli.common.printed`."""

from __future__ import annotations

from typing import Any

from vitprof.cli.common.printed import PRINTED
from vitprof.recording import codec

WORDS = {"string": "text", "integer": "whole number", "boolean": "true or false", "object": "object", "array": "list"}


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Returns a page with the tables where it is json.md; MkDocs calls this for each page."""
    return f"{markdown}\n{tables()}" if page.file.src_path == "json.md" else markdown


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
            lines.append(f"| `{field}` | {_type(value)} | {_cell(value.get('description', ''))}{absent} |")
    return "\n".join(lines) + "\n"


def _type(value: dict[str, Any]) -> str:
    if "$ref" in value:
        return _link(value["$ref"].rpartition("/")[2])
    if "anyOf" in value:
        return " or ".join(dict.fromkeys(_type(one) for one in value["anyOf"]))
    if "enum" in value or "const" in value:
        return ", ".join(f"`{one}`" if one else "empty text" for one in value.get("enum", [value.get("const")]))
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
