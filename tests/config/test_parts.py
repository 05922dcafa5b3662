"""The facts about parts, models and slow drives, against where they come from; and which parts fit together.
tests/engine/test_contract.py runs every combination."""

from typing import Any

import pytest

from tests.config.configs import legal_combinations
from vitprof.config import CHOICES, RunConfig
from vitprof.config import parts as module
from vitprof.config.drives import SLOW_DRIVES, SlowDrive, slow_drive
from vitprof.config.models import model_preset
from vitprof.config.parts import (
    DECODERS,
    LOADERS,
    LOCATIONS,
    STORAGES,
    TRANSFERS,
    Combination,
    prepared_as,
    why_not,
)
from vitprof.datasets.catalog import DATASETS

DIGITS, PHOTOS = DATASETS["digits"], DATASETS["photos"]


@pytest.mark.parametrize("info", [DIGITS, PHOTOS], ids=lambda d: d.name)
def test_every_part_is_of_use_somewhere(info: Any) -> None:
    """Adding a storage makes it usable with every loader, location and transfer that it fits."""
    legal = legal_combinations(info)
    assert len(set(legal)) == len(legal)
    assert {c.storage for c in legal} == {s.name for s in STORAGES.values() if info.kind in s.kinds}
    assert {c.location for c in legal} == set(LOCATIONS)
    assert {c.loader for c in legal} == {p.name for p in LOADERS.values() if info.kind in p.kinds}
    assert {c.transfer for c in legal} == set(TRANSFERS)


@pytest.mark.parametrize(
    ("parts", "field", "message"),
    [
        (("hdf5", "staged", "ahead", "stream"), "", ""),
        (("memory", "disk", "batches", "resident"), "", ""),
        (("imagefolder", "disk", "dataloader", "blocking"), "storage", "it cannot keep digits"),
        (("files", "disk", "batches", "blocking"), "loader", "it cannot read storage files"),
        (
            ("files", "disk", "dali", "blocking"),
            "loader",
            "choose one of dataloader, threads, generator",
        ),
        (("memory", "ram-disk", "batches", "blocking"), "location", "in memory while training"),
        (("memory", "disk", "ahead", "resident"), "transfer", "storage memory and loader batches"),
    ],
)
def test_what_fits_and_what_does_not(parts: tuple[str, ...], field: str, message: str) -> None:
    wrong = why_not(DIGITS, Combination(*parts))
    assert (wrong.field if wrong else "") == field
    assert message in (wrong.allowed if wrong else "")


def test_settings_are_those_of_the_four_parts_and_no_default_is_deprecated() -> None:
    knobs = Combination("files", "staged", "threads", "pinned").knobs()
    settings = (
        "decoder slow_drive slow_mb_s slow_latency_ms workers prefetch_factor shuffle cache_mb"
    )
    assert set(knobs) == set(settings.split())
    assert Combination("hdf5-chunked", "disk", "ahead", "pinned").knobs()["shuffle"] == "block"
    assert set(Combination("files", "disk", "dali", "blocking").knobs()) == {
        "workers",
        "prefetch_factor",
    }
    assert set(DECODERS) == {"idx", "jpeg"}
    for names in DECODERS.values():
        assert names[0] not in module.DEPRECATED_DECODERS
        assert set(module.DEPRECATED_DECODERS) <= set(names)
    assert set(DECODERS["jpeg"]) == set(CHOICES["decoder"])


@pytest.mark.parametrize(
    ("storage", "kind", "made_as"),
    [
        ("idx", "idx", None),
        ("files", "idx", "files"),
        ("memory", "jpeg", "memmap"),
        ("pt-whole", "idx", "pt-single"),
        ("hdf5", "jpeg", "hdf5"),
    ],
)
def test_what_a_storage_is_read_from(storage: str, kind: str, made_as: str | None) -> None:
    assert prepared_as(storage, kind) == made_as


def test_tiny_is_the_model_of_reference_section_1() -> None:
    tiny = model_preset("tiny")
    shape = (
        tiny.image_size,
        tiny.patch_size,
        tiny.dim,
        tiny.depth,
        tiny.heads,
        tiny.mlp_dim,
        tiny.head,
    )
    assert shape == (28, 7, 64, 6, 8, 128, "mlp")
    assert tiny.scale == pytest.approx(tiny.dim**-0.5)
    assert tiny.lr == pytest.approx(0.003)


def test_slow_drives() -> None:
    network = SLOW_DRIVES["network-drive"]
    epoch_s = 5981 * (network.latency_ms / 1e3 + 100_000 / (network.mb_s * 1e6))
    assert epoch_s == pytest.approx(
        (24 - 3) * 60, rel=0.01
    )  # the article on a mounted network drive
    assert SLOW_DRIVES["mechanical-disk"].serial
    assert not network.serial
    assert slow_drive(RunConfig(location="slow-drive")) == SLOW_DRIVES["network-drive"]
    config = RunConfig(slow_drive="mechanical-disk", slow_mb_s=5, slow_latency_ms=0)
    assert slow_drive(config) == SlowDrive(5, 0, serial=True)
