"""Names that people, scripts and files give: which are accepted, and how the others are refused or changed."""

import re

MAX_NAME = 200
"""Length of the longest name that a run or a tournament can have, in characters."""
NAME_CUT = f"cut to the first {MAX_NAME} characters: names are no longer than that"
UNNAMED = "unnamed"
MARK = "\ufffd"
"""Replaces a character that cannot be shown: Unicode's replacement character."""
_HARMFUL = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters; a terminal obeys ESC
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # change the direction of writing
    "\u2028\u2029\ud800-\udfff\ufeff\ufff9-\ufffb\ufffe\uffff"  # line separators, surrogates, noncharacters
)
NOT_SHOWN = re.compile(f"[\t{_HARMFUL}]")
"""Characters that are kept out of stored texts. (What `str.isprintable` says depends on Python's version.)"""
NOT_PRINTED = re.compile(f"[{_HARMFUL}]")
"""Characters that are never sent to a terminal or a page. Tabs are sent."""
SPACE = re.compile("[\t\n\v\f\r\x1c-\x1f\x85\u2028\u2029]+")
"""Line ends and tabs, which become a space in a name."""


def why_no_name(name: str) -> str:
    """Returns what to give instead of the name that a person gave, worded for a message; "" if the name is fine."""
    if len(name) > MAX_NAME:
        return f"give at most {MAX_NAME} characters"
    # an argument in another encoding; cannot be stored
    if any("\ud800" <= c <= "\udfff" for c in name):
        return "give text in UTF-8"
    if "\n" in name or NOT_SHOWN.search(name):
        return "give one line, without control characters and without signs that turn the direction of writing"
    return ""


def cut_name(name: str) -> str:
    """Returns a name that a person gave, stripped of white space and cut to `MAX_NAME` characters."""
    return name.strip()[:MAX_NAME].rstrip()


def tamed_name(name: str) -> str:
    """Returns a name that nobody typed as it is stored and shown; "" where nothing remains of it.

    Line ends and tabs become a space, characters that cannot be shown `MARK`, and a name that was cut ends
    with "…".
    """
    kept = NOT_SHOWN.sub(MARK, SPACE.sub(" ", name)).strip()
    if len(kept) > MAX_NAME:
        kept = kept[: MAX_NAME - 1].rstrip() + "…"
    return kept


def in_one_line(text: str) -> str:
    """Returns `text` with `MARK` for line ends, too: a file's name may have them."""
    return harmless(re.sub(r"[\n\r]", MARK, text))


def harmless(text: str) -> str:
    """Returns `text` with `MARK` for characters that a terminal obeys or that change the direction of writing."""
    return NOT_PRINTED.sub(MARK, text.replace("\r\n", "\n"))
