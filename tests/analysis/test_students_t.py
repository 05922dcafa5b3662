"""Student's t against tables of it (Abramowitz and Stegun 26.10) and against what holds for any of
them."""

import math

import numpy as np
import pytest

from vitprof.analysis.students_t import below, quantile, quantiles


@pytest.mark.parametrize(
    ("p", "df", "expected"),
    [
        (0.975, 1, 12.706),
        (0.975, 2, 4.303),
        (0.975, 8, 2.306),
        (0.995, 4, 4.604),
        (0.9995, 10, 4.587),
        (0.9, 30, 1.310),
        (0.975, 1e6, 1.960),
    ],
)
def test_quantiles_are_those_of_the_table(p: float, df: float, expected: float) -> None:
    assert quantile(p, df) == pytest.approx(expected, abs=6e-4)
    assert quantile(1 - p, df) == -quantile(p, df)


@pytest.mark.parametrize("df", [0.7, 1.6, 2.5, 11.3, 240.0])
def test_a_quantile_is_where_the_probability_is_reached(df: float) -> None:
    for p in (0.01, 0.3, 0.5, 0.8, 0.99983):
        assert below(quantile(p, df), df) == pytest.approx(p, abs=1e-9)
    assert below(-1.3, df) + below(1.3, df) == pytest.approx(1)
    assert (below(-math.inf, df), below(math.inf, df), below(0, df)) == (0, 1, 0.5)


def test_one_degree_of_freedom_is_cauchys_distribution() -> None:
    for t in (-40.0, -0.2, 3.0):
        assert below(t, 1) == pytest.approx(0.5 + math.atan(t) / math.pi)


@pytest.mark.parametrize("p", [0.975, 0.9995])
def test_quantiles_of_many_are_those_of_each(p: float) -> None:
    df = np.array([0.5, 1.0, 1.6, 2.5, 11.3, 240.0])
    assert quantiles(p, df) == pytest.approx([quantile(p, each) for each in df], rel=1e-3)
    assert np.isnan(quantiles(p, np.array([math.nan]))).all()
