"""Each sample is timed as soon as samples take long enough; slow ones are known by index and file."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, Subset, random_split

from vitprof.watch import sample_times
from vitprof.watch.fetch_times import timed_fetch, unpacked
from vitprof.watch.sample_times import LEAST_SAMPLE_S, MOST_SLOW, clock_for
from vitprof.watch.time_sketch import PER_OCTAVE, bucket_of, quantile_s

USUAL_S = 0.001
SLOW_S = 0.5


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Moves when a dataset says so."""
    clock = SimpleNamespace(now=0.0, queued_s=0.0)
    monkeypatch.setattr("vitprof.watch.fetch_times.queued_so_far", lambda: clock.queued_s)
    for module in ("sample_times", "fetch_times"):
        monkeypatch.setattr(f"vitprof.watch.{module}.perf_counter", lambda: clock.now)
    return clock


class Samples(Dataset[int]):
    def __init__(self, clock: SimpleNamespace, slow: tuple[int, ...] = (), n: int = 64) -> None:
        self.clock = clock
        self.slow = slow
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        self.clock.now += SLOW_S if index in self.slow else USUAL_S
        return 10 * index


class OfPhotos(Samples):
    """Opens a file for each sample."""

    def __init__(self, clock: SimpleNamespace, slow: tuple[int, ...], file: str) -> None:
        super().__init__(clock, slow)
        self.file = file

    def __getitem__(self, index: int) -> int:
        with open(self.file, "rb"):
            return super().__getitem__(index)


class ByBatch(Samples):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


def fetcher(dataset: Any) -> Any:
    """Returns a fetcher as PyTorch's."""

    def fetch(self: Any, indices: list[int]) -> list[int]:
        if hasattr(self.dataset, "__getitems__") and self.dataset.__getitems__:
            return list(self.dataset.__getitems__(indices))
        return [self.dataset[index] for index in indices]

    made = SimpleNamespace(dataset=dataset, _vitprof_worker=-1, _vitprof_clock=clock_for(dataset))
    made.fetch = lambda indices: unpacked(timed_fetch(fetch)(made, indices))
    return made


def test_the_slow_samples_of_a_batch_are_known_by_index(clock: SimpleNamespace) -> None:
    made = fetcher(Samples(clock, slow=(5, 9)))
    batch, times = made.fetch(list(range(16)))
    assert batch == [10 * index for index in range(16)]
    assert times[7] == (
        {bucket_of(USUAL_S): 14, bucket_of(SLOW_S): 2},
        ((5, pytest.approx(SLOW_S), ""), (9, pytest.approx(SLOW_S), "")),
    )
    assert made.dataset.n == 64, "the dataset is the script's own again"


def test_a_batch_of_slow_samples_is_slow_beside_the_ones_before(clock: SimpleNamespace) -> None:
    slow = tuple(range(40, 60))
    made = fetcher(Samples(clock, slow=slow))
    made.fetch(list(range(32)))
    _, times = made.fetch(list(slow))
    assert len(times[7][1]) == MOST_SLOW


def test_a_sample_that_waited_for_a_core_is_a_usual_one(clock: SimpleNamespace) -> None:
    class HeldUp(Samples):
        def __getitem__(self, index: int) -> int:
            if index in (40, 41):  # another program has the core
                clock.now += 0.02
                clock.queued_s += 0.02
            return super().__getitem__(index)

    made = fetcher(HeldUp(clock, slow=(50,)))
    made.fetch(list(range(32)))
    _, times = made.fetch([40, 41, 50, *range(13)])
    assert times[7] == (
        {bucket_of(USUAL_S): 15, bucket_of(SLOW_S): 1},
        ((50, pytest.approx(SLOW_S), ""),),
    )


def test_the_queue_of_a_core_is_not_looked_at_for_a_short_batch(clock: SimpleNamespace) -> None:
    of_samples = clock_for(Samples(clock))
    assert of_samples is not None
    assert of_samples.takes_long(2), "nobody knows before the first batch"
    of_samples.add_batch(2, 2 * USUAL_S)
    assert not of_samples.takes_long(2)
    assert of_samples.takes_long(16)


