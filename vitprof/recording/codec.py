"""Values of a recording as plain ones that JSON can carry, and back: both follow from the types of its dataclasses.

pydantic is imported at the first use: the watched process, which has the records too, does not need it.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from vitprof.recording.columns import columns

if TYPE_CHECKING:
    from pydantic import TypeAdapter


T = TypeVar("T")
CONFIG: dict[str, Any] = {"use_attribute_docstrings": True, "ser_json_inf_nan": "null", "extra": "ignore"}
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
        known = {column.name: numbers | {"description": column.doc} for column in columns(self._record)}
        return {"type": "object", "properties": known, "additionalProperties": numbers}


@functools.cache
def adapter(kind: Hashable) -> TypeAdapter[list[Any]]:
    """Returns the adapter of lists of `kind`: a dataclass inside another type takes the config from there."""
    from pydantic import TypeAdapter

    return TypeAdapter(list[kind], config=cast(Any, CONFIG))  # type: ignore[valid-type]


def to_plain(value: Any) -> Any:
    """Returns a dataclass as dicts, lists, texts and numbers; NaN and infinities become None."""
    return adapter(cast(Hashable, type(value))).dump_python([value], mode="json")[0]


def from_plain(kind: type[T], values: Any) -> T:
    """Returns the inverse of `to_plain`; ignores unknown names. Raises `ValueError` for values of other types."""
    read: list[T] = adapter(cast(Hashable, kind)).validate_python([values])
    return read[0]
