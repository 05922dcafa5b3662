"""Transfers: how a batch reaches the device. `open_transfer` finds them by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from vitprof.storage import Batch, Storage


class Transfer(Protocol):
    """Brings batches to one device."""

    def place(self, storage: Storage) -> Storage:
        """Once, before training: where the storage itself should lie. Most leave it as it is."""

    def __call__(self, batch: Batch) -> Batch:
        """The batch on the device. May return before the copy is done; the device's own order covers that."""


Opener = Callable[[torch.device], Transfer]


def open_transfer(name: str, device: torch.device) -> Transfer:
    """The transfer called `name`, to `device`."""
    from vitprof.transfer import copy, resident

    openers: dict[str, Opener] = {
        "blocking": copy.BlockingCopy,
        "pinned": copy.PinnedCopy,
        "resident": resident.Resident,
    }
    return openers[name](device)
