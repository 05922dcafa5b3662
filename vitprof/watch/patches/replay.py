"""Measures headroom in a script's own loop: blocks of steps on kept batches alternate with blocks on new ones.

The core says which loader trains; until then all batches are new.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitprof.watch.events import Description
from vitprof.watch.patches.train_loader import TrainLoader

HEADROOM = "VITPROF_WATCH_HEADROOM"
"""Environment variable: set where kept batches are served again, to measure headroom."""
MOST_KEPT = 8
MOST_OF_MEMORY = 0.1
"""Most of the free memory that they may take, as a share; and their copies on a device, of its own."""
SETTLE_STEPS = 2
"""Steps left out at the beginning of a block; on new batches, as many more as the workers keep ready."""
BLOCK_STEPS, BLOCK_S = 10, 0.2
"""The least number of steps that count in a block, and their least time (s)."""
MOST_BLOCKS = 200
CHANGED = "the script changes its batches in place, so they cannot be given again"
TOO_LARGE = "a batch is too large to keep it in memory as well"


@dataclass(frozen=True, slots=True)
class ReplayedCopy:
    """What a copy to the device has returned."""

    moved: Any
    state: tuple[int, int, bool]
    """As of `_state`: the script may change either tensor in place."""


class KeptCopies:
    """The script's copies of kept batches to the device.

    Each is made once, unless the script has changed it: where data are free, they are on the device. All
    calls but `clear` come from the threads that copy.
    """

    def __init__(self) -> None:
        self._kept = set[int]()
        """The `id()` of each tensor of a kept batch, which is alive as long as it is in here."""
        self._copied: dict[tuple[Any, ...], ReplayedCopy] = {}
        """By the `id()` of the tensor, and the arguments: to a device, a type, at once or not."""
        self._n_bytes = 0
        """What they take on the device."""

    def watch(self, tensors: Iterable[Any]) -> None:
        """Notes the tensors of a kept batch."""
        self._kept |= {id(tensor) for tensor in tensors}

    @property
    def any_made(self) -> bool:
        """Returns whether the script has copied any to a device."""
        return bool(self._copied)

    def is_kept(self, tensor: Any) -> bool:
        """Returns whether a tensor is one of a kept batch."""
        return id(tensor) in self._kept

    def copy_of(self, tensor: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Returns what the copy of a tensor has returned that was made with these arguments; None where
        there was none, or the script has changed it."""
        key = _key(tensor, args, kwargs)
        copied = None if key is None else self._copied.get(key)
        if copied is None or _state(tensor, copied.moved) != copied.state:
            return None
        return copied.moved

    def add(self, tensor: Any, args: Sequence[Any], kwargs: Mapping[str, Any], moved: Any) -> None:
        """Keeps what a copy has returned, if that is on a device and there is room: what the script does
        on the CPU is its own work."""
        key = _key(tensor, args, kwargs)
        # Of a tensor that is made for inference it is not counted how often it was changed.
        is_counted = not (tensor.is_inference() or moved.is_inference())
        if key is None or not is_counted or moved.is_cpu or not self.is_kept(tensor):
            return
        earlier = self._copied.pop(key, None)
        if earlier is not None:
            self._n_bytes -= earlier.moved.nbytes
        if self._n_bytes + moved.nbytes <= MOST_OF_MEMORY * _free_bytes(moved.device):
            self._n_bytes += moved.nbytes
            self._copied[key] = ReplayedCopy(moved, _state(tensor, moved))

    def clear(self) -> None:
        self._kept.clear()
        self._copied.clear()
        self._n_bytes = 0


def _free_bytes(device: Any) -> float:
    """Returns the free memory of a device; infinity where it does not say."""
    import torch

    if device.type != "cuda":
        return math.inf
    free, _ = torch.cuda.mem_get_info(device)
    return float(free)


def _state(tensor: Any, moved: Any) -> tuple[int, int, bool]:
    return (tensor._version, moved._version, moved.requires_grad)


