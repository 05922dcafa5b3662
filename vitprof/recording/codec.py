"""Values of a recording as plain ones that JSON can carry, and back: both follow from the types of
its dataclasses.

pydantic is imported at the first use: the watched process, which has the records too, does not need
it. Columns become those of Arrow here, too, and back.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from vitprof.recording.columns import SCHEMA_VERSION, columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pydantic import TypeAdapter


T = TypeVar("T")
CONFIG: dict[str, Any] = {
    "use_attribute_docstrings": True,
    "ser_json_inf_nan": "null",
    "extra": "ignore",
}
"""How pydantic treats every type of a recording."""


class KnownKeys:
    """Marks a dict whose known keys have the types of a TypedDict; others are kept."""

    def __init__(self, kind: type) -> None:
        self._kind = kind

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Returns how it is read and written."""
        return handler.generate_schema(self._kind)


class ColumnsOf:
    """Marks arrays by the names of a record's columns; unknown columns are kept."""

    def __init__(self, record: type) -> None:
        self._record = record

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Returns how they are read and written: as they are."""
        from pydantic_core import core_schema

        return core_schema.any_schema()

    def __get_pydantic_json_schema__(self, _schema: Any, _handler: Any) -> dict[str, Any]:
        """Returns the JSON Schema of the lists that `export --steps` writes."""
        numbers = {"type": "array", "items": {"type": ["number", "null"]}}
        known = {
            column.name: numbers | {"description": column.doc} for column in columns(self._record)
        }
        return {"type": "object", "properties": known, "additionalProperties": numbers}


@functools.cache
def adapter(kind: Hashable) -> TypeAdapter[list[Any]]:
    """Returns the adapter of lists of `kind`.

    Lists, because pydantic refuses a config for a dataclass itself; one inside another type takes
    the config from there.
    """
    from pydantic import TypeAdapter

    return TypeAdapter(list[kind], config=cast(Any, CONFIG))  # type: ignore[valid-type]


def to_plain(value: Any, kind: Any = None) -> Any:
    """Returns a dataclass as dicts, lists, texts and numbers; NaN and infinities become None.

    `kind` is a class of `value` whose fields are wanted, if not all.
    """
    return json.loads(adapter(cast(Hashable, kind or type(value))).dump_json([value]))[0]


def from_plain(kind: type[T], values: Any) -> T:
    """Returns the inverse of `to_plain`; ignores unknown names.

    Raises `ValueError` for values of other types.
    """
    read: list[T] = adapter(cast(Hashable, kind)).validate_python([values])
    return read[0]


def schema(kind: Any, name: str) -> dict[str, Any]:
    """Returns the JSON Schema (draft 2020-12) of a type as `to_plain` writes it, under the name
    `name`.

    It allows no fields but those of this version of vitprof, unless a type keeps unknown ones.
    """
    from pydantic import TypeAdapter
    from pydantic.json_schema import GenerateJsonSchema

    class Generator(GenerateJsonSchema):
        """Any float may be NaN, which JSON has as null; neither titles nor defaults say anything of
        what is printed.
        """

        def float_schema(self, schema: Any) -> dict[str, Any]:
            return {"type": ["number", "null"]}

        def default_schema(self, schema: Any) -> dict[str, Any]:
            inner: dict[str, Any] = self.generate_inner(schema["schema"])
            return inner

        def nullable_schema(self, schema: Any) -> dict[str, Any]:
            inner: dict[str, Any] = self.generate_inner(schema["schema"])
            if inner.get("type") == ["number", "null"]:
                return inner
            return super().nullable_schema(schema)

        def dataclass_schema(self, schema: Any) -> dict[str, Any]:
            return _inherited(schema["cls"], super().dataclass_schema(schema))

        def typed_dict_schema(self, schema: Any) -> dict[str, Any]:
            return _inherited(schema["cls"], super().typed_dict_schema(schema))

        def field_is_required(self, field: Any, total: bool) -> bool:
            # A field of a dataclass is always printed, also where it has a default.
            if field["type"] != "typed-dict-field":
                return True
            return bool(field.get("required", total))

        def get_title_from_name(self, name: str) -> str:
            return ""

    config = CONFIG | {"extra": "forbid"}
    adapter = TypeAdapter(list[kind], config=cast(Any, config))
    whole: dict[str, Any] = adapter.json_schema(mode="serialization", schema_generator=Generator)
    known = _plain(whole["$defs"])
    head = {
        "$schema": GenerateJsonSchema.schema_dialect,
        "$id": f"urn:vitprof:{name}:{SCHEMA_VERSION}",
    }
    root: dict[str, Any] = known.pop(kind.__name__)
    return head | root | {"$defs": known}


def _inherited(kind: Any, schema: dict[str, Any]) -> dict[str, Any]:
    """Returns a schema with the descriptions of inherited fields: pydantic reads only a class's own
    docstrings.
    """
    for base in getattr(kind, "__orig_bases__", kind.__bases__):
        if hasattr(base, "__annotations__"):
            known = adapter(base).json_schema()["$defs"][base.__name__]
            for name, described in _inherited(base, known)["properties"].items():
                schema["properties"][name].setdefault(
                    "description", described.get("description", "")
                )
    return schema


def _plain(schema: Any) -> Any:
    """Returns a schema with descriptions in one line each, without empty titles."""
    if isinstance(schema, dict):
        return {
            key: _plain(value) for key, value in schema.items() if (key, value) != ("title", "")
        }
    if isinstance(schema, list):
        return [_plain(value) for value in schema]
    if isinstance(schema, str):
        return " ".join(schema.split())
    return schema


def first_error(error: Exception) -> str:
    """Returns in one line where a value that `from_plain` refused does not fit its type."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return " ".join(str(error).split())
    first = error.errors(include_url=False, include_input=False)[0]
    # The first part is the place in the list of `adapter`.
    place = ".".join(str(part) for part in first["loc"][1:])
    return f"{place}: {first['msg']}"


