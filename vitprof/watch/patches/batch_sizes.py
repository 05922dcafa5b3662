"""How much is in a batch: asked once for each, so it must take little."""

from __future__ import annotations

import functools
from typing import Any

from vitprof.watch.events import NAN


class BatchSizes:
    """Looks into batches. Needs PyTorch's class of tensors, which this module cannot import: PyTorch is
    half imported when it is.
    """

    def __init__(self) -> None:
        from torch import Tensor

        from vitprof.watch.tensors import tensors

        self._tensor = Tensor
        self._tensors = tensors

    def of(self, batch: Any) -> tuple[float, float, float]:
        """Returns the length of a batch's first tensor that is not empty, a number of its first tensor,
        and the numbers in its largest one. Without a tensor: 0 samples, and NaN.
        """
        first: float = NAN
        samples = 0
        most = -1
        kind = type(batch)
        # Most batches are a list of tensors. A function that returns these would be called in each step.
        if kind is self._tensor:
            batch = (batch,)
        elif kind is list or kind is tuple:
            for part in batch:
                if type(part) is not self._tensor:
                    batch = self._tensors(batch)
                    break
        else:
            batch = self._tensors(batch)
        for tensor in batch:
            n = tensor.numel()
            if most < 0:
                first = id(tensor)
            most = max(most, n)
            if n and not samples:
                # `len(tensor)` would run Python code of PyTorch's, and `size(0)` parses its argument.
                shape = tensor.shape
                samples = shape[0] if shape else 1
        return samples, first, most if most >= 0 else NAN


@functools.cache
def batch_sizes() -> BatchSizes:
    """Returns what looks into batches, once PyTorch is imported."""
    return BatchSizes()
