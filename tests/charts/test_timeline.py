"""The chain of a batch: lanes whose lengths are the figures of the step."""

from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from tests.series import made_steps
from vitprof.analysis.timing.timeline import one_step, timeline
from vitprof.charts.timeline import batch_chain


def lengths(figure: go.Figure, lane: str, of: str = "x") -> dict[str, float]:
    """The length of each span of a lane, or its beginning."""
    return {bar.name: bar[of][list(bar.y).index(lane)] for bar in figure.data if lane in bar.y}


@pytest.fixture
def steps() -> dict[str, np.ndarray]:
    """A worker makes each batch in 40 ms, 20 ms of them decoding; the loop waits 30 ms, the last 5 for hand-over."""
    known = {"decode_s": 0.02, "hand_over_s": 0.005, "host_s": 0.01}
    trace: dict[str, np.ndarray] = made_steps([0.03] * 5, 0.04, h2d=0.01, **known)
    return trace | {"made_end_s": trace["t_start_s"] + 0.025, "made_start_s": trace["t_start_s"] - 0.015}


def test_the_chain_adds_up_and_begins_where_the_loop_asks(steps: Any) -> None:
    figure = batch_chain(one_step(steps, 2), timeline(steps, [], 2, 3))
    made = lengths(figure, "loader")
    assert made == pytest.approx({"decoding": 20, "Python and waiting for a turn": 20, "hand-over": 5})
    assert lengths(figure, "loop")["data wait"] == pytest.approx(30)
    assert lengths(figure, "copy") == pytest.approx({"H2D": 10})
    assert lengths(figure, "device")["compute"] == pytest.approx(40)
    assert not lengths(figure, "bubbles")
    begins = lengths(figure, "loader", "base")
    assert (begins["decoding"], begins["hand-over"]) == (pytest.approx(-15), pytest.approx(25))
    assert lengths(figure, "loop", "base")["data wait"] == pytest.approx(0)


def test_stages_are_in_proportion_and_bubbles_beneath_their_compute(steps: Any) -> None:
    steps["launch_idle_s"][2] = 0.03
    figure = batch_chain(one_step(steps, 2), timeline(steps, [], 2, 3))
    assert lengths(figure, "device")["compute"] == pytest.approx(40)
    assert lengths(figure, "bubbles") == pytest.approx({"launch bubbles": 30})
    steps["decode_s"][:], steps["read_s"][:] = 0.06, 0.02  # thread-seconds
    figure = batch_chain(one_step(steps, 2), timeline(steps, [], 2, 3))
    made = lengths(figure, "loader")
    assert made == pytest.approx({"reading": 10, "decoding": 30, "hand-over": 5})
    hover = next(bar.hovertext[0] for bar in figure.data if bar.name == "decoding")
    assert hover == "decoding 60.0 ms", "the figure is the measured one"


def test_what_cannot_be_seen_is_in_no_legend_and_nothing_known_is_nothing_drawn(steps: Any) -> None:
    steps["hand_over_s"][:] = 1e-6
    figure = batch_chain(one_step(steps, 2), timeline(steps, [], 2, 3))
    assert "hand-over" not in lengths(figure, "loader")
    for name in ("made_start_s", "hand_over_s", "compute_start_s"):
        steps[name][:] = np.nan
    assert not batch_chain(one_step(steps, 2), timeline(steps, [], 2, 3)).data
