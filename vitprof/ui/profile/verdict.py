"""The verdict on a run as a card: what kind it is, one sentence, and what to try with a button for each."""

from __future__ import annotations

import streamlit as st

from vitprof.analysis.verdict.advice import apply
from vitprof.analysis.verdict.situation import Advice
from vitprof.analysis.verdict.wording import CLASSES
from vitprof.charts import COMPUTE, DATA_WAIT, IDLE, NEUTRAL
from vitprof.store import StoredRun
from vitprof.ui.findings import verdict_of
from vitprof.ui.profile.settings import use_config
from vitprof.ui.texts import escaped, guarded, sentence

LOOKS: dict[str, tuple[str, str]] = {
    "input-bound": (":material/hourglass_top:", IDLE),
    "moderately input-bound": (":material/hourglass_bottom:", DATA_WAIT),
    "not input-bound": (":material/check_circle:", COMPUTE),
    "inconclusive": (":material/help:", NEUTRAL),
}
"""Kind of a verdict -> its icon, and the colour at the card's edge. The word is in the sentence."""
USED = "settings taken over"
HELP = (
    "From marks of the device and the training loop, never from GPU-util. The lower end of the 95% interval decides: "
    f"{CLASSES}."
)


@guarded
def draw_verdict(run: StoredRun) -> None:
    """The card. What can be said about a run without any step is said elsewhere."""
    verdict = verdict_of(run)
    icon, colour = LOOKS[verdict.kind]
    st.html(f"<style>.st-key-verdict {{ border-left: 6px solid {colour} }}</style>")
    with st.container(border=True, key="verdict", gap="small"):
        kind, _, rest = verdict.sentence.partition(":")
        st.markdown(f"{icon} **{escaped(kind)}:**{escaped(rest)}", help=HELP)
        for number, advice in enumerate(verdict.advice):
            _draw_advice(run, advice, number)
        if verdict.advice and st.session_state.pop(USED, None) == run.id:
            st.caption(":material/check: The settings are in the sidebar. Press Run there.")


def _draw_advice(run: StoredRun, advice: Advice, number: int) -> None:
    """One line: what to do and why, and a button where there is something to set."""
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
