"""What strategies take: against what the storages themselves expect, and against one that has been made."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine_fixtures import SMALL, never, small_home  # noqa: F401
from vitprof.config.catalog import DATASETS
from vitprof.config.footprint import footprint, made, pixel_bytes, source_bytes, storage_bytes
from vitprof.config.parts import STORAGES, prepared_as
from vitprof.config.strategies import STRATEGIES
from vitprof.engine.data import datasets
from vitprof.engine.storage.prepare import prepare_storage
from vitprof.engine.storage.registry import format_of

PREPARED = [
    (storage, name)
    for name in ("digits", "photos")
    for storage in STORAGES
    if DATASETS[name].kind in STORAGES[storage].kinds and prepared_as(storage, DATASETS[name].kind) == storage
]


@pytest.mark.parametrize(("storage", "dataset"), PREPARED)
def test_estimates_agree_with_what_the_storage_asks_for(storage: str, dataset: str) -> None:
    info = DATASETS[dataset]
    asked = (info.n_train + info.n_test) * format_of(storage).bytes_a_sample(info)
    assert 0.4 < storage_bytes(storage, info) / asked < 2.5  # some ask for room to write everything twice


@pytest.mark.parametrize("storage", ["memmap", "raw-files"])
@pytest.mark.usefixtures("small_home")
def test_a_storage_that_was_made_is_known_with_its_size_and_time(storage: str) -> None:
    assert made(storage, SMALL) is None
    root = datasets.prepare("digits")
    prepared = prepare_storage(storage, SMALL, root, progress=lambda fraction, message: None, stop=never)
    found = made(storage, SMALL)
    assert found is not None
    assert (found.size_bytes, found.prepare_s) == (prepared.size_bytes, prepared.prepare_s)
    plan = STRATEGIES["cache" if storage == "raw-files" else "preprocessed"]
    needs = footprint(plan.combination(SMALL), SMALL)
    assert (needs.made, needs.prepared_as, needs.disk_bytes) == (found, storage, prepared.size_bytes)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"size_bytes": "many", "prepare_s": 1}'])
def test_a_manifest_that_cannot_be_read_counts_as_not_made(vitprof_home: Path, text: str) -> None:
    directory = vitprof_home / "prepared" / "digits" / "memmap"
    directory.mkdir(parents=True)
    (directory / "manifest.json").write_text(text)
    assert made("memmap", DATASETS["digits"]) is None


def test_what_is_kept_in_memory() -> None:
    digits, photos = DATASETS["digits"], DATASETS["photos"]
    assert pixel_bytes(digits) == 70_000 * 784
    takes = {name: footprint(plan.combination(photos), photos) for name, plan in STRATEGIES.items()}
    assert takes["memory"].ram_bytes == pixel_bytes(photos)
    assert takes["tensordataset"].ram_bytes == 4 * pixel_bytes(photos)
    assert takes["per-sample"].ram_bytes == takes["threads"].disk_bytes == 0
    assert takes["ram-disk"].ram_disk_bytes == takes["staged"].staged_bytes == source_bytes(photos)
    assert takes["device"].device_bytes == pixel_bytes(photos)
    # torchvision's MNIST reads its whole file when it is constructed
    cache = STRATEGIES["cache"].combination(digits)
    assert footprint(cache, digits, 5.0).ram_bytes == footprint(cache, digits).ram_bytes + 5_000_000
    assert footprint(STRATEGIES["per-sample"].combination(digits), digits).ram_bytes == pixel_bytes(digits)
