"""Feed a training loop: NVIDIA DALI decodes, crops and flips, on the GPU where there is one.

DATA is a folder of images with a folder for each class. Change SIZE, MEAN and STD to those of your data, and put your
own model into `train`.

    python script.py DATA        python script.py --demo
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.plugin.base_iterator import LastBatchPolicy
from nvidia.dali.plugin.pytorch import DALIGenericIterator
from PIL import Image
from torch import nn
from torchvision.datasets import ImageFolder

SIZE = 224  # side of the images that are loaded, in pixels
INPUT_SIZE = 224  # side of your model's input
MEAN = (0.485, 0.456, 0.406)  # of your pixels in 0..1, for each channel: one value for grey images
STD = (0.229, 0.224, 0.225)
AUGMENT = "crop"  # one of off, crop
WORKERS = 2  # threads
PREFETCH = 2  # batches kept ready
BATCH_SIZE = 128
LEARNING_RATE = 0.001
SEED = 42
AUTOCAST = None  # precision of the training: None, "bfloat16" or "float16"
MATMUL = "highest"  # of products in float32; "high" uses TF32
COMPILE = None  # mode of torch.compile: None, "default", "reduce-overhead" or "max-autotune"
FUSED = None  # True: Adam as one kernel
CUDNN_BENCHMARK = False


@pipeline_def(num_threads=WORKERS, prefetch_queue_depth=PREFETCH, seed=SEED)
def decoding(paths, labels, gpu: bool):
    # `make_loader` shuffles for the first epoch, DALI after each. Without padding, an epoch's last batch would take
    # samples of the next epoch, and drop them.
    encoded, labels = fn.readers.file(
        files=paths, labels=labels, shuffle_after_epoch=True, pad_last_batch=True, name="reader"
    )
    device = "mixed" if gpu else "cpu"  # mixed: the GPU decodes
    if AUGMENT == "crop":
        ratio = [3 / 4, 4 / 3]
        images = fn.decoders.image_random_crop(encoded, device=device, random_area=[0.08, 1], random_aspect_ratio=ratio)
        images = fn.resize(images, size=[SIZE, SIZE], interp_type=types.INTERP_LINEAR, antialias=True)
        return fn.flip(images, horizontal=fn.random.coin_flip()), labels
    images = fn.decoders.image(encoded, device=device)
    shorter = SIZE * 256 // 224
    images = fn.resize(images, resize_shorter=shorter, interp_type=types.INTERP_LINEAR, antialias=True)
    return fn.crop(images, crop=(SIZE, SIZE)), labels


class Loader:
    """Batches that DALI decodes, crops and resizes; they are uint8, on the device."""

    def __init__(self, paths, labels, device: torch.device):
        gpu = device.type == "cuda"
        pipeline = decoding(
            paths,
            labels,
            gpu,
            batch_size=min(BATCH_SIZE, len(paths)),
            device_id=torch.cuda.current_device() if gpu else None,
        )
        self.batches = DALIGenericIterator(
            pipeline,
            ["images", "labels"],
            reader_name="reader",
            last_batch_policy=LastBatchPolicy.PARTIAL,  # each image once, none twice
            auto_reset=True,
        )

    def __iter__(self):
        for (batch,) in self.batches:
            yield batch["images"], batch["labels"].squeeze(1).long()


def make_loader(data: Path, device: torch.device):
    """Returns the loader of batches on the device, and the number of classes."""
    folder = ImageFolder(str(data))
    order = np.random.default_rng(SEED).permutation(len(folder.samples))
    paths, labels = zip(*(folder.samples[i] for i in order), strict=True)
    return OnDevice(Loader(list(paths), list(labels), device), device), len(folder.classes)


class OnDevice:
    """Batches on the device, normalised there: uint8 until then is a quarter of the bytes to move."""

    def __init__(self, loader, device: torch.device):
        self.loader, self.device = loader, device
        self.mean, self.std = (torch.tensor(values, device=device).view(1, -1, 1, 1) for values in (MEAN, STD))

    def __iter__(self):
        for images, labels in self.loader:  # a GPU has the images already: only labels are copied
            yield self.to_input(images.to(self.device)), labels.to(self.device, non_blocking=True)

    def to_input(self, images):
        """Returns the model's input, made on the device: float, normalised."""
        images = images.permute(0, 3, 1, 2).float().div_(255)
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