def test_where_the_queue_of_a_core_cannot_be_told_there_is_none(clock: SimpleNamespace) -> None:
    clock.queued_s = math.nan
    _, times = fetcher(Samples(clock, slow=(5,))).fetch(list(range(16)))
    assert [index for index, *_ in times[7][1]] == [5]


def test_samples_that_take_hardly_any_time_are_not_timed(
    clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.watch.test_sample_times.USUAL_S", LEAST_SAMPLE_S / 2)
    made = fetcher(Samples(clock, slow=(60,)))
    assert made.fetch(list(range(16)))[1][7] is not None, "nobody knows before the first batch"
    for _ in range(3):
        assert made.fetch(list(range(16)))[1][7] is None
    made.fetch([60])
    assert made.fetch(list(range(16)))[1][7] is not None, "one that takes long shows in the mean"


def test_a_sample_of_a_subset_has_the_index_of_the_whole_set(clock: SimpleNamespace) -> None:
    whole = Samples(clock, slow=(40,))
    part = Subset(Subset(whole, list(range(63, -1, -1))), list(range(20, 40)))
    made = fetcher(part)
    batch, times = made.fetch(list(range(20)))
    assert batch == part.__getitems__(list(range(20)))
    assert [index for index, *_ in times[7][1]] == [40]


def test_a_random_split_has_indices_of_the_whole_set(clock: SimpleNamespace) -> None:
    part, _ = random_split(Samples(clock, slow=(40,)), [63, 1], torch.Generator().manual_seed(1))
    assert 40 in part.indices
    _, times = fetcher(part).fetch(list(range(63)))
    assert [index for index, *_ in times[7][1]] == [40]


def test_what_makes_a_whole_batch_is_left_alone(clock: SimpleNamespace) -> None:
    made = fetcher(ByBatch(clock, slow=(3,)))
    assert made.fetch(list(range(8)))[1][7] is None
    assert fetcher(Subset(ByBatch(clock), [1, 2, 3])).fetch([0, 1])[1][7] is None


def test_the_file_of_a_slow_sample_is_named(clock: SimpleNamespace, tmp_path: Any) -> None:
    sample_times_file = tmp_path / "photo.jpg"
    sample_times_file.touch()
    from vitprof.watch.fetch_times import count_opening

    count_opening()
    _, times = fetcher(OfPhotos(clock, (2,), str(sample_times_file))).fetch([1, 2, 3])
    assert times[7][1] == ((2, pytest.approx(SLOW_S), str(sample_times_file)),)


@pytest.mark.parametrize("file", [3, None, object()])
def test_what_is_no_file_name_has_none(file: object) -> None:
    assert sample_times._path(file) == ""


def test_an_index_that_is_no_number_is_not_listed(clock: SimpleNamespace) -> None:
    class Named(Samples):
        def __getitem__(self, index: Any) -> int:
            return super().__getitem__(int(index))

    _, times = fetcher(Named(clock, slow=(3,))).fetch(["1", "2", "3", "4"])
    assert times[7] == ({bucket_of(USUAL_S): 3, bucket_of(SLOW_S): 1}, ())


def test_an_error_of_the_dataset_is_its_own(clock: SimpleNamespace) -> None:
    class Broken(Samples):
        def __getitem__(self, index: int) -> int:
            if index == 7:
                raise KeyError("seven")
            return super().__getitem__(index)

    made = fetcher(Broken(clock))
    with pytest.raises(KeyError, match="seven"):
        made.fetch([6, 7])
    assert type(made.dataset) is Broken


def test_a_quantile_is_known_to_a_bucket() -> None:
    seconds = [0.001 * (1 + index / 100) for index in range(100)]
    buckets: dict[int, int] = {}
    for one in seconds:
        buckets[bucket_of(one)] = buckets.get(bucket_of(one), 0) + 1
    for share in (0.5, 0.99):
        truth = seconds[round(100 * share) - 1]
        assert abs(math.log2(quantile_s(buckets, share) / truth)) <= 1 / PER_OCTAVE
    assert math.isnan(quantile_s({}, 0.5))
