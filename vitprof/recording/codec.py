"""Values of a recording as plain ones that JSON can carry, and back: both follow from the types of its dataclasses.

pydantic is imported at the first use: the watched process, which has the records too, does not need it.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from pydantic import TypeAdapter


T = TypeVar("T")


@functools.cache
def adapter(kind: Hashable) -> TypeAdapter[list[Any]]:
    """Returns the adapter of lists of `kind`: a dataclass inside another type takes the config from there."""
    from pydantic import ConfigDict, TypeAdapter

    config = ConfigDict(use_attribute_docstrings=True, ser_json_inf_nan="null", extra="ignore")
    return TypeAdapter(list[kind], config=config)  # type: ignore[valid-type]


def to_plain(value: Any) -> Any:
    """Returns a dataclass as dicts, lists, texts and numbers; NaN and infinities become None."""
    return adapter(cast(Hashable, type(value))).dump_python([value], mode="json")[0]


def from_plain(kind: type[T], values: Any) -> T:
    """Returns the inverse of `to_plain`; ignores unknown names. Raises `ValueError` for values of other types."""
    read: list[T] = adapter(cast(Hashable, kind)).validate_python([values])
    return read[0]
