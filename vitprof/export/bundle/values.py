"""Plain values that go into a bundle, and those that come out of one."""

from __future__ import annotations

import json
import types
from typing import Any, get_args, get_origin

from vitprof.errors import VitprofError
from vitprof.names import MARK, NOT_SHOWN
from vitprof.recording.columns import json_number

MAX_TEXT, MAX_KEY = 10_000, 100
"""The most characters of a text and of a key."""
MAX_DEPTH = 12
"""The deepest nesting; a verdict has its deepest values at depth 5."""
MAX_EXACT = 2**53
"""Whole numbers up to here are exact as float64, and every database holds them."""


class BundleError(VitprofError):
    """A bundle that cannot be written, or one that is refused; nothing of it was stored."""


def need(holds: object, otherwise: str) -> None:
    """Raises `BundleError` with the message `otherwise` unless `holds`."""
    if not holds:
        raise BundleError(otherwise)


def sendable(value: Any, depth: int = 0) -> Any:
    """Returns `value` as a bundle holds it: texts cut short and without what cannot be shown, None for NaN, infinities
    and whole numbers beyond `MAX_EXACT`.
    """
    if isinstance(value, str):
        return NOT_SHOWN.sub(MARK, value[:MAX_TEXT])
    if isinstance(value, dict) and depth <= MAX_DEPTH:
        return {sendable(str(key))[:MAX_KEY]: sendable(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and depth <= MAX_DEPTH:
        return [sendable(item, depth + 1) for item in value]
    if isinstance(value, int) and abs(value) > MAX_EXACT:
        return None
    return json_number(value) if value is None or isinstance(value, (int, float)) else sendable(str(value))


def to_json(value: object) -> bytes:
    """Returns `value` as JSON in UTF-8. Raises `ValueError` for NaN and infinities."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def from_json(data: bytes, what: str) -> dict[str, Any]:
    """Returns the JSON object in `data`. Raises `BundleError` where there is none, or `sendable` would change it."""
    try:
        value: Any = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{what} is not JSON in UTF-8 as vitprof writes it") from error
    need(isinstance(value, dict), f"{what} is not a JSON object")
    need(sendable(value) == value, f"{what} has texts, numbers or a nesting that vitprof does not write")
    return dict(value)


def fits(value: object, kind: Any) -> bool:
    """Returns whether a value read from JSON is of type `kind`. Whole numbers are at least 0, and true is no number."""
    origin, parts = get_origin(kind) or kind, get_args(kind)
    if origin is types.UnionType:
        return any(fits(value, part) for part in parts)
    if origin is list:
        return isinstance(value, list) and all(fits(item, parts[0]) for item in value)
    if origin is tuple:
        return isinstance(value, list) and len(value) == len(parts) and all(map(fits, value, parts))
    if origin is float:
        return type(value) in (int, float)
    return type(value) is origin and (not isinstance(value, int) or value >= 0)
