"""Charts of ranks: a heat map of each figure, and lanes that add up to the steps."""

import itertools

import numpy as np
import pytest

from tests.analysis.test_stragglers import made, only
from vitprof.charts.rank_charts import LANE_STEPS, MAPS, MOST_BINS, rank_lanes, rank_map


@pytest.mark.parametrize("column", MAPS)
def test_a_heat_map_has_a_row_for_each_rank_and_bins_for_many_steps(column: str) -> None:
    steps = made(n_ranks=3, n=1000, wait=only(1, 3))
    (heat,) = rank_map(steps, column).data
    assert list(heat.y) == ["rank 0", "rank 1", "rank 2"]
    assert {len(row) for row in heat.z} == {len(heat.x)}
    assert len(heat.x) <= MOST_BINS
    means = [np.nanmean(np.array(row, dtype=float)) for row in heat.z]
    assert means == pytest.approx([steps[rank][column].mean() * 1e3 for rank in range(3)], rel=1e-6)
    assert MAPS[column] in heat.hovertext[1][0]


def test_lanes_of_a_step_add_up_to_it_one_after_another() -> None:
    steps = made(n_ranks=2, wait=only(1, 3))
    begins = 100.0 + np.concatenate([[0.0], np.cumsum(steps[0]["step_s"])[:-1]])
    figure = rank_lanes({rank: of | {"t_start_s": begins} for rank, of in steps.items()}, 40)
    assert [bar.name for bar in figure.data][:2] == ["waits for its data", "forward pass"]
    for at in range(2 * LANE_STEPS):
        parts = [(bar.base[at], bar.x[at]) for bar in figure.data]
        for (base, length), (following, _) in itertools.pairwise(parts):
            assert base + length == pytest.approx(following)
    whole = sum(np.array(bar.x) for bar in figure.data)
    expected = np.concatenate([steps[rank]["step_s"][40 : 40 + LANE_STEPS] for rank in range(2)])
    assert whole == pytest.approx(expected)
    assert min(figure.data[0].base) == 0
    assert "2 ranks" in figure.layout.meta["alt"]


def test_lanes_without_a_known_forward_pass() -> None:
    steps = {
        rank: of | {"t_start_s": of["step"]} for rank, of in made(n_ranks=2, known=np.nan).items()
    }
    assert [bar.name for bar in rank_lanes(steps, 0).data][1].startswith("backward pass")
