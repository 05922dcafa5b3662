"""How far a figure may be from the truth."""

import pytest

from vitprof.analysis.intervals import student_t


def test_students_t() -> None:
    known = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 10: 2.228, 30: 2.042}
    for df, value in known.items():
        assert student_t(df) == pytest.approx(value, rel=0.008)
