"""The files that pages need in the browser: the live chart's, the style sheet, the icon, and the link that skips the
navigation by keyboard.

Nothing comes from a CDN. Streamlit serves the files in `static/` beside the app's script under `app/static/` (with
`server.enableStaticServing`), so the live chart's two files are copied there once. Their URLs are relative to the app's
root, which live_chart.py works out in the browser: that holds under a `server.baseUrlPath` and behind a proxy that adds
a prefix, on every page.
"""

from __future__ import annotations

import base64
import filecmp
import hashlib
import io
import os
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path

import streamlit as st
from PIL import Image, ImageDraw

from vitprof.charts.style import PLOTLY_JS
from vitprof.errors import VitprofError

CHART_JS = Path(__file__).with_name("live_chart.js")
SERVED = (PLOTLY_JS.name, CHART_JS.name)
"""The only files of `static/` that browsers get, whatever else is there."""


def ensure_assets(static_dir: Path) -> None:
    """Copies the files that `live_chart` needs into `static_dir`; app.py calls this on every run.

    Cheap when nothing changed: filecmp caches its comparison by the files' sizes and times. Raises `VitprofError` with
    one line where the directory cannot be written.
    """
    for source in (PLOTLY_JS, CHART_JS):
        _ensure_copy(source, static_dir / source.name)


@lru_cache
def url_of(source: Path) -> str:
    """Returns the URL of a file in `static/`, relative to the app's root; the file's digest in it keeps browsers from
    using an older version.
    """
    return f"app/static/{source.name}?v={hashlib.sha256(source.read_bytes()).hexdigest()[:12]}"


def _ensure_copy(source: Path, target: Path) -> None:
    # A temporary file and os.replace: two servers that start together both succeed, and no browser reads half a file.
    temporary: Path | None = None
    try:
        if target.is_file() and filecmp.cmp(source, target, shallow=False):
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}-", dir=target.parent)
        os.close(handle)
        temporary = Path(name)
        shutil.copyfile(source, temporary)
        temporary.chmod(0o644)  # mkstemp's 0600 would hide it from a server that another user runs
        os.replace(temporary, target)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise VitprofError(
            f"cannot write {target}: {error.strerror or error}; live charts need it: make {target.parent} writable"
        ) from error


@lru_cache(maxsize=1)
def page_icon() -> str:
    """Returns the tab's icon as a data URL: busy time with a gap.

    Drawn here, because Streamlit fetches named icons from the network. Not passed as an image, because Streamlit serves
    images from a file that it removes when the session of another tab ends; the browser then gets a 404.
    """
    icon = Image.new("RGBA", (32, 32), (0, 0, 0, 0))
    draw = ImageDraw.Draw(icon)
    for left, right in ((2, 10), (18, 30)):
        draw.rectangle((left, 6, right, 18), fill="#009E73")
    draw.rectangle((10, 21, 18, 26), fill="#E69F00")
    with io.BytesIO() as png:
        icon.save(png, "PNG")
        return f"data:image/png;base64,{base64.b64encode(png.getvalue()).decode()}"


STYLE = Path(__file__).with_name("style.css")
SKIP_LINK = Path(__file__).with_name("skip_link.js")


def apply_style() -> None:
    """Adds the style sheet to the page; it takes no room."""
    st.html(STYLE)


def add_skip_link() -> None:
    """Adds the button "Skip to Run", the first that the Tab key reaches."""
    with st.container(key="vitprof-skip-script"):
        st.html(f"<script>{SKIP_LINK.read_text()}</script>", unsafe_allow_javascript=True)
