"""Feed a training loop: all images as one tensor in a .pt file, prepared once; a batch is one gather of its rows."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from vitprof.export.code.scripts.array import *
from vitprof.forms.pt import load, save_large

STORAGE = "pt-single"  # one of pt-single (mapped into memory), pt-whole (in memory)


def prepare(data: Path, paths) -> Path:
    """Writes all images to one file of pixels, once, and returns its path."""

    def write(new: Path):
        with ThreadPoolExecutor() as pool:  # Pillow decodes outside Python's lock
            save_large(new, torch.from_numpy(np.stack(list(pool.map(fitted, paths)))))

    return made_once(prepared(data, ".pt"), write)


def open_images(path: Path):
    """Returns the pixels of a prepared file, in memory or mapped into it, (n, SIZE, SIZE, channels) uint8."""
    return load(path, mapped=STORAGE == "pt-single")
