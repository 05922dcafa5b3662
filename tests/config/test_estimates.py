"""What strategies take and how long runs last: against what storages expect, what has been made, and arithmetic."""

import math
from pathlib import Path
from typing import Any

import pytest

from tests.engine_fixtures import SMALL, never, small_home  # noqa: F401
from vitprof.config import RunConfig, estimates
from vitprof.config.estimates import (
    STARTUP_S,
    Duration,
    about,
    duration_sentence,
    footprint,
    made,
    pixel_bytes,
)
from vitprof.config.parts import STORAGES, prepared_as, why_not
from vitprof.config.resolve import resolve
from vitprof.config.strategies import STRATEGIES
from vitprof.datasets import on_disk
from vitprof.datasets.catalog import DATASETS, dataset_info
from vitprof.engine.locations.copying import MOST_COPY_THREADS
from vitprof.engine.storage import format_of
from vitprof.engine.storage.prepare import prepare_storage

PREPARED = [
    (storage, name)
    for name in ("digits", "photos")
    for storage in STORAGES
    if DATASETS[name].kind in STORAGES[storage].kinds
    and prepared_as(storage, DATASETS[name].kind) == storage
]


@pytest.mark.parametrize(("storage", "dataset"), PREPARED)
def test_estimates_agree_with_what_the_storage_asks_for(storage: str, dataset: str) -> None:
    for package in STORAGES[storage].packages:
        pytest.importorskip(package)
    info = DATASETS[dataset]
    asked = (info.n_train + info.n_test) * format_of(storage).bytes_a_sample(info)
    assert (
        0.4 < estimates.storage_bytes(storage, info) / asked < 2.5
    )  # some ask for room to write everything twice


@pytest.mark.parametrize("storage", ["memmap", "raw-files"])
@pytest.mark.usefixtures("small_home")
def test_a_storage_that_was_made_is_known_with_its_size_and_time(storage: str) -> None:
    assert made(storage, SMALL) is None
    root = on_disk.prepare("digits")
    prepared = prepare_storage(
        storage, SMALL, root, progress=lambda fraction, message: None, stop=never
    )
    found: Any = made(storage, SMALL)
    assert (found.size_bytes, found.prepare_s) == (prepared.size_bytes, prepared.prepare_s)
    plan = STRATEGIES["cache" if storage == "raw-files" else "preprocessed"]
    needs = footprint(plan.combination(SMALL), SMALL)
    assert (needs.made, needs.prepared_as, needs.disk_bytes) == (
        found,
        storage,
        prepared.size_bytes,
    )


def test_a_manifest_that_cannot_be_read_counts_as_not_made(vitprof_home: Path) -> None:
    directory = vitprof_home / "prepared" / "digits" / "memmap"
    directory.mkdir(parents=True)
    for text in ("", "[]", "{}", '{"size_bytes": "many", "prepare_s": 1}'):
        (directory / "manifest.json").write_text(text)
        assert made("memmap", DATASETS["digits"]) is None


def test_what_is_kept_in_memory() -> None:
    digits, photos = DATASETS["digits"], DATASETS["photos"]
    assert pixel_bytes(digits) == 70_000 * 784
    takes = {name: footprint(plan.combination(photos), photos) for name, plan in STRATEGIES.items()}
    assert takes["memory"].ram_bytes == pixel_bytes(photos)
    assert takes["tensordataset"].ram_bytes == 4 * pixel_bytes(photos)
    assert takes["per-sample"].ram_bytes == takes["threads"].disk_bytes == 0
    assert (
        takes["ram-disk"].ram_disk_bytes
        == takes["staged"].staged_bytes
        == estimates.source_bytes(photos)
    )
    assert takes["device"].device_bytes == pixel_bytes(photos)
    # torchvision's MNIST reads its whole file when it is constructed
    cache = STRATEGIES["cache"].combination(digits)
    assert footprint(cache, digits, 5.0).ram_bytes == footprint(cache, digits).ram_bytes + 5_000_000
    assert footprint(STRATEGIES["per-sample"].combination(digits), digits).ram_bytes == pixel_bytes(
        digits
    )


def of(*, made: bool = True, prepared: bool = True, **asked: Any) -> Duration:
    config = resolve(RunConfig(**asked))
    return estimates.duration(
        config, dataset_info(config.dataset, config.n_images), made=made, prepared=prepared
    )


def said(**asked: Any) -> str:
    return duration_sentence(of(**asked))


def test_budgets_in_seconds_and_in_steps() -> None:
    assert said(strategy="memory", seconds=20, evaluate=False) == f"About {20 + STARTUP_S:.0f} s."
    assert (
        said(strategy="memory", seconds=20)
        == f"At least {20 + STARTUP_S:.0f} s: the evaluation comes on top."
    )
    assert math.isnan(of(strategy="memory", steps=200).seconds)
    assert said(strategy="memory", steps=200) == ""
    found = of(strategy="memory", steps=200, batch_size=100, device="simulated:50,100")
    assert found.seconds == pytest.approx(STARTUP_S + 200 * (0.05 + 100 * 100e-6))
    assert duration_sentence(found).startswith("At least 14 s")


