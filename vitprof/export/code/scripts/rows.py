"""Feed a training loop: the pixels of each image stored one by one or in chunks, prepared once, read into batches."""

import math
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import lmdb
import numpy as np
import torch
from torchvision.datasets import ImageFolder

from vitprof.export.code.scripts.array import *

STORAGE = "raw-files"  # one of raw-files, pt, lmdb, hdf5-chunked
TRANSFER = "pinned"  # one of blocking, pinned, stream
BLOCK = 128  # neighbours that stay together when blocks are shuffled; of HDF5 a chunk
CACHE_MB = 0  # memory for a fixed random part of the set


class RawFiles:
    """A file of bare pixels for each image, read straight into its row of the batch. Folders of 1,000 files."""

    shape = SIZE, SIZE, len(MEAN)

    def __init__(self, path: Path, labels):
        self.path = path
        self.labels = labels
        self.opened = None
        self.process = None

    def __len__(self):
        return len(self.labels)

    def write(self, images):
        for i, image in enumerate(images):
            folder = self.path / f"{i // 1000:05d}"
            folder.mkdir(parents=True, exist_ok=True)
            image.tofile(folder / f"{i:08d}")

    def read(self, indices, out):
        for i, row in zip(indices.tolist(), out.view(len(out), -1).numpy(), strict=True):
            file = os.open(f"{self.path}/{i // 1000:05d}/{i:08d}", os.O_RDONLY)
            try:
                if os.readv(file, [row]) != len(row):
                    raise OSError(f"the file of image {i} is too short")
            finally:
                os.close(file)
        return out

    def handle(self):
        """Returns the open file. Each process has its own: an inherited one returns wrong data."""
        if self.process != os.getpid():
            self.opened = self.open()
            self.process = os.getpid()
        return self.opened

    def __getstate__(self):
        return {**self.__dict__, "opened": None, "process": None}


class PtFiles(RawFiles):
    """A .pt file for each image."""

    def write(self, images):
        self.path.mkdir()
        for i, image in enumerate(images):
            torch.save(torch.from_numpy(image.copy()), self.path / f"{i:08d}.pt")

    def read(self, indices, out):
        for i, row in zip(indices.tolist(), out, strict=True):
            row.copy_(torch.load(f"{self.path}/{i:08d}.pt", weights_only=True))
        return out


class Lmdb(RawFiles):
    """An LMDB file with a key for each image; a batch is one transaction."""

    def write(self, images):
        room = 2 * math.prod((len(self), *self.shape)) + 2**26  # addresses, not disk
        with lmdb.open(str(self.path), subdir=False, lock=False, map_size=room) as env:
            with env.begin(write=True) as txn:
                for i, image in enumerate(images):
                    txn.put(b"%08d" % i, image.tobytes(), append=True)  # full pages
            env.sync(True)

    def open(self):
        # Only read from now on: no lock file, so no limit on readers. No readahead: it would read what a shuffled order
        # does not need.
        return lmdb.open(str(self.path), subdir=False, readonly=True, lock=False, readahead=False)

    def read(self, indices, out):
        with self.handle().begin(buffers=True) as txn:
            images = b"".join([txn.get(b"%08d" % i) for i in indices.tolist()])
        out.view(-1).numpy()[:] = np.frombuffer(images, np.uint8)
        return out


class Hdf5Chunks(RawFiles):
    """A chunked HDF5 data set, read in runs of rows: a single row costs its chunk."""

    def write(self, images):
        with h5py.File(self.path, "w") as file:
            chunks = min(BLOCK, len(self)), *self.shape
            rows = file.create_dataset("images", (len(self), *self.shape), np.uint8, chunks=chunks)
            for i, image in enumerate(images):  # a chunk stays in HDF5's cache until it is full
                rows[i] = image

    def open(self):
        return h5py.File(self.path, "r")

    def read(self, indices, out):
        wanted = indices.numpy()
        rows = out.numpy()
        images = self.handle()["images"]
        # A run ends where the next row is not the one behind it.
        starts = np.flatnonzero(np.diff(wanted, prepend=-2) != 1).tolist()
        for first, last in zip(starts, [*starts[1:], len(wanted)], strict=True):
            from_rows = np.s_[wanted[first] : wanted[first] + last - first]
            images.read_direct(rows, from_rows, np.s_[first:last])
        return out


STORAGES = {
    "raw-files": (RawFiles, ".raw"),
    "pt": (PtFiles, ".samples"),
    "lmdb": (Lmdb, ".lmdb"),
    "hdf5-chunked": (Hdf5Chunks, f".chunks-of-{BLOCK}.h5"),
}


class Cached:
    """A storage of which a fixed random part is in memory: as much as CACHE_MB."""

    def __init__(self, storage):
        self.storage = storage
        self.labels = storage.labels
        self.shape = storage.shape
        n_kept = min(len(storage), int(CACHE_MB * 1e6 / math.prod(self.shape)))
        generator = torch.Generator().manual_seed(SEED)
        kept = torch.randperm(len(storage), generator=generator)[:n_kept].sort().values
        self.images = torch.empty((n_kept, *self.shape), dtype=torch.uint8)
        for rows, images in zip(kept.split(256), self.images.split(256), strict=True):
            storage.read(rows, images)
        self.slot = torch.full((len(storage),), -1)
        self.slot[kept] = torch.arange(n_kept)

    def __len__(self):
        return len(self.labels)

    def read(self, indices, out):
        slots = self.slot[indices]
        missed = (slots < 0).nonzero().flatten()
        if len(missed) < len(indices):
            torch.index_select(self.images, 0, slots.clamp(min=0), out=out)
        if len(missed):
            rest = torch.empty((len(missed), *self.shape), dtype=torch.uint8)
            out[missed] = self.storage.read(indices[missed], rest)
        return out


def make_loader(data: Path, device: torch.device):
    """Returns the loader of batches on the device, and the number of classes."""
    folder = ImageFolder(str(data))
    labels = torch.tensor(folder.targets)
    n_classes = len(folder.classes)
    kind, ending = STORAGES[STORAGE]

    def write(new: Path):
        with ThreadPoolExecutor() as pool:  # Pillow decodes outside Python's lock
            kind(new, labels).write(pool.map(fitted, [file for file, _ in folder.samples]))

    storage = kind(made_once(prepared(data, ending), write), labels)
    if CACHE_MB:
        storage = Cached(storage)
    return OnDevice(batches_of(storage, device), device), n_classes
