"""The Self-test page: one self-test at a time for the whole server, on a simulated device or a real GPU; what it found,
and what went wrong.
"""

from __future__ import annotations

import pandas as pd
import streamlit as st

from vitprof.formats import percent, seconds
from vitprof.recording.columns import LIVE_STATUSES
from vitprof.selftest import CASES, QUICK, Case, Outcome, Result, SelftestReport, n_jobs, run_selftest
from vitprof.selftest.gpu.driver import GPU_CASES, TOTAL_S, run_gpu_selftest
from vitprof.selftest.report import FILE_NAME
from vitprof.ui import resources, tables
from vitprof.ui.background import BackgroundTask
from vitprof.ui.texts import escaped, guarded, sentence

POLL_S = 1.0
JOB_S = (1.3, 4.0)
"""Seconds that a job of the self-test takes, about, its start included: on an idle machine, and a busy or small one."""
CHOICES: dict[str, tuple[tuple[Case, ...], int]] = {
    f"Quick: {len(QUICK)} cases, once": (QUICK, 1),
    f"Thorough: {len(CASES)} cases, twice": (CASES, 2),
}
"""What can be run on a simulated device: the cases, and how often each."""
Report = SelftestReport[Result] | SelftestReport[Outcome]
Task = BackgroundTask[Report]
COLUMNS: dict[str, str] = {
    "": "Right if cause, size and idle share were all found correctly.",
    "slowed by": "What slows the job down, on purpose.",
    "verdict blames": "The cause that the verdict names.",
    "added": "How much longer the device has to wait for each batch because of it, by arithmetic.",
    "reported": "How much of that the verdict found.",
    "allowed error": "10% or 0.3 ms a batch, whichever is more.",
    "idle, true": "The device's idle share by arithmetic.",
    "idle, reported": "The device's idle share as vitprof reports it.",
    "rounds": "Their median decides; a case that is wrong the first time is run again.",
}


@st.cache_resource(show_spinner=False)
def work() -> Task:
    """Returns the self-test of this server."""
    return BackgroundTask("vitprof-selftest")


def start(chosen: str) -> None:
    """Starts the self-test of that choice, unless one is running already."""
    if chosen == ON_GPU:
        work().start(lambda report, stopped: run_gpu_selftest(progress=report, stop=stopped))
        return
    cases, rounds = CHOICES[chosen]
    work().start(lambda report, stopped: run_selftest(cases, rounds, progress=report, stop=stopped))


def page() -> None:
    """Draws the whole page: what the self-test is, the button, and below it progress or the results."""
    st.title("Self-test", anchor=False)
    st.markdown(
        "Does vitprof tell the truth on this machine? Each case slows a short job down in a known way, such as 20 ms "
        "of waiting in every read, and checks whether the verdict names that cause and its size. The device is "
        "simulated, so the right answer is known by arithmetic; the loading is real. With an NVIDIA GPU, run it on "
        "the GPU once too: it checks clocks, idle gaps, launches, copies, its own cost and every strategy there."
    )
    running = work().running
    st.fragment(_draw, run_every=POLL_S if running else None)(running)


@guarded
def _draw(was_running: bool) -> None:
    tests = work()
    running = tests.running
    if running != was_running:
        st.rerun(scope="app")
    if running:
        tests.draw_progress("selftest", help="Stops after the current job and shows what was found so far.")
        return
    busy = bool(resources.store().runs(LIVE_STATUSES))
    with st.container(horizontal=True, vertical_alignment="bottom"):
        picked = st.selectbox(
            "How much",
            [*CHOICES, ON_GPU],
            key="selftest-choice",
            help="More cases and rounds give a surer answer. *On the GPU* checks what is measured on the card itself.",
            width=300,
        )
        chosen = picked or next(iter(CHOICES))
        if st.button(
            "Run the self-test",
            type="primary",
            icon=":material/fact_check:",
            key="selftest-button",
            disabled=busy,
            help="Runs the cases one after another and checks the verdict on each.",
        ):
            start(chosen)
            st.rerun(scope="app")
    st.caption(
        "Other runs are running or waiting and would disturb the self-test. Start it when they have ended."
        if busy
        else _words(chosen)
    )
    if tests.error:
        st.error(f"The self-test could not be run: {escaped(tests.error)}")
    if tests.result is not None:
        _draw_report(tests.result)


def _words(chosen: str) -> str:
    """Returns what a choice runs, and how long it takes."""
    if chosen == ON_GPU:
        return GPU_WORDS
    cases, rounds = CHOICES[chosen]
    jobs = n_jobs(cases, rounds)
    return (
        f"{len(cases)} cases, {jobs} short jobs: about {_minutes(jobs)} minutes. Start no other runs meanwhile. "
        "Nothing is stored."
    )


def _minutes(jobs: int) -> str:
    """Returns how long that many jobs take, as a range of minutes, rounded to halves."""
    least, most = (round(jobs * each / 30) / 2 for each in JOB_S)
    return f"{least:g} to {most:g}"


def _draw_report(report: Report) -> None:
    """Draws the outcome in a sentence and a row for each case; of a GPU also the file for a bug report, and what to
    read next.
    """
    (st.success if report.ok else st.warning)(escaped(sentence(report.sentence)))
    columns = GPU_COLUMNS if report.machine else COLUMNS
    rows = [_row(result) if isinstance(result, Result) else _gpu_row(result) for result in report.results]
    key = "selftest-gpu-table" if report.machine else "selftest-table"
    tables.show(pd.DataFrame(rows, columns=list(columns)), key=key, help=columns)
    for result in report.results:
        if result.status != "passed":
            icon = ":material/warning:" if result.status == "failed" else ":material/info:"
            st.caption(f"{icon} {escaped(result.case)}: {escaped(result.wrong)}")
    if report.machine:
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


def _row(result: Result) -> tuple[str, ...]:
    return (
        "right" if result.ok else "wrong",
        result.what,
        result.blamed,
        seconds(result.expected_ms / 1e3),
        seconds(result.reported_ms / 1e3),
        seconds(result.tolerance_ms / 1e3),
        percent(result.true_idle_frac),
        percent(result.idle_frac),
        f"{result.rounds}" + (f" ({result.retries} again)" if result.retries else ""),
    )


ON_GPU = f"On the GPU: {len(GPU_CASES)} cases, once"
GPU_WORDS = (
    f"{len(GPU_CASES)} cases on the first NVIDIA GPU: at most {TOTAL_S / 60:g} minutes. Nothing else should run on it. "
    "Nothing is stored; the figures can be downloaded afterwards."
)
GPU_COLUMNS: dict[str, str] = {
    "": "Passed, failed, or not run.",
    "case": "What was checked.",
    "expected": "What must be found.",
    "measured": "What was found, and what is wrong with it or why it was not run.",
    "took": "How long the case took.",
}


def _gpu_row(outcome: Outcome) -> tuple[str, ...]:
    measured = ": ".join(filter(None, (outcome.measured, outcome.wrong)))
    return outcome.status, outcome.case, outcome.expected, measured, seconds(outcome.seconds)
