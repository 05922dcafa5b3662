"""Text for the pages: escaped for Markdown where others wrote it, in sentences, and errors as one
line.
"""

import datetime as dt
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec

import streamlit as st

from vitprof import errors, names

P = ParamSpec("P")
MOST_NAMED = 12
"""Runs whose numbers are listed, at most."""

READ_LATER = re.compile(
    r"(?<=:)[\w+\-](?=[\w+\-/]*:)"  # :smile:, :+1:, :material/home:
    r"|:(?=//)|(?<=ww)w(?=\.)|@"  # the addresses of pages and of people
    r"|(?<=-)[->]|(?<=[<>~])[-=]",  # arrows, dashes, and signs such as >=
    re.IGNORECASE,
)
"""Characters of an emoji, icon, link or arrow that Streamlit finds after Markdown, despite a
backslash."""


def escaped(text: str) -> str:
    """Returns `text` escaped for Markdown: it shows no image, link, formula, colour, icon, emoji or
    arrow.

    What Streamlit would still interpret is split by an element that does nothing: a colour without
    a name. Copied from the page, the text is as it was given, with nothing invisible in it.
    Characters that cannot be shown, or would reverse the text after them, are replaced by a mark
    (`harmless`).
    """
    text = names.harmless(text)
    parted = []
    at = 0
    for match in READ_LATER.finditer(text):
        parted += [_escaped(text[at : match.start()]), f":color[{_escaped(match[0])}]"]
        at = match.end()
    return "".join([*parted, _escaped(text[at:])])


def _escaped(text: str) -> str:
    return "".join("\\" + c if c in r"\`*_{}[]()#+-.!|<>$:~&" else c for c in text)


def value_in_words(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def listed(run_ids: Sequence[int]) -> str:
    """Returns "3, 4, 5"; of many the first."""
    named = [str(run_id) for run_id in run_ids[:MOST_NAMED]]
    if len(run_ids) > MOST_NAMED:
        named.append("...")
    return ", ".join(named)


def numbers_of(run_ids: Sequence[int]) -> str:
    return f"run{'s' if len(run_ids) > 1 else ''} {listed(run_ids)}"


def file_stamp() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y%m%d-%H%M%S")


def simulated_badge() -> None:
    about = "The device is simulated: each step takes as long as on a real one, without computing. Loading is real."
    st.badge("simulated", icon=":material/science:", color="gray", help=about)


def guarded(draw: Callable[P, None]) -> Callable[P, None]:
    """Decorates a function that draws a part of a page: a `VitprofError` is shown in its place, as
    one line.
    """

    @functools.wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            draw(*args, **kwargs)
        except errors.VitprofError as error:
            st.error(escaped(str(error)))

    return drawn


PROBLEM = "problem of the last button"


def act_button(
    label: str, key: str, icon: str, do: Callable[[], object], help: str, **more: Any
) -> None:
    """Draws a button that calls `do` in a callback.

    A page that is drawn anew before it comes to the button would lose the click otherwise. A
    `VitprofError` is kept for `draw_problem`, which shows it as a line.
    """
    st.button(
        label, key=key, icon=f":material/{icon}:", on_click=act, args=(do,), help=help, **more
    )


def act(do: Callable[[], object]) -> None:
    """Does what a button is for; see `act_button`."""
    try:
        do()
    except errors.VitprofError as error:
        st.session_state[PROBLEM] = str(error)


def draw_problem() -> None:
    if text := st.session_state.pop(PROBLEM, ""):
        st.error(escaped(text))


def draw_take_over(what: str, key: str, do: Callable[[], object], help: str) -> None:
    """Draws the button that says that the machine is gone on which something, `what`, was
    started.
    """
    with st.popover(
        "Not running any more?",
        icon=":material/help:",
        help="For what a machine that is gone began.",
    ):
        st.markdown(
            f"Started on another machine: {escaped(what)}. This one cannot tell whether it still "
            "runs; a container gets a new name each time it is started. Is that machine gone, or "
            "was the container restarted?"
        )
        act_button("Yes, it is gone", key, "check", do, help, type="primary")


def confirmed(words: str, key: str, help: str) -> bool:
    """Draws the two buttons of a dialog that asks before it deletes; returns whether to."""
    with st.container(horizontal=True):
        yes = st.button(
            words, type="primary", icon=":material/delete:", key=f"{key}-delete-yes", help=help
        )
        if st.button("Keep", key=f"{key}-delete-no", help="Closes this and changes nothing."):
            st.rerun()
    return yes
