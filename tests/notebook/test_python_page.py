"""docs/python.md: its examples run as they stand, and it names all that there is."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from tests import ROOT
from vitprof.notebook import listing
from vitprof.notebook.figures import FIGURES
from vitprof.notebook.one_run import Run
from vitprof.store import RunStore

TEXT = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_examples(
    stored: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    examples = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(examples) > 5
    for example in examples:
        exec(compile(example, "docs/python.md", "exec"), names)
    said = capsys.readouterr().out
    assert "2 memory, batch 128, on simulated:5,0 done Not input-bound" in said
    assert re.search(r"^data_wait_s +5\.0", said, re.MULTILINE), "ms of run 1"
    assert re.search(r"^1 +0\.005$", said, re.MULTILINE), "each run's median"
    assert "plotly" in (tmp_path / "gaps.html").read_text()


def test_all_is_named() -> None:
    shown = {name for name in vars(Run) if not name.startswith("_")} | {"tags"}
    assert [name for name in shown if f"`{name}" not in TEXT] == []
    assert re.findall(r"^\| `([\w-]+)` \| ", TEXT.partition("## Charts")[2], re.MULTILINE) == list(FIGURES)
    assert [name for name in inspect.signature(listing.runs).parameters if f"`{name}" not in TEXT] == []
