"""The lines that a verdict is drawn by are set in one file, and said in words from there."""

from __future__ import annotations

import re

from tests import ROOT
from vitprof.analysis import thresholds
from vitprof.analysis.verdict.wording import CLASSES

NAMES = [name for name in vars(thresholds) if name.isupper()]


def test_each_threshold_is_set_once_and_has_its_reason_beneath() -> None:
    assert {"MIN_STEPS", "MODERATE_FRAC", "INPUT_BOUND_FRAC", "MIN_COST_FRAC", "OTHERS_CORES"} <= set(NAMES)
    text = (ROOT / "vitprof" / "analysis" / "thresholds.py").read_text("utf-8")
    assert [name for name in NAMES if not re.search(rf'^{name} = [^\n]+\n"""', text, re.MULTILINE)] == []
    source = [p.read_text("utf-8") for p in (ROOT / "vitprof").rglob("*.py") if p.name != "thresholds.py"]
    set_again = re.compile(rf"^(?:{'|'.join(NAMES)})\b(?:: \w+)? = ", re.MULTILINE)
    assert [found for text in source for found in set_again.findall(text)] == []
    assert CLASSES == "under 5% of the time idle for data is not input-bound, 5 to 20% moderately, over 20% input-bound"
