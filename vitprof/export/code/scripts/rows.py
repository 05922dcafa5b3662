"""Feed a training loop: the pixels of each image stored one by one or in chunks, prepared once and read into batches.

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
from pathlib import Path

import h5py
import lmdb
import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.datasets import ImageFolder

SIZE = 224  # side of the images that are loaded, in pixels
INPUT_SIZE = 224  # side of your model's input
MEAN = (0.485, 0.456, 0.406)  # of your pixels in 0..1, for each channel: one value for grey images
STD = (0.229, 0.224, 0.225)
STORAGE = "raw-files"  # one of raw-files, pt, lmdb, hdf5-chunked
LOADER = "ahead"  # one of batches, ahead, dataloader
TRANSFER = "pinned"  # one of blocking, pinned, stream
SHUFFLE = "full"  # one of full, block, none
BLOCK = 128  # neighbours that stay together when blocks are shuffled; of HDF5 a chunk
AUGMENT = "off"  # one of off, device
MIN_AREA = 0.35  # smallest part of an image that augmentation leaves
SHIFT = 0  # most pixels that it moves an image by
FLIP = True  # whether a mirrored image still belongs to its class
CACHE_MB = 0  # memory for a fixed random part of the set
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


class RawFiles:
    """A file of bare pixels for each image, read straight into its row of the batch. Folders of 1,000 files."""

    shape = SIZE, SIZE, len(MEAN)

    def __init__(self, path: Path, labels):
        self.path, self.labels, self.opened, self.process = path, labels, None, None

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
            self.opened, self.process = self.open(), os.getpid()
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
        wanted, rows, images = indices.numpy(), out.numpy(), self.handle()["images"]
        starts = np.flatnonzero(np.diff(wanted, prepend=-2) != 1).tolist()
        for first, last in zip(starts, [*starts[1:], len(wanted)], strict=True):
            images.read_direct(rows, np.s_[wanted[first] : wanted[first] + last - first], np.s_[first:last])
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
        self.storage, self.labels, self.shape = storage, storage.labels, storage.shape
        n_kept = min(len(storage), int(CACHE_MB * 1e6 / math.prod(self.shape)))
        kept = torch.randperm(len(storage), generator=torch.Generator().manual_seed(SEED))[:n_kept].sort().values
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


class Order:
    """The order of an epoch: each sample once, in another order for each epoch if it is shuffled."""

    def __init__(self, n: int):
        self.n, self.generator = n, torch.Generator().manual_seed(SEED)

    def __len__(self):
        return self.n

    def __iter__(self):
        return iter(self.indices().tolist())

    def indices(self):
        if SHUFFLE == "none":
            return torch.arange(self.n)
        if SHUFFLE == "full":
            return torch.randperm(self.n, generator=self.generator)
        starts = torch.randperm(-(-self.n // BLOCK), generator=self.generator) * BLOCK
        order = (starts[:, None] + torch.arange(BLOCK)).flatten()  # neighbours in the storage stay together
        return order[order < self.n]


class Ahead:
    """Whole batches of a storage, made in the training loop or by a thread while the batch before trains."""

    def __init__(self, storage, device: torch.device):
        self.storage, self.order = storage, Order(len(storage))
        # PyTorch keeps pinned memory and hands it out again once the copy from it is over.
        self.pinned = device.type == "cuda" and TRANSFER in ("pinned", "stream")

    def read(self, indices):
        images = torch.empty((len(indices), *self.storage.shape), dtype=torch.uint8, pin_memory=self.pinned)
        return self.storage.read(indices, images), self.storage.labels[indices]

    def __iter__(self):
        batches = self.order.indices().split(BATCH_SIZE)
        if LOADER == "batches":
            yield from map(self.read, batches)
            return
        with ThreadPoolExecutor(1) as thread:
            ready = deque()
            for indices in batches:
                ready.append(thread.submit(self.read, indices))
                if len(ready) > PREFETCH:
                    yield ready.popleft().result()
            while ready:
                yield ready.popleft().result()


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
    some = {"prefetch_factor": PREFETCH, "persistent_workers": PERSISTENT, "multiprocessing_context": START_METHOD}
    return {"num_workers": WORKERS, "pin_memory": PIN_MEMORY and device.type == "cuda", **(some if WORKERS else {})}


def make_loader(data: Path, device: torch.device):
    """Returns the loader of batches on the device, and the number of classes."""
    folder = ImageFolder(str(data))
    labels, n_classes = torch.tensor(folder.targets), len(folder.classes)
    kind, ending = STORAGES[STORAGE]
    path = prepared(data, ending)
    if not path.exists():
        new = path.with_name(f"{path.name}.{os.getpid()}.tmp")  # renamed when complete
        with ThreadPoolExecutor() as pool:  # Pillow decodes outside Python's lock
            kind(new, labels).write(pool.map(fitted, [file for file, _ in folder.samples]))
        os.replace(new, path)
    storage = kind(path, labels)
    if CACHE_MB:
        storage = Cached(storage)
    if LOADER == "dataloader":
        options = {"batch_size": BATCH_SIZE, "sampler": Order(len(storage)), "collate_fn": as_it_is}
        loader = DataLoader(Batches(storage), **options, **worker_options(device))
    else:
        loader = Ahead(storage, device)
    return OnDevice(loader, device), n_classes


def augment(images):
    """Random crop, shift, rotation and flip: one affine map for each image of the batch."""
    u = torch.rand((6, len(images)), device=images.device)
    angle = (2 * u[0] - 1) * math.radians(15)
    area, ratio = MIN_AREA + (1 - MIN_AREA) * u[1], (3 / 4 if MIN_AREA < 1 else 1) ** (1 - 2 * u[2])
    width, height = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
    x, y = (2 * u[3] - 1) * (1 - width + 2 * SHIFT / SIZE), (2 * u[4] - 1) * (1 - height + 2 * SHIFT / SIZE)
    width = torch.where(u[5] < 0.5, -width, width) if FLIP else width
    rows = (width * angle.cos(), -height * angle.sin(), x), (width * angle.sin(), height * angle.cos(), y)
    theta = torch.stack([torch.stack(row, 1) for row in rows], 1)
    return F.grid_sample(images, F.affine_grid(theta, list(images.shape), align_corners=False), align_corners=False)


class OnDevice:
    """Batches on the device, normalised there: uint8 until then is a quarter of the bytes to move."""

    def __init__(self, loader, device: torch.device):
        self.loader, self.device = loader, device
        self.mean, self.std = (torch.tensor(values, device=device).view(1, -1, 1, 1) for values in (MEAN, STD))
        self.stream = torch.cuda.Stream() if TRANSFER == "stream" and device.type == "cuda" else None

    def __iter__(self):
        # The next batch is requested when the step before it is queued, so that its loading and its copy run
        # while the device works.
        for batch in self.loader:
            with torch.cuda.stream(self.stream):  # None: the stream that trains
                images, labels = (part.to(self.device, non_blocking=TRANSFER != "blocking") for part in batch)
                images = self.to_input(images)
            if self.stream is not None:
                training = torch.cuda.current_stream()
                training.wait_stream(self.stream)
                # Or the batch's memory could be reused before the step is done.
                images.record_stream(training)
                labels.record_stream(training)
            yield images, labels

    def to_input(self, images):
        """Returns the model's input, made on the device: float, normalised."""
        images = images.permute(0, 3, 1, 2).float().div_(255)
        if AUGMENT == "device":
            images = augment(images)
        images = images.sub(self.mean).div_(self.std)
        return images if INPUT_SIZE == SIZE else F.interpolate(images, (INPUT_SIZE, INPUT_SIZE), mode="bilinear")


def train(data: Path, epochs: int) -> float:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(SEED)
    torch.backends.cudnn.benchmark = CUDNN_BENCHMARK
    torch.set_float32_matmul_precision(MATMUL)
    loader, n_classes = make_loader(data, device)

    # ---- your own model and optimizer go here ----
    model = nn.Sequential(nn.AdaptiveAvgPool2d(8), nn.Flatten(), nn.Linear(64 * len(MEAN), n_classes)).to(device)
    if COMPILE:
        model = torch.compile(model, mode=COMPILE)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=FUSED)
    scaler = torch.amp.GradScaler(device.type, enabled=AUTOCAST == "float16")

    for epoch in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device.type, getattr(torch, AUTOCAST or "bfloat16"), enabled=bool(AUTOCAST)):
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
    parser.add_argument("data", nargs="?", type=Path, help="a folder of images with a folder for each class")
    parser.add_argument("--demo", action="store_true", help="use a few random images")
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    if args.demo == (args.data is not None):
        parser.error("give the path of your data, or --demo")
    with tempfile.TemporaryDirectory() as folder:
        train(make_demo(Path(folder)) if args.demo else args.data.resolve(), args.epochs)
