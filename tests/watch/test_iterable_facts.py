"""What is known of IterableDatasets: shards, and whether workers share their samples."""

import functools
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch.utils.data
from torch.utils.data import ChainDataset, DataLoader, IterableDataset, get_worker_info

from vitprof.watch.iterable_facts import iterable_facts
from vitprof.watch.loader_facts import loader_facts


class Rows(IterableDataset[int]):
    """Knows nothing of workers."""

    def __iter__(self) -> Iterator[int]:
        yield from range(8)


class Asking(Rows):
    def __iter__(self) -> Iterator[int]:
        info = torch.utils.data.get_worker_info()
        first, every = (0, 1) if info is None else (info.id, info.num_workers)
        yield from range(first, 8, every)


def part() -> tuple[int, int]:
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


class Helped(Rows):
    def __iter__(self) -> Iterator[int]:
        first, every = part()
        yield from range(first, 8, every)


class Shuffled(Rows):
    """Around another one."""

    def __init__(self, samples: IterableDataset[int]) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[int]:
        yield from self.samples


class Given(Rows):
    """Has a function."""

    def __init__(self, divide: Any) -> None:
        self.divide = divide


def set_apart(worker: int) -> None:
    get_worker_info().dataset.first = worker  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("dataset", "divides"),
    [
        (Rows(), False),
        (Asking(), True),
        (Helped(), True),
        (Shuffled(Rows()), False),
        (Shuffled(Asking()), True),
        (ChainDataset([Rows(), Asking()]), True),
        (Given(functools.partial(set_apart, 1)), True),
        (Given(part), True),
        (Given(DataLoader([1, 2])), False),
    ],
)
def test_code_that_asks_for_its_worker_is_found(
    dataset: IterableDataset[int], divides: bool
) -> None:
    assert iterable_facts(DataLoader(dataset)) == {
        "iterable": True,
        "shards": None,
        "divides": divides,
    }


def test_a_function_that_begins_a_worker_may_set_its_part() -> None:
    loader = DataLoader(Rows(), num_workers=2, worker_init_fn=set_apart)
    assert loader_facts(loader)["divides"]


def test_a_dataset_with_indices_has_none_of_it() -> None:
    assert iterable_facts(DataLoader([1, 2, 3])) == {}
    assert "iterable" not in loader_facts(DataLoader([1, 2, 3]))


def test_shards_of_a_library_that_divides_them(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("datasets.iterable_dataset")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    kind = type("IterableDataset", (Rows,), {"__module__": module.__name__, "n_shards": 1})
    assert iterable_facts(DataLoader(kind())) == {"iterable": True, "shards": 1, "divides": True}


def test_shards_of_a_pipeline_of_webdataset() -> None:
    webdataset = pytest.importorskip("webdataset")
    urls = [f"/nowhere/{number}.tar" for number in range(3)]
    pipeline = webdataset.WebDataset(urls, shardshuffle=False)
    known = {"iterable": True, "shards": 3, "divides": True}
    assert iterable_facts(DataLoader(pipeline)) == known
    not_known = {"iterable": True, "shards": None, "divides": False}
    assert iterable_facts(DataLoader(pipeline.with_epoch(10))) == not_known
    drawn = webdataset.WebDataset(urls, resampled=True, shardshuffle=False)
    assert iterable_facts(DataLoader(drawn)) == not_known
