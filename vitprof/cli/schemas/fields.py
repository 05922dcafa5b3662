"""Descriptions of JSON objects: the fields of each, with their type and unit, and when they are null or left out."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import re
import textwrap
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

Kind = Mapping[str, Any]
"""A JSON Schema of one value. A `Shape` in it is a reference to that object."""

TEXT: Kind = {"type": "string"}
NUMBER: Kind = {"type": "number"}
WHOLE: Kind = {"type": "integer"}
SWITCH: Kind = {"type": "boolean"}
ANYTHING: Kind = {}
UNKNOWN = "where it is not known"
"""When a figure is null, unless its description says otherwise."""
SUFFIXES = {
    "_samples_per_s": "samples/s",
    "samples_per_s": "samples/s",
    "_bytes_per_s": "bytes/s",
    "s_per_sample": "s a sample",
    "_bytes": "bytes",
    "_frac": "share",
    "_pct": "%",
    "_mhz": "MHz",
    "_mb": "MB",
    "_mb_s": "MB/s",
    "_hz": "Hz",
    "_s_per_step": "s a step",
    "_ms": "ms",
    "_ms_per_batch": "ms a batch",
    "_s": "s",
    "_w": "W",
    "_c": "°C",
}
"""Ending of a name -> unit; the longest ending counts. `_low` and `_high` behind it change nothing."""
NOT_KNOWN = re.compile(r"[;,.:]?\s*\b(?:NaN|None)\b:?\s*(?P<when>[^.;]*)(?P<rest>.*)", re.DOTALL)
"""The part of a docstring that says when a value is NaN or None."""


@dataclass(frozen=True)
class Field:
    """One field of an object."""

    kind: Kind | Shape
    doc: str
    """What it means."""
    unit: str = ""
    """Unit of a number; "" where it has none or is no number."""
    null: str = ""
    """When it is null; "" where it never is."""
    absent: str = ""
    """When the object leaves it out; "" where it always has it."""


@dataclass(frozen=True, eq=False)
class Shape:
    """A JSON object: what it is, and its fields. It has no other fields unless it is `open`."""

    name: str
    """Its name within a schema, in small letters with hyphens."""
    title: str
    """Its heading in docs/json.md."""
    doc: str
    """What it is, in whole sentences."""
    own: Mapping[str, Field]
    """Its fields by name, without those of `also`."""
    also: Shape | None = None
    """The object whose fields it has too, before its own."""
    open: bool = False
    """Whether it may have fields that are not described, because they depend on device and versions."""

    @property
    def fields(self) -> dict[str, Field]:
        """Returns all its fields by name: those of `also`, then its own."""
        return {**(self.also.fields if self.also else {}), **self.own}


def named(name: str) -> str:
    """Returns the unit that the ending of a name stands for; "" for none."""
    name = re.sub(r"_(low|high|median|mean|p95|peak|first)$", "", name)
    name = re.sub(r"_(mean|peak|median|p95)$", "", name)
    return next((SUFFIXES[end] for end in sorted(SUFFIXES, key=len, reverse=True) if f"_{name}".endswith(end)), "")


def field(kind: Kind | Shape, doc: str, **more: str) -> Field:
    """Returns a field; `more` are further attributes of `Field`."""
    return Field(kind, doc, **more)


def listed(kind: Kind | Shape) -> Kind:
    """Returns the kind of a list of such values."""
    return {"type": "array", "items": kind}


def by_name(kind: Kind | Shape) -> Kind:
    """Returns the kind of an object that maps any name to such a value; the field's `doc` says what the names are."""
    return {"type": "object", "additionalProperties": kind}


def one_of(*values: str) -> Kind:
    """Returns the kind of a text that is one of these."""
    return {"type": "string", "enum": list(values)}


