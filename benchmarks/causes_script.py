"""A training script whose cause of waiting is known, for `benchmarks.causes_under_load`.

    python -m benchmarks.causes_script KIND THREADS STEPS

It prints the shares of its stages and transforms by clocks of its own, which is the truth where nothing else runs.
"""

from __future__ import annotations

import io
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

BATCH = 8
SIDE = 128
SPENT: defaultdict[str, float] = defaultdict(float)
"""Seconds by stage or transform, in this process."""


class Timed:
    """A function that notes how long it takes."""

    def __init__(self, name: str, call: Callable[[Any], Any]) -> None:
        self._call = call
        self.__name__ = name

    def __call__(self, value: Any) -> Any:
        began_s = time.perf_counter()
        value = self._call(value)
        SPENT[self.__name__] += time.perf_counter() - began_s
        return value


def named(transform: Any) -> Any:
    """Returns a transform of the same class name that notes its time."""
    kind = type(transform)

    class Noted(kind):  # type: ignore[misc, valid-type]
        def __call__(self, value: Any) -> Any:
            began_s = time.perf_counter()
            made = transform(value)
            SPENT[kind.__name__] += time.perf_counter() - began_s
            return made

    Noted.__name__ = kind.__name__
    noted = Noted.__new__(Noted)
    noted.__dict__ = transform.__dict__
    return noted


def compose(*more: Any) -> transforms.Compose:
    """Returns the transforms that all scripts have, after some of their own: their threads wait for each other."""
    half = [0.5] * 3
    usual = [transforms.ToTensor(), transforms.GaussianBlur(9), transforms.Normalize(half, half)]
    return transforms.Compose([named(each) for each in (*more, *usual)])


def noise(height: int, width: int) -> Image.Image:
    random = np.random.default_rng(1)
    coarse = random.integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height))


class Samples(Dataset[Any]):
    """As many samples as steps need."""

    def __init__(self, n: int, make: Callable[[], Any], transform: Any) -> None:
        self._n = n
        self._make = make
        self.transform = transform

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        began_s = time.perf_counter()
        image = self._make()
        SPENT["dataset"] += time.perf_counter() - began_s
        return self.transform(image), index % 2


class Batches(Dataset[Any]):
    """Batches that are made at once, and are large: they cross slowly from a worker."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._batch = torch.ones(BATCH, 3, 1024, 1024)

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._batch, torch.zeros(BATCH, dtype=torch.int64)


def slow_collate(samples: Sequence[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    """Puts a batch together in Python, row by row."""
    began_s = time.perf_counter()
    rows = [[row.tolist() for row in image[0]] for image, _ in samples]
    images = torch.stack([image for image, _ in samples])
    images[:, 0] = torch.tensor(rows)
    SPENT["collate"] += time.perf_counter() - began_s
    return images, torch.tensor([label for _, label in samples])


def loader(kind: str, steps: int) -> DataLoader[Any]:
    """Returns the loader of a kind of script: resize, decode, collate, drive or handing."""
    n = steps * BATCH
    if kind == "handing":
        return DataLoader(Batches(steps), batch_size=None, num_workers=1)
    large = noise(960, 1280)
    small = large.resize((SIDE, SIDE))
    encoded = io.BytesIO()
    large.save(encoded, "JPEG")

    def decoded() -> Image.Image:
        return Image.open(io.BytesIO(encoded.getvalue())).convert("RGB").crop((0, 0, SIDE, SIDE))

    def read() -> Image.Image:
        time.sleep(0.008)
        return small

    if kind == "resize":
        samples = Samples(n, lambda: large, compose(transforms.Resize((SIDE, SIDE))))
    elif kind == "decode":
        samples = Samples(n, decoded, compose())
    elif kind == "drive":
        samples = Samples(n, read, compose())
    elif kind == "collate":
        samples = Samples(n, lambda: small, compose())
        return DataLoader(samples, batch_size=BATCH, collate_fn=slow_collate)
    else:
        raise SystemExit(f"no kind of script: {kind}")
    return DataLoader(samples, batch_size=BATCH)


def main() -> None:
    kind, threads, steps = sys.argv[1:]
    torch.set_num_threads(int(threads))
    torch.manual_seed(1)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in loader(kind, int(steps)):
        loss = torch.nn.functional.cross_entropy(model(images[:, :, ::8, ::8].mean((2, 3))), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    whole_s = sum(SPENT.values()) or 1.0
    print(json.dumps({name: round(spent_s / whole_s, 3) for name, spent_s in SPENT.items()}))


if __name__ == "__main__":
    main()
