"""README: what it links to is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_link_leads_to_a_file(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).is_file(), target


def test_every_benchmark_named_is_there() -> None:
    named = {name for page in PAGES for name in re.findall(r"benchmarks\.(\w+)", page.read_text(encoding="utf-8"))}
    assert named
    assert all((ROOT / "benchmarks" / f"{name}.py").is_file() for name in named), named
