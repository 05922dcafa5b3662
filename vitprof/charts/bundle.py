"""The browser's part of Plotly, which draws what this folder makes: on pages and in reports."""

from __future__ import annotations

from pathlib import Path

PLOTLY_JS = Path(__file__).with_name("plotly-cartesian.min.js")
"""plotly.js-cartesian-dist-min 4.1.1 from npm, as it is (MIT licence): charts with axes, which are all there are here.

The plotly package's own bundle also has maps and 3D: 4.8 MB where this has 1.5, and 2.3 s of a core for each page that
loads it where this takes 0.9 (medians of 6, in turns, with a first chart of three points; a busy machine).
"""
