"""Transfers: how a batch reaches the device."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from math import ceil, prod
from typing import Any, NamedTuple

import torch

from vitprof.config import plugins, strategies
from vitprof.engine.loaders.contract import Batch, Buffer
from vitprof.engine.storage.arrays import MemoryStorage
from vitprof.engine.transforms import as_it_is
from vitprof.errors import DeviceError
from vitprof.formats import size
from vitprof.measure.devices import Device, Mark, Pinning, Stream
from vitprof.measure.stopwatch import Wait


class Moved(NamedTuple):
    """A batch on the device, and marks of when it got there."""

    images: torch.Tensor
    labels: torch.Tensor
    copy_start: Mark
    copy_end: Mark
    ready: Mark
    """In the training stream: compute on the batch can begin here. Often `copy_end` itself."""
    prepared: Mark | None = None
    """From `copy_end` to here the device prepared the batch outside the step.

    It normalised it in a separate stream, or gathered it from a resident set. None where that is
    part of the step."""


class Transfer:
    """A way for batches to one device."""

    buffer: Buffer | None = None
    """Gives the memory that loaders in this process should put batches into; None if any memory
    will do."""
    normalises = False
    """Whether the images arrive ready for the model; if not, they arrive in the storage's pixel
    format."""
    stage: Stage | None = None
    """Puts a batch into the memory that its copy starts from, before the loop gets it; None if it
    is there already."""

    def place(self, storage: Any) -> Any:
        """Returns the storage, moved once, before training, to where the transfer needs it.

        Most do not move it.
        """
        return storage

    def __call__(self, batch: Batch) -> Moved:
        """Starts to move the batch.

        May return before the copy is done: the device keeps its work in order.
        """
        raise NotImplementedError

    def discard(self, batch: Batch) -> None:
        """Gives back the memory of a batch that is not moved, as nothing in it could be read."""


ToInput = Callable[[torch.Tensor], torch.Tensor]
"""Images in the storage's pixel format on the device -> the model's input."""


class BlockingCopy(Transfer):
    """A transfer with `.to(device)`: the loop waits until the copy is done."""

    def __init__(self, device: Device) -> None:
        self._mark = device.mark
        self._upload = device.upload
        self._at_once = device.immediate

    def __call__(self, batch: Batch) -> Moved:
        start = self._mark()
        if self._at_once:
            # It is the CPU: there is nothing to copy.
            return Moved(batch.images, batch.labels, start, start, start)
        # Images decoded on the device stay where they are, but their labels still come from the
        # host.
        images = self._upload(batch.images)
        labels = self._upload(batch.labels)
        end = self._mark()
        return Moved(images, labels, start, end, end)


class PinnedCopy(BlockingCopy):
    """A transfer with `.to(device, non_blocking=True)` from pinned memory: the copy is queued and
    the loop goes on.
    """

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._ring = Ring(device)
        self._in_use: torch.Tensor | None = None
        self.buffer = self._ring.take
        self.stage = None if device.immediate else self._ring.stage

    def __call__(self, batch: Batch) -> Moved:
        start = self._mark()
        if self._at_once:
            # Training on the CPU reads the buffer itself: it is free once the next batch has
            # replaced it.
            if self._in_use is not None:
                self._ring.give_back(self._in_use, start)
            self._in_use = batch.images if self._ring.buffer_of(batch.images) else None
            return Moved(batch.images, batch.labels, start, start, start)
        images, labels = self._ring.upload(batch)
        end = self._mark()
        self._ring.let_go(batch.images)
        return Moved(images, labels, start, end, end)

    def discard(self, batch: Batch) -> None:
        self._ring.let_go(batch.images)


STEPS_AHEAD = 2
"""Most steps that the host may be ahead of the device.

