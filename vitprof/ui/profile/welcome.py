"""What a newcomer sees: what vitprof is, three ways to begin, and what this machine is doing
now.
"""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from html import escape

import streamlit as st

from vitprof import demo, formats
from vitprof.charts.style import COMPUTE, DATA_WAIT
from vitprof.config import RunConfig, own_script
from vitprof.jobs.command import LoggedRunner
from vitprof.program import from_anywhere, program
from vitprof.ui import machine_now, resources, texts, widgets
from vitprof.ui.profile import proof
from vitprof.ui.profile.runs import running_run, start

STARVED = RunConfig(
    strategy="per-sample", device="simulated:h100", batch_size=128, seconds=8, evaluate=False
)
"""Loading a batch sample by sample takes about 10 ms on a current core, while an H100 takes 4 ms
for its step."""
STARVED_GPU = replace(STARVED, device="auto", batch_size=512)
"""On a real GPU. Python launches a step in about 10 ms there, whatever the batch: a larger one is
waited for longer."""
BEGUN_CHECK_S = 2.0
"""Seconds between checks whether a run has begun elsewhere, as in a console."""


def draw_welcome(config: RunConfig | None) -> None:
    st.title("Is your GPU starved by data loading?", anchor=False)
    st.markdown(
        "vitprof times every batch on its way to the device. You see each gap in which the GPU had "
        "nothing to do, and read in one sentence what would close the gaps."
    )
    st.markdown(machine_in_words())
    with st.container(key="page-run"):  # where the sidebar is folded away
        texts.act_button(
            "Run with these settings",
            "page-run-button",
            "play_arrow",
            partial(_start, config),
            "The settings are behind » at the top left.",
            disabled=config is None,
        )
    texts.draw_problem()
    with st.container(border=True):
        _draw_demonstration()
    left, right = st.columns(2, gap="small")
    with left.container(border=True, height="stretch", gap="small"):
        st.header("My script", anchor=False)
        st.markdown("In a console, start your training like this. Nothing in the script changes:")
        _draw_command("watch -- python train.py")
        st.markdown("This page shows the run as soon as it begins. To see one without a console:")
        about = f"Runs {demo.SCRIPT}: a Dataset that prepares one image after another. About 20 seconds."
        texts.act_button(
            "Watch an example script", "watch-example", "visibility", watch_example, about
        )
    with right.container(border=True, height="stretch", gap="small"):
        st.header("My data", anchor=False)
        st.markdown("In the sidebar, **Your own images** chooses a folder to load. In a console:")
        _draw_command("datasets add pets", "folder:/path/to/images")
        st.markdown("Then **Data set** has them, and **Try fixes** says how to load them.")
    st.caption("To try other ways of loading, set up a run in the sidebar and press **Run**.")
    machine_now.draw_machine()
    st.fragment(_rerun_when_begun, run_every=BEGUN_CHECK_S)()


def _start(config: RunConfig | None) -> None:
    if config is not None:
        start(config, from_sidebar=True)


def _draw_demonstration() -> None:
    st.header("Demonstration", anchor=False)
    st.html(picture(demo.lanes()))
    demonstrated = STARVED
    device = "a simulated H100"
    if resources.gpu_is_usable():
        demonstrated = STARVED_GPU
        device = "your GPU"
    about = "Runs for 8 seconds. Then it runs alternately with the first advice, to prove the gain."
    do = partial(proof.demonstrate, demonstrated)
    with st.container(horizontal=True, vertical_alignment="center"):
        texts.act_button(
            "See a starved GPU", "see-starved", "play_circle", do, about, type="primary"
        )
        st.markdown(
            f"on {device}: 8 seconds image by image, then the fix. Recorded before: `{program()} "
            "demo`"
        )


def picture(lanes: Sequence[demo.Lane]) -> str:
    """Returns recorded runs as HTML: a lane for each, in which the device is busy or waits."""
    about = (
        f"Recorded on a simulated H100, {demo.LANES_MS} ms of each run. "
        "Green: it computes. Orange: it waits for data."
    )
    drawn = ""
    alt = [about]
    for lane in lanes:
        name = escape(lane.name)
        idle = f"idle {formats.percent(lane.idle_frac)}"
        busy = ""
        for begin_ms, end_ms in lane.busy_ms:
            left = begin_ms / demo.LANES_MS
            width = (end_ms - begin_ms) / demo.LANES_MS
            busy += f"<u style='left: {left:.2%}; width: {width:.2%}'></u>"
        drawn += f"<span>{name}</span><i>{busy}</i><b>{idle}</b>"
        alt.append(f"{name}: {idle}.")
    colours = f"--busy: {COMPUTE}; --idle: {DATA_WAIT}"
    label = f"role='img' aria-label='{' '.join(alt)}' style='{colours}'"
    return f"<div class='vitprof-lanes' {label}>{drawn}<small>{about}</small></div>"


def watch_example() -> None:
    """Runs the example script as `vitprof watch` runs a user's own."""
    script = str(demo.SCRIPT)
    start = partial(LoggedRunner, [sys.executable, script], shlex.join(["python", script]))
    run_id = resources.manager().submit(
        own_script.own_config(f"python {demo.SCRIPT.name}"), start=start
    )
    st.query_params[widgets.RUN] = str(run_id)


def _draw_command(first: str, *more: str) -> None:
    """Draws a command of vitprof's to copy, on one line or several."""
    lines = [f"{from_anywhere()} {first}", *more]
    st.code(" \\\n  ".join(lines), language=None, wrap_lines=True)


def _rerun_when_begun() -> None:
    if running_run() is not None:
        st.rerun(scope="app")


def machine_in_words() -> str:
    gpus = resources.gpus()
    if not gpus:
        return "No GPU here: jobs train on the CPU. Pick a simulated GPU under **Device** to see how one would wait."
    names = [f"{gpu.name} ({formats.size(gpu.memory_bytes)})" for gpu in gpus]
    listed = ", ".join(f"**{texts.escaped(name)}**" for name in names)
    for finding in resources.findings_of_gpu():
        if finding.verdict == "bad":
            reason = texts.escaped(formats.sentence(finding.line))
            return (
                f"**{texts.escaped(names[0])}** cannot be used yet, and runs use the CPU. {reason}"
            )
    if len(gpus) == 1:
        return f"{listed} is ready to be profiled."
    return f"{listed}. Runs use the first one unless you choose another **Device**."
