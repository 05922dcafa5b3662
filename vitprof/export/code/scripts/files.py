"""Feed a training loop: worker processes decode image files into whole batches of uint8."""

import atexit
import math
import os
import random
import shutil
import tempfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import simplejpeg
import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from vitprof.export.code.scripts.array import *

AUGMENT = "crop"  # one of off, crop
DECODER = "simplejpeg"  # of JPEG files: one of simplejpeg, opencv; OpenCV decodes all others
STORAGE = "files"  # one of files
LOCATION = "disk"  # one of disk, ram-disk, staged
LOCAL = None  # folder for "staged" on the local disk; None: the system's folder of temporary files
TRANSFER = "pinned"  # one of blocking, pinned, stream
SHUFFLE = "full"  # one of full, none
WORKERS = 2  # processes
PREFETCH = 2  # batches kept ready by each worker


cv2.setNumThreads(0)  # its threads do not survive a fork


class Files:
    """A folder with a folder of image files for each class."""

    def __init__(self, root: Path):
        folder = ImageFolder(str(root))
        self.paths = [path for path, _ in folder.samples]
        self.labels = torch.tensor(folder.targets)

    def encoded(self, index: int) -> bytes:
        return Path(self.paths[index]).read_bytes()

    def name(self, index: int) -> str:
        return self.paths[index]


def files_in(root: Path):
    """Returns the files of a folder."""
    return Files(root)


def located(source: Path) -> Path:
    """Returns where to read `source`: a copy in RAM, removed when the script ends, or on the local disk, kept."""
    if LOCATION == "disk":
        return source
    if LOCATION == "ram-disk":
        parent = Path(tempfile.mkdtemp(dir="/dev/shm"))
        atexit.register(shutil.rmtree, parent, ignore_errors=True)
    else:
        # The name has the whole path in it: many sets are in a folder called "train".
        name = f"staged-{os.getuid()}-{zlib.crc32(os.fsencode(source)):08x}"
        parent = Path(LOCAL or tempfile.gettempdir()) / name

    def copy(new: Path):
        files = [path for path in source.rglob("*") if path.is_file()]
        for folder in {path.parent for path in files}:
            (new / folder.relative_to(source)).mkdir(parents=True, exist_ok=True)
        targets = [new / path.relative_to(source) for path in files]
        # Many at once, as each of them waits. The list makes an error of a copy known.
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(shutil.copyfile, files, targets))

    # Delete it when your data change.
    return made_once(parent / source.name, copy)


def decode(encoded: bytes, out: np.ndarray) -> None:
    """Decodes an image, and resizes a crop of it into `out` (SIZE, SIZE, channels), uint8."""
    if DECODER == "simplejpeg" and encoded.startswith(b"\xff\xd8"):
        rows, columns = simplejpeg.decode_jpeg_header(encoded)[:2]
        top, left, height, width = crop(rows, columns)
        # libjpeg decodes a large image faster at 1/2, 1/4 or 1/8 of its size.
        n = max(f for f in (1, 2, 4, 8) if f == 1 or min(height, width) >= f * SIZE)
        smaller = {}
        if n > 1:
            smaller = {"min_height": math.ceil(rows / n), "min_width": math.ceil(columns / n)}
        colours = "GRAY" if len(MEAN) == 1 else "RGB"
        image = simplejpeg.decode_jpeg(encoded, colorspace=colours, min_factor=n, **smaller)
        order = 1
        top = top // n
        left = left // n
        height = height // n
        width = width // n
    else:
        flags = cv2.IMREAD_GRAYSCALE if len(MEAN) == 1 else cv2.IMREAD_COLOR
        image = cv2.imdecode(
            np.frombuffer(encoded, np.uint8), flags | cv2.IMREAD_IGNORE_ORIENTATION
        )
        if image is None:
            raise ValueError("not an image that OpenCV can decode")
        order = -1  # OpenCV has blue first
        top, left, height, width = crop(*image.shape[:2])
    image = image[top : top + height, left : left + width]
    # Of a much larger image, linear interpolation would skip pixels.
    how = cv2.INTER_AREA if max(height, width) >= 2 * SIZE else cv2.INTER_LINEAR
    image = cv2.resize(image, (SIZE, SIZE), interpolation=how)
    out[:] = image.reshape(out.shape)[..., ::order]
    if AUGMENT == "crop" and FLIP and random.random() < 0.5:
        out[:] = out[:, ::-1].copy()


def crop(height: int, width: int) -> tuple[int, int, int, int]:
    """Returns top, left, height, width: 224/256 of the centre square, or what RandomResizedCrop would take.

    Uses `random`, which PyTorch seeds in each worker.
    """
    tries = 10 if AUGMENT == "crop" else 0
    for _ in range(tries):
        area = height * width * random.uniform(0.08, 1)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        h = round(math.sqrt(area / ratio))
        w = round(math.sqrt(area * ratio))
        if 0 < h <= height and 0 < w <= width:
            return random.randint(0, height - h), random.randint(0, width - w), h, w
    side = min(height, width)
    if not height == width == SIZE:
        side = side * 224 // 256
    return (height - side) // 2, (width - side) // 2, side, side


class Decoded:
    """Images decoded straight into their rows of a batch."""

    shape = SIZE, SIZE, len(MEAN)
    block = BLOCK

    def __init__(self, files):
        self.files = files
        self.labels = files.labels

    def __len__(self):
        return len(self.labels)

    def read(self, indices, out):
        for index, row in zip(indices.tolist(), out.numpy(), strict=True):
            try:
                decode(self.files.encoded(index), row)
            except Exception as error:
                raise ValueError(f"{self.files.name(index)} cannot be decoded: {error}") from error
        return out


def make_loader(data: Path, device: torch.device):
    """Returns the loader of batches on the device, and the number of classes."""
    storage = Decoded(files_in(located(data)))
    order = {"shuffle": SHUFFLE == "full", "generator": torch.Generator().manual_seed(SEED)}
    options = {"batch_size": BATCH_SIZE, "collate_fn": as_it_is, **order}
    loader = DataLoader(Batches(storage), **options, **worker_options(device))
    return OnDevice(loader, device), int(storage.labels.max()) + 1


def normalised(images, mean, std):
    """Returns the model's input as floats, channels first."""
    return images.permute(0, 3, 1, 2).float().div_(255).sub_(mean).div_(std)
