"""The references for loaders: C loops, libturbojpeg, a bare loop over files, PyTorch as in tutorials."""

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
import torch
from torch.utils.data import DataLoader, TensorDataset
from torchvision import datasets, transforms

from benchmarks.measuring import Side, Work, repeated
from vitprof.datasets.catalog import DatasetInfo
from vitprof.datasets.mnist import read_split
from vitprof.engine.storage.contract import read_ids
from vitprof.engine.storage.files import sample_path
from vitprof.engine.storage.source import open_source

SOURCE = Path(__file__).with_name("gather.c")


@cache
def compiled() -> ctypes.CDLL:
    """Returns `gather.c`, compiled for this processor. Its functions run without Python's lock (GIL)."""
    compiler = os.environ.get("CC", "cc")
    options = ["-O3", "-march=native", "-shared", "-fPIC"]
    with tempfile.TemporaryDirectory() as directory:
        library = f"{directory}/gather.so"
        try:
            subprocess.run([compiler, *options, "-o", library, str(SOURCE)], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise SystemExit(
                f"the reference cannot be compiled ({error}); install a C compiler, or set CC"
            ) from error
        return ctypes.CDLL(library)  # stays mapped after the file is deleted


def gather(root: Path, batch_size: int) -> Side:
    """Returns R: a C loop that copies the rows of each batch into the same memory again and again.

    The array is NumPy's own, in huge pages where the system has them. Orders are drawn outside the timing.
    """
    copy = compiled().gather_rows
    copy.argtypes = [
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_void_p,
    ]
    copy.restype = None
    images = read_split(root, True)[0]
    rows = np.empty((len(images), images[0].size), np.uint8)
    rows[:] = images.reshape(rows.shape)
    out = np.empty((batch_size, rows.shape[1]), np.uint8)

    def epoch(work: Work) -> float:
        order = torch.randperm(len(rows)).numpy()
        batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
        with work.timed():
            for batch in batches:
                copy(
                    rows.ctypes.data, rows.shape[1], batch.ctypes.data, len(batch), out.ctypes.data
                )
        return len(rows)

    return repeated(epoch)


def bare_files(info: DatasetInfo, root: Path, batch_size: int) -> Side:
    """Returns the shortest Python loop that opens each file, reads it into its row of a batch, and closes it."""
    paths = raw_paths(root)
    rows = np.empty((batch_size, info.image_size**2 * info.channels), np.uint8)
    views = [[row.data] for row in rows]

    def batch(chosen: list[str]) -> None:
        for path, view in zip(chosen, views, strict=False):
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            os.readv(file, view)
            os.close(file)

    return in_random_order(
        len(paths), batch_size, lambda order: [paths[i] for i in order.tolist()], batch
    )


def files_in_c(info: DatasetInfo, root: Path, batch_size: int) -> Side:
    """Returns the same with one C loop for each batch."""
    read = compiled().read_files
    read.restype = ctypes.c_int64
    read.argtypes = [
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_void_p,
    ]
    paths = [path.encode() for path in raw_paths(root)]
    pointers = (ctypes.c_char_p * len(paths))(*paths)
    rows = np.empty((batch_size, info.image_size**2 * info.channels), np.uint8)

    def batch(chosen: Any) -> None:
        n = read(
            ctypes.addressof(pointers),
            rows.shape[1],
            chosen.ctypes.data,
            len(chosen),
            rows.ctypes.data,
        )
        assert n == len(chosen), f"{len(chosen) - n} files cannot be read"

    return in_random_order(len(paths), batch_size, lambda order: order.numpy(), batch)


def raw_paths(root: Path) -> list[str]:
    """Returns the paths of the training files of the storage raw-files under `root`."""
    return [
        f"{root}/{sample_path(i, name, train=True)}"
        for i, name in enumerate(read_ids(root, train=True))
    ]


def in_random_order(
    n: int, batch_size: int, prepare: Callable[[torch.Tensor], Any], batch: Callable[[Any], None]
) -> Side:
    """Returns a side that calls `batch(prepare(indices))` for random batches, in a new order each epoch. Only `batch`
    is timed.
    """

    def orders() -> Iterator[torch.Tensor]:
        while True:
            yield from torch.randperm(n).split(batch_size)

    indices = orders()

    def once(work: Work) -> float:
        chosen = next(indices)
        ready = prepare(chosen)
        with work.timed():
            batch(ready)
        return len(chosen)

    return repeated(once)


def decoding(info: DatasetInfo, root: Path) -> Side:
    """Returns J: one thread that decodes the same JPEG files in full, from memory into the same memory each time."""
    source = open_source(info, root, train=True)
    files = source.encoded(0, len(source.ids))
    largest = max(
        height * width * 3 for height, width, *_ in map(simplejpeg.decode_jpeg_header, files)
    )
    buffer = np.empty(largest, np.uint8)

    def epoch(work: Work) -> float:
        with work.timed():
            for encoded in files:
                simplejpeg.decode_jpeg(encoded, "RGB", buffer=buffer)
        return len(files)

    return repeated(epoch)


def plain_mnist(info: DatasetInfo, root: Path, batch_size: int) -> Side:
    """Returns torchvision's MNIST in a DataLoader, as in every tutorial."""
    transform = transforms.Compose(
        [transforms.ToTensor(), transforms.Normalize(info.mean, info.std)]
    )
    dataset = datasets.MNIST(str(root), train=True, transform=transform)
    return batches_of(DataLoader(dataset, batch_size=batch_size, shuffle=True))


def plain_tensors(root: Path, batch_size: int) -> Side:
    """Returns one float tensor of all images in a TensorDataset, as in the article."""
    images, labels = read_split(root, True)
    dataset = TensorDataset(
        torch.from_numpy(images).unsqueeze(1).float() / 255, torch.from_numpy(labels)
    )
    return batches_of(DataLoader(dataset, batch_size=batch_size, shuffle=True))


def batches_of(loader: DataLoader[Any]) -> Side:
    """Returns a side that iterates over a DataLoader forever; a slice continues where the previous one ended."""

    def forever() -> Iterator[Any]:
        while True:
            yield from loader

    batches = forever()

    def once(work: Work) -> float:
        with work.timed():
            _, labels = next(batches)
        return len(labels)

    return repeated(once)
