"""The page that test_live_chart.py drives: one live chart whose data grow by ten points with every refresh.

A refresh comes when the test asks for one, so that nothing depends on how fast a browser draws. Pages
of the dashboard refresh by a timer (`run_every`), which the tests of real jobs use.
"""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import streamlit as st

from vitprof.charts.style import plain
from vitprof.ui.live_chart import ChartFeed, live_chart, view_of

START, STEP, HEIGHT = 500, 10, 280


def figure(points: int, view: tuple[float, float] | None, width: int) -> dict[str, Any]:
    x = np.arange(points) * 0.1
    if view:  # finer data for what is visible
        x = np.union1d(x, np.linspace(*view, 200))
    y = np.sin(x)
    y[-1] = 0.5  # the last point is still growing: rewritten by the next refresh
    y[50:60] = np.nan
    return {
        "data": [
            {
                "type": "scatter",
                "name": plain("a <b>& b"),
                "x": x,
                "y": y,
                "line": {"width": width},
            },
            {"type": "scatter", "name": "second", "x": x, "y": np.cos(x)},
        ],
        "layout": {
            "xaxis": {"title": {"text": "s"}},
            "yaxis": {"range": [-1.5, 1.5]},
            "showlegend": True,
        },
    }


@st.fragment
def live() -> None:
    st.button("refresh", key="refresh")
    session = st.session_state
    session.count = session.get("count", START) + (0 if session.paused else STEP)
    session.refreshes = session.get("refreshes", 0) + 1
    view, resync = view_of("demo"), session.get("demo", {}).get("resync")
    session.asked = session.get("asked", set()) | {resync}
    session.views = session.get("views", 0) + (view != session.get("view"))
    session.view = view
    feed = session.setdefault("feed", ChartFeed())
    points = figure(session.count, view, 3 if session.thick else 1)
    run = "two" if session.other else "one"
    update = feed.update(points, run=run, alt="demo of a live chart", resync=resync)
    live_chart(replace(update, grows=not session.paused), key="demo", height=HEIGHT)
    session.fulls = session.get("fulls", 0) + (update.figure is not None)
    facts = {
        "points": len(points["data"][0]["x"]),
        "paused": session.paused,  # no more points than these will come
        "refreshes": session.refreshes,
        "fulls": session.fulls,  # how many updates were no appends
        "asked": len(session.asked)
        - 1,  # how often the browser asked for a whole one: it skipped an update
        "view": view,
        "views": session.views,  # how often the browser reported one
    }
    st.text(json.dumps(facts))


if __name__ == "__main__":
    with st.sidebar:
        shown = st.checkbox("shown", value=True)
        st.checkbox("thick", key="thick")
        st.checkbox("paused", key="paused")
        st.checkbox("other run", key="other")
    if shown:
        live()
elif __name__ == "app":  # as in app.py: the gate serves what the chart loads
    from vitprof.ui import web

    app = st.App(__file__, **web.parts())
