"""Tables of figures: which columns they have, and how their numbers are rounded."""

from __future__ import annotations

import math

from vitprof.ui.tables import Column, frame
from vitprof.ui.tournament.table import COLUMNS

NAN = math.nan


def test_columns_without_a_value_are_left_out_and_numbers_have_three_digits() -> None:
    columns = [
        Column("Name", "", lambda name, figure, count: name, always=True),
        Column("Figure", "", lambda name, figure, count: figure),
        Column("Count", "", lambda name, figure, count: count, exact=True),
        Column("Nothing", "", lambda *_: NAN),
        Column("No words", "", lambda *_: "n/a"),
        Column("Always", "", lambda *_: NAN, always=True),
    ]
    made = frame(columns, [("one", 12_345.6, 12_345), ("", NAN, 7)])
    assert (list(made), made["Name"].tolist()) == (["Name", "Figure", "Count", "Always"], ["one", ""])
    assert (made["Figure"].tolist()[0], made["Count"].tolist()) == (12_300, [12_345, 7])


def test_what_a_leaderboard_counts_is_not_rounded() -> None:
    assert {column.name for column in COLUMNS if column.format == "%d"} == {c.name for c in COLUMNS if c.exact}
