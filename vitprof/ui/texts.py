"""Text that others wrote, as Markdown shows it without reading it; and errors as one line."""

from __future__ import annotations

import datetime as dt
import functools
import re
from collections.abc import Callable
from typing import ParamSpec

import streamlit as st

from vitprof.errors import VitprofError
from vitprof.names import harmless

P = ParamSpec("P")

READ_LATER = re.compile(
    r"(?<=:)[\w+\-](?=[\w+\-/]*:)"  # :smile:, :+1:, :material/home:
    r"|:(?=//)|(?<=ww)w(?=\.)|@"  # the addresses of pages and of people
    r"|(?<=-)[->]|(?<=[<>~])[-=]",  # arrows, dashes, and signs such as >=
    re.IGNORECASE,
)
"""The characters without which Streamlit finds no emoji, icon, link or arrow in the text that Markdown has made, where
a backslash no longer protects it."""


def escaped(text: str) -> str:
    """`text` in Markdown without becoming Markdown: no image, link, formula, colour, icon, emoji or arrow.

    What Streamlit would still read is parted by an element of its own: a colour that names none. Copied, the text is
    what was given, with nothing invisible in it; what cannot be shown, or would turn what stands after it, is marked.
    """
    text, parted, at = harmless(text), [], 0
    for found in READ_LATER.finditer(text):
        parted += [_escaped(text[at : found.start()]), f":color[{_escaped(found[0])}]"]
        at = found.end()
    return "".join([*parted, _escaped(text[at:])])


def _escaped(text: str) -> str:
    return "".join("\\" + c if c in r"\`*_{}[]()#+-.!|<>$:~&" else c for c in text)


def sentence(text: str) -> str:
    """Returns `text` with a capital letter and a full stop."""
    return text[:1].upper() + text[1:].rstrip(".") + "."


def file_stamp() -> str:
    """Returns the time of now (UTC) for the name of a file."""
    return dt.datetime.now(dt.UTC).strftime("%Y%m%d-%H%M%S")


def rough_time(seconds: float) -> str:
    """Returns a duration that is only an estimate: one digit of seconds, or whole minutes."""
    return f"{float(f'{seconds:.1g}'):.0f} s" if seconds < 95 else f"{seconds / 60:.0f} min"


def simulated_badge() -> None:
    """Draws the mark of what was measured on an imitated device."""
    st.badge(
        "simulated",
        icon=":material/science:",
        color="violet",
        help="The device is simulated: each step takes as long as on a real one, but nothing is computed. "
        "Loading is real.",
    )


def guarded(draw: Callable[P, None]) -> Callable[P, None]:
    """Decorates a part of a page: its `VitprofError` becomes one line in its place."""

    @functools.wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            draw(*args, **kwargs)
        except VitprofError as error:
            st.error(escaped(str(error)))

    return drawn
