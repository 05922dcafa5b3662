"""Student's t against SciPy's."""

import math

import numpy as np
import pytest
from scipy import stats

from vitprof.analysis.students_t import below, quantile, quantiles

DF = (0.5, 0.7, 1, 1.6, 2, 2.5, 8, 11.3, 30, 240, 1e6)
"""Also fractions, as Satterthwaite's are; 1 is Cauchy's distribution, and 1e6 as good as the normal
one."""


@pytest.mark.parametrize("df", DF)
def test_probabilities_are_those_of_scipy(df: float) -> None:
    """To nine digits: with a million degrees of freedom `below` takes the difference of two logarithms
    of 6e6 each, whose rounding is that."""
    for t in (-40.0, -1.3, -0.2, 0.0, 0.7, 3.0, 500.0):
        assert below(t, df) == pytest.approx(stats.t.cdf(t, df), abs=1e-9), t
    assert (below(-math.inf, df), below(math.inf, df)) == (0, 1)


@pytest.mark.parametrize("df", DF)
def test_quantiles_are_those_of_scipy(df: float) -> None:
    """To eight digits: those of the probability that it is looked up for."""
    for p in (0.01, 0.3, 0.8, 0.9, 0.975, 0.995, 0.9995, 0.99983):
        assert quantile(p, df) == pytest.approx(stats.t.ppf(p, df), rel=1e-8), p
        assert quantile(1 - p, df) == pytest.approx(-quantile(p, df), rel=1e-12), p
    assert quantile(0.5, df) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("p", [0.975, 0.9995])
def test_quantiles_of_many_are_those_of_scipy(p: float) -> None:
    """To the four digits that they promise, as they are read from a table."""
    df = np.concatenate([np.geomspace(0.5, 1e6, 500), [0.5, 1.0, 1.6, 2.5, 11.3, 240.0]])
    assert quantiles(p, df) == pytest.approx(stats.t.ppf(p, df), rel=1e-4)
    assert np.isnan(quantiles(p, np.array([math.nan]))).all()
