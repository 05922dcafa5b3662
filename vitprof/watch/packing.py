"""Batches that cross from a worker packed: one tensor for each dtype, in place of all of its tensors; and floats
that are whole numbers / 255 as uint8.

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
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NamedTuple

ITERATOR = "MultiProcessingDataLoaderIter"
"""End of the names of PyTorch's and torchdata's classes of iterators with workers."""
LEAST_FLOATS = 4096
"""Fewer floats cross as they are: a page of shared memory is no smaller."""
FIRST = 256
"""So many floats are looked at before all of them are: what is normalised is seen by these."""
BATCHES_WITHOUT = 8
"""Batches of which none is packed after which a trial is told to change nothing: a dataset may mix its samples."""
INTEGERS = {2: "int16", 4: "int32", 8: "int64"}
"""Bytes of a float -> the integer whose bits are compared, as NaN equals nothing and -0.0 equals 0.0."""


class Place(NamedTuple):
    """Where a tensor is among the packed ones."""

    group: str
    """Its dtype, and what else tells its packed tensor from others."""
    begin: int
    """Numbers of that group before it."""
    shape: tuple[int, ...]


class FromUint8(NamedTuple):
    """How floats are made of uint8."""

    dtype: str
    """Such as "float32"."""
    is_product: bool
    """By a product with 1 / 255, as of `torchvision.transforms.v2.ToDtype`; else by a division, as of
    `ToTensor`. They differ in the last bit."""

    def floats(self, numbers: Any, *, pinned: bool = False) -> Any:
        """Returns the floats of a tensor of uint8; `pinned`: in page-locked memory."""
        import torch

        dtype = getattr(torch, self.dtype)
        made = torch.empty(numbers.shape, dtype=dtype, pin_memory=pinned)
        made.copy_(numbers)
        return made.mul_(1.0 / 255) if self.is_product else made.div_(255)


@dataclass
class PackedBatch:
    """A batch without its tensors, and these."""

    pickled: bytes
    """The batch, with the number of each tensor in its place."""
    places: list[Place | None]
    """By number; None for the next one of `others`."""
    packed: dict[str, Any]
    """By group: a tensor of one dimension."""
    others: list[Any]
    """Tensors that cannot be packed."""
    from_uint8: dict[str, FromUint8] = field(default_factory=dict)
    """Groups that are uint8, and were not."""
    n_bytes: int = 0
    """Of the tensors as they were."""
    saved_bytes: int = 0
    """What is less of them by uint8."""

    def pin_memory(self) -> PackedBatch:
        """Puts its tensors into page-locked memory: PyTorch's pinning thread calls this.

        Floats are made here, as the loop would have them in memory that is not page-locked.
        """
        self._make_floats(pinned=True)
        self.packed = {group: tensor.pin_memory() for group, tensor in self.packed.items()}
        self.others = [tensor.pin_memory() for tensor in self.others]
        return self

    def unpacked(self) -> Any:
        """Returns the batch as it was."""
        self._make_floats()
        others = iter(self.others)
        tensors = [next(others) if place is None else self._at(place) for place in self.places]
        return _Unpickler(self.pickled, tensors).load()

    def _make_floats(self, *, pinned: bool = False) -> None:
        for group, how in self.from_uint8.items():
            self.packed[group] = how.floats(self.packed[group], pinned=pinned)
        self.from_uint8 = {}

    def _at(self, place: Place) -> Any:
        end = place.begin + math.prod(place.shape)
        return self.packed[place.group][place.begin : end].view(place.shape)


class PackingCollate:
    """A collate function that packs what another one makes, in a worker."""

    def __init__(
        self, collate: Callable[[Any], Any], *, joins: bool = True, as_uint8: bool = False
    ) -> None:
        """`joins`, `as_uint8`: as of `packed`."""
        self._collate = collate
        self.joins = joins
        self.as_uint8 = as_uint8

    def __call__(self, samples: Any) -> Any:
        from torch.utils.data import get_worker_info

        batch = self._collate(samples)
        if get_worker_info() is None:
            return batch
        return packed(batch, joins=self.joins, as_uint8=self.as_uint8)


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


class _Parts:
    """The tensors of a batch, in the groups in which they cross."""

    def __init__(self, *, joins: bool, as_uint8: bool) -> None:
        self._joins = joins
        self._as_uint8 = as_uint8
        self._lengths = Counter[str]()
        self.places: list[Place | None] = []
        self.by_group: dict[str, list[Any]] = {}
        self.others: list[Any] = []
        self.from_uint8: dict[str, FromUint8] = {}
        self.saved_bytes = 0

    def add(self, tensor: Any, *, is_plain: bool) -> None:
        """Adds the next tensor; `is_plain`: whether it is nothing but its numbers."""
        numbers = None
        found = None
        if is_plain:
            numbers = tensor.reshape(-1)
            if self._as_uint8:
                found = uint8_of(numbers)
        if numbers is None or (found is None and not self._joins):
            self.places.append(None)
            self.others.append(tensor)
            return
        group = str(tensor.dtype)
        if found is not None:
            numbers, how = found
            group = f"{group} by {'product' if how.is_product else 'division'}"
            if not self._joins:
                group = f"{group}, {len(self.places)}"
            self.from_uint8[group] = how
            self.saved_bytes += _n_bytes(tensor) - _n_bytes(numbers)
        self.places.append(Place(group, self._lengths[group], tuple(tensor.shape)))
        self._lengths[group] += numbers.numel()
        self.by_group.setdefault(group, []).append(numbers)

    @property
    def are_worth_it(self) -> bool:
        """Returns whether these are fewer bytes or fewer tensors than the batch's own."""
        return bool(self.from_uint8) or len(self.by_group) + len(self.others) < len(self.places)


