"""The part of Plotly that runs in the browser and draws the figures of this package, on pages and in reports."""

from __future__ import annotations

from pathlib import Path

PLOTLY_JS = Path(__file__).with_name("plotly-cartesian.min.js")
"""plotly.js-cartesian-dist-min 4.1.1 from npm, unchanged (MIT licence): charts with axes, the only kind here.

The plotly package's own bundle also has maps and 3D: 4.8 MB against 1.5, and 2.3 s of a core against 0.9 for each page
that loads it (medians of 6, in turns, with a first chart of three points; a busy machine)."""
