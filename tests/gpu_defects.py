"""The table of docs/gpu.md with what was said of runs on a GPU before a defect was mended, and what is said now."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "gpu.md"


def in_docs(before: str, now: str) -> bool:
    """Returns whether a row of the table has both sentences, whatever their figures are."""
    rows = [_without_figures(line) for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    return any(f"| {_without_figures(before)} | {_without_figures(now)} |" in row for row in rows)


def _without_figures(text: str) -> str:
    return re.sub(r"[\d.,]*\d", "#", text)
