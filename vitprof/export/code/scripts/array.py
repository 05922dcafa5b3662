"""Feed a training loop: all images as one array of pixels, prepared once; a batch is one gather of its rows.

DATA is a folder of images with a folder for each class. Change SIZE, MEAN and STD to those of your data, and put your
own model into `train`.

    python script.py DATA        python script.py --demo
"""

import argparse
import math
import os
import tempfile
import zlib
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchvision.datasets import ImageFolder

from vitprof.forms.memmap import NpyWriter, map_npy

SIZE = 224  # side of the images that are loaded, in pixels
INPUT_SIZE = 224  # side of your model's input
MEAN = (0.485, 0.456, 0.406)  # of your pixels in 0..1, for each channel: one value for grey images
STD = (0.229, 0.224, 0.225)
STORAGE = "memmap"  # one of memory, memory-float, memmap
LOADER = "ahead"  # one of batches, ahead, dataloader
TRANSFER = "pinned"  # one of blocking, pinned, stream, resident
SHUFFLE = "full"  # one of full, block, none
BLOCK = 128  # neighbours that stay together when blocks are shuffled
AUGMENT = "off"  # one of off, device
MIN_AREA = 0.35  # smallest part of an image that augmentation leaves
SHIFT = 0  # most pixels that it moves an image by
FLIP = True  # whether a mirrored image still belongs to its class
PREPARED = None  # a folder on a fast local disk; None: prepare beside DATA
WORKERS = 2  # processes of the DataLoader
PREFETCH = 2  # batches kept ready: by each worker, or by the thread
PERSISTENT = True  # workers are started once, not for each epoch
START_METHOD = None  # of the workers: None, "fork", "forkserver" or "spawn"
PIN_MEMORY = True  # by a PyTorch thread: only copies from pinned memory can be queued
BATCH_SIZE = 128
LEARNING_RATE = 0.001
SEED = 42
AUTOCAST = None  # precision of the training: None, "bfloat16" or "float16"
MATMUL = "highest"  # of products in float32; "high" uses TF32
COMPILE = None  # mode of torch.compile: None, "default", "reduce-overhead" or "max-autotune"
FUSED = None  # True: Adam as one kernel
CUDNN_BENCHMARK = False


def fitted(path: str):
    """Returns 224/256 of the centre square of an image, (SIZE, SIZE, channels) uint8."""
    with Image.open(path) as file:
        image = file.convert("L" if len(MEAN) == 1 else "RGB")
    if image.size != (SIZE, SIZE):
        image = ImageOps.fit(image, (SIZE, SIZE), Image.Resampling.BILINEAR, bleed=1 / 16)
    return np.asarray(image).reshape(SIZE, SIZE, len(MEAN))


def prepared(data: Path, ending: str) -> Path:
    """Returns where to put what is prepared from `data`. Delete it when your data change."""
    folder = Path(PREPARED or data.parent)
    folder.mkdir(parents=True, exist_ok=True)
    # The name has the whole path in it: many sets are in a folder called "train".
    return folder / f"{data.name}-{zlib.crc32(os.fsencode(data)):08x}-{SIZE}{ending}"


def made_once(target: Path, write) -> Path:
    """Has `write` make `target`, unless it is there, under another name: it is renamed when it is complete."""
    if not target.exists():
        new = target.with_name(f"{target.name}.{os.getpid()}.tmp")
        write(new)
        os.replace(new, target)
    return target


def prepare(data: Path, paths) -> Path:
    """Writes all images to one file of pixels, once, and returns its path."""
    shape = len(paths), SIZE, SIZE, len(MEAN)

    def write(new: Path):
        # Pillow decodes outside Python's lock.
        with ThreadPoolExecutor() as pool, closing(images_writer(new, shape)) as file:
            images = pool.map(fitted, paths)
            while some := list(islice(images, AT_ONCE)):
                file.add(np.stack(some))

    return made_once(prepared(data, ending()), write)


AT_ONCE = 256
"""Images that are written at once."""


def ending() -> str:
    """Returns how the name of what is prepared ends."""
    return ".npy"


def images_writer(path: Path, shape):
    """Returns what writes images of that shape, all together, to a file."""
    return NpyWriter(path, shape)


def open_images(path: Path):
    """Returns the pixels of a prepared file, in memory or mapped into it, (n, SIZE, SIZE, channels) uint8."""
    images = torch.from_numpy(map_npy(path))
    return images if STORAGE == "memmap" else images.clone()


