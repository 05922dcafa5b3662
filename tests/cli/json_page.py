"""docs/json.md, from the schemas. After a change of what is printed: `python -m tests.cli.json_page` writes it anew."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests import ROOT
from vitprof.cli.schemas import PRINTED
from vitprof.cli.schemas.fields import Field, Kind, Shape

PAGE: Path = ROOT / "docs" / "json.md"
MARK = "## What prints what\n"
"""What is above it on the page is written by hand."""


def page() -> str:
    """Returns the whole page, with the words at its beginning as they are."""
    commands = [f"| `vitprof {command}` | {_link(shape)} | `{name}` |" for name, (shape, command) in PRINTED.items()]
    head = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    table = ["", "| command | object | `vitprof schema` |", "|---|---|---|", *commands]
    return head + MARK + "\n".join([*table, "", *(line for shape in shapes() for line in _section(shape))])


def shapes() -> list[Shape]:
    """Returns every object once, in the order in which a reader meets them."""
    found: dict[str, Shape] = {}
    for shape, _ in PRINTED.values():
        _collect(shape, found)
    return list(found.values())


def _collect(shape: Shape, found: dict[str, Shape]) -> None:
    if found.get(shape.name) is not None:
        assert found[shape.name] is shape, f"two objects are called {shape.name}"
        return
    found[shape.name] = shape
    for inner in [*([shape.also] if shape.also else []), *(s for f in shape.own.values() for s in _within(f.kind))]:
        _collect(inner, found)


def _within(kind: Kind | Shape) -> Iterator[Shape]:
    if isinstance(kind, Shape):
        yield kind
        return
    for value in kind.values():
        if isinstance(value, (dict, Shape)):
            yield from _within(value)


def _section(shape: Shape) -> list[str]:
    more = " It may have other fields." if shape.open else ""
    also = [f"It has all fields of {_link(shape.also)}, and:", ""] if shape.also else []
    rows = [_row(name, field) for name, field in shape.own.items()]
    header = ["| field | type | unit | meaning | null, or left out |", "|---|---|---|---|---|"]
    return [f"## {shape.title}", "", shape.doc + more, "", *also, *header, *rows, ""]


def _row(name: str, field: Field) -> str:
    absent = f"left out {field.absent}" if field.absent else ""
    missing = "; ".join(filter(None, (field.null, absent)))
    return f"| `{name}` | {_type(field.kind)} | {field.unit} | {_cell(field.doc)} | {_cell(missing)} |".replace(
        "  ", " "
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _type(kind: Kind | Shape) -> str:
    if isinstance(kind, Shape):
        return f"object: {_link(kind)}"
    if "enum" in kind:
        return ", ".join(f"`{value}`" if value else "empty text" for value in kind["enum"])
    if not kind:
        return "anything"
    kinds = kind["type"] if isinstance(kind["type"], list) else [kind["type"]]
    if kinds == ["array"]:
        return f"list of {_type(kind['items'])}"
    if kinds == ["object"]:
        return f"object, by name: {_type(kind['additionalProperties'])}"
    words = {
        "string": "text",
        "number": "number",
        "integer": "whole number",
        "boolean": "true or false",
        "null": "null",
    }
    return " or ".join(words.get(one, one) for one in kinds)


def _link(shape: Shape) -> str:
    return f"[{shape.title[0].lower()}{shape.title[1:]}](#{re.sub(r'[^a-z]+', '-', shape.title.lower())})"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
