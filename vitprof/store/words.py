"""The words that a person adds to a run: its name, a note, tags."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from vitprof.config.bounds import MAX_NAME
from vitprof.errors import StoreError

MAX_TAG, MAX_NOTE = 40, 4000
"""Characters."""


def checked_name(name: str) -> str:
    """Returns a run's name as it is kept, 1 to 200 characters. Raises `StoreError`."""
    kept = _text("name", name, MAX_NAME)
    if not kept:
        raise StoreError(f"name: a run needs one; give 1 to {MAX_NAME} characters")
    return kept


def checked_note(note: str) -> str:
    """Returns a note as it is kept, "" for none. Raises `StoreError`."""
    return _text("note", note, MAX_NOTE)


def checked_tags(tags: Iterable[str]) -> set[str]:
    """Returns tags as they are kept. Raises `StoreError` for one that is empty, long or has a comma in it."""
    kept = {_text("tag", tag, MAX_TAG) for tag in tags}
    if any(not tag or "," in tag for tag in kept):
        raise StoreError(f"tag: give 1 to {MAX_TAG} characters without a comma")
    return kept


def _text(what: str, text: str, most: int) -> str:
    """Returns `text` without white space around it. Raises `StoreError` if it is too long or no text for people."""
    text = text.strip()
    if len(text) > most:
        raise StoreError(f"{what}: {len(text)} characters are too many; give at most {most}")
    if not all(c.isprintable() or c == "\n" or _is_unknown(c) for c in text):
        raise StoreError(f"{what}: it has characters that cannot be shown; give plain text")
    return text


def _is_unknown(character: str) -> bool:
    """Tells if this Python's Unicode does not know a character: a newer one may, and write it to a bundle."""
    return unicodedata.category(character) == "Cn"
