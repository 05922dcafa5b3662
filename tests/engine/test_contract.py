"""The contract of storages, locations, loaders and transfers: each epoch has each sample once, in the order that all
strategies share, with the pixels and labels of the data set's own files, and nothing is left behind. Each pair of parts
that is possible is in a combination that is tried; `VITPROF_EVERY_COMBINATION=1` tries all combinations."""

import dataclasses
import functools
import itertools
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.config.configs import legal_combinations
from tests.engine.storage.preparing import open_files
from tests.engine_fixtures import Recorded, never, small_digits
from vitprof.config import RunConfig
from vitprof.config.availability import installed
from vitprof.config.parts import LOADERS, STORAGES, Combination, Part
from vitprof.config.resolve import resolve
from vitprof.datasets import on_disk
from vitprof.datasets.catalog import DatasetInfo, dataset_info
from vitprof.engine.loaders.contract import Batch, epoch_order
from vitprof.engine.pipeline import Pipeline, Split, open_pipeline
from vitprof.engine.storage.source import open_source
from vitprof.measure.devices import CpuDevice

N_PHOTOS = 10
DIGITS = dataclasses.replace(dataset_info("digits"), n_train=300, n_test=50)
"""Small, for they are read some 400 times; more than the 128 neighbours that stay together in a block shuffle."""
BATCH = {"digits": 125, "photos": 4}
"""Neither divides its set: the last batch of an epoch is smaller."""
CHUNK = {"digits": 256, "photos": 4}
"""Rows of a chunk of the HDF5 file."""
SEED = 7

LOSSLESS = 0.0
RESAMPLED = 6.0
"""Mean absolute difference, in 256 steps of brightness, that an image may have from the reference's (simplejpeg and
OpenCV) where the crop is the same. Pillow, torchvision and the loaders that decode batches upsample chroma and resize
with filters of their own: 1.4 to 4.2 were seen."""
RESIZED_FIRST = 12.0
"""The same where the image is resized before it is cropped, as tutorials do: the crop then begins at a whole pixel of
the resized image, up to half a pixel beside the reference's. 3 to 9.2 were seen."""
OTHER_IMAGE = 20.0
"""Two different photos differ by more than this."""


Named = tuple[str, str]


@functools.cache
def pairs(parts: Combination) -> frozenset[tuple[Named, Named]]:
    """Returns every two of the four parts, each with its kind."""
    return frozenset(itertools.combinations(dataclasses.asdict(parts).items(), 2))


def chosen(name: str) -> list[Combination]:
    """Returns those that are tried of a data set: the one with most pairs that are new, until none is."""
    every = list(legal_combinations(dataset_info(name)))
    if os.environ.get("VITPROF_EVERY_COMBINATION") == "1":
        return every
    new, found = set().union(*map(pairs, every)), list[Combination]()
    while new:
        found.append(max(every, key=lambda parts: len(pairs(parts) & new)))
        new -= pairs(found[-1])
    return found


