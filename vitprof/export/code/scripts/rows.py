"""Feed a training loop: the pixels of each image stored one by one, prepared once, read into batches."""

import math
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torchvision.datasets import ImageFolder

from vitprof.export.code.scripts.array import *
from vitprof.forms.folder import read_rows, write_file

STORAGE = "raw-files"  # one of raw-files
TRANSFER = "pinned"  # one of blocking, pinned, stream
CACHE_MB = 0  # memory for a fixed random part of the set


class RawFiles:
    """A file of bare pixels for each image, read straight into its row of the batch. Folders of 1,000 files."""

    shape = SIZE, SIZE, len(MEAN)
    block = BLOCK

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
            write_file(f"{folder}/{i:08d}", image.tobytes())

    def read(self, indices, out):
        paths = [f"{self.path}/{i // 1000:05d}/{i:08d}" for i in indices.tolist()]
        read_rows(paths, range(len(paths)), out.view(len(out), -1).numpy())
        return out

    def handle(self):
        """Returns the open file. Each process has its own: an inherited one returns wrong data."""
        if self.process != os.getpid():
            self.opened = self.open()
            self.process = os.getpid()
        return self.opened

    def __getstate__(self):
        return {**self.__dict__, "opened": None, "process": None}


def storage_kind():
    """Returns the class of the storage, and how the name of what is prepared ends."""
    return RawFiles, ".raw"


class Cached:
    """A storage of which a fixed random part is in memory: as much as CACHE_MB."""

    def __init__(self, storage):
        self.storage = storage
        self.labels = storage.labels
        self.shape = storage.shape
        self.block = storage.block
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
    kind, ending = storage_kind()

    def write(new: Path):
        with ThreadPoolExecutor() as pool:  # Pillow decodes outside Python's lock
            kind(new, labels).write(pool.map(fitted, [file for file, _ in folder.samples]))

    storage = kind(made_once(prepared(data, ending), write), labels)
    if CACHE_MB:
        storage = Cached(storage)
    return OnDevice(batches_of(storage, device), device), n_classes
