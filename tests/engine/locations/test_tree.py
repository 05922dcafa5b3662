"""The files under a directory: each once, in one order. What cannot be read: tests of what reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitprof.engine.locations.copying import tree_bytes, walk


@pytest.fixture
def top(tmp_path: Path) -> Path:
    (tmp_path / "train" / "007").mkdir(parents=True)
    for name, n_bytes in (("train/007/b.jpg", 3), ("train/007/a.jpg", 2), ("z", 5), ("empty", 0)):
        (tmp_path / name).write_bytes(b"x" * n_bytes)
    return tmp_path


def test_in_order_of_their_names(top: Path) -> None:
    assert list(walk(top)) == [("empty", 0), ("z", 5), ("train/007/a.jpg", 2), ("train/007/b.jpg", 3)]
    assert tree_bytes(top) == 10


def test_links_in_a_circle_end(top: Path) -> None:
    before = list(walk(top))
    (top / "train" / "up").symlink_to(top)
    assert list(walk(top)) == before
