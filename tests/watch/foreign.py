"""Training scripts that nobody wrote for vitprof, unchanged, with little data. Each returns its steps, the
share of them that it waited by its own meters or by a clock around its loader, and the samples of a step
where each has a batch: timm fetches one ahead.

The scripts lie beside the checkout, and are no part of it.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import runpy
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests import ROOT
from tests.watch.loops import Clock

SCRIPTS = ROOT.parent / "shared" / "foreign"
EPOCHS = 2
N_BATCHES = 8


def mnist() -> dict[str, Any]:
    """Runs the MNIST example. It has no clock, so its loaders have one around them."""
    batch = 64
    clock = Clock()
    loader = torch.utils.data.DataLoader

    class Timed(loader):  # type: ignore[misc, type-arg, valid-type]
        def __iter__(self) -> Iterator[Any]:
            batches = super().__iter__()
            if self.batch_size == batch:
                yield from clock.each(batches)
            else:
                with clock.evaluating():
                    yield from batches

    with _elsewhere() as folder:
        raw = folder.parent / "data" / "MNIST" / "raw"
        raw.mkdir(parents=True)
        for name, n in {"train": N_BATCHES * batch, "t10k": batch}.items():
            _write_idx(raw / f"{name}-images-idx3-ubyte", np.zeros((n, 28, 28), np.uint8))
            _write_idx(raw / f"{name}-labels-idx1-ubyte", np.arange(n, dtype=np.uint8) % 10)
        torch.utils.data.DataLoader = Timed  # type: ignore[misc]
        _run("pytorch_examples_mnist.py", f"--epochs {EPOCHS} --no-accel --batch-size {batch}")
    return {**clock.truth(), "samples": batch}


def imagenet() -> dict[str, Any]:
    """Runs the ImageNet example on fake images."""
    import torchvision.datasets

    batch = 4
    fake = torchvision.datasets.FakeData
    n_samples = N_BATCHES * batch
    torchvision.datasets.FakeData = lambda n, *more: fake(min(n, n_samples), *more)
    with _elsewhere():
        arguments = f"--dummy --no-accel -a resnet18 --epochs {EPOCHS} -b {batch} -j 0 -p 1"
        told = _run("pytorch_examples_imagenet.py", arguments)
    meters = r"Epoch: \[(\d+)\].*Time +[\d.]+ \( *([\d.]+)\)\s+Data +[\d.]+ \( *([\d.]+)\)"
    return {**_of_meters(re.findall(meters, told)), "samples": batch}


def timm() -> dict[str, Any]:
    """Runs the script that timm trains with, on a folder of images."""
    from PIL import Image

    batch = 4
    with _elsewhere() as folder:
        for split in ("train", "validation"):
            for number in range(N_BATCHES * batch):
                path = folder / split / str(number % 2) / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (800, 600), (number, 0, 0)).save(path)
        arguments = "--model resnet18 --num-classes 2 --device cpu --workers 1 --log-interval 1"
        sizes = f"-b {batch} --epochs {EPOCHS} --warmup-epochs 0 --cooldown-epochs 0 --img-size 64"
        told = _run("timm_train.py", f"--data-dir {folder} {arguments} {sizes}")
    meters = r"Train: (\d+) .*\(([\d.]+)s, +[\d.]+/s\).*Data: [\d.]+ \(([\d.]+)\)"
    return _of_meters(re.findall(meters, told))


def _of_meters(lines: Sequence[tuple[str, str, str]]) -> dict[str, Any]:
    """Returns the truth by the lines of a script's meters: an epoch, and the means of time and wait (s)
    of its steps so far."""
    last_of_epochs = {int(epoch): (float(time_s), float(wait_s)) for epoch, time_s, wait_s in lines}
    time_s, wait_s = np.sum(list(last_of_epochs.values()), axis=0)
    return {
        "steps": len(lines),
        "epochs": len(last_of_epochs),
        "wait_frac": float(wait_s / time_s),
        "timed": [[0, len(lines)]],
    }


def _run(name: str, arguments: str) -> str:
    """Runs a script in this process; returns what it prints and logs."""
    path = SCRIPTS / name
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing")
    sys.argv = [str(path), *arguments.split()]
    # In a forked process more threads than cores wait for each other.
    torch.set_num_threads(1)
    told = io.StringIO()
    logging.getLogger().addHandler(logging.StreamHandler(told))
    with contextlib.redirect_stdout(told):
        runpy.run_path(str(path), run_name="__main__")
    return told.getvalue()


@contextlib.contextmanager
def _elsewhere() -> Iterator[Path]:
    """Goes to a new folder in another new one: a script may read and write beside it."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "work"
        folder.mkdir()
        os.chdir(folder)
        yield folder
        os.chdir(before)


def _write_idx(path: Path, array: np.ndarray[Any, Any]) -> None:
    """Writes a file of bytes as MNIST has them."""
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    path.write_bytes(bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes())