class Pixels:
    """All images as one array, opened in each process that reads them."""

    shape = SIZE, SIZE, len(MEAN)
    block = BLOCK

    def __init__(self, path: Path, labels):
        self.path = path
        self.labels = labels
        self.images = None

    def __len__(self):
        return len(self.labels)

    def read(self, indices, out):
        if self.images is None:
            self.images = open_images(self.path)
        return torch.index_select(self.images, 0, indices, out=out)

    def __getstate__(self):
        return {**self.__dict__, "images": None}


class Resident:
    """Batches of images that are all on the device: there is nothing to copy."""

    def __init__(self, images, labels, device: torch.device):
        self.images = images.to(device)
        self.labels = labels.to(device)
        self.order = Order(len(labels))

    def __iter__(self):
        for indices in self.order.indices().to(self.images.device).split(BATCH_SIZE):
            yield self.images[indices], self.labels[indices]


class Order:
    """The order of an epoch: each sample once, in another order for each epoch if it is shuffled."""

    def __init__(self, n: int, block: int = BLOCK):
        self.n = n
        self.block = block
        self.generator = torch.Generator().manual_seed(SEED)

    def __len__(self):
        return self.n

    def __iter__(self):
        return iter(self.indices().tolist())

    def indices(self):
        if SHUFFLE == "none":
            return torch.arange(self.n)
        if SHUFFLE == "full":
            return torch.randperm(self.n, generator=self.generator)
        # Neighbours in the storage stay together. The last block may be a short one.
        n_blocks = math.ceil(self.n / self.block)
        starts = torch.randperm(n_blocks, generator=self.generator) * self.block
        order = (starts[:, None] + torch.arange(self.block)).flatten()
        return order[order < self.n]


class Ahead:
    """Whole batches of a storage, made in the training loop or by a thread while the batch before trains."""

    threads = 1

    def __init__(self, storage, device: torch.device):
        self.storage = storage
        self.order = Order(len(storage), storage.block)
        # PyTorch keeps pinned memory and hands it out again once the copy from it is over.
        self.pinned = device.type == "cuda" and TRANSFER in ("pinned", "stream")

    def room(self, n: int):
        return torch.empty((n, *self.storage.shape), dtype=torch.uint8, pin_memory=self.pinned)

    def read(self, indices):
        return self.storage.read(indices, self.room(len(indices))), self.storage.labels[indices]

    def begin(self, pool, indices):
        """Has a batch made. Returns the function that waits for it."""
        return pool.submit(self.read, indices).result

    def __iter__(self):
        batches = self.order.indices().split(BATCH_SIZE)
        if LOADER in ("batches", "generator"):
            yield from map(self.read, batches)
            return
        with ThreadPoolExecutor(self.threads) as pool:
            under_way = deque()
            for indices in batches:
                under_way.append(self.begin(pool, indices))
                if len(under_way) > PREFETCH:
                    yield under_way.popleft()()
            while under_way:
                yield under_way.popleft()()


class Batches(Dataset):
    """A Dataset of whole batches: no call for each sample, and nothing to collate."""

    def __init__(self, storage):
        self.storage = storage

    def __len__(self):
        return len(self.storage)

    def __getitems__(self, indices):
        indices = torch.tensor(indices)
        images = torch.empty((len(indices), *self.storage.shape), dtype=torch.uint8)
        return self.storage.read(indices, images), self.storage.labels[indices]


def as_it_is(batch):
    return batch


def worker_options(device: torch.device) -> dict:
    """Returns the DataLoader's options about workers; PyTorch refuses most of them without any."""
    options = {"num_workers": WORKERS, "pin_memory": PIN_MEMORY and device.type == "cuda"}
    if WORKERS:
        options |= {
            "prefetch_factor": PREFETCH,
            "persistent_workers": PERSISTENT,
            "multiprocessing_context": START_METHOD,
        }
    return options


def batches_of(storage, device: torch.device):
    """Returns the loader that makes whole batches of a storage."""
    if LOADER != "dataloader":
        return Ahead(storage, device)
    options = {
        "batch_size": BATCH_SIZE,
        "sampler": Order(len(storage), storage.block),
        "collate_fn": as_it_is,
    }
    return DataLoader(Batches(storage), **options, **worker_options(device))


def make_loader(data: Path, device: torch.device):
    """Returns the loader of batches on the device, and the number of classes."""
    folder = ImageFolder(str(data))
    labels = torch.tensor(folder.targets)
    n_classes = len(folder.classes)
    path = prepare(data, [path for path, _ in folder.samples])
    if TRANSFER == "resident":
        return OnDevice(Resident(open_images(path), labels, device), device), n_classes
    if STORAGE == "memory-float":  # four bytes a value, and each sample on its own
        images = open_images(path).permute(0, 3, 1, 2).float().div_(255).contiguous()
        samples = TensorDataset(images, labels)
        order = torch.Generator().manual_seed(SEED)
        loader = DataLoader(
            samples, BATCH_SIZE, shuffle=True, generator=order, **worker_options(device)
        )
        return OnDevice(loader, device), n_classes
    return OnDevice(batches_of(Pixels(path, labels), device), device), n_classes


