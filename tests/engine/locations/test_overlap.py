"""Training while copying: on the slow drive first, on the copy when it is complete, and no error lost."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from tests.engine_fixtures import wait_until
from vitprof.config.drives import SlowDrive
from vitprof.engine.locations.overlap import BackgroundCopy, OverlappedStorage
from vitprof.engine.locations.throttle import TokenBucket
from vitprof.engine.storage import Place
from vitprof.errors import DataError

N = 8


class Rows:
    """A storage of `N` bytes in a file; its dataset says from where each was read."""

    shape = (1, 1, 1)

    def __init__(self, extra: str, place: Place) -> None:
        self.root = place.root
        self.labels = torch.arange(N)
        self._file = (place.root / "rows").open("rb")
        self.closed = False

    def __len__(self) -> int:
        return N

    def read(self, indices: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        self._file.seek(0)
        rows = torch.frombuffer(bytearray(self._file.read()), dtype=torch.uint8)[indices]
        return rows if out is None else out.copy_(rows)

    def dataset(self) -> Samples:
        return Samples(self.root)

    def close(self) -> None:
        self._file.close()
        self.closed = True


class Samples:
    def __init__(self, root: Path) -> None:
        self.root = root

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, int(self.root.name == "copy")

    def __getitems__(self, indices: list[int]) -> list[tuple[int, int]]:
        return [self[i] for i in indices]


class Setup:
    """A source, and a copy of it that begins and then waits for `go()`."""

    def __init__(self, tmp_path: Path) -> None:
        self.source, self.target = tmp_path / "source", tmp_path / "scratch" / "copy"
        self.source.mkdir()
        self.target.parent.mkdir()
        (self.source / "rows").write_bytes(bytes(range(N)))
        self.bucket = TokenBucket(tmp_path / "drive", SlowDrive(1.0, 1e9, serial=False))
        self.go = self.bucket.close
        self.copying = BackgroundCopy(self.source, self.target, self.bucket, partial(float, 1))

    def storage(self) -> OverlappedStorage:
        slow, local = Place(self.source), Place(self.target)
        return OverlappedStorage(partial(Rows, "more"), slow, local, self.copying.marker)

    def complete(self) -> None:
        self.go()
        wait_until(lambda: self.copying.complete, "the copy")


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[Setup]:
    made = Setup(tmp_path)
    yield made
    made.go()


def test_it_turns_to_the_copy_and_is_the_same(setup: Setup) -> None:
    with setup.copying:
        storage = setup.storage()
        read = storage.read  # as a loader keeps it
        indices = torch.tensor([5, 0])
        assert read(indices).tolist() == [5, 0]
        assert storage._local is None
        assert storage.root == setup.source
        assert (len(storage), storage.shape, storage.labels.tolist()) == (N, (1, 1, 1), list(range(N)))
        setup.complete()
        out = torch.empty(2, dtype=torch.uint8)
        assert read(indices, out=out) is out
        assert out.tolist() == [5, 0]
        assert storage._local is not None
        assert storage.root == setup.target
        slow = storage._slow
        storage.close()
        assert slow.closed
        assert storage._local.closed
    assert setup.copying.copied is not None
    assert setup.copying.n_bytes == N
    assert not hasattr(storage, "read_encoded")


def test_a_pickled_one_finds_the_copy_by_itself(setup: Setup) -> None:
    with setup.copying:
        storage = setup.storage()
        before = pickle.loads(pickle.dumps(storage))
        assert before.read(torch.tensor([3])).tolist() == [3]
        assert before._local is None
        setup.complete()
        after = pickle.loads(pickle.dumps(storage))
        for one in (before, after):
            assert one.read(torch.tensor([3])).tolist() == [3]
            assert one._local is not None
        assert after._slow is None  # not opened for nothing
        for one in (storage, before, after):
            one.close()


@pytest.mark.slow
@pytest.mark.parametrize("batched", [True, False])
def test_workers_that_live_on_turn_to_it_too(setup: Setup, batched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not batched:
        monkeypatch.delattr(Samples, "__getitems__")
    with setup.copying:
        storage = setup.storage()
        dataset = storage.dataset()
        assert hasattr(dataset, "__getitems__") == batched
        loader = DataLoader(
            dataset, batch_size=4, num_workers=1, persistent_workers=True, multiprocessing_context="fork"
        )
        try:
            first = [(i.tolist(), where.tolist()) for i, where in loader]
            assert first == [([0, 1, 2, 3], [0] * 4), ([4, 5, 6, 7], [0] * 4)]
            setup.complete()
            assert [where.tolist() for _, where in loader] == [[1] * 4] * 2
        finally:
            if loader._iterator is not None:
                loader._iterator._shutdown_workers()
        assert dataset[3] == (3, 1)
        assert len(dataset) == N
        storage.close()


def test_threads_turn_together(setup: Setup) -> None:
    with setup.copying:
        storage = setup.storage()
        setup.complete()
        opened: set[int] = set()
        threads = [threading.Thread(target=lambda: opened.add(id(storage._current()))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(opened) == 1
        storage.close()


def test_a_copy_that_fails_is_told_at_the_next_read_and_at_the_end(setup: Setup) -> None:
    os.mkfifo(setup.source / "pipe")
    storage = setup.storage()

    def job() -> None:
        with setup.copying:
            wait_until(setup.copying.marker.exists, "word of the failure")
            with pytest.raises(DataError, match="pipe is neither a file nor a directory"):
                storage.read(torch.tensor([0]))
            with pytest.raises(DataError, match="pipe"):
                pickle.loads(pickle.dumps(storage)).dataset()[0]

    with pytest.raises(DataError, match="pipe is neither"):
        job()
    assert not setup.target.exists()
    storage.close()


def test_an_error_of_the_job_goes_before_that_of_the_copy(setup: Setup) -> None:
    os.mkfifo(setup.source / "pipe")

    def job() -> None:
        with setup.copying:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        job()


def test_a_job_that_ends_first_ends_the_copy(setup: Setup) -> None:
    with setup.copying:
        storage = setup.storage()
    assert not setup.copying.complete
    assert not setup.target.exists()
    assert not setup.copying.marker.exists()
    storage.close()
