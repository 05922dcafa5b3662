"""Names: what is taken, and what becomes of the rest."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitprof import names

ANY = st.text(st.characters(codec=None), max_size=names.MAX_NAME + 50)
ODD = st.text(
    st.sampled_from("\t\n\r\x0b\x1b\x85\u2028\u202e\u2066\u061c\ufeff\ud800 a�…"), max_size=30
)


@given(ANY | ODD)
def test_a_name_that_is_taken_is_left_alone_and_a_tamed_one_is_taken(name: str) -> None:
    kept = names.cut_name(name)
    if not names.why_no_name(kept):
        assert names.tamed_name(kept) == kept
    tamed = names.tamed_name(name)
    assert not names.why_no_name(tamed)
    assert names.tamed_name(tamed) == tamed == names.cut_name(tamed)
    tamed.encode()


@given(ANY | ODD)
def test_a_harmless_text_has_nothing_that_a_terminal_obeys(text: str) -> None:
    shown = names.harmless(text)
    assert not names.NOT_PRINTED.search(shown)
    assert names.harmless(shown) == shown
    assert shown.count("\n") == text.count("\n")


@pytest.mark.parametrize(
    ("name", "tamed"),
    [
        ("\n\n", ""),
        ("two\r\nlines\tand a tab", "two lines and a tab"),
        ("\x1b[2Jgone", f"{names.MARK}[2Jgone"),
        ("run \u202eevil", f"run {names.MARK}evil"),
        ("x" * (names.MAX_NAME + 1), "x" * (names.MAX_NAME - 1) + "…"),
        ("Größe 🚀 👩‍💻, =1+1 \u00a0", "Größe 🚀 👩‍💻, =1+1"),
    ],
)
def test_what_becomes_of_a_name(name: str, tamed: str) -> None:
    assert names.tamed_name(name) == tamed


def test_what_a_person_may_not_give() -> None:
    for name in ("a\nb", "a\tb", "\x1b[31mred", "\u202ered", "a\u2028b", "bell \a", "\u061cx"):
        assert names.why_no_name(name).startswith("give one line, without control characters")
