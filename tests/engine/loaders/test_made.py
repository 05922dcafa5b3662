"""Every loader says how its batches were made: parts, moments, worker, and what was ready; and nothing else changes."""

import itertools
import math
import time
from typing import Any

import pytest
import torch
from torch.utils.data._utils.pin_memory import pin_memory

from tests.engine.loaders.loader_helpers import (
    AHEAD,
    BATCHES,
    DALI,
    GENERATOR,
    IN_LOOP,
    SPDL,
    THREADS,
    WORKERS,
    collected,
    config_of,
    labels_of,
    opened,
    other,
    photos_config,
    storage_of,
    variant_id,
)
from tests.engine_fixtures import wait_until
from vitprof.engine.loaders import batch_assembly
from vitprof.engine.loaders.contract import Batch
from vitprof.engine.loaders.dataloader import TimedSamples
from vitprof.measure import core_use, stage_look
from vitprof.measure.core_use import CoreTimes, ThreadFiles
from vitprof.measure.stage_look import LookedBatch, StageUses, begin_look
from vitprof.measure.step_columns import BatchTimes, n_ready
from vitprof.measure.stopwatch import Stopwatch
from vitprof.recording.columns import TIMED_STAGES

BY_THE_LOOP = [
    BATCHES,
    BATCHES | {"augment": "cpu"},
    GENERATOR,
    GENERATOR | {"storage": "idx"},
    IN_LOOP | {"storage": "files", "augment": "cpu"},
    IN_LOOP | {"storage": "idx"},
    IN_LOOP | {"storage": "memory-float"},
]
BY_PROCESSES = [WORKERS, WORKERS | {"storage": "idx"}]
EVERY = [*BY_THE_LOOP, AHEAD, THREADS, *BY_PROCESSES]
PHOTOS: list[Any] = [
    IN_LOOP | {"storage": "imagefolder"},
    {"storage": "files", "loader": "threads"},
    DALI,
    *SPDL,
]


def check(made: BatchTimes | None, began: float, *, alone: bool) -> BatchTimes:
    """What holds for every batch that was made since `began`; parts add up where one thread made it."""
    got = time.perf_counter()
    assert made is not None
    assert began <= made.start_s <= made.end_s <= got
    known = [part for part in made[:4] if not math.isnan(part)]
    assert all(part >= 0 for part in known)
    if alone:
        assert sum(known) <= made.end_s - made.start_s + 1e-9  # differences of floats are rounded
    return made


