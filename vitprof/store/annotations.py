"""Checks the texts that the user adds to a run: its name, a note, tags."""

from __future__ import annotations

from collections.abc import Iterable

from vitprof.errors import StoreError
from vitprof.names import MAX_NAME, NOT_SHOWN, why_no_name

MAX_TAG, MAX_NOTE = 40, 4000
"""Most characters of a tag and of a note."""


def checked_name(name: str) -> str:
    """Returns a run's name as it is stored, 1 to `MAX_NAME` characters. Raises `StoreError`."""
    kept = _short("name", name, MAX_NAME)
    if why := why_no_name(kept):
        raise StoreError(f"name: {why}")
    if not kept:
        raise StoreError(f"name: a run needs one; give 1 to {MAX_NAME} characters")
    return kept


def checked_note(note: str) -> str:
    """Returns a note as it is stored, "" for none. Raises `StoreError`."""
    kept = _short("note", note, MAX_NOTE)
    if NOT_SHOWN.search(kept):
        raise StoreError("note: it has characters that cannot be shown; give plain text")
    return kept


def checked_tags(tags: Iterable[str]) -> set[str]:
    """Returns tags as they are stored. Raises `StoreError` for one that is empty, too long or contains a comma."""
    kept = {_short("tag", tag, MAX_TAG) for tag in tags}
    if any(not tag or "," in tag for tag in kept):
        raise StoreError(f"tag: give 1 to {MAX_TAG} characters without a comma")
    if why := next(filter(None, map(why_no_name, kept)), ""):
        raise StoreError(f"tag: {why}")
    return kept


def _short(what: str, text: str, most: int) -> str:
    """Returns `text` without surrounding white space. Raises `StoreError` if it is too long."""
    text = text.strip()
    if len(text) > most:
        raise StoreError(f"{what}: {len(text)} characters are too many; give at most {most}")
    return text
