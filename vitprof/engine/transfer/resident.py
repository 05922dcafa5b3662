"""No copy for each batch: the storage itself lies on the device."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from vitprof.engine.batch import Batch
from vitprof.engine.devices import Device, Mark
from vitprof.engine.devices.simulated import SimulatedDevice
from vitprof.engine.loaders import Buffer
from vitprof.engine.storage.memory import MemoryStorage
from vitprof.engine.transfer import Moved, Stage
from vitprof.errors import DeviceError
from vitprof.formats import size


class Gathered(MemoryStorage):
    """A storage on a device that gathers by itself, long after it was told to: marks stand around each gather."""

    def __init__(self, storage: MemoryStorage, device: Device) -> None:
        super().__init__(storage.images, storage.labels)
        self._mark = device.mark
        self.last: tuple[Mark, Mark] | None = None
        """Where the last gather began and where it ended."""

    def read(self, indices: Tensor, out: Tensor | None = None) -> Tensor:
        began = self._mark()
        images = super().read(indices, out)
        self.last = began, self._mark()
        return images


class Resident:
    """Moves the storage once; its batches are made on the device."""

    normalises = False
    buffer: Buffer | None = None
    stage: Stage | None = None

    def __init__(self, device: Device) -> None:
        self._device = device
        self._gathered: Gathered | None = None
        self._simulated_s = 0.0
        """What a gather takes on a simulated device, whose own is done by the host in no time of the device."""

    def place(self, storage: Any) -> Any:
        """Returns the storage on the device. Raises `DeviceError` where it does not fit into what is free there."""
        device = self._device
        needed, free = storage.images.nbytes, device.free_memory_bytes()
        if needed > free:
            raise DeviceError(
                f"transfer resident: a split of {len(storage):,} images takes {size(needed)} of device memory and "
                f"{size(free)} are free; end what else uses this GPU, take fewer images, or choose transfer pinned"
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
