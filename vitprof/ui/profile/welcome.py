"""What a newcomer sees: what vitprof is, this machine, and three ways to begin: a demonstration, a script, a folder of
images.
"""

from __future__ import annotations

import streamlit as st

from vitprof.config import RunConfig
from vitprof.errors import VitprofError
from vitprof.program import program
from vitprof.ui.machine import draw_machine, machine_in_words
from vitprof.ui.profile.runs import running_run, start
from vitprof.ui.texts import escaped

STARVED = RunConfig(
    strategy="per-sample",
    device="simulated:h100",
    batch_size=128,
    seconds=8,
    evaluate=False,
)
"""Loading a batch sample by sample takes about 10 ms on a current core, while an H100 takes 4 ms for its step."""
LOOK_S = 2.0
"""Seconds between checks whether a run has begun elsewhere, as in a console."""
FAILED = "why the run could not be started"


def draw_welcome(config: RunConfig | None) -> None:
    """Draws the page where no run is shown; `config` is what Run would start, None where it cannot."""
    st.title("Is your GPU starved by data loading?", anchor=False)
    st.markdown(
        "vitprof times every batch on its way to the device. You see each gap in which the GPU had nothing to do, and "
        "read in one sentence what would close the gaps."
    )
    st.markdown(machine_in_words())
    with st.container(key="page-run"):  # where the sidebar is folded away
        st.button(
            "Run with these settings",
            key="page-run-button",
            icon=":material/play_arrow:",
            disabled=config is None,
            on_click=_start,
            args=(config, True),
            help="The settings are behind » at the top left.",
        )
    if why := st.session_state.pop(FAILED, ""):
        st.error(escaped(why))
    for draw, column in zip((_demonstration, _own_script, _own_data), st.columns(3, gap="small"), strict=True):
        with column.container(border=True, height="stretch", gap="small"):
            draw()
    st.caption("To try other ways of loading, set up a run in the sidebar and press **Run**.")
    draw_machine()
    st.caption("Read on")
    with st.container(horizontal=True):
        st.page_link("pages/tournament.py", label="Which setting is the fastest here?", icon=":material/emoji_events:")
        st.page_link("pages/strategies.py", label="How can data be loaded?", icon=":material/account_tree:")
        st.page_link("pages/history.py", label="What ran before", icon=":material/history:")
    st.fragment(_look, run_every=LOOK_S)()


def _demonstration() -> None:
    """Draws the way to begin without anything of the user's."""
    st.header("Demonstration", anchor=False)
    st.button(
        "See a starved GPU",
        type="primary",
        key="see-starved",
        icon=":material/play_circle:",
        on_click=_start,
        args=(STARVED, False),
        help="Runs for 8 seconds, with these settings in the sidebar afterwards.",
    )
    st.markdown("8 seconds on a simulated H100 that gets its images one by one, as most tutorials load them.")
    st.markdown("Or look at a tournament and runs that were recorded:")
    _line("demo")


def _own_script() -> None:
    """Draws the way to begin with a training script."""
    st.header("My script", anchor=False)
    st.markdown("In a console, start your training like this. Nothing in the script changes:")
    _line("watch -- python train.py")
    st.markdown("This page shows the run as soon as it begins.")


def _own_data() -> None:
    """Draws the way to begin with a folder of images and no script yet."""
    st.header("My data", anchor=False)
    st.markdown("With a folder of images for each class, write a script that loads them, and watch it:")
    _line("code --strategy workers --dataset photos --output train_photos.py")
    _line("watch --steps 100 -- python train_photos.py /path/to/images --epochs 20")


def _line(command: str) -> None:
    """Draws a command to type, with a button that copies it."""
    st.code(f"{program()} {command}", language=None, wrap_lines=True)


def _look() -> None:
    """Redraws the page once a run has begun, which it then shows."""
    if running_run() is not None:
        st.rerun(scope="app")


def _start(config: RunConfig | None, from_sidebar: bool) -> None:
    """Starts a run and shows it."""
    if config is None:
        return
    try:
        start(config, from_sidebar=from_sidebar)
    except VitprofError as error:
        st.session_state[FAILED] = str(error)
