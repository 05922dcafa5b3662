"""Predictions on the Profile page: what other strategies would reach, and a run for each that checks it."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from vitprof import formats
from vitprof.errors import JobError
from vitprof.experiments import prediction as jobs
from vitprof.experiments.alternatives import MICRO_S, usual_strategies
from vitprof.store import StoredRun
from vitprof.store.predictions import StoredPrediction, latest_of_each
from vitprof.ui import resources
from vitprof.ui.group import POLL_S, draw_progress, live_runs, start_once
from vitprof.ui.launch import machine
from vitprof.ui.notifications import watch_group
from vitprof.ui.profile.headroom import STARTUP_S
from vitprof.ui.texts import escaped, guarded, rough_time

PREDICT_HELP = "Loads with each of the other strategies for a moment, and works out how fast they would train."
NOT_RUN = "predicted, not run"


def draw_predictions(run: StoredRun) -> None:
    """Draws the whole section, which redraws itself while its runs are live."""
    st.header(
        "Predictions",
        anchor=False,
        help="What a step would take with each of the other strategies, worked out from this run's compute time and "
        "two seconds of loading alone with that strategy. A prediction is only that until you run it.",
    )
    working = bool(live_runs(jobs.group_of(run.id)))
    st.fragment(_draw, run_every=POLL_S if working else None)(run, working)


@guarded
def _draw(run: StoredRun, working: bool) -> None:
    left = live_runs(jobs.group_of(run.id))
    if working != bool(left):
        st.rerun(scope="app")
    try:
        jobs.profile_of(resources.store(), run.id)
    except JobError as error:
        st.caption(f"Not for this run: {escaped(str(error))}")
        return
    found = latest_of_each(jobs.record_predictions(resources.store(), run.id))
    others = usual_strategies(run, machine())
    if left:
        total = len(others) if left[0].role == jobs.MICRO else 1
        draw_progress(left, total, _say, key="predictions")
    if found:
        st.dataframe(_table(found, run), hide_index=True, width="stretch", height="content", key="predictions")
        st.caption(f":material/target: {escaped(jobs.calibration_for(resources.store(), run).sentence)}")
    for line in jobs.failures(resources.store(), run.id):
        st.caption(f":material/warning: {escaped(line)}")
    if left:
        return
    if unchecked := [p for p in found if p.measured_per_s is None]:
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            st.markdown("Verify by running:", width="content")
            for p in unchecked:
                if st.button(
                    p.config.strategy,
                    key=f"verify-{p.id}",
                    icon=":material/play_arrow:",
                    help=f"Runs this job with {p.config.strategy} and shows the result beside the prediction.",
                ):
                    _verify(p)
    with st.container(horizontal=True, vertical_alignment="center"):
        words = "Predict again" if found else "Predict other strategies"
        if st.button(words, key="predict", icon=":material/insights:", disabled=not others, help=PREDICT_HELP):
            watch_group(jobs.group_of(run.id), f"Predictions for run {run.id}")
            start_once(jobs.group_of(run.id), lambda: jobs.submit_micro_runs(resources.manager(), run.id))
            st.rerun(scope="app")
        takes = rough_time(len(others) * (MICRO_S + STARTUP_S))
        st.caption(
            f"Loads for {MICRO_S:g} s with each of {len(others)} strategies, without training; about {takes}."
            if others
            else "No other of the usual strategies can load this data set here.",
            width="stretch",
        )


def _say(run: StoredRun) -> str:
    return f"{'loading with' if run.role == jobs.MICRO else 'running'} {run.config.strategy}"


def _verify(p: StoredPrediction) -> None:
    watch_group(jobs.group_of(p.profile_run_id), f"Check of the prediction for {p.config.strategy}")
    start_once(jobs.group_of(p.profile_run_id), lambda: jobs.submit_check(resources.manager(), p.id))
    st.rerun(scope="app")


def _table(found: list[StoredPrediction], run: StoredRun) -> pd.DataFrame:
    """Returns one row for each strategy."""
    own = run.summary.samples_per_s if run.summary else float("nan")
    rows = pd.DataFrame(
        [
            {
                "strategy": p.config.strategy,
                "predicted samples/s": formats.number(p.samples_per_s),
                "95% interval": f"{formats.number(p.low)} to {formats.number(p.high)}",
                "against this run": f"{formats.number(p.samples_per_s / own)}x",
                "measured samples/s": NOT_RUN if p.measured_per_s is None else formats.number(p.measured_per_s),
                "error": "" if p.error is None else f"{p.error * 100:+.1f}%",
            }
            for p in found
        ]
    )
    return rows if any(p.error is not None for p in found) else rows.drop(columns="error")
