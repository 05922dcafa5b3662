"""Feed a training loop: a Dataset of files with transforms, sample by sample, and a DataLoader."""

from pathlib import Path

import torch
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

from vitprof.export.code.scripts.array import *

TRANSFER = "pinned"  # one of blocking, pinned, stream
AUGMENT = "crop"  # one of off, crop, shift
WORKERS = 2  # processes
PREFETCH = 2  # batches kept ready by each worker


def make_loader(data: Path, device: torch.device):
    """Returns the loader of batches on the device, and the number of classes."""
    if AUGMENT == "crop":
        steps = [
            transforms.RandomResizedCrop(SIZE),
            transforms.RandomHorizontalFlip(0.5 if FLIP else 0),
        ]
    elif AUGMENT == "shift":
        steps = [
            transforms.Resize(SIZE),
            transforms.RandomRotation(15),
            transforms.RandomCrop(SIZE, padding=2),
        ]
    else:
        steps = [transforms.Resize(SIZE * 256 // 224), transforms.CenterCrop(SIZE)]
    if len(MEAN) == 1:
        steps.insert(0, transforms.Grayscale())
    steps += [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    samples = ImageFolder(str(data), transform=transforms.Compose(steps))
    order = torch.Generator().manual_seed(SEED)
    loader = DataLoader(
        samples, BATCH_SIZE, shuffle=True, generator=order, **worker_options(device)
    )
    return OnDevice(loader, device), len(samples.classes)


def normalised(images, mean, std):
    """Returns the model's input: `transforms` have normalised it."""
    return images
