"""What faster stages would save, as bars."""

import pytest

from tests.analysis.verdict.test_causal import causal, found
from vitprof.charts.causal import gain_bars


def test_each_stage_has_a_bar_for_each_fraction_with_its_interval() -> None:
    tried = [gain for gain in found(causal(noise=0.0)).by_gain if gain.was_tried]
    quarter, half = gain_bars(tried).data
    assert list(quarter.y) == ["Reading", "Transforms", "Compute"]
    assert (quarter.name, half.name) == ("25% faster", "twice as fast")
    assert quarter.x[0] == tried[0].quarter.value
    high = quarter.x[0] + quarter.error_x.array[0]
    low = quarter.x[0] - quarter.error_x.arrayminus[0]
    assert (low, high) == pytest.approx(tried[0].quarter[1:])
    assert half.x[0] == tried[0].half.value
    assert "14%" in quarter.hovertext[0]