def packed(batch: Any, *, joins: bool = True, as_uint8: bool = False) -> Any:
    """Returns a batch packed; the batch itself where that makes no less of it, or pickle cannot.

    `joins`: the tensors of a dtype become one. `as_uint8`: floats that are whole numbers / 255 become uint8.
    """
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
    parts = _Parts(joins=joins, as_uint8=as_uint8)
    for tensor, can in zip(pickler.tensors, can_be, strict=True):
        is_plain = can and storages[tensor.untyped_storage().data_ptr()] == 1
        parts.add(tensor, is_plain=is_plain)
    if not parts.are_worth_it:
        return batch
    joined = {
        group: tensors[0] if len(tensors) == 1 else torch.cat(tensors)
        for group, tensors in parts.by_group.items()
    }
    n_bytes = sum(map(_n_bytes, pickler.tensors))
    pickled = buffer.getvalue()
    return PackedBatch(
        pickled, parts.places, joined, parts.others, parts.from_uint8, n_bytes, parts.saved_bytes
    )


def uint8_of(floats: Any) -> tuple[Any, FromUint8] | None:
    """Returns a tensor of whole numbers / 255 as uint8, and how it is made of that again, to the bit.

    None for any other tensor. `floats`: of one dimension, with its numbers one after the other.
    """
    is_small = floats.numel() < LEAST_FLOATS
    if is_small or not floats.is_floating_point() or floats.element_size() not in INTEGERS:
        return None
    try:
        return None if _to_uint8(floats[:FIRST]) is None else _to_uint8(floats)
    except RuntimeError:  # an operation that this PyTorch lacks for the dtype
        return None


def _to_uint8(floats: Any) -> tuple[Any, FromUint8] | None:
    import torch

    integer = getattr(torch, INTEGERS[floats.element_size()])
    # Whatever becomes of numbers out of range, it is no number / 255 with the same bits.
    numbers = floats.mul(255).round_().to(torch.uint8)
    for is_product in (False, True):
        how = FromUint8(str(floats.dtype).removeprefix("torch."), is_product)
        if torch.equal(how.floats(numbers).view(integer), floats.view(integer)):
            return numbers, how
    return None


def _n_bytes(tensor: Any) -> int:
    """Returns the bytes of a tensor's numbers; 0 for one that has others besides (sparse, nested)."""
    import torch

    is_dense = tensor.layout is torch.strided and not tensor.is_nested
    return tensor.numel() * tensor.element_size() if is_dense else 0


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


class Saving:
    """Says once what packing saves of the batches of the loader that a trial changes, or that it changes nothing."""

    def __init__(self, say: Callable[[str], None], unused: Callable[[str], None]) -> None:
        """`say` takes how many bytes of a batch uint8 saves. `unused` takes why all batches cross as they are:
        the trial is then one of the setting without it."""
        self._say = say
        self._unused = unused
        self._batches = 0
        self._any_packed = False
        self._is_over = False

    def of(self, iterator: Any, batch: Any) -> None:
        """Takes a batch that has crossed, of one of PyTorch's iterators."""
        if self._is_over:
            return
        collate = getattr(iterator, "_collate_fn", None)
        # Another loader's batches, which cross as ever.
        if type(collate) is not PackingCollate:
            return
        self._batches += 1
        if type(batch) is PackedBatch:
            self._any_packed = True
            if batch.saved_bytes:
                self._say(
                    f"uint8=on saves {batch.saved_bytes / 1e6:.3g} of the {batch.n_bytes / 1e6:.3g} MB "
                    "of a batch"
                )
                self._is_over = True
            elif not collate.as_uint8:
                self._is_over = True
        if self._batches >= BATCHES_WITHOUT and not self._is_over:
            self._is_over = True
            self._say_nothing_is_saved(collate)

    def _say_nothing_is_saved(self, collate: PackingCollate) -> None:
        batches = f"the first {BATCHES_WITHOUT} batches"
        no_floats = (
            f"in {batches} no tensor has {LEAST_FLOATS:,} floats or more that are whole numbers / 255 "
            "(normalised images have none)"
        )
        if self._any_packed:
            self._say(f"uint8=on saves nothing: {no_floats}")
            return
        why = []
        names = []
        if collate.joins:
            names.append("pack=on")
            why.append(f"in {batches} no dtype has several tensors to pack")
        if collate.as_uint8:
            names.append("uint8=on")
            why.append(no_floats)
        change = "changes" if len(names) == 1 else "change"
        self._unused(
            f"{' and '.join(names)} {change} nothing, so this is the setting without: {', and '.join(why)}"
        )


def unpack_batches(dataloader: ModuleType, saving: Saving | None = None) -> None:
    """Patches the iterators with workers of a module to give out batches as their collate function made
    them.

    `saving`: is told of each batch as it has crossed.
    """
    for name, kind in vars(dataloader).items():
        if name.endswith(ITERATOR) and "_next_data" in vars(kind):
            kind._next_data = _next_unpacked(kind._next_data, saving)


def _next_unpacked(next_data: Callable[[Any], Any], saving: Saving | None) -> Callable[[Any], Any]:
    @functools.wraps(next_data)
    def next_unpacked(self: Any) -> Any:
        data = next_data(self)
        # With the times of how it was made (`fetch_times`).
        is_timed = type(data) in (tuple, list) and len(data) > 1 and type(data[-1]) is bytes
        batch = data[0] if is_timed else data
        if saving is not None:
            saving.of(self, batch)
        if type(batch) is not PackedBatch:
            return data
        return type(data)([batch.unpacked(), *data[1:]]) if is_timed else batch.unpacked()

    return next_unpacked
