"""Names: what is taken, and what becomes of the rest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitprof.names import MARK, MAX_NAME, NOT_PRINTED, cut_name, harmless, tamed_name, why_no_name

ANY = st.text(st.characters(codec=None), max_size=MAX_NAME + 50)
ODD = st.text(st.sampled_from("\t\n\r\x0b\x1b\x85\u2028\u202e\u2066\u061c\ufeff\ud800 a�…"), max_size=30)


@given(ANY | ODD)
def test_a_name_that_is_taken_is_left_alone_and_a_tamed_one_is_taken(name: str) -> None:
    kept = cut_name(name)
    if not why_no_name(kept):
        assert tamed_name(kept) == kept
    tamed = tamed_name(name)
    assert not why_no_name(tamed)
    assert tamed_name(tamed) == tamed == cut_name(tamed)
    tamed.encode()


@given(ANY | ODD)
def test_a_harmless_text_has_nothing_that_a_terminal_obeys(text: str) -> None:
    shown = harmless(text)
    assert not NOT_PRINTED.search(shown)
    assert harmless(shown) == shown
    assert shown.count("\n") == text.count("\n")


@pytest.mark.parametrize(
    ("name", "tamed"),
    [
        ("\n\n", ""),
        ("two\r\nlines\tand a tab", "two lines and a tab"),
        ("\x1b[2Jgone", f"{MARK}[2Jgone"),
        ("run \u202eevil", f"run {MARK}evil"),
        ("x" * (MAX_NAME + 1), "x" * (MAX_NAME - 1) + "…"),
        ("Größe 🚀 👩‍💻, =1+1 \u00a0", "Größe 🚀 👩‍💻, =1+1"),
    ],
)
def test_what_becomes_of_a_name(name: str, tamed: str) -> None:
    assert tamed_name(name) == tamed


@pytest.mark.parametrize("name", ["a\nb", "a\tb", "\x1b[31mred", "\u202ered", "a\u2028b", "bell \a", "\u061cx"])
def test_what_a_person_may_not_give(name: str) -> None:
    assert why_no_name(name).startswith("give one line, without control characters")