def augment(images):
    """Random crop, shift, rotation and flip: one affine map for each image of the batch."""
    u = torch.rand((6, len(images)), device=images.device)
    angle = (2 * u[0] - 1) * math.radians(15)
    area = MIN_AREA + (1 - MIN_AREA) * u[1]
    ratio = (3 / 4 if MIN_AREA < 1 else 1) ** (1 - 2 * u[2])
    width = (area * ratio).sqrt().clamp(max=1)
    height = (area / ratio).sqrt().clamp(max=1)
    x = (2 * u[3] - 1) * (1 - width + 2 * SHIFT / SIZE)
    y = (2 * u[4] - 1) * (1 - height + 2 * SHIFT / SIZE)
    if FLIP:
        width = torch.where(u[5] < 0.5, -width, width)
    rows = (
        (width * angle.cos(), -height * angle.sin(), x),
        (width * angle.sin(), height * angle.cos(), y),
    )
    theta = torch.stack([torch.stack(row, 1) for row in rows], 1)
    return F.grid_sample(
        images, F.affine_grid(theta, list(images.shape), align_corners=False), align_corners=False
    )


def normalised(images, mean, std):
    """Returns the model's input as floats, channels first; augmented if that is the device's work."""
    if images.dtype == torch.uint8:
        images = images.permute(0, 3, 1, 2).float().div_(255)
    if AUGMENT == "device":
        images = augment(images)
    return images.sub(mean).div_(std)


class OnDevice:
    """Batches on the device, normalised there: uint8 until then is a quarter of the bytes to move."""

    def __init__(self, loader, device: torch.device):
        self.loader = loader
        self.device = device
        self.mean = torch.tensor(MEAN, device=device).view(1, -1, 1, 1)
        self.std = torch.tensor(STD, device=device).view(1, -1, 1, 1)
        self.stream = None
        if TRANSFER == "stream" and device.type == "cuda":
            self.stream = torch.cuda.Stream()

    def __iter__(self):
        # The next batch is requested when the step before it is queued, so that its loading and its copy run
        # while the device works.
        for batch in self.loader:
            with torch.cuda.stream(self.stream):  # None: the stream that trains
                ahead = TRANSFER != "blocking"
                images, labels = (part.to(self.device, non_blocking=ahead) for part in batch)
                images = normalised(images, self.mean, self.std)
                if INPUT_SIZE != SIZE:
                    images = F.interpolate(images, (INPUT_SIZE, INPUT_SIZE), mode="bilinear")
            if self.stream is not None:
                training = torch.cuda.current_stream()
                training.wait_stream(self.stream)
                # Or the batch's memory could be reused before the step is done.
                images.record_stream(training)
                labels.record_stream(training)
            yield images, labels


def train(data: Path, epochs: int) -> float:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(SEED)
    torch.backends.cudnn.benchmark = CUDNN_BENCHMARK
    torch.set_float32_matmul_precision(MATMUL)
    loader, n_classes = make_loader(data, device)

    # ---- your own model and optimizer go here ----
    model = nn.Sequential(
        nn.AdaptiveAvgPool2d(8), nn.Flatten(), nn.Linear(64 * len(MEAN), n_classes)
    ).to(device)
    if COMPILE:
        model = torch.compile(model, mode=COMPILE)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=FUSED)
    scaler = torch.amp.GradScaler(device.type, enabled=AUTOCAST == "float16")

    for epoch in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad(set_to_none=True)
            precision = getattr(torch, AUTOCAST or "bfloat16")
            with torch.autocast(device.type, precision, enabled=bool(AUTOCAST)):
                loss = F.cross_entropy(model(images), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        # Once an epoch, not in each step: .item() waits for the device.
        print(f"epoch {epoch}: loss {loss.item():.4f}")
    return loss.item()


def make_demo(folder: Path) -> Path:
    """Writes a few random images in the form that your own must have: a folder for each class."""
    rng = np.random.default_rng(SEED)
    for i in range(140):
        path = folder / "demo" / f"class-{i % 10}" / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (SIZE, SIZE, 3), np.uint8)).save(path)
    return folder / "demo"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "data", nargs="?", type=Path, help="a folder of images with a folder for each class"
    )
    parser.add_argument("--demo", action="store_true", help="use a few random images")
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    if args.demo == (args.data is not None):
        parser.error("give the path of your data, or --demo")
    with tempfile.TemporaryDirectory() as folder:
        data = make_demo(Path(folder)) if args.demo else args.data.resolve()
        train(data, args.epochs)
