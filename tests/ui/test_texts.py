"""Text that others wrote shows as it was typed (tests/browser looks at it); tables have the columns with values."""

import math
import re
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ui.dashboard import read
from vitprof.ui.tables import TableColumn, frame
from vitprof.ui.texts import escaped

STREAMLIT_READS = re.compile(
    r":[\w+\-/]*[A-Za-z+\-][\w+\-/]*:|:(100|1234):|https?://|www\.|@|(^|\s)(<->|->|<-|--|>=|<=|~=)(\s|$)",
    re.IGNORECASE,
)
"""What Streamlit 1.67 looks for in the text that Markdown has made: icons, emoji, links, arrows and signs."""


@pytest.mark.parametrize(
    "typed",
    [
        "[x](http://evil) **b** `c` $d$ <b>e</b> &amp;",
        ":smile: :100: :+1: :-1: :1234: :material/home: :streamlit: :red[x] a:b:c:d",
        "http://evil www.evil.org WWW.evil.org someone@evil.org",
        "a -- b -> c <- d <-> e >= f <= g ~= h",
        "simulated:x: 12:30:45 cuda:0",
    ],
)
def test_nothing_is_left_to_be_read_and_nothing_invisible_is_added(typed: str) -> None:
    marked = escaped(typed)
    assert read(marked) == typed
    for text in re.split(r":color\[.+?\]", marked):
        assert not STREAMLIT_READS.search(text.replace("\\", ""))
    assert not [c for c in marked if unicodedata.category(c) == "Cf"]


def test_what_would_turn_the_rest_of_the_page_is_marked() -> None:
    assert read(escaped("a\u202eb \x1b[1m\u2066")) == "a\ufffdb \ufffd[1m\ufffd"


@settings(max_examples=30)
@given(st.text(alphabet=":smile/+-10@w.ht p<>~=_*", max_size=30))
def test_it_reads_as_it_was_given(typed: str) -> None:
    assert read(escaped(typed)) == typed


NAN = math.nan


def test_columns_without_a_value_are_left_out_and_numbers_have_three_digits() -> None:
    columns = [
        TableColumn("Name", "", lambda name, figure, count: name),
        TableColumn("Figure", "", lambda name, figure, count: figure),
        TableColumn("Count", "", lambda name, figure, count: count),
        TableColumn("Exact", "", lambda name, figure, count: figure, exact=True),
        TableColumn("Nothing", "", lambda *_: NAN),
        TableColumn("No words", "", lambda *_: "n/a"),
    ]
    made = frame(columns, [("one", 12_345.6, 12_345), ("", NAN, 7)])
    assert (list(made), made["Name"].tolist()) == (
        ["Name", "Figure", "Count", "Exact"],
        ["one", ""],
    )
    assert (made["Figure"][0], made["Exact"][0], made["Count"].tolist()) == (
        12_300,
        12_345.6,
        [12_345, 7],
    )
