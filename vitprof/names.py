"""Names that people, scripts and files give: which are taken as they are, and what becomes of all others.

What a person types (`--name`, a field of a page, an address) is refused where it cannot be shown: `why_no_name` says
why. What nobody typed (a script's command, a bundle, an old store) is made harmless: `tamed_name`. Every name that is
taken is one that `tamed_name` leaves alone.
"""

from __future__ import annotations

import re

MAX_NAME = 200
"""Characters of the name of a run or a tournament."""
NAME_CUT = f"cut to the first {MAX_NAME} characters: names are no longer than that"
"""What is said of a longer one that a person gave, with `cut_name` of it."""
UNNAMED = "unnamed"
"""Stands where nothing is left of a name."""
MARK = "\ufffd"
"""Stands for a character that cannot be shown: Unicode's own sign for that."""
_HARMFUL = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters; a terminal obeys ESC
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # those that turn the direction of writing
    "\u2028\u2029\ud800-\udfff\ufeff\ufff9-\ufffb\ufffe\uffff"  # line ends, halves of characters, what is none
)
NOT_SHOWN = re.compile(f"[\t{_HARMFUL}]")
"""Characters that are in no text of vitprof's. Line feeds are fine, but in names and tags.

Not `str.isprintable`: a newer Python knows characters that an older one calls unprintable.
"""
NOT_PRINTED = re.compile(f"[{_HARMFUL}]")
"""Characters that are not sent to a terminal or a page: tabs are."""
SPACE = re.compile("[\t\n\v\f\r\x1c-\x1f\x85\u2028\u2029]+")
"""Ends of lines and tabs, which are a space in a name."""


def why_no_name(name: str) -> str:
    """Returns what to give instead of a name that a person gave, as a message says it; "" if it is fine."""
    if len(name) > MAX_NAME:
        return f"give at most {MAX_NAME} characters"
    if any("\ud800" <= c <= "\udfff" for c in name):  # an argument in another encoding; cannot be stored
        return "give text in UTF-8"
    if "\n" in name or NOT_SHOWN.search(name):
        return "give one line, without control characters and without signs that turn the direction of writing"
    return ""


def cut_name(name: str) -> str:
    """Returns a name that a person gave, without white space around it, as long as one may be."""
    return name.strip()[:MAX_NAME].rstrip()


def tamed_name(name: str) -> str:
    """Returns a name that nobody typed, as it is kept and shown; "" where nothing is left of it.

    Ends of lines and tabs become a space, what cannot be shown becomes `MARK`, and one that was cut ends with "…".
    """
    kept = NOT_SHOWN.sub(MARK, SPACE.sub(" ", name)).strip()
    return kept if len(kept) <= MAX_NAME else kept[: MAX_NAME - 1].rstrip() + "…"


def harmless(text: str) -> str:
    """Returns a text of any number of lines with `MARK` for what a terminal would obey or a page would turn round."""
    return NOT_PRINTED.sub(MARK, text.replace("\r\n", "\n"))
