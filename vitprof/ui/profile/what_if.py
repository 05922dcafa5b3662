"""The tab What if: how much faster the job could be, and with which strategy. Each is checked by running it."""

from __future__ import annotations

import streamlit as st

from vitprof.store import StoredRun
from vitprof.ui.profile.headroom import draw_headroom
from vitprof.ui.profile.predictions import draw_predictions


def draw_what_if(run: StoredRun) -> None:
    """Draws headroom, then predictions; for a run that only loaded, why there are none."""
    if run.config.loader_only:
        st.caption(
            "This run trained nothing, so there is no training to speed up. Run the same settings with training first."
        )
        return
    draw_headroom(run)
    draw_predictions(run)