def _key(tensor: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Returns by what a copy is known again; None where an argument is another tensor, or anything else
    whose value may change."""
    import torch

    plain = (str, int, type(None), torch.device, torch.dtype, torch.memory_format)
    if not all(isinstance(value, plain) for value in (*args, *kwargs.values())):
        return None
    return (id(tensor), *args, *sorted(kwargs.items()))


class KeptBatches:
    """Copies of batches, which are served in turn."""

    def __init__(self) -> None:
        self.copies = KeptCopies()
        """What the script has copied of them to the device."""
        self._kept: list[tuple[Any, list[int]]] = []
        """With their tensors' versions: a batch that the script has changed cannot be served again."""
        self._n_bytes = 0
        self._next = 0

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, batch: Any) -> None:
        """Keeps a copy of a batch, if there is room."""
        from torch import Tensor
        from torch.utils._pytree import tree_map_only

        from vitprof.watch.tensors import tensors

        n_bytes = sum(tensor.nbytes for tensor in tensors(batch))
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if len(self._kept) == MOST_KEPT or self._n_bytes + n_bytes > MOST_OF_MEMORY * free:
            return
        self._n_bytes += n_bytes
        copy = tree_map_only(Tensor, _copied, batch)
        self.copies.watch(tensors(copy))
        self._kept.append((copy, [tensor._version for tensor in tensors(copy)]))

    def next(self) -> Any:
        """Returns the next batch; None where the script has changed it."""
        from vitprof.watch.tensors import tensors

        batch, versions = self._kept[self._next % len(self._kept)]
        self._next += 1
        return batch if [tensor._version for tensor in tensors(batch)] == versions else None

    def clear(self) -> None:
        self.copies.clear()
        self._kept.clear()


class ReplayPlan:
    """The plan of which requests get kept batches. All calls come from the thread that trains, but
    `begin` and `refuse`."""

    def __init__(self) -> None:
        self._train = TrainLoader()
        self._settle = (SETTLE_STEPS, SETTLE_STEPS)
        self._kept = KeptBatches()
        self.block = 0
        """The number of the current block: even ones have new batches, odd ones kept batches."""
        self._n = 0
        """The requests in it so far."""
        self._since_s = 0.0
        """When those that count began."""
        self._over = False
        self.refused = ""
        """Why no kept batches are served; "" where they are, or all blocks are done."""

    @property
    def copies(self) -> KeptCopies:
        """Returns the script's copies of kept batches to the device."""
        return self._kept.copies

    @property
    def replays(self) -> bool:
        """Returns whether the current step has a kept batch."""
        return bool(self.block % 2)

    def begin(self, loader: int, facts: dict[str, Any]) -> None:
        """Begins, with the number and the facts of the loader that trains."""
        queued = (facts.get("num_workers") or 0) * (facts.get("prefetch_factor") or 2)
        self._settle = (SETTLE_STEPS + queued, SETTLE_STEPS)
        self._train.name(loader, facts)

    def is_of(self, loader: Description) -> bool:
        """Returns whether a loader is the one that trains, or that one made anew."""
        return self._train.is_it(loader)

    def request(self, now_s: float) -> bool:
        """Notes a request of that loader. Returns whether the step that it begins is left out of its
        block, which is settling."""
        counted = self._n - self._n_settling()
        if counted >= BLOCK_STEPS and now_s - self._since_s >= BLOCK_S and not self._over:
            self._begin_block()
        settle = self._n_settling()
        if self._n == settle:
            self._since_s = now_s
        self._n += 1
        return self._n <= settle

    def _n_settling(self) -> int:
        """Returns how many steps at the beginning of the block are left out; in the first one on kept
        batches also those in which each of them is copied to the device."""
        n = self._settle[self.replays]
        return n + len(self._kept) if self.block == 1 and self.copies.any_made else n

    def _begin_block(self) -> None:
        if not len(self._kept):
            self.refuse(TOO_LARGE)
        elif self.block < MOST_BLOCKS - 1:
            self.block += 1
            self._n = 0
        else:
            self.refuse("")

    def batch(self) -> Any:
        """Returns the kept batch to serve; None where the script gets a new one."""
        if not self.replays:
            return None
        batch = self._kept.next()
        if batch is None:
            self.refuse(CHANGED)
        return batch

    def keep(self, batch: Any) -> None:
        """Keeps a copy of a new batch, if more are wanted."""
        if self.block == 0 and not self._over and len(self._kept) < MOST_KEPT:
            self._kept.keep(batch)

    def refuse(self, why: str) -> None:
        """Makes every batch a new one from here on. `why`: "" where all blocks are done."""
        self._over = True
        self.refused = why
        self._kept.clear()
        self.block += self.replays
        self._n = 0


def _copied(tensor: Any) -> Any:
    import torch

    return torch.empty_like(tensor, pin_memory=tensor.is_pinned()).copy_(tensor)