def fields_of(
    record: type,
    *,
    shapes: Mapping[type, Shape] | None = None,
    null: str = UNKNOWN,
    leave: tuple[str, ...] = (),
    **own: Field,
) -> dict[str, Field]:
    """Returns the fields of a dataclass, described by its own docstrings so that the two stay the same.

    NaN in a float becomes null. When that is, the docstring says after "NaN", else `null` does; give "" for a record
    without NaN. `shapes` describes the dataclasses that it contains. `own` replaces fields or adds some; `leave` leaves
    some out. Raises `TypeError` for an annotation that has no JSON.
    """
    said, hints = told(record), get_type_hints(record)
    found: dict[str, Field] = {}
    for f in dataclasses.fields(record):
        if f.name in leave:
            continue
        if f.name in own:
            found[f.name] = own[f.name]
            continue
        kind, optional = _kind(hints[f.name], shapes or {})
        doc, when = said.get(f.name, ""), ""
        if (kind == NUMBER and null) or optional:
            doc, when = _split(doc, null or UNKNOWN)
        found[f.name] = Field(kind, doc, named(f.name) if kind in (NUMBER, WHOLE) else "", when)
    return found | {name: one for name, one in own.items() if name not in found}


@functools.cache
def told(record: type) -> dict[str, str]:
    """Returns what each field of a dataclass means, in one line: "doc" of its metadata, or the docstring under it."""
    words = {f.name: str(f.metadata["description"]) for f in dataclasses.fields(record) if "description" in f.metadata}
    (made,) = ast.parse(textwrap.dedent(inspect.getsource(record))).body
    assert isinstance(made, ast.ClassDef)
    for line, below in itertools.pairwise(made.body):
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and isinstance(below, ast.Expr):
            words[line.target.id] = _plain(" ".join(str(ast.literal_eval(below.value)).split()))
    return words


def _plain(text: str) -> str:
    """Returns a docstring as a table shows it: without capital letter, full stop and references to code."""
    text = re.sub(r"\s*\((?:see )?`[\w.]+`[^)]*\)|; see `[\w.]+`", "", text)
    text = re.sub(r"`(?:\w+\.)+(\w+)`", r"`\1`", text).rstrip(".")
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]


def _split(doc: str, null: str) -> tuple[str, str]:
    """Returns what a docstring says about the value, and when there is none."""
    found = NOT_KNOWN.search(doc)
    if found is None:
        return doc, null
    return (doc[: found.start()] + found["rest"]).strip(" ;."), found["when"].strip()


def _kind(hint: Any, shapes: Mapping[type, Shape]) -> tuple[Kind | Shape, bool]:
    """Returns the kind of values with this annotation, and whether they may be None. Raises `TypeError`."""
    origin, given = get_origin(hint), get_args(hint)
    if hint in shapes:
        return shapes[hint], False
    if origin in (Union, types.UnionType):
        rest = [one for one in given if one is not type(None)]
        kinds = [_kind(one, shapes)[0] for one in rest]
        if len(kinds) > 1 and all(isinstance(k, Mapping) and "enum" in k for k in kinds):
            values = (value for k in kinds if isinstance(k, Mapping) for value in k["enum"])
            return one_of(*values), len(rest) < len(given)
        if len(kinds) == 1:
            return kinds[0], True
    if origin is Literal:
        return one_of(*given), False
    if origin in (tuple, list):
        return listed(_inner(given[0], shapes)), False
    if origin is not None and issubclass(origin, Mapping):
        return by_name(_inner(given[1], shapes)), False
    plain = {str: TEXT, float: NUMBER, int: WHOLE, bool: SWITCH, Any: ANYTHING}
    if hint in plain:
        return plain[hint], False
    raise TypeError(f"there is no JSON for {hint}")


def _inner(hint: Any, shapes: Mapping[type, Shape]) -> Kind | Shape:
    """Returns the kind of what a list or a mapping holds; a number in it may be null."""
    kind, _ = _kind(hint, shapes)
    return {"type": ["number", "null"]} if kind == NUMBER else kind
