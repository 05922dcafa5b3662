"""The Compare page: which runs, whether they compare fairly, their table, and one section of charts at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import streamlit as st

from vitprof.analysis.compare.differences import Caveat
from vitprof.analysis.compare.guard import comparability
from vitprof.store import StoredRun
from vitprof.ui.compare.charts import draw_device_time, draw_headroom, draw_steps, draw_waits
from vitprof.ui.compare.figures import facts_of
from vitprof.ui.compare.picker import pick_runs
from vitprof.ui.compare.settings import draw_settings
from vitprof.ui.compare.table import draw_table
from vitprof.ui.downloads import draw_downloads_many
from vitprof.ui.texts import escaped, guarded
from vitprof.ui.url_state import choose

MOST_WARNINGS = 3
"""Warnings shown in full; more than that are a count to open."""

SECTIONS: dict[str, str] = {
    "device": "Device time",
    "steps": "Every step",
    "waits": "Data waits",
    "headroom": "Headroom",
    "settings": "Settings that differ",
}


def draw_comparison() -> None:
    """Draws everything but the page's title."""
    runs, baseline = pick_runs()
    if not runs:
        return
    if len({run.config.loader_only for run in runs}) > 1:
        st.warning("Some of these runs trained and some only loaded, so their speeds cannot be compared.")
    draw_caveats(runs)
    draw_table(runs, baseline)
    draw_downloads_many(runs)
    section = choose(
        "show",
        "Show",
        SECTIONS,
        default="device",
        help="Only the section shown is computed.",
        show_label=False,
    )
    drawn: dict[str, Callable[[], None]] = {
        "device": lambda: draw_device_time(runs),
        "steps": lambda: draw_steps(runs),
        "waits": lambda: draw_waits(runs),
        "headroom": lambda: draw_headroom(runs),
        "settings": lambda: draw_settings(runs, baseline),
    }
    guarded(drawn[section])()


def draw_caveats(runs: Sequence[StoredRun]) -> None:
    """Draws what makes the comparison unfair: a few warnings in full, everything else a click away."""
    found = caveats(runs)
    warnings = [c for c in found if c.level == "warning"]
    many = len(warnings) > MOST_WARNINGS
    rest = found if many else [c for c in found if c.level != "warning"]
    if not many:
        for caveat in warnings:
            st.warning(escaped(caveat.sentence), icon=":material/balance:")
    if rest:
        count = f":material/balance: {len(warnings)} warnings: this comparison is not fair"
        with st.expander(count if many else "What else differs"):
            for caveat in rest:
                st.markdown(f"- {escaped(caveat.sentence)}")


def caveats(runs: Sequence[StoredRun]) -> tuple[Caveat, ...]:
    """Returns what differs between runs besides the way they load their data, see `analysis.compare.guard`."""
    return comparability([facts_of(run.id) for run in runs])