Each holds a batch there, and without a limit dozens could."""


class PrefetchStream(Transfer):
    """A transfer that copies and normalises in its own stream.

    On the CPU there is nothing to overlap.
    """

    normalises = True

    def __init__(self, device: Device, to_input: ToInput) -> None:
        self._device = device
        self._to_input = to_input
        self._ring = Ring(device)
        # One stream for each transfer: two loaders in one stream would wait for each other (timm
        # issue 2784).
        self._stream = device.stream()
        if self._stream is not None:
            self.buffer = self._ring.take
            self.stage = self._ring.stage
        self._waiting: deque[Mark] = deque()

    def __call__(self, batch: Batch) -> Moved:
        if self._stream is not None and batch.images.device.type == "cpu":
            return self._prefetch(batch, self._stream)
        # There is no copy to hide, on the CPU or if the batch was decoded on the device.
        # Normalisation counts as compute, as with every other transfer.
        mark = self._device.mark()
        labels = self._device.upload(batch.labels, non_blocking=True)
        return Moved(self._to_input(batch.images), labels, mark, mark, mark)

    def discard(self, batch: Batch) -> None:
        self._ring.let_go(batch.images)

    def _prefetch(self, batch: Batch, stream: Stream) -> Moved:
        device = self._device
        self._waiting.append(device.mark())
        if len(self._waiting) > STEPS_AHEAD:
            trained = self._waiting.popleft()
            device.wait(trained)
            device.release(trained)
        with stream.use():
            start: Mark = device.mark()
            images, labels = self._ring.upload(batch)
            end: Mark = device.mark()
            self._ring.let_go(batch.images)
            inputs = self._to_input(images)
            prepared = None if self._to_input is as_it_is else device.mark()
        stream.join(inputs, labels)
        return Moved(inputs, labels, start, end, device.mark(), prepared)


class Gathered(MemoryStorage):
    """A storage on a device, with marks around each gather, which the device does some time after
    its launch.
    """

    def __init__(self, storage: MemoryStorage, device: Device) -> None:
        super().__init__(storage.images, storage.labels)
        self._mark = device.mark
        self.last: tuple[Mark, Mark] | None = None
        """Marks where the last gather began and ended."""

    def read(self, indices: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        began = self._mark()
        images = super().read(indices, out)
        self.last = began, self._mark()
        return images


class Resident(Transfer):
    """A transfer that moves the whole storage once; batches are made on the device."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._gathered: Gathered | None = None

    def place(self, storage: Any) -> Any:
        """Returns the storage on the device.

        Raises `DeviceError` if it does not fit into the free memory there.
        """
        device = self._device
        needed = storage.images.nbytes
        free = device.free_memory_bytes()
        if needed > free:
            raise DeviceError(
                f"transfer resident: a split of {len(storage):,} images takes {size(needed)} of device memory and "
                f"{size(free)} are free; stop other programs that use this GPU, use fewer images, or choose transfer "
                "pinned"
            )
        moved = storage.to(device.torch_device)
        # On the others the host gathers, while the loop waits for it.
        if not device.immediate and not device.simulated:
            moved = self._gathered = Gathered(moved, device)
        return moved

    def __call__(self, batch: Batch) -> Moved:
        images = batch.images
        labels = batch.labels
        device = self._device
        if self._gathered is not None and self._gathered.last is not None:
            began, ended = self._gathered.last
            self._gathered.last = None
            return Moved(images, labels, began, began, device.mark(), ended)
        mark = device.mark()
        return Moved(images, labels, mark, mark, mark)


def open_transfer(
    name: str, device: Device, to_input: ToInput, wait: Wait | None = None
) -> Transfer:
    """Returns the transfer called `name` to `device`. One that normalises does so with `to_input`.

    A `wait` in the stage "transfer" delays each copy by that much.
    """
    if wait is not None and wait.stage == "transfer":
        return Delayed(open_transfer(name, device, to_input), wait, device)
    if name == "stream":
        return PrefetchStream(device, to_input)
    other = plugins.opener(strategies.PLUGGED, "transfers", name)
    if other:
        return other(device)  # type: ignore[no-any-return]
    return {"blocking": BlockingCopy, "pinned": PinnedCopy, "resident": Resident}[name](device)


class Delayed(Transfer):
    """A transfer whose copies begin after a wait of the training loop.

    The wait counts as part of the copy.
    """

    def __init__(self, transfer: Transfer, wait: Wait, device: Device) -> None:
        self._transfer = transfer
        self._wait = wait
        self._device = device
        self.buffer = transfer.buffer
        self.normalises = transfer.normalises
        self.stage = transfer.stage

    def place(self, storage: Any) -> Any:
        return self._transfer.place(storage)

    def __call__(self, batch: Batch) -> Moved:
        start = self._device.mark()
        self._wait.into("transfer")
        moved = self._transfer(batch)
        # A transfer that copies nothing has one mark, which is still needed.
        if moved.copy_start is not moved.copy_end:
            self._device.release(moved.copy_start)
        return moved._replace(copy_start=start)

    def discard(self, batch: Batch) -> None:
        self._transfer.discard(batch)


LABEL_BYTES = 8
"""Bytes of a label: int64, as cross-entropy takes it."""
HOST_MEMORY = torch.device("cpu")

