"""Feed a training loop: image files decoded in this process, each straight into its batch of uint8."""

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import torch

from vitprof.export.code.scripts.files import *

LOADER = "threads"  # one of threads (outside Python's lock, ahead of time), generator (on one core, in the loop)
WORKERS = 2  # threads
PREFETCH = 2  # batches kept ready


cv2.setNumThreads(0)  # the loader has threads


class Loader:
    """Batches into which each image is decoded, by threads or in the training loop."""

    def __init__(self, storage, device: torch.device):
        self.storage, self.generator = storage, torch.Generator().manual_seed(SEED)
        # PyTorch keeps pinned memory and hands it out again once the copy from it is over.
        self.pinned = device.type == "cuda" and TRANSFER != "blocking"

    def __iter__(self):
        storage, under_way = self.storage, deque()
        n = len(storage)
        order = torch.randperm(n, generator=self.generator) if SHUFFLE == "full" else torch.arange(n)
        batches = order.split(BATCH_SIZE)
        if LOADER == "generator":
            for indices in batches:
                yield storage.read(indices, self.room(len(indices))), storage.labels[indices]
            return
        with ThreadPoolExecutor(WORKERS) as threads:
            for indices in batches:
                images = self.room(len(indices))
                # Four pieces for each thread: none waits long for the last one.
                size = -(-len(indices) // (4 * WORKERS))
                pieces = zip(indices.split(size), images.split(size), strict=True)
                under_way.append(([threads.submit(storage.read, *piece) for piece in pieces], images, indices))
                if len(under_way) > PREFETCH:
                    yield self.finished(*under_way.popleft())
            while under_way:
                yield self.finished(*under_way.popleft())

    def room(self, n: int):
        return torch.empty((n, *self.storage.shape), dtype=torch.uint8, pin_memory=self.pinned)

    def finished(self, reading, images, indices):
        for piece in reading:
            piece.result()
        return images, self.storage.labels[indices]


def make_loader(data: Path, device: torch.device):
    """Returns the loader of batches on the device, and the number of classes."""
    storage = Decoded(Files(data))
    return OnDevice(Loader(storage, device), device), int(storage.labels.max()) + 1
