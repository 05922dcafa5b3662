"""Means that pass over what is not known, and the one place where array types are defined."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from tests import ROOT
from vitprof.analysis.arrays import highest, known, mean, median


def test_what_is_not_known_is_passed_over() -> None:
    values = np.array([3.0, np.nan, 1.0, np.inf, 8.0, -np.inf])
    assert known(values).tolist() == [3.0, 1.0, 8.0]
    assert (mean(values), median(values), highest(values)) == (4.0, 3.0, 8.0)


@pytest.mark.parametrize("values", [np.empty(0), np.full(3, np.nan)], ids=["none", "all unknown"])
def test_nothing_known_is_nan_and_no_warning(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
    assert not len(known(values))
    assert all(math.isnan(of(values)) for of in (mean, median, highest))


def test_each_array_type_is_defined_once() -> None:
    defined = re.compile(r"^(Floats|Ints|Mask|Series)\b.* = ", re.MULTILINE)
    found = [p.name for p in sorted((ROOT / "vitprof").rglob("*.py")) for _ in defined.findall(p.read_text("utf-8"))]
    assert found == ["arrays.py"] * 4
