"""Feed a training loop: a Dataset of files with transforms, sample by sample, and a DataLoader.

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
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

SIZE = 224  # side of the images that are loaded, in pixels
INPUT_SIZE = 224  # side of your model's input
MEAN = (0.485, 0.456, 0.406)  # of your pixels in 0..1, for each channel: one value for grey images
STD = (0.229, 0.224, 0.225)
TRANSFER = "pinned"  # one of blocking, pinned, stream
AUGMENT = "crop"  # one of off, crop, shift
FLIP = True  # whether a mirrored image still belongs to its class
WORKERS = 2  # processes
PREFETCH = 2  # batches kept ready by each worker
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


def worker_options(device: torch.device) -> dict:
    """Returns the DataLoader's options about workers; PyTorch refuses most of them without any."""
    some = {"prefetch_factor": PREFETCH, "persistent_workers": PERSISTENT, "multiprocessing_context": START_METHOD}
    return {"num_workers": WORKERS, "pin_memory": PIN_MEMORY and device.type == "cuda", **(some if WORKERS else {})}


def make_loader(data: Path, device: torch.device):
    """Returns the loader of batches on the device, and the number of classes."""
    if AUGMENT == "crop":
        steps = [transforms.RandomResizedCrop(SIZE), transforms.RandomHorizontalFlip(0.5 if FLIP else 0)]
    elif AUGMENT == "shift":
        steps = [transforms.Resize(SIZE), transforms.RandomRotation(15), transforms.RandomCrop(SIZE, padding=2)]
    else:
        steps = [transforms.Resize(SIZE * 256 // 224), transforms.CenterCrop(SIZE)]
    if len(MEAN) == 1:
        steps.insert(0, transforms.Grayscale())
    steps += [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    samples = ImageFolder(str(data), transform=transforms.Compose(steps))
    order = torch.Generator().manual_seed(SEED)
    loader = DataLoader(samples, BATCH_SIZE, shuffle=True, generator=order, **worker_options(device))
    return OnDevice(loader, device), len(samples.classes)


class OnDevice:
    """Batches on the device, as large as the model wants them."""

    def __init__(self, loader, device: torch.device):
        self.loader, self.device = loader, device
        self.stream = torch.cuda.Stream() if TRANSFER == "stream" and device.type == "cuda" else None

    def __iter__(self):
        # The next batch is requested when the step before it is queued, so that its loading and its copy run
        # while the device works.
        for batch in self.loader:
            with torch.cuda.stream(self.stream):  # None: the stream that trains
                images, labels = (part.to(self.device, non_blocking=TRANSFER != "blocking") for part in batch)
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
