"""The headroom of a run, on its tab Answer: short runs that belong together, shown as one bar."""

import math
import threading
from collections.abc import Mapping, Sequence

import streamlit as st

from vitprof import errors, formats
from vitprof.analysis.verdict.headroom import ANCHOR_WORDS, headroom_sentence
from vitprof.charts import breakdown
from vitprof.config import RunConfig
from vitprof.experiments import headroom_runs
from vitprof.export.tables import ANCHORS_HEADER, anchors_in_words
from vitprof.store import StoredRun
from vitprof.ui import findings, live_chart, notifications, resources, tables, widgets
from vitprof.ui.profile.runs import STOP_HELP, stop_group
from vitprof.ui.texts import escaped, guarded

HEADROOM_EVERY_S = 1.0
"""Seconds between a page's looks at runs that go on."""
STARTUP_S = 4.0
"""Seconds that starting a job takes, where the run does not tell."""
STARTING = threading.Lock()
"""Held while one session looks whether the runs go on, and starts them."""
HEADROOM_HELP = (
    "How much faster this job would run if its data were free, measured: short runs with batches "
    "on the device (A) or in host memory (B), and with the strategy itself on files in memory (C) "
    "or not (D). Each adds a stage of loading."
)
MEASURE_HELP = "Starts short runs of this job whose data cost less and less. Meanwhile you can look at other runs."


def draw_headroom(run: StoredRun) -> None:
    """Draws the headroom of a run that trained; it redraws itself while runs for it go on."""
    st.header("Headroom", anchor=False, help=HEADROOM_HELP)
    working = bool(_live_runs(run))

    def section() -> None:
        live = _live_runs(run)
        # begun or ended since the page was drawn: the verdict may say more now
        if working != bool(live):
            st.rerun(scope="app")
        _draw_section(run, live)

    st.fragment(guarded(section), run_every=HEADROOM_EVERY_S if working else None)()


def _draw_section(run: StoredRun, live: list[StoredRun]) -> None:
    try:
        configs = headroom_runs.anchor_configs(run.config)
    except errors.ConfigError as error:
        st.caption(
            f"Not for this run: {widgets.label(error.field)} is set. "
            f"{escaped(formats.sentence(error.allowed))}"
        )
        return
    total = len(configs) * headroom_runs.REPEATS
    if live:
        _draw_progress(live, total)
    measured = findings.headroom_of(run)
    batch = run.config.batch_size
    if measured is not None:
        text = headroom_sentence(measured, batch)
        st.markdown(escaped(text))
        live_chart.plot(breakdown.waterfall(measured, batch), height=320, key="waterfall", alt=text)
        with st.expander("The figures of this chart"):
            tables.draw_words(ANCHORS_HEADER, anchors_in_words(measured, batch))
        for note in measured.notes:
            st.caption(f":material/info: {escaped(formats.sentence(note))}")
    if live:
        return
    takes = formats.rough_time(_headroom_s(run, configs))
    with st.container(horizontal=True, vertical_alignment="center"):
        again = "Measure headroom again" if measured is not None else "Measure headroom"
        if st.button(again, key="measure-headroom", icon=":material/stairs:", help=MEASURE_HELP):
            _start_once(run)
        st.caption(
            f"{total} short runs, {headroom_runs.REPEATS} of each kind, alternately: about {takes}.",
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
    return headroom_runs.REPEATS * (startup_s * len(configs) + steps * step_s)


def _live_runs(run: StoredRun) -> list[StoredRun]:
    """Returns the runs that go on to measure the headroom, oldest first."""
    of_group = resources.store().runs(group_key=headroom_runs.group_of(run), oldest_first=True)
    return [each for each in of_group if each.live]


def _start_once(run: StoredRun) -> None:
    """Starts to measure, unless somebody does already, and redraws the page.

    A toast says when it ended.
    """
    notifications.watch_group(headroom_runs.group_of(run), f"Headroom of run {run.id}")
    with STARTING:
        if not _live_runs(run):
            headroom_runs.submit_headroom(resources.manager(), run)
    st.rerun(scope="app")


def _draw_progress(live: Sequence[StoredRun], total: int) -> None:
    """Draws the progress of `total` runs, some of them `live`, and Stop."""
    current = next((run for run in live if run.status == "running"), live[0])
    total = max(total, len(live))
    done = total - len(live)
    within = (current.progress or 0.0) if current.stage == "training" else 0.0
    stage = current.message if current.status == "queued" else current.stage
    anchor = f"anchor {current.role} ({ANCHOR_WORDS[current.role]})"
    text = f"{anchor}, {min(done + 1, total)} of {total}: {stage or 'starting'}"
    owned = any(resources.manager().may_stop(run.id) for run in live)
    fraction = (done + within) / total
    resources.draw_progress(
        fraction, text, "headroom", lambda: stop_group(live), STOP_HELP, may_stop=owned
    )