def needs(*parts: Part) -> list[Any]:
    missing = [package for part in parts for package in part.packages if not installed(package)]
    return [pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")]


def cases() -> Iterator[Any]:
    for name in ("digits", "photos"):
        for parts in chosen(name):
            ids = (name, parts.storage, parts.location, parts.loader, parts.transfer)
            yield pytest.param(
                name,
                parts,
                id="-".join(ids),
                marks=needs(LOADERS[parts.loader], STORAGES[parts.storage]),
            )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home where small sets and their storages are made once; each test finds them ready."""
    home, threads = tmp_path_factory.mktemp("contract"), torch.get_num_threads()
    torch.set_num_threads(1)
    with small_digits(home, DIGITS):
        yield home
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _use_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITPROF_HOME", str(home))


def config_of(name: str, parts: Combination, **more: Any) -> RunConfig:
    """A config that asks for exactly these parts. Small sets need a fast slow drive."""
    values: dict[str, Any] = {
        "dataset": name,
        "n_images": N_PHOTOS if name == "photos" else None,
        "strategy": "workers",
        "storage": parts.storage,
        "location": parts.location,
        "loader": parts.loader,
        "transfer": parts.transfer,
        "batch_size": BATCH[name],
        "image_size": dataset_info(name).image_size,
        "augment": "off",
        "seed": SEED,
        "device": "cpu",
    }
    # Starting workers is most of these tests' time: two are as right as one (those over raw files and over a map are
    # two), and a transfer does not know who made a batch (tests/transfer has batches of others).
    if parts.loader == "dataloader" and parts.transfer != "blocking":
        values["workers"] = 0
    elif parts.loader == "dataloader" and (
        parts.location != "disk" or parts.storage not in ("raw-files", "memmap")
    ):
        values["workers"] = 1
    if parts.location in ("slow-drive", "staged"):
        values |= {"slow_mb_s": 5000.0, "slow_latency_ms": 0.0}
    return resolve(RunConfig(**(values | more)))


def opened(config: RunConfig, *, evaluate: bool = True) -> AbstractContextManager[Pipeline]:
    device = CpuDevice(time.perf_counter)
    return open_pipeline(config, device, Recorded(), never, time.perf_counter, evaluate=evaluate)


@functools.cache
def reference(name: str, train: bool) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The images (n, h, w, c) and labels (n,) of the data set's own files, decoded and cropped once."""
    n_images = N_PHOTOS if name == "photos" else None
    source = open_source(dataset_info(name, n_images), on_disk.prepare(name, n_images), train=train)
    return np.array(source.pixels(0, len(source.ids))), source.labels


def delivered(
    split: Split, info: DatasetInfo, epoch: int
) -> tuple[NDArray[np.float32], NDArray[np.int64], list[int]]:
    """An epoch as it reaches the model, images back on the scale 0..255 (n, h, w, c), labels (n,), sizes of batches."""
    images, labels, sizes = [], [], []
    mean, std = (255 * torch.tensor(values).view(1, -1, 1, 1) for values in (info.mean, info.std))
    for batch in split.epoch(epoch):
        moved = split.transfer(batch)
        normalised = moved.images if split.transfer.normalises else split.to_input(moved.images)
        images.append((normalised * std + mean).permute(0, 2, 3, 1).numpy())
        labels.append(moved.labels.numpy().copy())
        sizes.append(len(moved.labels))
        assert (type(batch), batch.labels.dtype, batch.unreadable) == (Batch, torch.int64, ())
    return np.concatenate(images), np.concatenate(labels), sizes


def tolerance(parts: Combination) -> float:
    """How far an image may be from the reference's."""
    if LOADERS[parts.loader].decodes:
        return RESAMPLED
    return RESIZED_FIRST if parts.storage == "imagefolder" else LOSSLESS


def check_epoch(
    name: str, within: float, got: Any, order: NDArray[np.int64], *, train: bool
) -> None:
    images, labels, sizes = got
    wanted_images, wanted_labels = reference(name, train)
    n, batch_size = len(wanted_labels), BATCH[name]
    assert sizes == [min(batch_size, n - start) for start in range(0, n, batch_size)]
    assert sorted(order.tolist()) == list(range(n))
    assert labels.tolist() == wanted_labels[order].tolist()
    if within == LOSSLESS:
        assert np.array_equal(np.rint(images), wanted_images[order])
    else:
        assert np.abs(images - wanted_images[order]).mean(axis=(1, 2, 3)).max() <= within
        if n > 1:
            assert (
                np.abs(images - wanted_images[np.roll(order, 1)]).mean(axis=(1, 2, 3)).min()
                > OTHER_IMAGE
            )


def loose_files(home: Path) -> set[str]:
    """What a job may only leave for as long as it runs."""
    ram_disk = Path("/dev/shm") / f"vitprof-{os.getuid()}"  # where other programs have theirs too
    found = [*(home / "locations").rglob("*"), *ram_disk.glob(f"*.{os.getpid()}.*/**/*")]
    return {str(path) for path in found if path.is_file()}


@pytest.mark.parametrize("name", ["digits", "photos"])
def test_each_part_meets_every_other_part(name: str) -> None:
    every = list(legal_combinations(dataset_info(name)))
    assert set().union(*map(pairs, chosen(name))) == set().union(*map(pairs, every))
    if "VITPROF_EVERY_COMBINATION" not in os.environ:
        assert len(chosen(name)) < len(every) / 4


@pytest.mark.parametrize(("name", "parts"), list(cases()))
def test_contract(name: str, parts: Combination, home: Path) -> None:
    config = config_of(name, parts)
    info = dataset_info(name, config.n_images)
    with opened(config) as pipeline:
        assert pipeline.test is not None
        n = len(reference(name, True)[1])
        assert pipeline.train.n == n
        block = CHUNK[name] if parts.storage == "hdf5-chunked" else 128
        for epoch in (0, 1):
            order = epoch_order(n, SEED, epoch, config.shuffle or "full", block).numpy()
            check_epoch(
                name, tolerance(parts), delivered(pipeline.train, info, epoch), order, train=True
            )
        stored_order = np.arange(len(reference(name, False)[1]))
        check_epoch(
            name, tolerance(parts), delivered(pipeline.test, info, 0), stored_order, train=False
        )
        del pipeline
    assert open_files(home) == open_files(Path("/dev/shm/vitprof")) == []
    assert loose_files(home) == set()


@pytest.mark.parametrize(
    "storage", [pytest.param(s, marks=needs(p)) for s, p in STORAGES.items() if p.form == "encoded"]
)
def test_every_loader_crops_a_sample_alike(storage: str) -> None:
    """Random crops depend on seed, epoch and sample alone, so runs of different loaders can be compared."""
    info = dataset_info("photos", N_PHOTOS)
    seen = []
    for loader, workers in (("threads", 2), ("generator", None), ("dataloader", 2)):
        parts = Combination(storage, "disk", loader, "blocking")
        with opened(
            config_of("photos", parts, augment="cpu", workers=workers), evaluate=False
        ) as pipeline:
            first, _, _ = delivered(pipeline.train, info, 0)
            second, _, _ = delivered(pipeline.train, info, 1)
        assert not np.array_equal(
            first[np.argsort(epoch_order(N_PHOTOS, SEED, 0))],
            second[np.argsort(epoch_order(N_PHOTOS, SEED, 1))],
        )
        seen.append((first, second))
    assert all(
        np.array_equal(a, b) for other in seen[1:] for a, b in zip(seen[0], other, strict=True)
    )
