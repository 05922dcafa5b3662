"""Transfers: how a batch reaches the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from vitprof.engine.loaders.contract import Batch, Buffer
from vitprof.engine.pinned_buffers import Stage, Staging
from vitprof.engine.storage.arrays import MemoryStorage
from vitprof.engine.transforms import as_it_is
from vitprof.errors import DeviceError
from vitprof.formats import size
from vitprof.measure.devices import Device, Mark, Stream
from vitprof.measure.devices.simulated import SimulatedDevice
from vitprof.measure.stopwatch import Wait


class Moved(NamedTuple):
    """A batch on the device, and marks of when it got there."""

    images: Tensor
    labels: Tensor
    copy_start: Mark
    copy_end: Mark
    ready: Mark
    """In the training stream: compute on the batch can begin here. Often `copy_end` itself."""
    prepared: Mark | None = None
    """From `copy_end` to here the device prepared the batch outside the step: it normalised it in a separate stream, or
    gathered it from a resident set. None where that is part of the step."""


class Transfer(Protocol):
    """A way for batches to one device."""

    buffer: Buffer | None
    """Gives the memory that loaders in this process should put batches into; None if any memory will do."""
    normalises: bool
    """Whether the images arrive ready for the model; if not, they arrive in the storage's pixel format."""

    stage: Stage | None
    """Puts a batch into the memory that its copy starts from, before the loop gets it; None if it is there already."""

    def place(self, storage: Any) -> Any:
        """Returns the storage, moved once, before training, to where the transfer needs it. Most do not move it."""

    def __call__(self, batch: Batch) -> Moved:
        """Starts to move the batch. May return before the copy is done: the device keeps its work in order."""


ToInput = Callable[[Tensor], Tensor]
"""Images in the storage's pixel format on the device -> the model's input."""


class BlockingCopy:
    """A transfer with `.to(device)`: the loop waits until the copy is done."""

    normalises = False
    buffer: Buffer | None = None
    stage: Stage | None = None

    def __init__(self, device: Device) -> None:
        self._mark = device.mark
        self._upload = device.upload
        self._at_once = device.immediate

    def place(self, storage: Any) -> Any:
        return storage

    def __call__(self, batch: Batch) -> Moved:
        start = self._mark()
        if self._at_once:  # it is the CPU: there is nothing to copy
            return Moved(batch.images, batch.labels, start, start, start)
        # Images decoded on the device stay where they are, but their labels still come from the host.
        images, labels = self._upload(batch.images), self._upload(batch.labels)
        end = self._mark()
        return Moved(images, labels, start, end, end)


