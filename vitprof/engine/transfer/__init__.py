"""Transfers: how a batch reaches the device. One file each, found by the names of `vitprof.config.parts.TRANSFERS`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from vitprof.engine.batch import Batch
from vitprof.engine.devices import Device, Mark
from vitprof.engine.loaders import Buffer
from vitprof.engine.stopwatch import Wait


class Moved(NamedTuple):
    """A batch on the device, and marks of when it got there."""

    images: Tensor
    labels: Tensor
    copy_start: Mark
    copy_end: Mark
    ready: Mark
    """In the stream that trains: compute on the batch can begin here. Often `copy_end` itself."""
    prepared: Mark | None = None
    """Where the device made the batch ready beside the step or before it, normalised in a stream of its own or gathered
    from a resident set: it did from `copy_end` to here. None where that is part of the step."""


Stage = Callable[[Batch], Batch]
"""A batch as a loader made it -> the batch where its copy begins. Takes the host's time only."""


class Transfer(Protocol):
    """Brings batches to one device."""

    buffer: Buffer | None
    """Where loaders in this process should put batches; None: wherever they like."""
    normalises: bool
    """Whether the images come ready for the model; if not, they come in the storage's pixel format."""

    stage: Stage | None
    """What puts a batch where its copy begins, before it is handed to the loop; None where it lies there already."""

    def place(self, storage: Any) -> Any:
        """Returns the storage, moved to where the transfer wants it, once, before training. Most leave it as it is."""

    def __call__(self, batch: Batch) -> Moved:
        """Starts to move the batch. May return before the copy is done; the device's own order covers that."""


ToInput = Callable[[Tensor], Tensor]
"""Images in the storage's pixel format on the device -> the model's input."""


def open_transfer(name: str, device: Device, to_input: ToInput, wait: Wait | None = None) -> Transfer:
    """Returns the transfer called `name`, to `device`. One that normalises does so by `to_input`; `wait` makes it
    late.
    """
    from vitprof.engine.transfer import copy, delayed, resident, stream

    if wait is not None and wait.stage == "transfer":
        return delayed.Delayed(open_transfer(name, device, to_input), wait, device)
    if name == "blocking":
        return copy.BlockingCopy(device)
    if name == "pinned":
        return copy.PinnedCopy(device)
    if name == "stream":
        return stream.PrefetchStream(device, to_input)
    return resident.Resident(device)
