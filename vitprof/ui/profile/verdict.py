"""The verdict on a run as a card: what kind it is, in one sentence."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import streamlit as st

from vitprof.analysis.verdict.wording import CLASSES
from vitprof.charts import COMPUTE, DATA_WAIT, HOST, IDLE, NEUTRAL
from vitprof.store import StoredRun
from vitprof.ui.findings import verdict_of
from vitprof.ui.texts import escaped, guarded

LOOKS: dict[str, tuple[str, str]] = {
    "input-bound": (":material/hourglass_top:", IDLE),
    "moderately input-bound": (":material/hourglass_bottom:", DATA_WAIT),
    "not input-bound": (":material/check_circle:", COMPUTE),
    "launch-bound": (":material/rocket_launch:", HOST),
    "inconclusive": (":material/help:", NEUTRAL),
}
"""Kind of a verdict -> its icon, and the colour at the card's edge. The word is in the sentence."""
USED = "settings taken over"
HELP = (
    "From times on the device and in the training loop, never from GPU-util. The lower end of the 95% interval "
    f"decides: {CLASSES}."
)


def card(colour: str) -> AbstractContextManager[Any]:
    """Returns the frame around the sentence on a run, the same while it is live and when it has ended."""
    st.html(f"<style>.st-key-verdict {{ border-left: 6px solid {colour} }}</style>")
    return st.container(border=True, key="verdict", gap="small")


@guarded
def draw_verdict(run: StoredRun) -> None:
    """Draws the card. The run needs at least one step."""
    verdict = verdict_of(run)
    icon, colour = LOOKS[verdict.kind]
    with card(colour):
        kind, _, rest = verdict.sentence.partition(":")
        st.markdown(f"{icon} **{escaped(kind)}:**{escaped(rest)}", help=HELP)
        if st.session_state.pop(USED, None) == run.id:
            st.caption(":material/check: The settings are in the sidebar. Press Run there.")
