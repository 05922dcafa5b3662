"""Plain values that go into a bundle, and checks of those that come out of one."""

from __future__ import annotations

import re
import sys
from typing import Any

from vitprof.records import json_number

MAX_TEXT = 10_000
MAX_KEY = 100
MAX_DEPTH = 12
"""A verdict has its deepest values at depth 5."""
MAX_WHOLE = 2**53
"""Whole numbers up to here are exact as float64, and every database holds them."""
MAX_REAL = sys.float_info.max
"""JSON's 1e999 is read as infinity."""
UNSHOWN = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff]"
)
"""Control characters, those that turn the direction of writing, and halves of characters. Line feeds are fine.

Not `str.isprintable`: a newer Python knows characters that an older one calls unprintable.
"""


def sendable(value: Any) -> Any:
    """`value` as a bundle carries it: None for NaN, texts cut at their limit and without what cannot be shown."""
    if isinstance(value, str):
        return UNSHOWN.sub("\ufffd", value[:MAX_TEXT])
    if isinstance(value, dict):
        return {sendable(str(key))[:MAX_KEY]: sendable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [sendable(item) for item in value]
    if isinstance(value, (bool, int, float)) or value is None:
        return json_number(value)
    return sendable(str(value))


def check_texts(value: Any, depth: int = 0) -> str:
    """What is wrong with a value read from JSON, wherever in it; "" if nothing is."""
    if depth > MAX_DEPTH:
        return "it is nested too deeply"
    if isinstance(value, str):
        if len(value) > MAX_TEXT:
            return f"a text in it has more than {MAX_TEXT:,} characters"
        if UNSHOWN.search(value):
            return "a text in it has characters that cannot be shown"
    elif isinstance(value, dict):
        if any(len(key) > MAX_KEY or UNSHOWN.search(key) for key in value):
            return "a name in it is too long, or has characters that cannot be shown"
        return next(filter(None, (check_texts(item, depth + 1) for item in value.values())), "")
    elif isinstance(value, list):
        return next(filter(None, (check_texts(item, depth + 1) for item in value)), "")
    elif isinstance(value, (int, float)) and not abs(value) <= (MAX_WHOLE if isinstance(value, int) else MAX_REAL):
        return "a number in it is too large"
    return ""


def is_whole(value: object) -> bool:
    """Whether `value` is a whole number, at least 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
