"""The Self-test page: one self-test at a time for the whole server, on a simulated device or a real
GPU.
"""

import streamlit as st

from vitprof.analysis.verdict.rendering import CAUSE_NAMES
from vitprof.formats import percent, seconds, sentence
from vitprof.recording.columns import LIVE_STATUSES
from vitprof.selftest import (
    CASES,
    QUICK,
    Case,
    CaseOutcome,
    Result,
    SelftestReport,
    n_jobs,
    report,
    run_selftest,
)
from vitprof.selftest.gpu import driver as gpu
from vitprof.ui import resources, tables, texts

SELFTEST_EVERY_S = 1.0
JOB_S = (1.3, 4.0)
"""Seconds that a job of the self-test takes, about, its start included: on an idle machine, and on
a busy or small one."""
CHOICES: dict[str, tuple[tuple[Case, ...], int]] = {
    f"Quick: {len(QUICK)} cases, once": (QUICK, 1),
    f"Thorough: {len(CASES)} cases, twice": (CASES, 2),
}
"""What can be run on a simulated device: the cases, and how often each."""
ON_GPU = f"On the GPU: {len(gpu.GPU_CASES)} cases, once"
OUTCOMES = {"passed": "✓ right", "failed": "✗ wrong", "disturbed": "? undecided"}
"""Status of a case -> its word in the table."""
Report = SelftestReport[Result] | SelftestReport[CaseOutcome]
Column = tables.TableColumn


def _outcome(result: Result) -> str:
    """Returns whether a case was right, as the report's sentence has it, and of how many rounds where
    some were added.
    """
    words = OUTCOMES[result.status]
    return f"{words}, {result.rounds} rounds" if result.retries else words


# as wide as a window of 1366 px has room for
COLUMNS = (
    Column(
        "",
        "Right if cause, size and idle share were all found correctly. A case that is wrong the first time is run "
        "again, and the median of all its rounds decides. "
        "Undecided: other programs took so much CPU that they may be why.",
        _outcome,
        width=142,
    ),
    Column("slowed by", "What slows the job down, on purpose.", lambda r: r.what, width=360),
    Column("verdict blames", "The cause that the verdict names.", lambda r: r.blamed, width=152),
    Column(
        "reported (added)",
        "How much longer the device waited for each batch because of it, by the verdict, and by arithmetic.",
        lambda r: f"{seconds(r.reported_ms / 1e3)} ({seconds(r.expected_ms / 1e3)})",
        width=122,
    ),
    Column(
        "error (allowed)",
        "Median over the rounds of reported minus added. Allowed: 10% or 0.3 ms a batch, whichever is more.",
        lambda r: f"{r.error_ms:+.2f} ms ({r.tolerance_ms:.2f})",
        width=112,
    ),
    Column(
        "idle (true)",
        "The device's idle share as vitprof reports it, and by arithmetic.",
        lambda r: f"{percent(r.idle_frac)} ({percent(r.true_idle_frac)})",
        width=94,
    ),
)
GPU_COLUMNS = (
    Column("", "Passed, failed, or not run.", lambda r: r.status),
    Column("case", "What was checked.", lambda r: r.case),
    Column("expected", "What must be found.", lambda r: r.expected),
    Column(
        "measured",
        "What was found, and what is wrong with it or why it was not run.",
        lambda r: ": ".join(filter(None, (r.measured, r.wrong))),
    ),
    Column("took", "How long the case took.", lambda r: seconds(r.seconds)),
)


def _to_blame(case: Case) -> str:
    """Returns the causes of which the verdict has to name one; a wait that costs nothing has
    none.
    """
    names = dict.fromkeys(CAUSE_NAMES[cause] for cause in case.right)
    return " or ".join(names) or "nothing: it is hidden"


PLANNED = (
    COLUMNS[1],
    Column(
        "verdict must blame",
        "The cause that the verdict has to name, with its size.",
        _to_blame,
    ),
)


GPU_PLANNED = (Column("case", "What is checked.", lambda case: case.name), GPU_COLUMNS[2])


