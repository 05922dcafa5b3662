"""Feed a training loop: image files decoded in this process, each straight into its batch of uint8."""

from pathlib import Path

import cv2
import torch

from vitprof.export.code.scripts.files import *

LOADER = "threads"  # one of threads (outside Python's lock, ahead of time), generator (on one core, in the loop)
WORKERS = 2  # threads
PREFETCH = 2  # batches kept ready


cv2.setNumThreads(0)  # the loader has threads


def make_loader(data: Path, device: torch.device):
    """Returns the loader of batches on the device, and the number of classes."""
    storage = Decoded(Files(data))
    return OnDevice(Threads(storage, device), device), int(storage.labels.max()) + 1


class Threads(Ahead):
    """Batches into which each image is decoded, by threads or in the training loop."""

    threads = WORKERS

    def begin(self, pool, indices):
        """Has a batch made in four pieces for each thread: none waits long for the last one."""
        images = self.room(len(indices))
        size = -(-len(indices) // (4 * WORKERS))
        pieces = zip(indices.split(size), images.split(size), strict=True)
        reading = [pool.submit(self.storage.read, *piece) for piece in pieces]

        def finished():
            for piece in reading:
                piece.result()
            return images, self.storage.labels[indices]

        return finished
