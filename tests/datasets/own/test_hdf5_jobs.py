"""A user's HDF5 file by every way that a batch is made of it: pixels and labels are the file's."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests import ROOT
from tests.config.configs import legal_combinations
from tests.engine.test_contract import delivered, needs, opened
from tests.export.code.test_scripts import loaded, runs_here
from vitprof.config import RunConfig
from vitprof.config.parts import LOADERS, STORAGES
from vitprof.config.resolve import resolve
from vitprof.config.strategies import PLUGGED, STRATEGIES
from vitprof.datasets import on_disk
from vitprof.datasets.catalog import dataset_info
from vitprof.datasets.own import registry
from vitprof.datasets.own.look import look
from vitprof.export.code import script

N = 30
N_TEST = 9
SIDE = 64
CLASSES = 3
SETTINGS = {"dataset": "faces", "model": "ti/16", "image_size": SIDE, "augment": "off"}
RNG = np.random.default_rng(3)
TRAIN: NDArray[np.uint8] = RNG.integers(0, 256, (N, SIDE, SIDE, 3), np.uint8)
TEST: NDArray[np.uint8] = RNG.integers(0, 256, (N_TEST, SIDE, SIDE, 3), np.uint8)
"""Noise: no two samples are alike, and whatever resizes, cuts or mirrors one changes it."""
LABELS = {len(pixels): np.arange(len(pixels)) % CLASSES for pixels in (TRAIN, TEST)}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home that has the set, in which all storages are made once: of decimals, and of bytes."""
    home = tmp_path_factory.mktemp("own-hdf5")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with h5py.File(home / "faces.h5", "w") as file:
        file["X_train"] = (TRAIN / np.float32(255)).transpose(0, 3, 1, 2)
        file["Y_train"] = LABELS[N][None]
        file["X_test"] = TEST
        file["Y_test"] = np.eye(CLASSES)[LABELS[N_TEST]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITPROF_HOME", str(home))
        registry.add(look("faces", f"hdf5:{home}/faces.h5").own)
        on_disk.prepare("faces")
        yield home
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _use_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITPROF_HOME", str(home))


def check(
    images: NDArray[np.float32], labels: NDArray[np.int64], source: NDArray[np.uint8]
) -> None:
    """Each sample of the source once, with its label, to the last bit; in any order."""
    expected = {each.tobytes(): at for at, each in enumerate(source)}
    came = [expected[each.tobytes()] for each in np.rint(images).astype(np.uint8)]
    assert sorted(came) == list(range(len(source)))
    assert labels.tolist() == LABELS[len(source)][came].tolist()


def storages() -> Iterator[object]:
    """All but `imagefolder`, which resizes an image before it cuts it, as tutorials do."""
    for name, part in STORAGES.items():
        if name != "imagefolder":
            yield pytest.param(name, marks=needs(part))


@pytest.mark.parametrize("storage", list(storages()))
def test_every_loader_delivers_the_pixels_of_the_file(storage: str) -> None:
    """But DALI's, which reads JPEG files only."""
    info = dataset_info("faces")
    parts_of = {
        parts.loader: parts for parts in legal_combinations(info) if parts.storage == storage
    }
    tried = 0
    for loader, parts in parts_of.items():
        if loader == "dali" or needs(LOADERS[loader])[0].args[0]:
            continue
        workers = {"workers": 0} if loader == "dataloader" else {}
        names = {"storage": storage, "loader": loader, "transfer": parts.transfer}
        names |= {"strategy": "workers", "device": "cpu"}
        config = resolve(RunConfig(**SETTINGS, **names, **workers, batch_size=8))
        with opened(config) as pipeline:
            assert pipeline.test is not None
            for split, source in ((pipeline.train, TRAIN), (pipeline.test, TEST)):
                images, labels, _ = delivered(split, info, 0)
                check(images, labels, source)
            del pipeline, split
        tried += 1
    assert tried or not parts_of


def test_exported_code_reads_the_pixels_of_the_file(tmp_path: Path) -> None:
    """The script of each strategy, on the folder that the file was unpacked to."""
    info = dataset_info("faces")
    plugged = {*PLUGGED["loaders"], *PLUGGED["storages"]}
    tried = []
    for name, plan in STRATEGIES.items():
        parts = plan.combination(info)
        if parts.loader == "dali" or parts.storage == "imagefolder" or not runs_here(name):
            continue
        if {parts.loader, parts.storage} & plugged or info.kind not in LOADERS[parts.loader].kinds:
            continue
        workers = {"workers": 0} if parts.loader == "dataloader" else {}
        folder = tmp_path / name
        folder.mkdir()
        (folder / "faces").symlink_to(on_disk.prepare("faces") / "train")
        config = RunConfig(**SETTINGS, **workers, strategy=name, batch_size=8)
        module = loaded(script(config), folder / "script.py")
        loader, n_classes = module.make_loader(folder / "faces", torch.device("cpu"))
        mean, std = (255 * torch.tensor(v).view(1, -1, 1, 1) for v in (module.MEAN, module.STD))
        batches = [(images * std + mean, labels.clone()) for images, labels in loader]
        images = torch.cat([images for images, _ in batches]).permute(0, 2, 3, 1).numpy()
        assert n_classes == CLASSES
        check(images, torch.cat([labels for _, labels in batches]).numpy(), TRAIN)
        del loader, module.make_loader
        tried.append(name)
    assert {"cache", "threads", "memory", "hdf5", "lmdb"} <= set(tried), tried


@pytest.mark.measured
def test_it_is_added_and_trained_on_by_the_command_line(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITPROF_HOME", str(tmp_path / "another"))

    def typed(*words: str) -> str:
        command = [sys.executable, "-m", "vitprof", *words]
        ended = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    out = typed("datasets", "add", "faces", f"hdf5:{home}/faces.h5")
    assert f"faces: {N} samples for training, {N_TEST} for testing, {CLASSES} classes" in out
    assert "X_train: 0 is black and 1 is white, in 8 bits" in out
    model = ("--dataset", "faces", "--model", "ti/16", "--image-size", str(SIDE))
    short = ("--steps", "3", "--batch-size", "8", "--device", "cpu", "--threads", "1")
    for strategy in ("workers", "hdf5"):  # from files in worker processes, and from one file
        typed("run", *model, *short, "--strategy", strategy)
