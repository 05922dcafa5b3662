"""A transfer without a copy for each batch: the storage itself is on the device."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from vitprof.engine.loaders.contract import Batch, Buffer
from vitprof.engine.storage.memory import MemoryStorage
from vitprof.engine.transfer.contract import Moved, Stage
from vitprof.errors import DeviceError
from vitprof.formats import size
from vitprof.measure.devices import Device, Mark
from vitprof.measure.devices.simulated import SimulatedDevice


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
