"""Headroom on the Profile page: a button, progress, then the waterfall with its figures."""

from __future__ import annotations

import math

import pandas as pd
import streamlit as st

from vitprof import formats
from vitprof.analysis.verdict.headroom import ADDED_STAGE, ANCHOR_WORDS, Headroom, headroom_sentence
from vitprof.charts.headroom import waterfall
from vitprof.errors import ConfigError
from vitprof.experiments import headroom as jobs
from vitprof.store import StoredRun
from vitprof.ui import resources
from vitprof.ui.findings import headroom_of
from vitprof.ui.group import POLL_S, draw_progress, live_runs, start_once
from vitprof.ui.notifications import watch_group
from vitprof.ui.plots import plot
from vitprof.ui.texts import escaped, guarded, rough_time, sentence
from vitprof.ui.widgets import label

HEIGHT = 320
MEASURE_HELP = "Starts short runs of this job whose data cost less and less. Meanwhile you can look at other runs."
STARTUP_S = 4.0
"""Seconds that starting a job takes, where the run does not tell."""


def draw_headroom(run: StoredRun) -> None:
    """Draws the whole section, which redraws itself while the anchors are measured."""
    st.header(
        "Headroom",
        anchor=False,
        help="How much faster the same job would run if its data were free. Measured, not predicted: short runs with "
        "batches that are on the device already (A) or in host memory (B), and with the strategy itself on files that "
        "are in memory (C) or not (D). What each takes longer than the one before is the cost of that stage of "
        "loading.",
    )
    working = bool(live_runs(jobs.group_of(run)))
    st.fragment(_draw, run_every=POLL_S if working else None)(run, working)


@guarded
def _draw(run: StoredRun, working: bool) -> None:
    left = live_runs(jobs.group_of(run))
    if working != bool(left):  # begun or ended since the page was drawn: the verdict may say more now
        st.rerun(scope="app")
    try:
        total = len(jobs.anchor_configs(run.config)) * jobs.REPEATS
    except ConfigError as error:
        st.caption(f"Not for this run: {label(error.field)} is set. {escaped(error.allowed.capitalize())}.")
        return
    if left:
        draw_progress(left, total, lambda r: f"anchor {r.role} ({ANCHOR_WORDS[r.role]})", key="headroom")
    found = headroom_of(run)
    if found is not None:
        _show(found, run.config.batch_size)
    if not left:
        again = "Measure headroom again" if found is not None else "Measure headroom"
        with st.container(horizontal=True, vertical_alignment="center"):
            if st.button(again, key="measure-headroom", icon=":material/stairs:", help=MEASURE_HELP):
                watch_group(jobs.group_of(run), f"Headroom of run {run.id}")
                start_once(jobs.group_of(run), lambda: jobs.submit_headroom(resources.manager(), run))
                st.rerun(scope="app")
            st.caption(
                f"{total} short runs, {jobs.REPEATS} of each kind in turns: about {rough_time(_takes_s(run))}.",
                width="stretch",
            )


def _takes_s(run: StoredRun) -> float:
    """Returns about how many seconds measuring will take: the starts of the jobs, and steps as slow as the run's."""
    s = run.summary
    startup = s.startup_s if s is not None and math.isfinite(s.startup_s) else STARTUP_S
    step_s = s.step_ms_median / 1e3 if s is not None and math.isfinite(s.step_ms_median) else 0.0
    configs = jobs.anchor_configs(run.config)
    steps = sum((c.steps or 0) for role, c in configs.items() if role in "CD")
    return jobs.REPEATS * (startup * len(configs) + steps * step_s)


def _show(found: Headroom, batch_size: int) -> None:
    st.markdown(escaped(headroom_sentence(found, batch_size)))
    plot(waterfall(found, batch_size), height=HEIGHT, key="waterfall", alt=headroom_sentence(found, batch_size))
    st.dataframe(_table(found, batch_size), hide_index=True, width="stretch", height="content", key="anchors")
    for note in found.notes:
        st.caption(f":material/info: {escaped(sentence(note))}")


def _table(found: Headroom, batch: int) -> pd.DataFrame:
    """Returns one row for each anchor."""
    added = {stage.name.rpartition(" and ")[2]: stage for stage in found.stages}
    rows = []
    for a in found.anchors:
        stage = added.get(ADDED_STAGE.get(a.role, ""))
        adds = ""
        if stage is not None:
            cost = f"{stage.name} {formats.seconds(stage.s_per_sample * batch)}"
            adds = cost if stage.distinguishable else f"{stage.name}: not distinguishable"
        low, high = (formats.seconds(v * batch) for v in (a.low, a.high))
        rows.append(
            {
                "anchor": f"{a.role}: {ANCHOR_WORDS[a.role]}",
                "a step takes": formats.seconds(a.s_per_sample * batch),
                "95% interval": f"{low} to {high}",
                "samples/s": formats.number(1 / a.s_per_sample if a.n_runs else None),
                "adds": adds,
                "n": f"{a.n_steps} steps of {a.n_runs} {'run' if a.n_runs == 1 else 'runs'}",
            }
        )
    return pd.DataFrame(rows)
