"""Shapes as a JSON Schema document, draft 2020-12."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitprof.cli.schemas.fields import Field, Kind, Shape
from vitprof.recording.columns import SCHEMA_VERSION

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def document(shape: Shape, name: str) -> dict[str, Any]:
    """Returns the schema of `shape`, printed under `name`, with all objects that it refers to in `$defs`."""
    found: dict[str, Any] = {}
    root = _object(shape, found)
    head = {"$schema": DRAFT, "$id": f"urn:vitprof:{name}:{SCHEMA_VERSION}", "title": f"vitprof: {shape.title}"}
    return head | root | ({"$defs": dict(sorted(found.items()))} if found else {})


def _object(shape: Shape, found: dict[str, Any]) -> dict[str, Any]:
    return {
        "description": shape.doc,
        "type": "object",
        "properties": {name: _property(one, found) for name, one in shape.fields.items()},
        "required": [name for name, one in shape.fields.items() if not one.absent],
        "additionalProperties": shape.open,
    }


def _property(one: Field, found: dict[str, Any]) -> dict[str, Any]:
    made = _resolved(one.kind, found)
    if one.null and made:  # an empty schema allows null already
        made = _or_null(made)
    said = [one.doc, f"unit: {one.unit}" * bool(one.unit), f"null: {one.null}" * bool(one.null)]
    said.append(f"left out: {one.absent}" * bool(one.absent))
    return made | {"description": "; ".join(filter(None, said))}


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    if "type" not in schema:
        return {"anyOf": [schema, {"type": "null"}]}
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    enum = {"enum": [*schema["enum"], None]} if "enum" in schema else {}
    return schema | {"type": [*kinds, "null"]} | enum


def _resolved(kind: Kind | Shape, found: dict[str, Any]) -> dict[str, Any]:
    """Returns a kind with references in place of its shapes, which are added to `found`."""
    if isinstance(kind, Shape):
        if kind.name not in found:
            found[kind.name] = {}  # before its fields, one of which may refer back to it
            found[kind.name] = _object(kind, found)
        return {"$ref": f"#/$defs/{kind.name}"}
    inner = {name: _resolved(value, found) for name, value in kind.items() if isinstance(value, (Mapping, Shape))}
    return dict(kind) | inner
