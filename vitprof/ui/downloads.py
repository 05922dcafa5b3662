"""Downloads of runs: files in the formats of other tools, and the code of the strategy.

Every file is made when its button is clicked: drawing the buttons computes nothing.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import streamlit as st

from vitprof import formats
from vitprof.config.own_script import is_own_script
from vitprof.experiments.headroom import find_headroom
from vitprof.export import summary_csv, summary_parquet, write_runs_json, write_steps_csv, write_steps_parquet
from vitprof.export.bundle import SUFFIX, bundle_bytes
from vitprof.export.code import script
from vitprof.export.report import MOST_RUNS, html_report
from vitprof.export.tensorboard import tensorboard_zip
from vitprof.export.trace import MOST_STEPS, write_trace_gz
from vitprof.store import RunStore, StoredRun
from vitprof.ui import resources
from vitprof.ui.findings import verdict_of
from vitprof.ui.texts import file_stamp, guarded

CODE_HEIGHT = 480
IN_SIGHT = 2
"""Files with a button of their own; the others are one click away."""


@dataclass(frozen=True)
class File:
    """A file to download: the words on its button, its format, and the function that makes it."""

    key: str
    label: str
    suffix: str
    mime: str
    icon: str
    help: str
    make: Callable[[RunStore, Sequence[StoredRun]], bytes]


def _report(store: RunStore, runs: Sequence[StoredRun]) -> bytes:
    measured = {run.id: headroom for run in runs if (headroom := find_headroom(store, run)) is not None}
    counted = {run.id for run in runs if run.summary is not None and run.summary.n_steps}
    verdicts = {run.id: verdict_of(run) for run in runs if run.id in counted}
    return html_report(store, runs, headrooms=measured, verdicts=verdicts).encode()


def _bytes(write: Callable[..., object], store: RunStore, runs: Sequence[StoredRun], **options: Any) -> bytes:
    """Returns what `write` writes into a file."""
    file = io.BytesIO()
    write(store, runs, file, **options)
    return file.getvalue()


REPORT = File(
    "report",
    "Report",
    ".html",
    "text/html",
    ":material/description:",
    "One HTML file with verdict, charts, figures and settings. Opens in any browser, without a network.",
    _report,
)
SUMMARY = File(
    "summary",
    "Summary as CSV",
    ".csv",
    "text/csv",
    ":material/table:",
    "One row for each run: its settings and all its figures, units in the header.",
    lambda store, runs: summary_csv(runs).encode(),
)
STEPS = File(
    "steps",
    "Every step as CSV",
    "-steps.csv",
    "text/csv",
    ":material/table_rows:",
    "One row for each step of each run; times since the start of the run.",
    partial(_bytes, write_steps_csv),
)
PARQUET = File(
    "parquet",
    "Parquet",
    "-steps.parquet",
    "application/vnd.apache.parquet",
    ":material/view_column:",
    "Every step, with column types, for pandas.read_parquet, DuckDB and the like; each run's settings in the metadata.",
    partial(_bytes, write_steps_parquet),
)
SUMMARY_PARQUET = File(
    "summary-parquet",
    "Summary as Parquet",
    ".parquet",
    "application/vnd.apache.parquet",
    ":material/view_column:",
    "One row for each run, with column types, for pandas.read_parquet, DuckDB and the like.",
    lambda store, runs: summary_parquet(runs),
)
JSON = File(
    "json",
    "JSON",
    ".json",
    "application/json",
    ":material/data_object:",
    "Settings, machine, verdict and figures, and every step and telemetry sample by column.",
    partial(_bytes, write_runs_json),
)
TRACE = File(
    "trace",
    "Trace",
    ".trace.json.gz",
    "application/gzip",
    ":material/view_timeline:",
    "Device, training loop, copies and loader workers as tracks. Open it at ui.perfetto.dev: it stays in your browser.",
    partial(_bytes, write_trace_gz),
)
WHOLE_TRACE = replace(TRACE, make=partial(_bytes, write_trace_gz, whole=True))
PACKED_BYTES = 130
"""Bytes of a step in a compressed trace, about."""
TENSORBOARD = File(
    "tensorboard",
    "TensorBoard",
    "-tensorboard.zip",
    "application/zip",
    ":material/show_chart:",
    "Scalars of each step. Unpack it, then: tensorboard --logdir tensorboard",
    tensorboard_zip,
)
BUNDLE = File(
    "bundle",
    "Bundle",
    SUFFIX,
    "application/zip",
    ":material/inventory_2:",
    "All that was recorded of the run, headroom too, in one file. Import it on the History page of another machine.",
    lambda store, runs: bundle_bytes(store, [run.id for run in runs]),
)
OF_ONE = (REPORT, SUMMARY, STEPS, TRACE, PARQUET, JSON, TENSORBOARD, BUNDLE)
OF_MANY = (SUMMARY, STEPS, REPORT, TRACE, SUMMARY_PARQUET, PARQUET, JSON, TENSORBOARD)


def draw_exports(run: StoredRun) -> None:
    """Draws buttons for the two files that most people want; the others are in the tab Take home."""
    with st.container(horizontal=True, gap="small", key="exports", width="content"):
        for file in OF_ONE[:IN_SIGHT]:
            _button(file, [run], _name(run))


@guarded
def draw_take_home(run: StoredRun) -> None:
    """Draws a button for every file of a run that has ended, with what the file is for, and its strategy as code."""
    st.header("Files", anchor=False, help="Each file is made when you click. docs/formats.md describes every column.")
    for file in OF_ONE:
        button, text = st.columns([1, 3], vertical_alignment="center", gap="small")
        with text:
            st.caption(file.help)
            chosen = _whole_or_sampled(file, [run])
        with button:
            _button(chosen, [run], _name(run), width="stretch")
    if not is_own_script(run.config):
        st.header("Copy as code", anchor=False)
        _draw_code(run)


def _name(run: StoredRun) -> str:
    return f"vitprof-run-{run.id}"


@guarded
def draw_downloads_many(runs: Sequence[StoredRun]) -> None:
    """Draws the downloads of several runs together."""
    _buttons(OF_MANY, runs, f"vitprof-runs-{file_stamp()}")


def _buttons(files: Sequence[File], runs: Sequence[StoredRun], name: str) -> None:
    with st.container(horizontal=True, gap="small", key="take-home"):
        for file in files[:IN_SIGHT]:
            _button(file, runs, name)
        with st.popover("Other formats", icon=":material/download:", help="For other tools: " + _listed(files)):
            for file in files[IN_SIGHT:]:
                _button(_whole_or_sampled(file, runs), runs, name)


def _whole_or_sampled(file: File, runs: Sequence[StoredRun]) -> File:
    """Returns `file`. For the trace of a long run it draws a checkbox that chooses the trace of all steps instead."""
    n = max((run.summary.n_steps for run in runs if run.summary is not None), default=0)
    if file is not TRACE or n <= MOST_STEPS:
        return file
    text = f"The trace has the first {MOST_STEPS:,} of the {n:,} steps. "
    text += f"All of them are about {formats.size(n * PACKED_BYTES)}, more than most browsers can show."
    return WHOLE_TRACE if st.checkbox("Trace of every step", key="whole-trace", help=text) else file


def _listed(files: Sequence[File]) -> str:
    return ", ".join(file.label for file in files[IN_SIGHT:]) + "."


def _button(
    file: File, runs: Sequence[StoredRun], name: str, *, width: Literal["content", "stretch"] = "content"
) -> None:
    too_many = file is REPORT and len(runs) > MOST_RUNS
    st.download_button(
        file.label,
        data=_maker(file, resources.store(), runs),
        file_name=name + file.suffix,
        mime=file.mime,
        on_click="ignore",
        key=f"download-{file.key}",
        icon=file.icon,
        help=f"At most {MOST_RUNS} runs." if too_many else file.help,
        disabled=too_many,
        width=width,
    )


def _maker(file: File, store: RunStore, runs: Sequence[StoredRun]) -> Callable[[], bytes]:
    return lambda: file.make(store, runs)


@guarded
def _draw_code(run: StoredRun) -> None:
    st.caption("A script for your own data and model that loads as this run did. It needs PyTorch, not vitprof.")
    speed = run.summary.samples_per_s if run.summary is not None else None
    reached = formats.number(speed, "samples/s")
    reached_words = "" if reached == formats.NOT_AVAILABLE else f"{reached} in steady state"
    st.code(script(run.config, reached_words, run.id), language="python", height=CODE_HEIGHT)
