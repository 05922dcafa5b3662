"""Feed a training loop: NVIDIA DALI decodes, crops and flips, on the GPU where there is one."""

from pathlib import Path

import numpy as np
import torch
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.plugin.base_iterator import LastBatchPolicy
from nvidia.dali.plugin.pytorch import DALIGenericIterator
from torchvision.datasets import ImageFolder

from vitprof.export.code.scripts.array import *

TRANSFER = "blocking"  # one of blocking, pinned, stream; of labels: images are on the GPU
AUGMENT = "crop"  # one of off, crop
WORKERS = 2  # threads
PREFETCH = 2  # batches kept ready


@pipeline_def(num_threads=WORKERS, prefetch_queue_depth=PREFETCH, seed=SEED)
def decoding(paths, labels, gpu: bool):
    # `make_loader` shuffles for the first epoch, DALI after each. Without padding, an epoch's last batch would take
    # samples of the next epoch, and drop them.
    encoded, labels = fn.readers.file(
        files=paths, labels=labels, shuffle_after_epoch=True, pad_last_batch=True, name="reader"
    )
    # mixed: the GPU decodes.
    device = "mixed" if gpu else "cpu"
    if AUGMENT == "crop":
        ratio = [3 / 4, 4 / 3]
        images = fn.decoders.image_random_crop(
            encoded, device=device, random_area=[0.08, 1], random_aspect_ratio=ratio
        )
        images = fn.resize(
            images, size=[SIZE, SIZE], interp_type=types.INTERP_LINEAR, antialias=True
        )
        return fn.flip(images, horizontal=fn.random.coin_flip()), labels
    images = fn.decoders.image(encoded, device=device)
    shorter = SIZE * 256 // 224
    images = fn.resize(
        images, resize_shorter=shorter, interp_type=types.INTERP_LINEAR, antialias=True
    )
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


def normalised(images, mean, std):
    """Returns the model's input as floats, channels first."""
    return images.permute(0, 3, 1, 2).float().div_(255).sub_(mean).div_(std)
