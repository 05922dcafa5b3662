"""The tab What if: headroom and predictions.

Each is checked by runs that belong together and are shown as one bar.
"""

import math
import threading
from collections.abc import Callable, Mapping, Sequence

import pandas as pd
import streamlit as st

from vitprof import errors
from vitprof.analysis.verdict.headroom import ANCHOR_WORDS, headroom_sentence
from vitprof.charts import breakdown
from vitprof.config import RunConfig
from vitprof.experiments import headroom, prediction
from vitprof.export.tables import (
    ANCHORS_HEADER,
    PREDICTIONS_HEADER,
    anchors_in_words,
    predictions_in_words,
)
from vitprof.store import StoredRun
from vitprof.store.predictions import latest_of_each
from vitprof.ui import findings, live_chart, notifications, resources, tables, widgets
from vitprof.ui.profile.runs import STOP_HELP, stop_group
from vitprof.ui.texts import escaped, guarded, rough_time, sentence

POLL_S = 1.0
"""Seconds between a page's looks at a group that is running."""
STARTUP_S = 4.0
"""Seconds that starting a job takes, where the run does not tell."""
STARTING = threading.Lock()
"""Held while one session looks whether a group is running, and starts it."""
HEADROOM_HELP = (
    "How much faster this job would run if its data were free, measured: short runs with batches "
    "on the device (A) or in host memory (B), and with the strategy itself on files in memory (C) "
    "or not (D). Each adds a stage of loading."
)
MEASURE_HELP = "Starts short runs of this job whose data cost less and less. Meanwhile you can look at other runs."
PREDICTIONS_HELP = (
    "What a step would take with each of the other strategies, worked out from this run's compute "
    "time and two seconds of loading alone with that strategy. The best is advised on Answer: "
    "prove its gain there."
)
PREDICT_HELP = (
    "Loads with each of the other strategies for a moment, and works out how fast they would train."
)


def draw_what_if(run: StoredRun) -> None:
    if run.config.loader_only:
        st.caption(
            "This run trained nothing, so there is no training to speed up. Run the same settings "
            "with training first."
        )
        return
    st.header("Headroom", anchor=False, help=HEADROOM_HELP)
    _draw_while_live(run, headroom.group_of(run), _draw_headroom)
    st.header("Predictions", anchor=False, help=PREDICTIONS_HELP)
    _draw_while_live(run, prediction.group_of(run.id), _draw_predictions)


def _draw_while_live(
    run: StoredRun, group: str, draw: Callable[[StoredRun, list[StoredRun]], None]
) -> None:
    """Draws a section, given the group's live runs; it redraws itself while there are any."""
    working = bool(live_runs(group))

    def section() -> None:
        live = live_runs(group)
        # begun or ended since the page was drawn: the verdict may say more now
        if working != bool(live):
            st.rerun(scope="app")
        draw(run, live)

    st.fragment(guarded(section), run_every=POLL_S if working else None)()


def _draw_headroom(run: StoredRun, live: list[StoredRun]) -> None:
    try:
        configs = headroom.anchor_configs(run.config)
    except errors.ConfigError as error:
        st.caption(
            f"Not for this run: {widgets.label(error.field)} is set. "
            f"{escaped(error.allowed.capitalize())}."
        )
        return
    total = len(configs) * headroom.REPEATS
    if live:
        draw_progress(
            live, total, lambda r: f"anchor {r.role} ({ANCHOR_WORDS[r.role]})", key="headroom"
        )
    measured = findings.headroom_of(run)
    batch = run.config.batch_size
    if measured is not None:
        text = headroom_sentence(measured, batch)
        st.markdown(escaped(text))
        live_chart.plot(breakdown.waterfall(measured, batch), height=320, key="waterfall", alt=text)
        tables.show(
            pd.DataFrame(anchors_in_words(measured, batch), columns=ANCHORS_HEADER), key="anchors"
        )
        for note in measured.notes:
            st.caption(f":material/info: {escaped(sentence(note))}")
    if live:
        return
    takes = rough_time(_headroom_s(run, configs))
    with st.container(horizontal=True, vertical_alignment="center"):
        again = "Measure headroom again" if measured is not None else "Measure headroom"
        if st.button(again, key="measure-headroom", icon=":material/stairs:", help=MEASURE_HELP):
            words = f"Headroom of run {run.id}"
            start_once(
                headroom.group_of(run),
                words,
                lambda: headroom.submit_headroom(resources.manager(), run),
            )
        st.caption(
            f"{total} short runs, {headroom.REPEATS} of each kind in turns: about {takes}.",
            width="stretch",
        )


