"""One step of a run that has ended: its figures beside the medians, and the chain that its batch went through."""

from __future__ import annotations

import math

import numpy as np
import streamlit as st

from vitprof import charts, formats
from vitprof.analysis.arrays import Series, median
from vitprof.analysis.timing.exposure import synchronous
from vitprof.analysis.timing.loading import STAGE_WORDS
from vitprof.analysis.timing.one_step import OneStep, one_step
from vitprof.analysis.timing.steady import steady_state
from vitprof.analysis.timing.timeline import timeline
from vitprof.store import StoredRun
from vitprof.ui.findings import all_columns
from vitprof.ui.plots import plot

CHAIN_HEIGHT = 230
FIGURES: tuple[tuple[str, str, str], ...] = (
    ("Data wait", "data_wait_s", "The loop was blocked in next(loader) for this step's batch."),
    ("Copy (H2D)", "h2d_s", "The batch's copy to the device."),
    ("Compute", "compute_s", "The device worked on the step."),
    ("Idle gap", "gap_s", "The device computed nothing before the step."),
    ("Step", "step_s", "From the end of the step before to the end of this one, on the device."),
)
"""Label, column and meaning of the figures of a step."""
OF_LOADING = ("data_wait_s", "step_s")
"""The columns of a run that only loaded."""


def draw_figures(run: StoredRun, at: int, *, largest: bool) -> None:
    """Draws the figures of the step at this position, each beside the run's median. `largest`: whether it is the step
    after the run's largest gap.
    """
    steps = all_columns(run.id)
    usual = _medians(steps)
    stands_out = largest and not run.config.loader_only and steps["gap_s"][at] > usual["gap_s"]
    st.header(f"Step {int(steps['step'][at]):,}{', the largest gap of this run' if stands_out else ''}", anchor=False)
    with st.container(horizontal=True, gap="small", key="step-figures"):
        for label, column, meaning in FIGURES:
            if run.config.loader_only and column not in OF_LOADING:
                continue
            value = float(steps[column][at])
            if math.isfinite(value):
                st.metric(
                    label,
                    formats.seconds(value),
                    f"median {formats.seconds(usual[column])}",
                    delta_color="off",
                    delta_arrow="off",
                    help=f"{meaning} The median is that of the steady steps.",
                    width="content",
                )


def _medians(steps: Series) -> dict[str, float]:
    keep = steady_state(steps)
    return {column: median(np.asarray(steps[column][keep])) for _, column, _ in FIGURES}


def draw_chain(run: StoredRun, at: int, *, key: str) -> None:
    """Draws how the batch of the step at this position was made, waited for, copied and computed."""
    steps = all_columns(run.id)
    step = one_step(steps, at)
    said = chain_sentence(run, step)
    line = timeline(steps, run.phases, at, at + 1)
    figure = charts.batch_chain(step, line.only("host") if run.config.loader_only else line)
    if figure.data:
        alt = f"The chain of step {step.number:,}: loader, loop, copy and device. {said}"
        plot(figure, height=CHAIN_HEIGHT, key=key, alt=alt)
    st.caption(said)


def chain_sentence(run: StoredRun, step: OneStep) -> str:
    """Returns where the batch was made, how long that took, and whether the loop had to wait for it, in sentences."""
    in_loop = synchronous(run.config)
    said = [_made(step, in_loop, run.config.loader_times)]
    decoding = step.decode_wait_s if step.decode_wait_s > 0 else 0.0
    waited = formats.seconds(step.data_wait_s - decoding)
    if not in_loop and step.lay_ready_s > 0:
        ready = f"It had been ready for {formats.seconds(step.lay_ready_s)} when the loop asked for it"
        said.append(f"{ready}, and was handed over in {waited}.")
    elif step.data_wait_s > decoding:
        said.append(f"The loop waited {waited} for it.")
    if decoding:
        said.append(f"Then the device waited {formats.seconds(decoding)} until it was decoded there.")
    hidden = step.data_wait_s - step.exposed_wait_s
    if hidden > 0 and not run.config.loader_only:
        how_long = "all that time" if step.exposed_wait_s <= 0 else f"for {formats.seconds(hidden)} of that"
        said.append(f"The device still had work {how_long}.")
    return " ".join(said)


def _made(step: OneStep, in_loop: bool, measured: bool) -> str:
    if not math.isfinite(step.made_s):
        why = "the loader cannot tell" if measured else "*Measure inside the loader* was off"
        return f"How this batch was made is not known: {why}."
    who = "The loop itself" if in_loop else "The loader" if step.worker is None else f"Worker {step.worker}"
    stages = sorted(step.stages_s.items(), key=lambda stage: stage[1], reverse=True)
    told = [f"{STAGE_WORDS[name]} {formats.seconds(s)}" for name, s in stages if s > 0 and name != "hand_over"]
    return f"{who} made this batch in {formats.seconds(step.made_s)}{': ' + ', '.join(told) if told else ''}."
