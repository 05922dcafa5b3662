"""What the loaders' tests share: loaders over small real data sets, and what they should deliver."""

import contextlib
import dataclasses
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.engine_fixtures import N_PHOTOS, descendants, gone, never, silent
from vitprof.config import RunConfig
from vitprof.config.availability import installed
from vitprof.config.parts import LOADERS
from vitprof.config.resolve import resolve
from vitprof.datasets import on_disk
from vitprof.datasets.catalog import DatasetInfo, dataset_info
from vitprof.datasets.mnist import read_split
from vitprof.engine.loaders import open_loader
from vitprof.engine.loaders.contract import Batch, Buffer, Loader
from vitprof.engine.storage import open_storage
from vitprof.engine.storage.contract import Location
from vitprof.engine.storage.prepare import prepare_storage
from vitprof.engine.transforms import ToInput

CPU = torch.device("cpu")
SEED = 42
BATCHES = {"loader": "batches"}
AHEAD = {"loader": "ahead"}
THREADS = {"storage": "files", "loader": "threads", "workers": 2}
GENERATOR = {"loader": "generator"}
IN_LOOP: dict[str, Any] = {"loader": "dataloader", "workers": 0}
WORKERS: dict[str, Any] = {"loader": "dataloader", "workers": 2}
NO_DALI = pytest.mark.skipif(
    not all(map(installed, LOADERS["dali"].packages)), reason="its package is missing"
)
DALI = pytest.param({"loader": "dali"}, marks=NO_DALI, id="dali")
SPDL: list[dict[str, Any]] = [{"storage": "files", "loader": "spdl"}] if installed("spdl") else []


class Sized:
    """A storage of `n` samples with these attributes."""

    def __init__(self, n: int, **attributes: object) -> None:
        self._n = n
        self.__dict__ |= attributes

    def __len__(self) -> int:
        return self._n


def config_of(**config: Any) -> RunConfig:
    """Resolved; by default digits in memory, batches of 64, on the CPU, without augmentation."""
    base = {
        "strategy": "workers",
        "storage": "memory",
        "transfer": "blocking",
        "device": "cpu",
        "batch_size": 64,
    }
    return resolve(RunConfig(**({**base, "augment": "off", "seed": SEED} | config)))


def info_of(config: RunConfig) -> DatasetInfo:
    return dataset_info(config.dataset, config.n_images)


def storage_of(config: RunConfig, *, train: bool = True, root: Path | None = None) -> Any:
    """The storage that `config` names, prepared if need be; of the files under `root` as they are, if it is given."""
    info = info_of(config)
    if root is None:
        made = on_disk.prepare(config.dataset, config.n_images)
        root = prepare_storage(
            config.storage or "", info, made, progress=silent, stop=never
        ).directory
    return open_storage(config.storage or "", info, Location(root), train=train)


@contextlib.contextmanager
def opened(
    config: RunConfig, *, train: bool = True, storage: Any = None, buffer: Buffer | None = None
) -> Iterator[Loader]:
    """A loader over `storage` (by default that of `config`), closed at the end with all its processes."""
    storage = storage_of(config, train=train) if storage is None else storage
    loader = open_loader(storage, info_of(config), config, train=train, buffer=buffer)
    try:
        yield loader
    finally:
        loader.close()
        storage.close()
        assert gone(descendants())
        if (
            config.start_method == "forkserver"
        ):  # Python keeps it to its end; the next test is to find no process
            multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]


def digits(*, train: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """The split as the model gets it, (n, 1, 28, 28) float32, and its labels."""
    info = dataset_info("digits")
    images, labels = read_split(on_disk.prepare("digits"), train)
    return ToInput(info, "uint8", 28, CPU)(torch.from_numpy(images).unsqueeze(1)), torch.from_numpy(
        labels
    )


def collected(batches: Iterator[Batch]) -> list[Batch]:
    """Copies of an epoch's batches: each is good only until the next but one is asked for."""
    return [Batch(b.images.clone(), b.labels.clone(), tuple(b.unreadable)) for b in batches]


def as_input(batches: list[Batch], pixels: str = "uint8") -> torch.Tensor:
    """The images of an epoch of digits as the model gets them."""
    to_input = ToInput(dataset_info("digits"), pixels, 28, CPU)  # type: ignore[arg-type]
    return torch.cat([to_input(batch.images) for batch in batches])


def labels_of(batches: list[Batch]) -> torch.Tensor:
    return torch.cat([batch.labels for batch in batches])


def other(config: RunConfig, **changes: Any) -> RunConfig:
    return dataclasses.replace(config, **changes)


def variant_id(config: dict[str, Any]) -> str:
    return "-".join(str(value) for value in config.values())


def photos_config(**config: Any) -> RunConfig:
    """Photos in their own files, read by decoding threads in batches of 16."""
    base = {
        "dataset": "photos",
        "n_images": N_PHOTOS,
        "storage": "files",
        "loader": "threads",
        "batch_size": 16,
    }
    return config_of(**(base | config))


def as_images(batches: list[Batch]) -> NDArray[np.int16]:
    """The images of an epoch, (n, height, width, channels), in a type that can be subtracted."""
    return (
        torch.cat([batch.images for batch in batches]).to(torch.int16).permute(0, 2, 3, 1).numpy()
    )