def test_the_start_is_as_long_as_it_is_known_to_be() -> None:
    config = resolve(RunConfig(strategy="memory", seconds=20))
    found = estimates.duration(config, dataset_info("digits"), made=True, startup_s=7.0)
    assert (found.seconds, found.first_step_s) == (27, 7)


def test_a_slow_drive_costs_its_latency_and_its_bytes() -> None:
    one = of(strategy="slow-drive", workers=0, steps=200, batch_size=128)
    assert one.seconds / 60 == pytest.approx(
        88, abs=3
    )  # 207 ms for each of 25,600 files, and their bytes
    assert duration_sentence(one).endswith("min: 207 ms for each of 25,600 files.")
    two = of(strategy="slow-drive", steps=200, batch_size=128)
    assert two.seconds == pytest.approx(one.seconds / 2, rel=0.02)
    assert two.why == "207 ms for each of 25,600 files, 2 at a time"
    found = of(strategy="slow-drive", seconds=20, batch_size=128, evaluate=False)
    assert found.first_step_s == pytest.approx(STARTUP_S + 128 * (0.207 + 4096 / 30e6))
    assert found.seconds == pytest.approx(found.first_step_s)
    assert found.why == "the first batch needs 207 ms for each of 128 files"
    disk = of(
        strategy="slow-drive", slow_drive="mechanical-disk", workers=4, steps=100, batch_size=10
    )
    assert disk.seconds - disk.first_step_s == pytest.approx(1000 * (0.012 + 4096 / 150e6))
    file = of(strategy="hdf5", location="slow-drive", slow_mb_s=0.784, steps=1000, batch_size=1)
    assert file.seconds - file.first_step_s == pytest.approx(1000 * 784 / 0.784e6)


def test_what_is_not_there_is_copied_or_made_first() -> None:
    found = of(strategy="staged", seconds=20, evaluate=False)
    assert estimates.STAGING_READERS == MOST_COPY_THREADS
    assert found.seconds == pytest.approx(
        STARTUP_S + 20 + 60_000 * 0.207 / estimates.STAGING_READERS
    )
    assert found.why == "the copy takes 207 ms for each of 60,000 files, 512 at a time"
    found = of(made=False, strategy="per-sample", dataset="photos", n_images=10_000, seconds=20)
    assert found.seconds == pytest.approx(STARTUP_S + 11_000 * 3.6e-3 + 20)
    assert "photos is made first (40 s)" in duration_sentence(found)
    found = of(prepared=False, strategy="staged", seconds=20, evaluate=False)
    there = of(strategy="staged", seconds=20, evaluate=False)
    assert found.first_step_s - there.first_step_s == pytest.approx(70_000 * 0.2e-3)
    assert duration_sentence(found).startswith(
        "About 60 s: digits is stored as files first (14 s); the copy takes 207 ms"
    )
    both = of(made=False, prepared=False, strategy="slow-drive", seconds=20, evaluate=False)
    assert both.why.startswith(
        "digits is stored as files first (14 s); the first batch needs 207 ms"
    )
    photos = {"dataset": "photos", "n_images": 2000, "seconds": 20, "prepared": False}
    assert of(strategy="preprocessed", **photos).first_step_s == pytest.approx(
        STARTUP_S + 2200 * 1.8e-3
    )
    assert of(strategy="workers", **photos) == of(
        strategy="workers", **(photos | {"prepared": True})
    )
    assert (
        of(strategy="memory", seconds=20, prepared=False).why == "the evaluation comes on top"
    )  # read as they are
    assert [about(s) for s in (24.4, 94, 95, 5300, 9000)] == [
        "24 s",
        "94 s",
        "2 min",
        "88 min",
        "2.5 h",
    ]


@pytest.mark.parametrize("dataset", ["digits", "photos"])
def test_no_strategys_defaults_take_long_to_the_first_step(dataset: str) -> None:
    """Once the data are there; what making them takes is said beside the button."""
    info = dataset_info(dataset, None)
    fitting = [
        name for name, plan in STRATEGIES.items() if why_not(info, plan.combination(info)) is None
    ]
    first_s = {
        name: of(strategy=name, dataset=dataset, seconds=20).first_step_s for name in fitting
    }
    assert len(first_s) > 15
    long = {name for name, s in first_s.items() if s >= 30}
    assert long == ({"staged"} if dataset == "photos" else set())  # 1 GB at 30 MB/s: that is said
    copied = said(strategy="staged", dataset=dataset, seconds=20)
    assert copied.startswith("At least 57 s: the copy of 1,050 MB at 30 MB/s;") == bool(long)


def test_a_run_with_a_least_number_of_steps_may_take_longer_than_its_seconds() -> None:
    info = dataset_info("digits")
    config = resolve(RunConfig(seconds=20, least_steps=30, evaluate=False))
    found = estimates.duration(config, info, made=True)
    assert duration_sentence(found) == "At least 22 s, up to 3 min until it has 30 steady steps."
