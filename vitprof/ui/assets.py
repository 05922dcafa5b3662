"""The files that pages need in the browser, served from `static/` under URLs relative to the app; no CDN."""

from __future__ import annotations

import filecmp
import hashlib
import os
import shutil
import threading
from functools import lru_cache
from pathlib import Path

import streamlit as st

from vitprof.charts.style import PLOTLY_JS
from vitprof.errors import VitprofError

CHART_JS, STYLE, SKIP_LINK = map(Path(__file__).with_name, ("live_chart.js", "style.css", "skip_link.js"))
SERVED = (PLOTLY_JS.name, CHART_JS.name)
"""The only files of `static/` that browsers get, whatever else is there."""
PAGE_ICON = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAACAAAAAgAgMAAAAOFJJnAAAADFBMVEUAAAAAnnPmnwAAAABBKBO9AAAABHRSTlMA//8"
    "Ani+vBQAAACNJREFUeNpjYCAHMLIG/F/DGsDwnwkmQgcGVsC1agVVzMEFAJCGBNSDK2FdAAAAAElFTkSuQmCC"
)
"""The tab's icon: busy time with a gap. Streamlit would fetch a name from the network, and serves images from a file
that it removes when the session of another tab ends."""


def ensure_assets(static_dir: Path) -> None:
    """Copies what `live_chart` needs into `static_dir`, where it differs. Raises `VitprofError` with one line."""
    for source in (PLOTLY_JS, CHART_JS):
        _ensure_copy(source, static_dir / source.name)


@lru_cache
def url_of(source: Path) -> str:
    """Returns the URL of a file in `static/`, relative to the app's root; the digest in it is for browsers' caches."""
    return f"app/static/{source.name}?v={hashlib.sha256(source.read_bytes()).hexdigest()[:12]}"


def _ensure_copy(source: Path, target: Path) -> None:
    # A temporary file and a rename: two servers that start together both succeed, and no browser reads half a file.
    temporary = target.with_name(f".{target.name}-{os.getpid()}-{threading.get_ident()}")
    try:
        if target.is_file() and filecmp.cmp(source, target, shallow=False):
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, temporary)
        temporary.chmod(0o644)  # for a server that another user runs
        temporary.replace(target)
    except OSError as error:
        if target.parent.is_dir():
            temporary.unlink(missing_ok=True)
        raise VitprofError(
            f"cannot write {target}: {error.strerror or error}; live charts need it: make {target.parent} writable"
        ) from error


def apply_style() -> None:
    st.html(STYLE)


def add_skip_link() -> None:
    """Adds the button "Skip to Run", the first that the Tab key reaches."""
    with st.container(key="vitprof-skip-script"):
        st.html(f"<script>{SKIP_LINK.read_text()}</script>", unsafe_allow_javascript=True)