@pytest.mark.usefixtures("shared_home")
class TestDigits:
    @pytest.mark.parametrize("variant", EVERY, ids=variant_id)
    def test_each_batch_says_how_it_was_made(self, variant: dict[str, Any]) -> None:
        began = time.perf_counter()
        with opened(config_of(**variant, batch_size=200)) as loader:
            for epoch in (0, 1):
                made = [check(b.made, began, alone=variant != THREADS) for b in loader.epoch(epoch)]
        pixels = "storage" not in variant
        for batch in made:
            assert (batch.decode_s == 0) == (pixels or variant["storage"] == "memory-float")
            assert (batch.read_s == 0) == (
                variant.get("storage") == "idx"
            )  # torchvision has read all there is
            assert (batch.transform_s > 0) == (
                variant.get("augment") == "cpu" or variant.get("storage") == "idx"
            )
            assert batch.collate_s > 0
            assert math.isnan(batch.worker) == (variant not in BY_PROCESSES)
            assert math.isnan(batch.queue_depth) == (variant in BY_THE_LOOP)
        assert variant not in BY_PROCESSES or [batch.worker for batch in made] == [0, 1, 0]

    @pytest.mark.parametrize("variant", [BATCHES, AHEAD, THREADS, BY_PROCESSES[1]], ids=variant_id)
    def test_switched_off_it_says_nothing_and_gives_the_same(self, variant: dict[str, Any]) -> None:
        config = config_of(**variant, batch_size=200)
        with opened(config) as loader:
            torch.manual_seed(0)
            on = collected(loader.epoch(0))
        with opened(other(config, loader_times=False)) as loader:
            torch.manual_seed(0)
            batches = list(loader.epoch(0))
            assert [batch.made for batch in batches] == [None] * 3
            assert torch.equal(labels_of(batches), labels_of(on))
        assert {batch.images.dtype for batch in batches} == {on[0].images.dtype}
        assert [batch.images.stride() for batch in batches] == [
            batch.images.stride() for batch in on
        ]

    @pytest.mark.parametrize(
        ("variant", "ready", "depth"),
        [
            pytest.param(
                WORKERS, lambda of: n_ready(of._batches) == 4, 4, id="two batches of each worker"
            ),
            pytest.param(
                AHEAD,
                lambda of: of._running._n_read == 4,
                3,
                id="two ready, and one that was being read",
            ),
            pytest.param(
                THREADS,
                lambda of: [b.batch is not None for b in of._running.under_way] == [True] * 2,
                2,
                id="two",
            ),
        ],
    )
    def test_what_is_ready_is_counted(
        self, variant: dict[str, Any], ready: Any, depth: int
    ) -> None:
        with opened(config_of(**variant, prefetch_factor=2, batch_size=100)) as loader:
            batches = loader.epoch(0)
            first = next(batches)
            wait_until(lambda: ready(loader), "batches that are ready")
            asked, second = time.perf_counter(), next(batches)
            assert second.made is not None
            assert second.made.end_s <= asked, "nothing of the wait was for making it"
            assert [
                batch.made.queue_depth for batch in (first, second) if batch.made is not None
            ] == [0, depth]


@pytest.fixture
def looked_at_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch is looked at, however short."""
    if begin_look(1, 1) is None:
        pytest.skip("this system does not say what a thread waits for")
    for module in (stage_look, batch_assembly):
        monkeypatch.setattr(module, "LEAST_BATCH_S", 0.0)
    monkeypatch.setattr(core_use, "EVERY", 1)


WITHOUT_CLOCK = {"idx": "decode", "memory-float": "read"}
"""Storage -> the stage that is what remains of making a sample."""


def uses_of(batch: Batch, storage: str = "") -> dict[str, CoreTimes]:
    """What the stages of a batch used; each took as long as the batch's times say."""
    assert batch.made is not None
    assert batch.looked is not None
    uses = {name: CoreTimes(*use) for name, use in batch.looked.stages}
    for stage, seconds in zip(TIMED_STAGES, batch.made, strict=False):
        if stage in uses and stage != WITHOUT_CLOCK.get(storage):
            assert uses[stage].wall_s == pytest.approx(seconds), stage
    assert batch.looked.counts_for == 1
    assert batch.looked.cost_s > 0
    return uses


@pytest.mark.usefixtures("shared_home", "looked_at_each")
class TestLooks:
    @pytest.mark.parametrize("variant", EVERY, ids=variant_id)
    def test_each_loader_says_what_its_stages_used_of_the_cores(
        self, variant: dict[str, Any]
    ) -> None:
        with opened(config_of(**variant, batch_size=200)) as loader:
            batches = list(loader.epoch(0))
        for batch in batches:
            assert batch.made is not None
            took = {
                stage
                for stage, seconds in zip(TIMED_STAGES, batch.made, strict=False)
                if seconds > 0
            }
            storage = variant.get("storage", "")
            uses = uses_of(batch, storage)
            # The last of its threads collates, for microseconds.
            assert took - ({"collate"} if variant == THREADS else set()) <= set(uses)
            # What remains may be below 0 in a batch.
            by_clock = took - {WITHOUT_CLOCK.get(storage)}
            assert all(use.queued_s >= 0 for name, use in uses.items() if name in by_clock)

    @pytest.mark.parametrize("variant", [BATCHES, IN_LOOP | {"storage": "idx"}], ids=variant_id)
    @pytest.mark.parametrize(("train", "times"), [(False, True), (True, False)])
    def test_no_evaluation_and_nothing_without_times_is_looked_at(
        self, variant: dict[str, Any], train: bool, times: bool
    ) -> None:
        config = config_of(**variant, batch_size=200, loader_times=times)
        with opened(config, train=train) as loader:
            assert {batch.looked for batch in loader.epoch(0)} == {None}

    def test_a_sample_that_fails_ends_the_look(self, monkeypatch: pytest.MonkeyPatch) -> None:
        closed = list[ThreadFiles]()
        close = ThreadFiles.close
        monkeypatch.setattr(ThreadFiles, "close", lambda of: (closed.append(of), close(of)))
        stopwatch = Stopwatch()
        stopwatch.rest = "read"
        samples = TimedSamples([0], stopwatch, looks=True)  # type: ignore[arg-type]
        with pytest.raises(IndexError):
            samples.__getitems__([0, 1])
        assert len(closed) == 1


