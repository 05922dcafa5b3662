"""Downloads of runs: files in the formats of other tools, and the code of the strategy.

Every file is made when its button is clicked: drawing the buttons computes nothing.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import streamlit as st

from vitprof import formats
from vitprof.config.own_script import is_own_script
from vitprof.experiments import answers
from vitprof.experiments.headroom_runs import find_headroom
from vitprof.export import bundle, code, report, tables, trace
from vitprof.store import RunStore, StoredRun
from vitprof.ui import findings, resources, texts

CODE_HEIGHT = 480
PACKED_BYTES = 130
"""Bytes of a step in a compressed trace, about."""


@dataclass(frozen=True)
class File:
    """A file to download: the words on its button, how its name ends, and the function that makes
    it.
    """

    label: str
    suffix: str
    icon: str
    help: str
    make: Callable[[RunStore, Sequence[StoredRun]], bytes]


def _report(store: RunStore, runs: Sequence[StoredRun]) -> bytes:
    headrooms = {}
    verdicts = {}
    proofs = {}
    for run in runs:
        headroom = find_headroom(store, run)
        if headroom is not None:
            headrooms[run.id] = headroom
        if run.summary is not None and run.summary.n_steps:
            verdict = findings.verdict_of(run)
            verdicts[run.id] = verdict
            proofs[run.id] = answers.proofs_of(store, run, verdict)
    return report.html_report(
        store, runs, headrooms=headrooms, verdicts=verdicts, proofs=proofs
    ).encode()


def _written(
    write: Callable[..., object], **options: Any
) -> Callable[[RunStore, Sequence[StoredRun]], bytes]:
    """Returns a function that returns what `write` writes into a file."""

    def make(store: RunStore, runs: Sequence[StoredRun]) -> bytes:
        file = io.BytesIO()
        write(store, runs, file, **options)
        return file.getvalue()

    return make


def _json(store: RunStore, runs: Sequence[StoredRun]) -> bytes:
    file = io.BytesIO()
    tables.write_runs_json(store, runs, file, answers=answers.answers_of(store, runs))
    return file.getvalue()


REPORT = File(
    "Report",
    ".html",
    "description",
    "One HTML file with verdict, charts, figures and settings. Opens in any browser, without a network.",
    _report,
)
SUMMARY = File(
    "Summary as CSV",
    ".csv",
    "table",
    "One row for each run: its settings and all its figures, units in the header.",
    lambda store, runs: tables.summary_csv(runs, answers.answers_of(store, runs)).encode(),
)
STEPS = File(
    "Every step as CSV",
    "-steps.csv",
    "table_rows",
    "One row for each step of each run; times since the start of the run.",
    _written(tables.write_steps_csv),
)
PARQUET = File(
    "Parquet",
    "-steps.parquet",
    "view_column",
    "Every step, with column types, for pandas.read_parquet, DuckDB and the like; each run's settings in the metadata.",
    _written(tables.write_steps_parquet),
)
SUMMARY_PARQUET = File(
    "Summary as Parquet",
    ".parquet",
    "view_column",
    "One row for each run, with column types, for pandas.read_parquet, DuckDB and the like.",
    lambda store, runs: tables.summary_parquet(runs, answers.answers_of(store, runs)),
)
JSON = File(
    "JSON",
    ".json",
    "data_object",
    "Settings, machine, verdict and figures, and every step and telemetry sample by column.",
    _json,
)
TRACE = File(
    "Trace",
    ".trace.json.gz",
    "view_timeline",
    "Device, training loop, copies and loader workers as tracks. Open it at ui.perfetto.dev: it stays in your browser.",
    _written(trace.write_trace_gz),
)
WHOLE_TRACE = replace(TRACE, make=_written(trace.write_trace_gz, whole=True))
BUNDLE = File(
    "Bundle",
    bundle.SUFFIX,
    "inventory_2",
    "All that was recorded of the run, headroom too, in one file. Import it on the History page of another machine.",
    lambda store, runs: bundle.bundle_bytes(store, [run.id for run in runs]),
)
OF_ONE = (REPORT, SUMMARY, STEPS, TRACE, PARQUET, JSON, BUNDLE)
OF_MANY = (SUMMARY, STEPS, REPORT, TRACE, SUMMARY_PARQUET, PARQUET, JSON)
IN_SIGHT = 2
"""The first of `OF_MANY` that have a button; the others are one click away."""


def draw_exports(run: StoredRun) -> None:
    """Draws a button for every file of a run, with what the file is for, and its strategy as
    code.
    """
    st.header(
        "Files",
        anchor=False,
        help="Each file is made when you click. docs/formats.md describes every column.",
    )
    for file in OF_ONE:
        button, text = st.columns([1, 3], vertical_alignment="center", gap="small")
        with text:
            st.caption(file.help)
            chosen = _whole_or_sampled(file, [run])
        with button:
            _button(chosen, [run], width="stretch")
    if is_own_script(run.config):
        return
    st.header("Copy as code", anchor=False)
    st.caption(
        "A script for your own data and model that loads as this run did. It needs PyTorch, not "
        "vitprof."
    )
    samples_per_s = None if run.summary is None else run.summary.samples_per_s
    speed = formats.number(samples_per_s, "samples/s")
    reached = "" if speed == formats.NOT_AVAILABLE else f"{speed} while training"
    st.code(code.script(run.config, reached, run.id), language="python", height=CODE_HEIGHT)


@texts.guarded
def draw_downloads_many(runs: Sequence[StoredRun]) -> None:
    shown = OF_MANY[:IN_SIGHT]
    folded = OF_MANY[IN_SIGHT:]
    listed = "For other tools: " + ", ".join(file.label for file in folded) + "."
    with st.container(horizontal=True, gap="small", key="take-home"):
        for file in shown:
            _button(file, runs)
        with st.popover("Other formats", icon=":material/download:", help=listed):
            for file in folded:
                _button(_whole_or_sampled(file, runs), runs)


def _whole_or_sampled(file: File, runs: Sequence[StoredRun]) -> File:
    """Returns `file`.

    For the trace of a long run it draws a checkbox for the trace of all steps instead.
    """
    n = max((run.summary.n_steps for run in runs if run.summary is not None), default=0)
    if file is not TRACE or n <= trace.MOST_STEPS:
        return file
    text = f"The trace has the first {trace.MOST_STEPS:,} of the {n:,} steps. "
    whole = formats.size(n * PACKED_BYTES)
    text += f"All of them are about {whole}, more than most browsers can show."
    if st.checkbox("Trace of every step", key="whole-trace", help=text):
        return WHOLE_TRACE
    return file


def _button(
    file: File, runs: Sequence[StoredRun], *, width: Literal["content", "stretch"] = "content"
) -> None:
    too_many = file is REPORT and len(runs) > report.MOST_RUNS
    name = f"vitprof-runs-{texts.file_stamp()}" if len(runs) > 1 else f"vitprof-run-{runs[0].id}"
    st.download_button(
        file.label,
        # made when it is asked for, and the page is not drawn anew
        data=partial(file.make, resources.store(), runs),
        file_name=name + file.suffix,
        on_click="ignore",
        key=f"download-{file.label}",
        icon=f":material/{file.icon}:",
        help=f"At most {report.MOST_RUNS} runs." if too_many else file.help,
        disabled=too_many,
        width=width,
    )