def _headroom_s(run: StoredRun, configs: Mapping[str, RunConfig]) -> float:
    """Returns about how many seconds the anchors take: their starts, and steps as slow as the
    run's.
    """
    startup_s = STARTUP_S
    step_s = 0.0
    summary = run.summary
    if summary is not None and math.isfinite(summary.startup_s):
        startup_s = summary.startup_s
    if summary is not None and math.isfinite(summary.step_ms_median):
        step_s = summary.step_ms_median / 1e3
    # the steps of anchors A and B, which load nothing, take next to no time beside these
    steps = sum((config.steps or 0) for role, config in configs.items() if role in "CD")
    return headroom.REPEATS * (startup_s * len(configs) + steps * step_s)


def _draw_predictions(run: StoredRun, live: list[StoredRun]) -> None:
    try:
        prediction.profile_of(resources.store(), run.id)
    except errors.JobError as error:
        st.caption(f"Not for this run: {escaped(str(error))}")
        return
    predictions = latest_of_each(prediction.record_predictions(resources.store(), run.id))
    others = prediction.usual_strategies(run, resources.machine())
    if live:
        draw_progress(
            live, len(others), lambda r: f"loading with {r.config.strategy}", key="predictions"
        )
    if predictions:
        rows = pd.DataFrame(predictions_in_words(predictions, run), columns=PREDICTIONS_HEADER)
        checked = any(p.error is not None for p in predictions)
        if not checked:  # without the columns of what was measured, and the error
            rows = rows[list(PREDICTIONS_HEADER[:-2])]
        tables.show(rows, key="predictions")
        st.caption(
            ":material/target: "
            f"{escaped(prediction.calibration_for(resources.store(), run).sentence)}"
        )
    for line in prediction.failures(resources.store(), run.id):
        st.caption(f":material/warning: {escaped(line)}")
    if live:
        return
    group = prediction.group_of(run.id)
    takes = rough_time(len(others) * (prediction.MICRO_S + STARTUP_S))
    with st.container(horizontal=True, vertical_alignment="center"):
        words = "Predict again" if predictions else "Predict other strategies"
        if st.button(
            words, key="predict", icon=":material/insights:", disabled=not others, help=PREDICT_HELP
        ):
            words = f"Predictions for run {run.id}"
            start_once(
                group, words, lambda: prediction.submit_micro_runs(resources.manager(), run.id)
            )
        about = "No other of the usual strategies can load this data set here."
        if others:
            each = f"{prediction.MICRO_S:g} s with each of {len(others)} strategies"
            about = f"Loads for {each}, no training; about {takes}."
        st.caption(about, width="stretch")


def live_runs(group: str) -> list[StoredRun]:
    return [run for run in resources.store().runs(group_key=group, oldest_first=True) if run.live]


def start_once(group: str, words: str, start: Callable[[], object]) -> None:
    """Calls `start` unless the group is live, and redraws the page.

    A toast says when it ended, in `words`.
    """
    notifications.watch_group(group, words)
    with STARTING:
        if not live_runs(group):
            start()
    st.rerun(scope="app")


def draw_progress(
    runs: Sequence[StoredRun], total: int, say: Callable[[StoredRun], str], *, key: str
) -> None:
    """Draws the progress of a group, of which `runs` are live, and Stop.

    `say` names the current one, as Markdown.
    """
    current = next((run for run in runs if run.status == "running"), runs[0])
    total = max(total, len(runs))
    done = total - len(runs)
    within = (current.progress or 0.0) if current.stage == "training" else 0.0
    stage = current.message if current.status == "queued" else current.stage
    text = f"{say(current)}, {min(done + 1, total)} of {total}: {stage or 'starting'}"
    owned = any(resources.manager().may_stop(run.id) for run in runs)
    fraction = (done + within) / total
    resources.draw_progress(
        fraction, text, key, lambda: stop_group(runs), STOP_HELP, may_stop=owned
    )