@pytest.mark.usefixtures("photos")
class TestPhotos:
    @pytest.mark.parametrize("variant", PHOTOS, ids=variant_id)
    def test_each_batch_says_how_it_was_made(self, variant: dict[str, Any]) -> None:
        began = time.perf_counter()
        with opened(photos_config(**variant, batch_size=8)) as loader:
            folder = variant.get("storage") == "imagefolder"
            for batch in itertools.islice(loader.epoch(0), 3):
                made = check(batch.made, began, alone=folder)
                assert made.read_s > 0
                assert (
                    made.transform_s > 0
                ) == folder  # the crops of the others are part of their decoding
                if variant["loader"] == "dali":
                    assert math.isnan(made.decode_s)
                    assert math.isnan(made.collate_s)
                else:
                    assert min(made.decode_s, made.collate_s) > 0

    @pytest.mark.usefixtures("looked_at_each")
    @pytest.mark.parametrize("variant", [v for v in PHOTOS if v is not DALI], ids=variant_id)
    def test_what_stages_used_of_the_cores_is_known(self, variant: dict[str, Any]) -> None:
        with opened(photos_config(**variant, batch_size=8)) as loader:
            for batch in itertools.islice(loader.epoch(0), 3):
                assert {"read", "decode"} <= set(uses_of(batch))

    def test_an_image_folder_that_is_timed_gives_the_same_images(self) -> None:
        config = photos_config(storage="imagefolder", loader="dataloader", workers=0)
        storage = storage_of(config)
        plain, timed = storage.dataset(), storage.dataset(Stopwatch())
        for index in (0, 7):
            assert torch.equal(plain[index][0], timed[index][0])
            assert plain[index][1] == timed[index][1]


def test_a_batch_survives_pinning(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch builds it anew in its pinning thread; that memory is pinned by CUDA only."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor, device=None: tensor.clone())
    looked = LookedBatch(1, (("read", CoreTimes(0.4, 0.3, 0.2, 0.1)),), 0.01)
    batch = Batch(
        torch.zeros(2, 1),
        torch.arange(2),
        ("a line",),
        BatchTimes(*[0.5] * 6, 1.0),
        looked=looked,
    )
    pinned = pin_memory(batch)
    assert (type(pinned), type(pinned.made)) == (Batch, BatchTimes)
    assert pinned.made[:7] == batch.made[:7]  # type: ignore[index]
    assert tuple(pinned.unreadable) == ("a line",)  # torch 2.6 makes a list of it
    assert pin_memory(batch._replace(made=None)).made is None
    sums = StageUses()
    sums.add(pinned.looked)
    assert sums.facts()["making"]["stages"]["read"]["queued_s"] == 0.2
    # A PyTorch that hides its queues makes the depth unknown.
    assert math.isnan(n_ready(object()))
    assert math.isnan(n_ready(iter([])))
