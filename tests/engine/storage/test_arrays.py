"""Arrays in a mapped .npy file, and in memory."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from tests.engine.loaders.loader_helpers import (
    SEED,
    as_input,
    collected,
    config_of,
    digits,
    labels_of,
    opened,
    photos_config,
    storage_of,
)
from tests.engine.storage.preparing import PHOTOS, copy_of, damage_file, images_of, place, read_all
from tests.engine_fixtures import SMALL, error_in_one_line, never
from vitprof.engine.loaders.contract import epoch_order
from vitprof.engine.storage import open_storage
from vitprof.engine.storage.arrays import BYTES_A_MB, Cached, MemmapStorage, cached
from vitprof.engine.storage.contract import Location
from vitprof.errors import DataError, JobStopped, SampleError


@pytest.fixture
def root(shared_home: Path, tmp_path: Path) -> Path:
    return copy_of("memmap", tmp_path)


def test_damage_is_named(root: Path) -> None:
    path = root / "train.npy"
    whole, images = path.read_bytes(), images_of()
    arrays = {
        "dtype": images.astype(np.float32),
        "length": images[:-1],
        "pickle": np.array([{}], dtype=object),
    }
    for damage, named in {
        "missing": "No such file",
        "empty": "cannot be read",
        "cut": "cannot be read",
        "garbage": "cannot be read|is not",
        "dtype": r"holds float32 \(600, 28, 28, 1\), not uint8 \(600, 28, 28, 1\)",
        "length": r"holds uint8 \(599, 28, 28, 1\), not uint8 \(600, 28, 28, 1\)",
        "pickle": "cannot be read",
        "archive": "is not a .npy file",
        "directory": "cannot be read",
    }.items():
        damage_file(path, damage, whole)
        if damage in arrays:
            np.save(path, arrays[damage], allow_pickle=True)
        elif damage == "archive":
            with path.open("wb") as file:
                np.savez(file, images=images)
        again = f"delete {root} and it is made again"
        with error_in_one_line(DataError, match=rf"train\.npy.*({named}).*{again}") as caught:
            MemmapStorage(SMALL, Location(root), True)
        assert "allow_pickle" not in str(caught.value), "NumPy's advice how to load it all the same"


def test_the_file_is_numpys_own_and_may_be_removed_between_opening_and_reading(root: Path) -> None:
    assert np.array_equal(np.load(root / "train.npy"), images_of())
    storage = MemmapStorage(SMALL, Location(root), True)
    storage.close()
    (root / "train.npy").unlink()
    with pytest.raises(DataError, match="No such file"):
        storage.read(torch.arange(2))


def test_moved_to_a_device(shared_home: Path) -> None:
    storage = open_storage("memory", SMALL, place("memory"), train=True)
    assert storage.device == torch.device("cpu")
    away = storage.to(torch.device("meta"))
    assert (away.device, away.labels.device) == (torch.device("meta"), torch.device("meta"))
    assert (away.shape, len(away)) == (storage.shape, 600)
    assert away.read(torch.zeros(2, dtype=torch.int64, device="meta")).shape == (2, 28, 28, 1)
    assert np.array_equal(read_all(storage.to(torch.device("cpu"))), images_of())


@pytest.mark.parametrize(
    ("name", "needs"),
    [("memory", "2.87 MiB"), ("memory-float", "11.5 MiB"), ("pt-whole", "2.87 MiB")],
)
def test_too_little_memory_is_refused(
    few_photos: Path, name: str, needs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = place(name, PHOTOS)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1 << 20))
    with pytest.raises(
        DataError, match=rf"needs {needs} and 1.00 MiB are available; choose a storage on disk"
    ):
        open_storage(name, PHOTOS, where, train=True)


N = 500
SHAPE = (8, 8, 1)
SAMPLE = 64


class Counted:
    """A storage that counts what is read from it. Some samples may be unreadable."""

    def __init__(
        self, unreadable: tuple[int, ...] = (), error: type[Exception] = SampleError
    ) -> None:
        generator = torch.Generator().manual_seed(1)
        self.images = torch.randint(0, 256, (N, *SHAPE), generator=generator, dtype=torch.uint8)
        self.labels = torch.arange(N)
        self.shape = SHAPE
        self.block = 25
        self.unreadable, self.error = unreadable, error
        self.reads: list[int] = []
        self.closed = False

    def __len__(self) -> int:
        return N

    def read(self, indices: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        self.reads += indices.tolist()
        for index in indices.tolist():
            if index in self.unreadable:
                raise self.error(f"/data/{index}.raw is too short")
        return torch.index_select(self.images, 0, indices, out=out)

    def read_encoded(self, index: int) -> bytes:
        """Of different lengths: 40 to 64 bytes."""
        self.reads.append(index)
        if index in self.unreadable:
            raise self.error(f"/data/{index}.jpg is empty")
        return self.images[index].numpy().tobytes()[: 40 + index % 25]

    def name_of(self, index: int) -> str:
        return f"/data/{index}.jpg"

    def close(self) -> None:
        self.closed = True


def filled(storage: Any, form: str, n_bytes: float, seed: int = SEED) -> Cached:
    return cached(storage, form, n_bytes / BYTES_A_MB, seed, progress=lambda *_: None, stop=never)


def assert_same_as_without(cache: Any, form: str) -> None:
    """Read an epoch and compare it with the storage's own."""
    order = epoch_order(N, 7, 0)
    if form == "pixels":
        for indices in order.split(64):
            assert torch.equal(cache.read(indices), Counted().read(indices))
    else:
        for index in order.tolist():
            assert cache.read_encoded(index) == Counted().read_encoded(index)


