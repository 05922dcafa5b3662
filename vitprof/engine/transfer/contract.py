"""What a transfer is: how a batch reaches the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from vitprof.engine.loaders.contract import Batch, Buffer
from vitprof.measure.devices import Mark


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


Stage = Callable[[Batch], Batch]
"""A batch as a loader made it -> the batch in the memory that its copy starts from. Takes time only on the host."""


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