def arrow() -> Any:
    """Returns `pyarrow`, which takes 60 ms to import, and lists of runs need none."""
    import pyarrow.parquet

    return pyarrow


def array(
    values: NDArray[Any], mask: NDArray[np.bool_] | None = None, kind: Any = None
) -> pa.Array:
    """Returns the values as an array, null where `mask` is.

    It is made of buffers, as `pa.array` imports pandas, and so does `to_numpy`: 0.4 s.
    """
    pa = arrow()
    known = None
    if mask is not None:
        known = pa.py_buffer(np.packbits(~mask, bitorder="little"))
    kind = kind or pa.from_numpy_dtype(values.dtype)
    numbers = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind, len(values), [known, numbers])


def floats(column: pa.ChunkedArray) -> NDArray[np.float64]:
    """Returns a column as float64, NaN for null, times in seconds."""
    pa = arrow()
    whole = column.combine_chunks()
    if not len(whole):
        return np.empty(0)
    if whole.type.bit_width != 64:
        # Another version wrote it.
        whole = whole.cast(pa.float64())
    known, values = whole.buffers()
    part = slice(whole.offset, whole.offset + len(whole))
    kind = np.float64 if pa.types.is_floating(whole.type) else np.int64
    # A buffer of Arrow's cannot be written to: what gets NaN below is copied first.
    copied = whole.null_count > 0
    numbers: NDArray[np.float64] = np.frombuffer(values, kind)[part].astype(np.float64, copy=copied)
    if pa.types.is_duration(whole.type):
        # Durations are whole nanoseconds.
        numbers /= 1e9
    if whole.null_count:
        unknown = np.unpackbits(np.frombuffer(known, np.uint8), bitorder="little")[part] == 0
        np.putmask(numbers, unknown, np.nan)
    return numbers
