"""Compare: finished runs side by side, and their CSV."""

import streamlit as st

from vitprof.jobs.prediction import CHECK
from vitprof.records import ENDED_STATUSES
from vitprof.ui import comparison, resources
from vitprof.ui.entry import through_app
from vitprof.ui.texts import guarded

STATE = "compared"


@guarded
def page() -> None:
    """Pick runs; the choice stands in the URL, so that it can be shared and survives a reload."""
    st.subheader("Compare runs", anchor=False)
    ended = [run for run in resources.store().runs(ENDED_STATUSES) if run.summary and run.summary.n_steps]
    if not ended:
        st.info("No finished runs yet. Open Profile, press Run, and come back.")
        return
    runs = {run.id: run for run in ended}
    own = [run.id for run in ended if run.role in ("", CHECK)]
    named = [int(text) for text in st.query_params.get("runs", "").split(",") if text.isdecimal()]
    default = [run_id for run_id in named if run_id in runs] or sorted(own or runs)[-2:]
    before = [run_id for run_id in st.session_state.get(STATE, default) if run_id in runs]
    everything = len(own) < len(ended) and st.checkbox(
        "Also runs made for headroom and predictions", key="compare-helpers", help="Anchors and loader-only runs."
    )
    chosen = st.multiselect(
        "Runs",
        [run_id for run_id in runs if everything or run_id in own or run_id in before],
        default=before,
        format_func=lambda run_id: f"{run_id}: {runs[run_id].name} ({runs[run_id].status})",
        help="Finished runs, newest first. Type to search.",
        key="compare-runs",
    )
    st.session_state[STATE] = chosen
    st.query_params["runs"] = ",".join(map(str, chosen))
    if not chosen:
        st.info("Choose at least one run.")
        return
    picked = [runs[run_id] for run_id in chosen]
    if len({run.config.loader_only for run in picked}) > 1:
        st.warning("Some of these runs trained and some only loaded: their speeds do not compare.")
    comparison.draw_caveats(picked)
    comparison.draw_table(picked)
    comparison.draw_downloads(picked)
    comparison.draw_charts(picked)


through_app("pages/compare.py")
page()