Stage = Callable[[Batch], Batch]
"""A batch as a loader made it -> the batch in the memory that its copy starts from.

Takes time only on the host."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A buffer: images and, after them, their labels, in one piece of memory, so that one copy
    moves both.
    """

    whole: torch.Tensor
    """(n,) uint8"""
    images: torch.Tensor
    """The beginning of `whole`, in the memory order of a batch's images, usually (b, height, width,
    channels) uint8."""
    labels: torch.Tensor
    """The end of `whole`, (b,) int64."""

    @classmethod
    def of(cls, shape: tuple[int, ...], dtype: torch.dtype, pinning: Pinning) -> Packed:
        """Returns a new buffer for images of `shape`, page-locked if the system allows it."""
        used = prod(shape) * dtype.itemsize
        # int64 must be aligned to its size.
        labels_at = ceil(used / LABEL_BYTES) * LABEL_BYTES
        whole = pinning.empty((labels_at + LABEL_BYTES * shape[0],), torch.uint8)
        return cls(whole, whole[:used].view(dtype).view(shape), whole[labels_at:].view(torch.int64))

    def split(self, copy: torch.Tensor, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the images and labels in `copy`, a copy of `whole`, as many as `images` and in
        their memory order.
        """
        copied = (
            copy[: self.images.nbytes].view(images.dtype).as_strided(images.shape, images.stride())
        )
        labels = copy[len(copy) - LABEL_BYTES * len(self.labels) :].view(torch.int64)
        return copied, labels[: len(images)]


class Ring:
    """Buffers that loaders fill and transfers read, images and labels in one piece.

    Any thread takes them; the training loop's gives them back.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._lent: dict[int, Packed] = {}
        """By the images' address, which identifies the buffer that a batch is in."""
        self._being_read: deque[tuple[Mark, Packed]] = deque()
        self._free: dict[tuple[tuple[int, ...], torch.dtype], list[Packed]] = {}
        """By shape and dtype.

        There are usually two: that of a batch, and that of an epoch's last batch."""

    def take(self, shape: tuple[int, ...], dtype: torch.dtype = torch.uint8) -> torch.Tensor:
        """Returns memory for a batch's images, of `shape` in memory order.

        It is reserved until it is given back.
        """
        with self._lock:
            being_read = self._being_read
            while being_read and self._device.reached(being_read[0][0]):
                mark, read = being_read.popleft()
                self._device.release(mark)
                kind = (tuple(read.images.shape), read.images.dtype)
                self._free.setdefault(kind, []).append(read)
            free = self._free.get((shape, dtype))
            buffer = free.pop() if free else Packed.of(shape, dtype, self._device.pinning)
            self._lent[buffer.images.data_ptr()] = buffer
        return buffer.images

    def buffer_of(self, images: torch.Tensor) -> Packed | None:
        """Returns the buffer that `images` are in; None if it is not one that the ring has lent."""
        return self._lent.get(_address(images))

    def give_back(self, images: torch.Tensor, read: Mark) -> None:
        """Returns the buffer that `images` are in to the ring, to be used again once the device has
        passed `read`.
        """
        with self._lock:
            buffer = self._lent.pop(_address(images), None)
            if buffer is not None:
                self._being_read.append((read, buffer))

    def stage(self, batch: Batch) -> Batch:
        """Returns the batch in page-locked memory; only labels are added to images that a loader
        put into the ring.

        Images stay where they are if they are on the device, if a DataLoader has pinned them
        (copying them again costs more than a second copy to the device), if the system refuses to
        pin, and floats for a simulated device.
        """
        images = batch.images
        if images.device != HOST_MEMORY or not len(batch.labels):
            return batch
        buffer = self.buffer_of(images)
        if buffer is None:
            pinning = self._device.pinning
            if images.is_pinned() or pinning.refusal:
                return batch
            if not pinning.wanted and images.dtype != torch.uint8:
                return batch
            images = to_pinned(self, images)
            buffer = self.buffer_of(images)
            assert buffer is not None
        labels = buffer.labels[: len(batch.labels)]
        labels.copy_(batch.labels)
        return batch._replace(images=images, labels=labels)

    def upload(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Starts to copy a staged batch. Returns its images and labels on the device."""
        images = batch.images
        labels = batch.labels
        buffer = self.buffer_of(images)
        if buffer is not None and labels.data_ptr() == buffer.labels.data_ptr():
            return buffer.split(self._device.upload(buffer.whole, non_blocking=True), images)
        images = self._device.upload(images, non_blocking=True)
        labels = self._device.upload(labels, non_blocking=True)
        return images, labels

    def let_go(self, images: torch.Tensor) -> None:
        """Lets the memory that `images` are in be used again once the copies launched so far are
        done.
        """
        if self.buffer_of(images):
            # A mark of its own: the recorder releases its own sooner.
            self.give_back(images, self._device.mark())


def _address(images: torch.Tensor) -> int:
    """Returns where the images begin in memory. An empty tensor has the address 0: then where its memory begins."""
    return images.data_ptr() or images.untyped_storage().data_ptr()


def to_pinned(ring: Ring, images: torch.Tensor) -> torch.Tensor:
    """Returns a copy of `images` (b, channels, height, width) in a buffer of the ring, in the same
    memory order.
    """
    if images.is_contiguous():
        return ring.take(tuple(images.shape), images.dtype).copy_(images)
    as_stored = images.permute(0, 2, 3, 1)
    return ring.take(tuple(as_stored.shape), images.dtype).copy_(as_stored).permute(0, 3, 1, 2)


def staged(batches: Generator[Batch, None, None], stage: Stage) -> Generator[Batch, None, None]:
    """Yields what `stage` makes of each batch. Closing this generator closes `batches`."""
    with closing(batches):
        for batch in batches:
            yield stage(batch)
