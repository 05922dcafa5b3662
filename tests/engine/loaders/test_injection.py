"""Waits put into a part on purpose: once for each batch, in that part and in no other; refused where there is none."""

import itertools
import math
import time
from typing import Any

import pytest

from tests.engine.loaders.loader_helpers import (
    DALI,
    THREADS,
    WORKERS,
    config_of,
    opened,
    photos_config,
    variant_id,
)
from tests.engine_fixtures import error_in_one_line, trained
from vitprof.engine.loaders import batch_assembly, batches, dataloader
from vitprof.engine.storage import torchvision_datasets
from vitprof.errors import ConfigError
from vitprof.measure import stopwatch

LATE_S = 1000.0
"""More than any test takes: whatever is longer has the wait in it."""
PARTS = ("read", "decode", "transform", "collate")
CASES: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"loader": "batches", "augment": "cpu"}, ("read", "transform", "collate")),
    ({"loader": "ahead"}, ("read", "collate")),
    ({"loader": "generator", "storage": "files"}, ("read", "decode", "collate")),
    ({"loader": "generator", "storage": "idx"}, PARTS),
    ({"loader": "dataloader", "workers": 0, "storage": "files", "augment": "cpu"}, PARTS),
    ({"loader": "dataloader", "workers": 0, "storage": "memory-float"}, ("read", "collate")),
    (THREADS | {"workers": 1}, ("read", "decode", "collate")),
]


def case_id(value: Any) -> str:
    return variant_id(value) if isinstance(value, dict) else value if isinstance(value, str) else ""


class Sleeper:
    """A clock that goes on by `LATE_S` at each wait, instead of waiting."""

    def __init__(self) -> None:
        self.naps = 0

    def sleep(self, seconds: float) -> None:
        assert seconds == 0.03
        self.naps += 1

    def perf_counter(self) -> float:
        return time.perf_counter() + LATE_S * self.naps


@pytest.fixture
def sleeper(monkeypatch: pytest.MonkeyPatch) -> Sleeper:
    """In the place of the clock in all that makes batches in this process."""
    sleeper = Sleeper()
    monkeypatch.setattr(stopwatch, "time", sleeper)
    for module in (stopwatch, batches, batch_assembly, dataloader, torchvision_datasets):
        monkeypatch.setattr(module, "perf_counter", sleeper.perf_counter)
    return sleeper


def check(sleeper: Sleeper, config: Any, part: str, n: int) -> None:
    """The first `n` batches have the wait in `part` only, and there was one for each."""
    with opened(config) as loader:
        batches = loader.epoch(0)
        for batch in itertools.islice(batches, n):
            assert batch.made is not None
            spent = {name: getattr(batch.made, f"{name}_s") for name in PARTS}
            assert [name for name in PARTS if spent[name] >= LATE_S] == [part]
            assert not any(spent[name] >= 2 * LATE_S for name in PARTS)
        batches.close()


@pytest.mark.usefixtures("shared_home")
class TestDigits:
    @pytest.mark.parametrize(
        ("variant", "part"), [(v, part) for v, parts in CASES for part in parts], ids=case_id
    )
    def test_it_is_in_its_part_of_each_batch_and_in_no_other(
        self, variant: dict[str, Any], part: str, sleeper: Sleeper
    ) -> None:
        check(sleeper, config_of(**variant, batch_size=200, inject=f"{part}:30"), part, 3)
        assert sleeper.naps == 3

    @pytest.mark.parametrize(("variant", "parts"), CASES, ids=case_id)
    def test_parts_that_a_job_has_not_are_refused(
        self, variant: dict[str, Any], parts: tuple[str, ...]
    ) -> None:
        for part in set(PARTS) - set(parts):
            has = ", ".join([*parts, "transfer"])
            with error_in_one_line(ConfigError, match=f"this job has no such stage; it has {has}$"):
                config_of(**variant, inject=f"{part}:30")

    @pytest.mark.parametrize(("storage", "part"), [("memory", "read"), ("idx", "collate")])
    def test_workers_wait_where_they_are(self, storage: str, part: str) -> None:
        with opened(
            config_of(**WORKERS, storage=storage, batch_size=300, inject=f"{part}:30")
        ) as loader:
            spent = [getattr(batch.made, f"{part}_s") for batch in loader.epoch(0)]
        assert len(spent) == 2
        assert min(spent) >= 0.03

    @pytest.mark.parametrize("variant", [case for case, _ in CASES], ids=variant_id)
    def test_without_a_clock_they_wait_all_the_same_but_for_the_test_set(
        self, variant: dict[str, Any], sleeper: Sleeper
    ) -> None:
        config = config_of(**variant, batch_size=200, inject="collate:30", loader_times=False)
        for train in (True, False):
            with opened(config, train=train) as loader:
                assert {batch.made for batch in loader.epoch(0)} == {None}
            assert sleeper.naps == 3

    def test_a_run_says_that_it_was_kept_waiting(self) -> None:
        run = trained(
            strategy="memory", inject="transfer:2.5", steps=3, warmup_steps=0, loader_only=True
        )
        assert run.notices == ["a wait of 2.5 ms is put into the transfer of each batch on purpose"]
        assert min(run["h2d_s"]) >= 0.0025
        assert min(run["read_s"]) > 0

    def test_transfers_without_a_copy_in_the_loop_are_not_kept_waiting(self) -> None:
        for transfer in ("stream", "resident"):
            with pytest.raises(
                ConfigError, match=r"this job has no such stage; it has read, collate$"
            ):
                config_of(loader="batches", transfer=transfer, inject="transfer:30")


@pytest.mark.usefixtures("photos")
class TestPhotos:
    @pytest.mark.parametrize("part", PARTS)
    def test_an_image_folder_waits_in_its_part(self, part: str, sleeper: Sleeper) -> None:
        config = photos_config(
            storage="imagefolder", loader="dataloader", workers=0, batch_size=2, inject=f"{part}:30"
        )
        check(sleeper, config, part, 2)
        assert sleeper.naps == 2

    @pytest.mark.parametrize("variant", [DALI])
    def test_dali_is_kept_waiting_for_what_it_reads(self, variant: dict[str, Any]) -> None:
        with pytest.raises(ConfigError, match=r"this job has no such stage; it has read$"):
            photos_config(**variant, inject="decode:30")
        with opened(photos_config(**variant, batch_size=8, inject="read:30")) as loader:
            made = next(loader.epoch(0)).made
        assert made is not None
        assert made.read_s >= 0.03
        assert math.isnan(made.decode_s)

    def test_crops_of_photos_are_part_of_their_decoding(self) -> None:
        with pytest.raises(ConfigError, match=r"it has read, decode, collate, transfer$"):
            photos_config(augment="cpu", inject="transform:30")
