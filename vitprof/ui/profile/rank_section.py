"""The ranks of a distributed job on the Answer tab.

They show which one the others wait for, and each rank's waits over time.
"""

import math

import streamlit as st

from vitprof import store
from vitprof.analysis.arrays import Series
from vitprof.analysis.stragglers import NAMES
from vitprof.charts.rank_charts import LANE_STEPS, rank_lanes, rank_map
from vitprof.ui import live_chart, resources, tables
from vitprof.ui.texts import escaped, guarded

HELP = (
    "All ranks end a step together: who is early waits in the collective. What is a rank's own is "
    "its wait for data, what it does between steps, and its forward pass; the one that takes "
    "longest holds up the others. All figures above are of rank 0."
)
SHOWN = {"data wait": "exposed_wait_s", "step time": "step_s", "lanes": ""}
"""What the chart shows -> the column of its heat map, one of `charts.rank_charts.MAPS`; "" for lanes."""
SHOWN_HELP = (
    f"A heat map by rank and step, or {LANE_STEPS} steps from the middle of the run over time."
)
CHARTED = (*NAMES, "t_start_s")
COLUMNS = (
    tables.TableColumn("Rank", "Number of the process in the job.", lambda row: row["rank"], "%d"),
    tables.TableColumn(
        "Data wait (%)",
        "Share of the time blocked in next(loader).",
        lambda r: _of(r, "data_wait_frac", 100),
    ),
    tables.TableColumn(
        "Before the collective (ms)",
        "Its own time of a step, mean: wait for data, between steps, forward pass.",
        lambda r: _of(r, "own_ms"),
    ),
    tables.TableColumn(
        "First batch (s)",
        "How long it waited for its very first batch.",
        lambda row: _of(row, "first"),
    ),
    tables.TableColumn(
        "Given (x)",
        "Values in its batches, against the other ranks' median.",
        lambda r: _of(r, "given"),
    ),
    tables.TableColumn(
        "Last (%)", "Share of the steps in which it was last.", lambda r: _of(r, "last_frac", 100)
    ),
    tables.TableColumn(
        "Waits for others (%)",
        "Share of the time in which it waited for the last one.",
        lambda r: _of(r, "waits_for_others_frac", 100),
    ),
)


def _of(row: dict[str, float | None], name: str, times: float = 1.0) -> float:
    """Returns a figure of a rank, scaled; NaN where it is not known."""
    value = row[name]
    return math.nan if value is None else times * value


@guarded
def draw_ranks(run: store.StoredRun) -> None:
    """Draws the ranks of a run that has several; nothing for another one."""
    ranks = run.facts.get("ranks")
    if not ranks:
        return
    st.header("Ranks", anchor=False, help=HELP)
    first, *more = ranks["sentences"]
    st.markdown(escaped(first))
    if more:
        st.caption(escaped(" ".join(more)))
    steps = _steps(run.id)
    shown = st.segmented_control(
        "Show", list(SHOWN), default="data wait", key="ranks-shown", help=SHOWN_HELP
    )
    column = SHOWN[shown or "data wait"]
    figure = rank_map(steps, column) if column else rank_lanes(steps, _first_of_lanes(steps))
    live_chart.plot(
        figure,
        height=int(figure.layout.height),
        key="rank-waits",
        alt=str(figure.layout.meta["alt"]),
    )
    first_wait_s = {}
    for rank, of_rank in steps.items():
        if len(of_rank["step"]):
            first_wait_s[rank] = float(of_rank["data_wait_s"][0])
    rows = [({**row, "first": first_wait_s.get(row["rank"])},) for row in ranks["figures"]]
    tables.draw(COLUMNS, rows, key="ranks", placeholder="n/a")


def _first_of_lanes(steps: dict[int, Series]) -> int:
    """Returns the number of a steady step in the middle of the run."""
    of_rank_0 = steps[0]
    numbers = of_rank_0["step"][of_rank_0["warmup"] == 0]
    if not len(numbers):
        return 0
    middle = int(numbers[len(numbers) // 2])
    return max(0, middle - LANE_STEPS // 2)


@st.cache_resource(show_spinner=False, max_entries=resources.SERIES_KEPT)
def _steps(run_id: int) -> dict[int, Series]:
    steps = resources.store().steps_of_ranks(run_id, names=CHARTED)
    return {rank: dict(of_rank) for rank, of_rank in steps.items()}