@st.cache_resource(show_spinner=False)
def work() -> resources.BackgroundTask[Report]:
    return resources.BackgroundTask("vitprof-selftest")


def start(chosen: str) -> None:
    if chosen == ON_GPU:
        work().start(lambda report, stopped: gpu.run_gpu_selftest(progress=report, stop=stopped))
        return
    cases, rounds = CHOICES[chosen]
    work().start(lambda report, stopped: run_selftest(cases, rounds, progress=report, stop=stopped))


def page() -> None:
    st.title("Self-test", anchor=False)
    st.markdown(
        "Does vitprof tell the truth on this machine? Each case slows a short job down in a known "
        "way, such as 20 ms in every read, and checks whether the verdict names that cause and its "
        "size. The device is simulated, the loading is real. With an NVIDIA GPU, run it on the GPU "
        "once too: it checks clocks, copies and every strategy."
    )
    running = work().running
    st.fragment(_draw, run_every=SELFTEST_EVERY_S if running else None)(running)


@texts.guarded
def _draw(was_running: bool) -> None:
    tests = work()
    running = tests.running
    if running != was_running:
        st.rerun(scope="app")
    if running:
        tests.draw_progress(
            "selftest", help="Stops after the current job and shows what was found so far."
        )
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
        about = "Runs the cases one after another and checks the verdict on each."
        icon = ":material/fact_check:"
        if st.button(
            "Run the self-test",
            type="primary",
            icon=icon,
            key="selftest-button",
            disabled=busy,
            help=about,
        ):
            start(chosen)
            st.rerun(scope="app")
    if busy:
        st.caption("Other runs would disturb the self-test. Start it when they have ended.")
    else:
        st.caption(_words(chosen))
    if tests.error:
        st.error(f"The self-test could not be run: {texts.escaped(tests.error)}")
    if tests.result is not None:
        _draw_report(tests.result)
    elif chosen == ON_GPU:
        rows = [(case,) for case in gpu.GPU_CASES.values()]
        tables.draw(GPU_PLANNED, rows, key="selftest-plan")
    else:
        cases, _ = CHOICES[chosen]
        tables.draw(PLANNED, [(case,) for case in cases], key="selftest-plan")


def _words(chosen: str) -> str:
    if chosen == ON_GPU:
        return (
            f"{len(gpu.GPU_CASES)} cases on the first NVIDIA GPU: at most {gpu.TOTAL_S / 60:g} "
            "minutes. Nothing else should run on it. No run is kept; the figures can be downloaded "
            "afterwards."
        )
    cases, rounds = CHOICES[chosen]
    jobs = n_jobs(cases, rounds)
    minutes = " to ".join(f"{round(jobs * each / 30) / 2:g}" for each in JOB_S)
    return f"{len(cases)} cases, {jobs} short jobs: about {minutes} minutes. Start no other runs. These are not kept."


def _draw_report(tested: Report) -> None:
    """Draws the outcome in a sentence and a row for each case.

    Of a GPU it also draws the file for a bug report, and what to read next.
    """
    draw_sentence = st.success if tested.ok else st.warning
    draw_sentence(texts.escaped(sentence(tested.sentence)))
    columns = GPU_COLUMNS if tested.machine else COLUMNS
    tables.draw(columns, [(result,) for result in tested.results], key="selftest-table")
    for result in tested.results:
        if result.status != "passed":
            icon = ":material/warning:" if result.status == "failed" else ":material/info:"
            st.caption(f"{icon} {texts.escaped(result.case)}: {texts.escaped(result.wrong)}")
    if tested.machine:
        st.download_button(
            "Figures for a bug report",
            data=tested.to_json,
            file_name=report.FILE_NAME,
            mime="application/json",
            on_click="ignore",
            key="selftest-gpu-file",
            icon=":material/data_object:",
            help="Device, versions and every figure; no name of the machine or its user.",
        )
        st.markdown(texts.escaped(tested.advice))
    st.caption(f"Took {seconds(tested.seconds)}. This report is kept until the dashboard ends.")