class PinnedCopy(BlockingCopy):
    """A transfer with `.to(device, non_blocking=True)` from pinned memory: the copy is queued and the loop goes on."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._staging = Staging(device)
        self._in_use: Tensor | None = None
        self.buffer = self._staging.buffer
        self.stage = None if device.immediate else self._staging.stage

    def __call__(self, batch: Batch) -> Moved:
        start = self._mark()
        if self._at_once:
            # Training on the CPU reads the buffer itself: it is free once the next batch has replaced it.
            if self._in_use is not None:
                self._staging.ring.give_back(self._in_use, start)
            self._in_use = batch.images if self._staging.ring.holds(batch.images) else None
            return Moved(batch.images, batch.labels, start, start, start)
        images, labels = self._staging.upload(batch)
        end = self._mark()
        self._staging.let_go(batch.images)
        return Moved(images, labels, start, end, end)


STEPS_AHEAD = 2
"""Most steps that the host may be ahead of the device. Each holds a batch there, and without a limit dozens could."""


class PrefetchStream:
    """A transfer that copies and normalises in its own stream. On the CPU there is nothing to overlap."""

    normalises = True

    def __init__(self, device: Device, to_input: ToInput) -> None:
        self._device = device
        self._to_input = to_input
        self._staging = Staging(device)
        # One stream for each transfer: two loaders in one stream would wait for each other (timm issue 2784).
        self._stream = device.stream()
        self.buffer: Buffer | None = self._staging.buffer if self._stream is not None else None
        self.stage: Stage | None = self._staging.stage if self._stream is not None else None
        self._waiting: deque[Mark] = deque()

    def place(self, storage: Any) -> Any:
        return storage

    def __call__(self, batch: Batch) -> Moved:
        if self._stream is not None and batch.images.device.type == "cpu":
            return self._prefetch(batch, self._stream)
        # There is no copy to hide, on the CPU or if the batch was decoded on the device. Normalisation counts as
        # compute, as with every other transfer.
        mark = self._device.mark()
        labels = self._device.upload(batch.labels, non_blocking=True)
        return Moved(self._to_input(batch.images), labels, mark, mark, mark)

    def _prefetch(self, batch: Batch, stream: Stream) -> Moved:
        device = self._device
        self._waiting.append(device.mark())
        if len(self._waiting) > STEPS_AHEAD:
            trained = self._waiting.popleft()
            device.wait(trained)
            device.release(trained)
        with stream.use():
            start: Mark = device.mark()
            images, labels = self._staging.upload(batch)
            end: Mark = device.mark()
            self._staging.let_go(batch.images)
            inputs = self._to_input(images)
            prepared = None if self._to_input is as_it_is else device.mark()
        stream.join(inputs, labels)
        return Moved(inputs, labels, start, end, device.mark(), prepared)


class Gathered(MemoryStorage):
    """A storage on a device, with marks around each gather, which the device does some time after its launch."""

    def __init__(self, storage: MemoryStorage, device: Device) -> None:
        super().__init__(storage.images, storage.labels)
        self._mark = device.mark
        self.last: tuple[Mark, Mark] | None = None
        """Marks where the last gather began and ended."""

    def read(self, indices: Tensor, out: Tensor | None = None) -> Tensor:
        began = self._mark()
        images = super().read(indices, out)
        self.last = began, self._mark()
        return images


class Resident:
    """A transfer that moves the whole storage once; batches are made on the device."""

    normalises = False
    buffer: Buffer | None = None
    stage: Stage | None = None

    def __init__(self, device: Device) -> None:
        self._device = device
        self._gathered: Gathered | None = None
        self._simulated_s = 0.0
        """Seconds that a gather takes on a simulated device: the host does the real one, in no time of the device."""

    def place(self, storage: Any) -> Any:
        """Returns the storage on the device. Raises `DeviceError` if it does not fit into the free memory there."""
        device = self._device
        needed, free = storage.images.nbytes, device.free_memory_bytes()
        if needed > free:
            raise DeviceError(
                f"transfer resident: a split of {len(storage):,} images takes {size(needed)} of device memory and "
                f"{size(free)} are free; stop other programs that use this GPU, use fewer images, or choose transfer "
                "pinned"
            )
        moved = storage.to(device.torch_device)
        if isinstance(device, SimulatedDevice):
            self._simulated_s = device.accelerator.gather_s
        elif not device.immediate:  # the CPU gathers while the loop waits for the batch
            moved = self._gathered = Gathered(moved, device)
        return moved

    def __call__(self, batch: Batch) -> Moved:
        images, labels, device = batch.images, batch.labels, self._device
        if self._gathered is not None and self._gathered.last is not None:
            (began, ended), self._gathered.last = self._gathered.last, None
            return Moved(images, labels, began, began, device.mark(), ended)
        if self._simulated_s and isinstance(device, SimulatedDevice):
            began, ended = device.work(self._simulated_s)
            return Moved(images, labels, began, began, ended, ended)
        mark = device.mark()
        return Moved(images, labels, mark, mark, mark)


def open_transfer(name: str, device: Device, to_input: ToInput, wait: Wait | None = None) -> Transfer:
    """Returns the transfer called `name` to `device`.

    One that normalises does so with `to_input`. A `wait` in the stage "transfer" delays each copy by that much.
    """
    if wait is not None and wait.stage == "transfer":
        return Delayed(open_transfer(name, device, to_input), wait, device)
    if name == "blocking":
        return BlockingCopy(device)
    if name == "pinned":
        return PinnedCopy(device)
    if name == "stream":
        return PrefetchStream(device, to_input)
    return Resident(device)


class Delayed:
    """A transfer whose copies begin after a wait of the training loop. The wait counts as part of the copy."""

    def __init__(self, transfer: Transfer, wait: Wait, device: Device) -> None:
        self._transfer, self._wait, self._device = transfer, wait, device
        self.buffer = transfer.buffer
        self.normalises = transfer.normalises
        self.stage = transfer.stage

    def place(self, storage: Any) -> Any:
        return self._transfer.place(storage)

    def __call__(self, batch: Batch) -> Moved:
        start = self._device.mark()
        self._wait.into("transfer")
        moved = self._transfer(batch)
        if moved.copy_start is not moved.copy_end:  # a transfer that copies nothing has one mark, which is still needed
            self._device.release(moved.copy_start)
        return moved._replace(copy_start=start)
