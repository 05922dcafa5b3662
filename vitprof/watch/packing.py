"""Batches that cross from a worker packed: one tensor for each dtype, in place of all of its tensors.

Each tensor that a worker sends is a segment of shared memory and a descriptor of its own: many small ones
take longer than their bytes. The script's collate function makes a batch as ever; what the script gets
has the very same values. A batch is taken apart and put together by pickle, as on its usual way.
"""

from __future__ import annotations

import functools
import io
import math
import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

ITERATOR = "MultiProcessingDataLoaderIter"
"""End of the names of PyTorch's and torchdata's classes of iterators with workers."""


class Place(NamedTuple):
    """Where a tensor is among the packed ones."""

    dtype: str
    begin: int
    """Numbers of that dtype before it."""
    shape: tuple[int, ...]


@dataclass
class PackedBatch:
    """A batch without its tensors, and these."""

    pickled: bytes
    """The batch, with the number of each tensor in its place."""
    places: list[Place | None]
    """By number; None for the next one of `others`."""
    packed: dict[str, Any]
    """By dtype: a tensor of one dimension."""
    others: list[Any]
    """Tensors that cannot be packed."""

    def pin_memory(self) -> PackedBatch:
        """Puts its tensors into page-locked memory: PyTorch's pinning thread calls this."""
        self.packed = {dtype: tensor.pin_memory() for dtype, tensor in self.packed.items()}
        self.others = [tensor.pin_memory() for tensor in self.others]
        return self

    def unpacked(self) -> Any:
        """Returns the batch as it was."""
        others = iter(self.others)
        tensors = [next(others) if place is None else self._at(place) for place in self.places]
        return _Unpickler(self.pickled, tensors).load()

    def _at(self, place: Place) -> Any:
        end = place.begin + math.prod(place.shape)
        return self.packed[place.dtype][place.begin : end].view(place.shape)


class PackingCollate:
    """A collate function that packs what another one makes, in a worker."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: Any) -> Any:
        from torch.utils.data import get_worker_info

        batch = self._collate(samples)
        return batch if get_worker_info() is None else packed(batch)


class _Pickler(pickle.Pickler):
    """Leaves tensors out, and gives them numbers."""

    def __init__(self, file: io.BytesIO, kind: type) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._kind = kind
        self._numbers: dict[int, int] = {}
        self.tensors: list[Any] = []

    def persistent_id(self, obj: Any) -> int | None:
        if not isinstance(obj, self._kind):
            return None
        number = self._numbers.setdefault(id(obj), len(self.tensors))
        if number == len(self.tensors):
            self.tensors.append(obj)
        return number


class _Unpickler(pickle.Unpickler):
    """Puts tensors in for their numbers."""

    def __init__(self, pickled: bytes, tensors: Sequence[Any]) -> None:
        super().__init__(io.BytesIO(pickled))
        self._tensors = tensors

    def persistent_load(self, pid: Any) -> Any:
        return self._tensors[pid]


def packed(batch: Any) -> Any:
    """Returns a batch packed; the batch itself where that makes no fewer tensors of it, or pickle cannot."""
    import torch

    buffer = io.BytesIO()
    pickler = _Pickler(buffer, torch.Tensor)
    try:
        pickler.dump(batch)
    except Exception:  # what its class raises; the queue has other ways, or fails as it would have
        return batch
    can_be = [_can_be_packed(tensor) for tensor in pickler.tensors]
    # Two views of one storage are one storage on the other side, too.
    storages = Counter(
        tensor.untyped_storage().data_ptr()
        for tensor, can in zip(pickler.tensors, can_be, strict=True)
        if can
    )
    parts: dict[str, list[Any]] = {}
    lengths = Counter[str]()
    places: list[Place | None] = []
    others = []
    for tensor, can in zip(pickler.tensors, can_be, strict=True):
        if not can or storages[tensor.untyped_storage().data_ptr()] > 1:
            places.append(None)
            others.append(tensor)
            continue
        dtype = str(tensor.dtype)
        places.append(Place(dtype, lengths[dtype], tuple(tensor.shape)))
        lengths[dtype] += tensor.numel()
        parts.setdefault(dtype, []).append(tensor.reshape(-1))
    if len(parts) + len(others) >= len(places):
        return batch
    joined = {dtype: torch.cat(tensors) for dtype, tensors in parts.items()}
    return PackedBatch(buffer.getvalue(), places, joined, others)


def _can_be_packed(tensor: Any) -> bool:
    """Returns whether a tensor is nothing but its numbers, one after the other."""
    import torch

    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and tensor.numel() > 0
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    )


def unpack_batches(dataloader: ModuleType) -> None:
    """Patches the iterators with workers of a module to give out batches as their collate function made
    them."""
    for name, kind in vars(dataloader).items():
        if name.endswith(ITERATOR) and "_next_data" in vars(kind):
            kind._next_data = _next_unpacked(kind._next_data)


def _next_unpacked(next_data: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(next_data)
    def next_unpacked(self: Any) -> Any:
        data = next_data(self)
        if type(data) is PackedBatch:
            return data.unpacked()
        # With the times of how it was made (`fetch_times`).
        if type(data) in (tuple, list) and data and type(data[0]) is PackedBatch:
            return type(data)([data[0].unpacked(), *data[1:]])
        return data

    return next_unpacked
