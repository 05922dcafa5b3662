"""What the tests of pages share: runs made by hand, and the app under test."""

import html
import json
import re
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from streamlit.testing.v1 import AppTest

from tests import ROOT
from tests.series import made_steps
from tests.stored_series import append_steps, append_telemetry
from vitprof.config import RunConfig
from vitprof.config.resolve import resolve
from vitprof.recording.columns import STEP_COLUMNS, TELEMETRY_COLUMNS, RunSummary
from vitprof.store import RunStore
from vitprof.ui.navigation import ENTERED

APP = ROOT / "app.py"
LIMIT_S = 60


def add_run(
    store: RunStore,
    *,
    n: int = 40,
    status: str = "done",
    wait_s: float = 0.005,
    launch_idle_s: float = 0.0,
    group_key: str = "",
    role: str = "",
    **config: object,
) -> int:
    """A run with `n` steps of `wait_s` of data wait, 3 ms of it reading and the rest decoding, and 5 ms of compute."""
    asked = RunConfig(**{"steps": max(n, 1), "device": "cpu", **config})
    run_id = store.create_run(resolve(asked), group_key=group_key, role=role)
    step_s, number = wait_s + 0.005, np.arange(n)
    rows = made_steps(
        [wait_s] * n,
        0.005,
        samples=128,
        warmup=5,
        host_s=0.005,
        loss=2.0,
        launch_idle_s=launch_idle_s,
    )
    start = 100 + number * step_s
    rows |= {
        "t_start_s": start,
        "made_start_s": start,
        "compute_start_s": start + wait_s,
        "made_end_s": start + wait_s,
    }
    rows |= {
        "read_s": np.full(n, min(wait_s, 0.003)),
        "decode_s": np.full(n, max(wait_s - 0.003, 0.0)),
    }
    zero = {name for name in STEP_COLUMNS if np.isnan(rows[name]).all()} - {
        "worker",
        "launch_idle_s",
    }
    append_steps(
        store,
        run_id,
        np.stack([rows[c] if c not in zero else number * 0.0 for c in STEP_COLUMNS], axis=1),
    )
    sample = {"t_s": 100.0, "cpu_pct": 50.0, "job_cpu_pct": 90.0, "job_rss_bytes": 2.0**30}
    append_telemetry(
        store, run_id, 0, [[sample.get(name, float("nan")) for name in TELEMETRY_COLUMNS]]
    )
    summary = RunSummary(
        n_steps=n,
        n_steady_steps=max(n - 5, 0),
        samples_per_s=128 / step_s,
        wall_s=3.0,
        data_wait_frac=wait_s / step_s,
        device_idle_frac=wait_s / step_s,
        rss_peak_bytes=2**30,
        step_ms_median=step_s * 1e3,
    )
    store.update_run(run_id, status=status, t_origin_s=100.0, summary=summary if n else None)
    return run_id


State = Mapping[str, Any] | None
"""What is in a session before its page is drawn."""


def app(_page: str = "", _state: State = None, /, **query: str | list[str]) -> AppTest:
    """The dashboard on one of its pages, with this in its session and its address. Fails on a traceback."""
    at = AppTest.from_file(str(APP), default_timeout=LIMIT_S)
    if _page:  # as if app.py had run already, which draws Profile first
        at.session_state[ENTERED] = True
        at.switch_page(f"pages/{_page}.py")
    return shown(at, query, _state)


def drawn_by(script: Callable[..., None], _state: State = None, /, **query: str) -> AppTest:
    """What a script of the test's own draws, with this in its session and its address. Fails on a traceback."""
    return shown(AppTest.from_function(script, default_timeout=LIMIT_S), query, _state)


def shown(at: AppTest, query: Mapping[str, Any] | None = None, state: State = None) -> AppTest:
    """Runs the page."""
    for name, value in (query or {}).items():
        at.query_params[name] = value
    for name, value in (state or {}).items():
        at.session_state[name] = value
    at.run()
    assert not at.exception
    return at


def click(at: AppTest, key: str) -> None:
    """On the button of this key. Fails on a traceback."""
    at.button(key=key).click()
    shown(at)


def kept_in_url(at: AppTest) -> dict[str, Any]:
    """The values of the widgets that Streamlit keeps in the URL, by their names there. The browser's part of Streamlit
    writes them into the URL, which a test without a browser cannot see."""
    kinds = (
        "selectbox",
        "multiselect",
        "number_input",
        "text_input",
        "toggle",
        "checkbox",
        "button_group",
    )
    widgets = [widget for kind in kinds for widget in at.get(kind)] + list(at.get("pagination"))
    names = [widget.proto.query_param_key for widget in widgets if widget.proto.query_param_key]
    return {name: at.session_state[name] for name in names}


def address(at: AppTest) -> dict[str, str]:
    """The query of the page's address, where no name stands twice; Streamlit 1.60 gives lists."""
    found = {name: at.query_params[name] for name in at.query_params}
    return {
        name: value if isinstance(value, str) else ",".join(value) for name, value in found.items()
    }


def metrics(at: AppTest) -> dict[str, str]:
    return {metric.label: metric.value for metric in at.metric}


def captions(at: AppTest) -> str:
    return read(" ".join(caption.value for caption in at.caption))


MARKUP = re.compile("<(style|script)>.*?</(style|script)>|<[^>]*>", re.DOTALL)


def said(at: AppTest) -> str:
    """All text of the page, as a person reads it."""
    shown = [
        *at.title,
        *at.header,
        *at.subheader,
        *at.markdown,
        *at.caption,
        *at.info,
        *at.warning,
        *at.error,
    ]
    texts = [element.value for element in [*shown, *at.success]]
    parts = [html.unescape(MARKUP.sub("\n", element.proto.body)) for element in at.get("html")]
    texts += [part.strip() for part in parts if part.strip()]
    return read("\n".join(texts))


def charts(at: AppTest) -> dict[str, dict[str, Any]]:
    """What the browser is told of each chart, by its key: its words, its height, data and layout."""
    return dict(opened(chart.proto.bytes) for chart in at.get("bidi_component"))


def opened(raw: bytes) -> tuple[str, Any]:
    """A chart's key, and what is sent of it as the browser reads it."""
    key, _, body = raw.partition(b"\n")
    assert key
    return key.decode(), json.loads(zlib.decompress(body) if body[:1] == b"\x78" else body)


def read(text: str) -> str:
    """Markdown without what keeps it from being Markdown, see `vitprof.ui.texts.escaped`."""
    return re.sub(r":color\[(.+?)\]", r"\1", text).replace("\\", "")
