"""Transfers: how a batch reaches the device, with the wait that a job may be asked for in them."""

from __future__ import annotations

from typing import Any

from vitprof.engine.loaders.contract import Batch
from vitprof.engine.transfer.contract import Moved, ToInput, Transfer
from vitprof.engine.transfer.copy import BlockingCopy, PinnedCopy, PrefetchStream
from vitprof.engine.transfer.resident import Resident
from vitprof.measure.devices import Device
from vitprof.measure.stopwatch import Wait


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
