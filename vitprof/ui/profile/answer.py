"""The tab Answer: what to try, the chart behind the verdict, patterns found, and files to share."""

from __future__ import annotations

import streamlit as st

from vitprof.analysis.verdict.advice import apply
from vitprof.analysis.verdict.own_headroom import own_headroom, own_headroom_sentence
from vitprof.analysis.verdict.situation import Advice
from vitprof.store import StoredRun
from vitprof.ui.downloads import draw_exports
from vitprof.ui.findings import verdict_of
from vitprof.ui.profile.account import draw_recording_cost
from vitprof.ui.profile.device_time import HELP, draw_device_time, title
from vitprof.ui.profile.loading import draw_signatures
from vitprof.ui.profile.settings import use_config
from vitprof.ui.profile.verdict import USED
from vitprof.ui.texts import escaped, guarded, sentence

TRY_HELP = "The best first: settings that can run here and are not in use yet, each with its reason."


@guarded
def draw_answer(run: StoredRun) -> None:
    """Draws the tab: advice first, with the exports beside its heading."""
    advice = verdict_of(run).advice
    with st.container(
        horizontal=True, horizontal_alignment="distribute", vertical_alignment="center", key="answer-head"
    ):
        if advice:
            st.header("What to try", anchor=False, help=TRY_HELP, width="content")
        elif run.config.loader_only:
            st.header("Loading alone, without training", anchor=False, width="content")
        else:
            st.header(title(run), anchor=False, help=HELP, width="content")
        draw_exports(run)
    for number, one in enumerate(advice):
        _draw_advice(run, one, number)
    if (measured := own_headroom(run.facts)) is not None:
        st.markdown(escaped(own_headroom_sentence(measured)))
    if advice:
        st.header(title(run), anchor=False, help=HELP)
    draw_device_time(run)
    draw_signatures(run)
    draw_recording_cost(run)


def _draw_advice(run: StoredRun, advice: Advice, number: int) -> None:
    """Draws one line: what to do and why, and a button where there is something to set."""
    said = f"{number + 1}\\. **{escaped(sentence(advice.words))}** {escaped(sentence(advice.reason))}"
    if not advice.settings:
        st.markdown(said)
    else:
        text, button = st.columns([3, 1], vertical_alignment="center", gap="small")
        text.markdown(said)
        button.button(
            "Use these settings",
            key=f"use-advice-{number}",
            icon=":material/tune:",
            help="Puts this run's settings with this change into the sidebar; nothing is started.",
            on_click=_use,
            args=(run, advice),
            width="stretch",
        )


def _use(run: StoredRun, advice: Advice) -> None:
    use_config(apply(run.config, advice.settings))  # advice is checked when it is given: it can be resolved
    st.session_state[USED] = run.id
