"""Feed a training loop: the pixels of each image in a .pt file, prepared once, read into batches."""

import torch

from vitprof.export.code.scripts.rows import *
from vitprof.forms.pt import load, save

STORAGE = "pt"  # one of pt


class PtFiles(RawFiles):
    """A .pt file for each image."""

    def write(self, images):
        self.path.mkdir()
        for i, image in enumerate(images):
            save(f"{self.path}/{i:08d}.pt", torch.from_numpy(image.copy()))

    def read(self, indices, out):
        for i, row in zip(indices.tolist(), out, strict=True):
            row.copy_(load(f"{self.path}/{i:08d}.pt"))
        return out


def storage_kind():
    """Returns the class of the storage, and how the name of what is prepared ends."""
    return PtFiles, ".samples"
