"""The self-test on a real GPU, for the Self-test page."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import streamlit as st

from vitprof.export.code import script
from vitprof.formats import seconds
from vitprof.selftest import SelftestProgress
from vitprof.selftest.gpu import FILE_NAME, GPU_CASES, TOTAL_S, GpuReport, Line, run_gpu_selftest
from vitprof.ui.texts import escaped, sentence

CHOICE = f"On the GPU: {len(GPU_CASES)} cases, once"
WORDS = (
    f"{len(GPU_CASES)} cases on the first NVIDIA GPU: at most {TOTAL_S / 60:g} minutes. Nothing else should run on it. "
    "Nothing is stored; the figures can be downloaded afterwards."
)
COLUMNS: dict[str, str] = {
    "": "Passed, failed, or not run.",
    "case": "What was checked.",
    "expected": "What must be found.",
    "measured": "What was found, and what is wrong with it or why it was not run.",
    "took": "How long the case took.",
}


def run(tell: Callable[[SelftestProgress], None], stopped: Callable[[], bool]) -> GpuReport:
    """Runs the cases. Raises `DeviceError` where there is no GPU that PyTorch can use."""
    return run_gpu_selftest(script, progress=tell, stop=stopped)


def draw_report(report: GpuReport) -> None:
    """Draws the result, a row for each case, the file for a bug report and what to read next."""
    (st.success if report.ok else st.warning)(escaped(sentence(report.sentence)))
    st.dataframe(
        pd.DataFrame([_row(line) for line in report.lines], columns=list(COLUMNS)),
        hide_index=True,
        width="stretch",
        height="content",
        key="selftest-gpu-table",
        column_config={name: st.column_config.TextColumn(name, help=text) for name, text in COLUMNS.items()},
    )
    for line in report.lines:
        if line.outcome.status != "passed":
            icon = ":material/warning:" if line.outcome.status == "failed" else ":material/info:"
            st.caption(f"{icon} {escaped(line.case.name)}: {escaped(line.outcome.reason)}")
    st.download_button(
        "Figures for a bug report",
        data=report.to_json,
        file_name=FILE_NAME,
        mime="application/json",
        on_click="ignore",
        key="selftest-gpu-file",
        icon=":material/data_object:",
        help="Device, versions and every figure; no name of the machine or its user.",
    )
    st.markdown(escaped(report.advice))
    st.caption(f"Took {seconds(report.seconds)}. Kept until the dashboard ends.")


def _row(line: Line) -> tuple[str, ...]:
    return line.outcome.status, line.case.name, line.case.expected, line.measured, seconds(line.seconds)
