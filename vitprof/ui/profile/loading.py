"""The tab Loading: where the loading time of a batch goes, what each worker did, and a typical batch's chain."""

from __future__ import annotations

import math
from collections.abc import Sequence

import streamlit as st

from vitprof import formats
from vitprof.analysis.timing.loading import (
    Loading,
    TransformTime,
    WorkerTime,
    by_worker,
    heaviest,
    shares_in_words,
    transform_times,
)
from vitprof.analysis.timing.steady import steady_state
from vitprof.analysis.timing.timeline import typical_step
from vitprof.charts.breakdown import loading_bar, transform_bars
from vitprof.store import StoredRun
from vitprof.ui.findings import all_columns, loading_of
from vitprof.ui.live_chart import plot
from vitprof.ui.profile.timeline import draw_chain
from vitprof.ui.tables import Column, draw, frame
from vitprof.ui.texts import escaped, guarded

HEIGHT = 250
"""Leaves room for six names below each other on a narrow screen."""
WORKER_COLUMNS: tuple[Column, ...] = (
    Column("Worker", "Number of the worker process.", lambda w: float(w.worker), exact=True),
    Column("Batches", "Batches that it made.", lambda w: float(w.n_batches), exact=True),
    Column("A batch takes (ms)", "Median time to make a batch.", lambda w: w.made_s * 1e3),
    Column("95th percentile (ms)", "95% of its batches take less.", lambda w: w.made_p95_s * 1e3),
    Column("Busy (%)", "Share of the time that it was making batches.", lambda w: w.busy_frac * 100),
)


@guarded
def draw_loading(run: StoredRun) -> None:
    """Draws the stages as one bar; transforms and workers where they are known; and the chain of the batch whose
    loading time is the median.
    """
    if not run.config.loader_times:
        st.caption("Not measured: *Measure inside the loader* was off in this run.")
        return
    loading = loading_of(run.id)
    if not loading.n or not loading.largest:
        st.caption("Not known: vitprof cannot see how this loader makes its batches, or it takes no time at all.")
        return
    st.header(
        "Where a batch's loading time goes",
        anchor=False,
        help="Mean over the steady state, measured where the batch was made: in the loop, a thread or a worker. "
        "Hand-over is the time that a finished batch took to reach the loop. With several threads on one batch the "
        "parts are thread-seconds.",
    )
    figure = loading_bar(loading)
    figure.update_layout(legend={"font": {"size": 10}})  # six lines on a narrow screen
    text = _loading_sentence(loading)
    plot(figure, height=HEIGHT, key="loading-bar", alt=f"Mean loading time of a batch, by stage. {text}")
    st.caption(text)
    _draw_transforms(transform_times(run.facts))
    steps = all_columns(run.id)
    keep = steady_state(steps)
    _draw_workers(by_worker(steps, keep))
    at = typical_step(steps, keep)
    if at is not None:
        st.header(
            "A typical batch",
            anchor=False,
            help="The batch whose loading took the median time: made by the loader, waited for by the loop, copied and "
            "computed. Timeline shows the same for any step that you click.",
        )
        draw_chain(run, at, key="typical-chain")


def _draw_transforms(transforms: Sequence[TransformTime]) -> None:
    """Draws how long each transform of a watched run's training data takes; nothing where that is not known."""
    most = heaviest(transforms)
    if most is None:
        return
    st.header(
        "Transforms",
        anchor=False,
        help="What each transform of torchvision's Compose takes, in the process that makes the batch: mean over the "
        "train loader's batches after the warm-up. A Compose within another one is one transform.",
    )
    text = (
        f"{most.name} takes {formats.percent(most.frac)} of the time in transforms, "
        f"{formats.seconds(most.s_per_sample)} a sample."
    )
    figure = transform_bars(transforms)
    alt = f"Mean time of each transform for a sample: {shares_in_words(transforms)}."
    plot(figure, height=int(figure.layout.height), key="transform-bars", alt=alt)
    st.caption(escaped(text))


def _draw_workers(workers: Sequence[WorkerTime]) -> None:
    if not workers:
        return
    st.header("Workers", anchor=False, help="Processes of the DataLoader, over the steady state.")
    draw(WORKER_COLUMNS, frame(WORKER_COLUMNS, [(w,) for w in workers]), key="workers")


def _loading_sentence(loading: Loading) -> str:
    sentences = [f"Most of it is {loading.largest}."]
    if math.isfinite(loading.busy_frac):
        sentences.append(f"The loader was busy {formats.percent(loading.busy_frac)} of the time.")
    if math.isfinite(loading.queue_depth):
        sentences.append(
            f"When the loop asked, {loading.queue_depth:.1f} batches were ready on average; "
            f"{formats.percent(loading.queue_empty_frac)} of the time none was."
        )
    return " ".join(sentences)
