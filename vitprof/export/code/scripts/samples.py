"""Feed a training loop: a Dataset of files with transforms, sample by sample, and a DataLoader."""

from pathlib import Path

import torch
import torch.nn.functional as F
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
