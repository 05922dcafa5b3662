"""How much is in a batch: asked once for each, so it must take little."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from vitprof.watch.events import NAN


class BatchSizes:
    """Looks into batches. Needs PyTorch's class of tensors, which this module cannot import: PyTorch is
    half imported when it is.
    """

    def __init__(self) -> None:
        from torch import Tensor

        self._tensor = Tensor

    def of(self, batch: Any) -> tuple[float, float, float]:
        """Returns the length of a batch's first tensor that is not empty, a number of its first tensor,
        and the numbers in its largest one. Without a tensor: 0 samples, and NaN.
        """
        first: float = NAN
        samples = 0
        most = -1
        for tensor in self._tensors(batch):
            n = tensor.numel()
            if most < 0:
                first = id(tensor)
            most = max(most, n)
            if n and not samples:
                # `len(tensor)` would run Python code of PyTorch's, and `size(0)` parses its argument.
                shape = tensor.shape
                samples = shape[0] if shape else 1
        return samples, first, most if most >= 0 else NAN

    def _tensors(self, batch: Any) -> Iterable[Any]:
        """Returns the tensors of a batch: most batches are a list of them, and are returned at once."""
        kind = type(batch)
        if kind is list or kind is tuple:
            for part in batch:
                if type(part) is not self._tensor:
                    break
            else:
                return batch  # type: ignore[no-any-return]
        from vitprof.watch.batches import tensors

        return tensors(batch)


@functools.cache
def batch_sizes() -> BatchSizes:
    """Returns what looks into batches, once PyTorch is imported."""
    return BatchSizes()
