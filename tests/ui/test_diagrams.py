"""The picture of a strategy: every part named, in words too, and fit to stand in a page."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from vitprof.config.catalog import DATASETS
from vitprof.config.parts import Combination, legal_combinations
from vitprof.ui.strategies import Stage, diagram, stages

ALL = {parts: None for name in ("digits", "photos") for parts in legal_combinations(DATASETS[name])}


def runners(parts: Combination, workers: int | None = None) -> list[str]:
    return [stage.runner for stage in stages(parts, {"workers": workers})]


def test_every_legal_combination_is_drawn_with_all_it_says_in_words() -> None:
    for parts in ALL:
        drawn = stages(parts, {"workers": 2})
        assert [stage.kind for stage in drawn] == ["storage", "location", "loader", "transfer", "device"]
        page = ET.fromstring(diagram(parts, {"workers": 2}))
        assert page.get("role") == "img"
        assert all(f"{stage.title} ({stage.runner})" in page.get("aria-label", "") for stage in drawn)
        boxes = [[part.text for part in box] for box in page[0]]
        assert boxes == [[stage.kind, stage.title, stage.runner] for stage in drawn]


@pytest.mark.parametrize(
    ("parts", "workers", "runner"),
    [
        (Combination("idx", "disk", "dataloader", "blocking"), 0, "training loop"),
        (Combination("idx", "disk", "dataloader", "blocking"), 1, "1 worker process"),
        (Combination("files", "disk", "dataloader", "pinned"), 4, "4 worker processes"),
        (Combination("files", "disk", "threads", "pinned"), 3, "3 threads beside the loop"),
        (Combination("memmap", "disk", "ahead", "pinned"), None, "1 thread beside the loop"),
        (Combination("files", "disk", "generator", "blocking"), None, "training loop"),
        (Combination("memory", "disk", "batches", "resident"), None, "device"),
    ],
)
def test_the_loader_runs_where_it_says(parts: Combination, workers: int | None, runner: str) -> None:
    assert runners(parts, workers)[2] == runner


def test_where_files_are_kept() -> None:
    places = {place: runners(Combination("files", place, "threads", "pinned"))[1] for place in ("disk", "ram-disk")}
    assert places == {"disk": "local disk", "ram-disk": "tmpfs: files in RAM"}
    assert runners(Combination("memory", "disk", "batches", "blocking"))[:2] == ["RAM", "RAM"]


def test_titles_are_text(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = [Stage("storage", '<b>"&', "x<y", "#000000")] * 5
    monkeypatch.setattr("vitprof.ui.strategies.stages", lambda parts, knobs: odd)
    page = ET.fromstring(diagram(next(iter(ALL)), {}))
    assert [title.text for title in page.iter("b")] == ['<b>"&'] * 5
