"""Which files may have the tests that `-m` asks for, told from their text: the others need no import."""

import functools
from pathlib import Path

import pytest

WRITTEN = ("alone", "measured", "nullcuda")
"""Marks that stand in a file, as `mark.NAME`, if a test in it has one; or its folder is named so."""


def required(expression: str) -> frozenset[str]:
    """Returns the marks that a test must have to meet an expression, as `-m` takes it; none where that is
    not plain to see."""
    if "(" in expression or "or" in expression.split():
        return frozenset()
    terms = (term.strip() for term in expression.split(" and "))
    return frozenset(terms).intersection(WRITTEN)


@functools.cache
def may_have(file: Path, mark: str) -> bool:
    """Returns whether a test in a file may have a mark of `WRITTEN`."""
    return mark == file.parent.name or f"mark.{mark}" in file.read_text(encoding="utf-8")


def refuse_hidden(items: list[pytest.Item]) -> None:
    """Fails where a test has a mark that its file does not show: `-m` would leave the test out in silence."""
    for item in items:
        for mark in WRITTEN:
            if item.get_closest_marker(mark) is not None and not may_have(item.path, mark):
                raise pytest.UsageError(f"{item.nodeid}: write mark.{mark} in its file")
