"""What is done right after a module is imported."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from vitprof.watch.patching import when_imported


def test_everybody_who_waits_for_a_module_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "waited_for").mkdir()
    (tmp_path / "waited_for" / "__init__.py").write_text("from waited_for.inner import VALUE")
    (tmp_path / "waited_for" / "inner.py").write_text("VALUE = 3")
    monkeypatch.syspath_prepend(tmp_path)
    before = list(sys.meta_path)
    told: list[tuple[str, int]] = []

    def note(who: str) -> None:
        def then(module: ModuleType) -> None:
            told.append((who, module.VALUE))

        when_imported("waited_for.inner", then)

    note("first")
    note("second")
    try:
        importlib.import_module("waited_for")
        assert sorted(told) == [("first", 3), ("second", 3)]
        note("late")
        assert told[2] == ("late", 3)
        assert sys.meta_path == before
    finally:
        for name in ("waited_for", "waited_for.inner"):
            sys.modules.pop(name, None)
