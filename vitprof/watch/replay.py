"""Measures headroom in a script's own loop: blocks of steps on kept batches alternate with blocks on new ones."""

import os
from collections import Counter
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from vitprof.measure.step_columns import Columns
from vitprof.watch.batches import tensors

MOST_KEPT = 8
MOST_OF_MEMORY = 0.1
"""Most of the free memory that they may take, as a share."""
SETTLE_STEPS = 2
"""Steps left out at the beginning of a block; on new batches, as many more as the workers keep ready."""
BLOCK_STEPS, BLOCK_S = 10, 0.2
"""The least number of steps that count in a block, and their least time (s)."""
MOST_BLOCKS = 200
SUMMED = ("step_s", "compute_s", "data_wait_s")


class Replay:
    """The plan of which steps get kept batches, and the sums of the times of all blocks."""

    def __init__(self, queued: int) -> None:
        """`queued`: the number of batches that the loader's workers keep ready."""
        self._settle = (SETTLE_STEPS + queued, SETTLE_STEPS)
        self._kept: list[tuple[Any, list[int]]] = []
        """Kept batches, with their tensors' versions: a batch that the script has changed cannot be served again."""
        self._bytes = 0
        self._next = 0
        self.block = 0
        """Number of the current block: even ones have new batches, odd ones kept batches."""
        self._n, self._since_s = 0, 0.0
        """The number of its steps so far, and when those that count began."""
        self._blocks: dict[int, Counter[str]] = {}
        """Block -> number of "steps" that count, and the sums of `SUMMED`."""
        self._block_of: dict[float, int] = {}
        self._over = False
        self.why_not = ""
        """Why no kept batches are served; "" where they are, or all blocks are done."""

    @property
    def replaying(self) -> bool:
        """Returns whether the current step has a kept batch."""
        return bool(self.block % 2)

    def keep(self, batch: Any) -> None:
        """Keeps a copy of a batch of the warm-up, if there is room."""
        n_bytes = sum(tensor.nbytes for tensor in tensors(batch))
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if len(self._kept) == MOST_KEPT or self._bytes + n_bytes > MOST_OF_MEMORY * free:
            return
        self._bytes += n_bytes
        copy = tree_map_only(Tensor, _copied, batch)
        self._kept.append((copy, [tensor._version for tensor in tensors(copy)]))

    def batch(self) -> Any:
        """Returns the kept batch to serve next; None where the script gets a new one."""
        if not self.replaying:
            return None
        batch, versions = self._kept[self._next % len(self._kept)]
        self._next += 1
        if [tensor._version for tensor in tensors(batch)] != versions:
            self.give_up("the script changes its batches in place, so they cannot be given again")
            return None
        return batch

    def step(self, number: int) -> tuple[int, bool]:
        """Ends step `number`: returns the number to record, below 0 on a kept batch, and whether it is left out."""
        block, skipped = self.block, self._n < self._settle[self.replaying]
        recorded = -block if self.replaying else number
        if not skipped:
            if self._n == self._settle[self.replaying]:
                self._since_s = perf_counter()
            if not self.replaying:
                self._block_of[number] = block
        self._n += 1
        counted = self._n - self._settle[self.replaying]
        if counted >= BLOCK_STEPS and perf_counter() - self._since_s >= BLOCK_S and not self._over:
            if self._kept and self.block < MOST_BLOCKS - 1:
                self.block, self._n = self.block + 1, 0
            else:
                self.give_up(
                    ""
                    if self._kept
                    else "a batch is too large to be kept beside the script's own memory"
                )
        return recorded, skipped

    def give_up(self, why: str) -> None:
        """Makes every batch a new one from here on."""
        self._over, self.why_not = True, why
        self.block += self.replaying
        self._n = 0
        self._kept.clear()

    def add(self, steps: Columns) -> Columns:
        """Adds recorded steps to their blocks; returns those of the run, which had no kept batch."""
        number = steps["step"]
        for i, (step, warmup) in enumerate(
            zip(number.tolist(), steps["warmup"].tolist(), strict=True)
        ):
            block = int(-step) if step < 0 else self._block_of.pop(step, None)
            if block is not None and not warmup:
                took: dict[str, Any] = {
                    "steps": 1,
                    **{name: float(steps[name][i]) for name in SUMMED},
                }
                self._blocks.setdefault(block, Counter()).update(took)
        return {name: column[number >= 0] for name, column in steps.items()}

    def send(self, facts: Callable[[dict[str, Any]], None]) -> None:
        """Sends the facts "replay" (of each ended block its steps and sums of seconds) and "replay_refused"."""
        blocks = {
            str(block): dict(sums)
            for block, sums in sorted(self._blocks.items())
            if block < self.block
        }
        facts({"replay": blocks, "replay_refused": self.why_not or None})


def _copied(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, pin_memory=tensor.is_pinned()).copy_(tensor)
