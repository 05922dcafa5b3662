"""Samples that are kept in memory: pickled for a worker, asked for in batches, and as large as they are."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitprof.watch.kept_samples import KeptSamples, n_bytes


class Numbers:
    names = ("a", "b")

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> np.ndarray[Any, Any]:
        self.asked.append(index)
        return np.full(1000, index, dtype=np.uint8)


class InBatches(Numbers):
    def __getitems__(self, indices: list[int]) -> list[np.ndarray[Any, Any]]:
        self.asked.append(tuple(indices))
        return [np.full(1000, i, dtype=np.uint8) for i in indices]


@pytest.mark.parametrize(("made", "asked"), [(Numbers, [2, 0, 1]), (InBatches, [(2, 0), (1,)])])
def test_each_is_read_once(made: type[Numbers], asked: list[Any]) -> None:
    inner = made()
    kept: Any = KeptSamples(inner, 10_000)
    for batch in ([2, 0], [0, 1, 2]):
        assert [int(sample[0]) for sample in kept.__getitems__(batch)] == batch
    assert kept[1][0] == 1
    assert inner.asked == asked
    assert (len(kept), kept.names, isinstance(kept, made)) == (4, ("a", "b"), True)


def test_a_worker_gets_it_empty() -> None:
    kept = KeptSamples(Numbers(), 10_000)
    kept[0]
    copy: Any = pickle.loads(pickle.dumps(kept))
    assert type(copy) is KeptSamples
    copy[0]
    assert copy.asked == [0, 0], "read before, and again here"


def test_what_does_not_fit_is_said_once_and_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "told"
    told.touch()
    monkeypatch.setenv("VITPROF_WATCH_TELL", str(told))
    inner = Numbers()
    kept = KeptSamples(inner, 2_500)
    for _ in range(2):
        assert [int(kept[i][0]) for i in range(4)] == [0, 1, 2, 3]
    assert inner.asked == [0, 1, 2, 3, 2, 3]
    (line,) = told.read_text().splitlines()
    assert json.loads(line)[0] == "notice"
    assert "does not fit" in line
    assert "after 2 of 4 samples" in line


def test_the_size_of_a_sample() -> None:
    assert n_bytes({"image": np.zeros((3, 8), dtype=np.float32), "more": [np.zeros(4, dtype=np.uint8)] * 2}) == 104
    assert 0 < n_bytes((3, "text")) < 200