@pytest.mark.parametrize(
    ("n_bytes", "resident"),
    [(63, 0), (64, 1), (100 * 64 + 63, 100), (N * 64, N), (1e9, N)],
    ids=str,
)
def test_as_many_pixels_as_the_budget_holds(n_bytes: float, resident: int) -> None:
    storage = Counted()
    cache: Any = filled(storage, "pixels", n_bytes)
    assert len(storage.reads) == resident  # it fills itself by reading each once
    assert cache.hit_frac == resident / N
    for _ in range(2):
        storage.reads.clear()
        assert_same_as_without(cache, "pixels")
        assert len(storage.reads) == N - resident  # the hit rate that it states
        assert len(set(storage.reads)) == N - resident


def test_not_a_byte_more_than_the_budget() -> None:
    lengths = [40 + index % 25 for index in range(N)]
    for n_bytes in (1, 39, *range(40, 170, 3), 10_000, 1e9):
        storage = Counted()
        cache: Any = filled(storage, "encoded", n_bytes)
        asked = list(storage.reads)  # the last of them did not fit
        resident = asked if n_bytes == 1e9 else asked[:-1]
        storage.reads.clear()
        for index in asked:
            cache.read_encoded(index)
        assert storage.reads == asked[len(resident) :]
        assert cache.hit_frac == len(resident) / N
        assert sum(lengths[index] for index in resident) <= n_bytes
        assert len(resident) == N or n_bytes < sum(lengths[index] for index in asked)


@pytest.mark.parametrize("form", ["pixels", "encoded"])
def test_the_subset_is_random_and_fixed(form: str) -> None:
    def missed(seed: int) -> list[int]:
        storage = Counted()
        cache = filled(storage, form, 12_800, seed)
        storage.reads.clear()
        assert_same_as_without(cache, form)
        return sorted(storage.reads)

    first = missed(1)
    assert first == missed(1)
    assert first != missed(2)
    assert (
        150 < sum(index < N // 2 for index in first) / len(first) * N < 350
    )  # from all over the set


def test_it_stands_for_its_storage_and_a_batch_goes_where_it_should() -> None:
    storage = Counted()
    cache: Any = filled(storage, "pixels", 100 * SAMPLE)
    indices = torch.tensor([4, 499, 4, 0, 123])
    out = torch.zeros((5, *SHAPE), dtype=torch.uint8)
    assert cache.read(indices, out).data_ptr() == out.data_ptr()
    assert torch.equal(out, Counted().images[indices])
    cache.read(indices).zero_()  # a batch is the caller's own
    assert torch.equal(cache.read(indices), out)
    assert (len(cache), cache.shape, cache.block) == (N, SHAPE, 25)
    assert torch.equal(cache.labels, storage.labels)
    assert cache.name_of(3) == "/data/3.jpg"
    with pytest.raises(AttributeError):
        _ = cache.device
    cache.close()
    assert storage.closed


@pytest.mark.parametrize("form", ["pixels", "encoded"])
def test_unreadable_samples_stay_out(form: str) -> None:
    """Whoever reads them is told, as without a cache; all others are in it."""
    bad = (3, 4, 400)
    cache: Any = filled(Counted(bad), form, 1e9)
    assert cache.hit_frac == (N - 3) / N
    good = [index for index in range(N) if index not in bad]
    for index in bad:
        with pytest.raises(SampleError, match=f"/data/{index}\\."):
            cache.read(torch.tensor([index])) if form == "pixels" else cache.read_encoded(index)
    if form == "pixels":
        assert torch.equal(cache.read(torch.tensor(good)), Counted().images[good])
    else:
        assert all(cache.read_encoded(index) == Counted().read_encoded(index) for index in good)


@pytest.mark.parametrize("form", ["pixels", "encoded"])
def test_filling_can_be_stopped_and_followed_and_ends_with_other_errors(form: str) -> None:
    with pytest.raises(DataError, match="/data/3"):
        filled(Counted((3,), DataError), form, 1e9)
    seen: list[float] = []
    cached(Counted(), form, 1, SEED, progress=lambda fraction, _: seen.append(fraction), stop=never)
    assert seen == sorted(seen)
    assert 0 <= seen[0] <= seen[-1] <= 1
    storage = Counted()
    with pytest.raises(JobStopped):
        cached(
            storage, form, 1, SEED, progress=lambda *_: None, stop=lambda: len(storage.reads) > 0
        )
    assert 0 < len(storage.reads) < N


@pytest.mark.usefixtures("shared_home")
def test_worker_processes_share_it() -> None:
    cache: Any = filled(
        open_storage("memory", SMALL, place("memory"), train=True), "pixels", 300 * 784
    )
    assert cache.hit_frac == 0.5
    images, labels = digits()
    with opened(
        config_of(storage="memmap", loader="dataloader", workers=2), storage=cache
    ) as loader:
        for epoch in (0, 1):
            order = epoch_order(SMALL.n_train, SEED, epoch)
            batches = collected(loader.epoch(epoch))
            assert torch.equal(as_input(batches), images[order])
            assert torch.equal(labels_of(batches), labels[order])


def test_encoded_photos(few_photos: Path) -> None:
    config = photos_config(n_images=20, loader="dataloader", workers=2, batch_size=8)
    storage = storage_of(config, root=few_photos)
    cache = filled(
        storage, "encoded", sum(len(storage.read_encoded(index)) for index in range(20)) / 3
    )
    assert 0.2 <= cache.hit_frac <= 0.5
    with opened(config, storage=cache) as loader:
        with_cache = collected(loader.epoch(0))
    with opened(config, storage=storage) as loader:
        without = collected(loader.epoch(0))
    assert len(without) == 3
    for ours, theirs in zip(with_cache, without, strict=True):
        assert torch.equal(ours.images, theirs.images)
        assert torch.equal(ours.labels, theirs.labels)
