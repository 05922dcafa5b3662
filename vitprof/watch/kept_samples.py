"""A dataset whose samples are kept in memory once they were read."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from vitprof.watch.trial_messages import tell

SAMPLE_OVERHEAD = 100
"""Approximate bytes for the entry itself."""


class KeptSamples:
    """A proxy of a dataset that keeps samples by their index, up to `limit_bytes`.

    Random transforms are kept too: a sample stays as it was when first read. Each worker process keeps what it has read
    itself, until it ends.
    """

    def __init__(self, dataset: Any, limit_bytes: int) -> None:
        self._vitprof_dataset = dataset
        self._vitprof_limit = limit_bytes
        self._vitprof_kept: dict[Any, Any] = {}
        self._vitprof_left = limit_bytes

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """Returns the dataset's class, for `isinstance`."""
        return type(self._vitprof_dataset)

    def __reduce__(self) -> tuple[type[KeptSamples], tuple[Any, int]]:
        return KeptSamples, (self._vitprof_dataset, self._vitprof_limit)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_vitprof"):  # not set yet: looking it up in the dataset would recurse
            raise AttributeError(name)
        return getattr(self._vitprof_dataset, name)

    def __len__(self) -> int:
        return len(self._vitprof_dataset)

    def __getitem__(self, index: Any) -> Any:
        if (kept := self._vitprof_kept.get(index, self)) is not self:
            return kept
        return self._keep(index, self._vitprof_dataset[index])

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        """Returns the samples of a whole batch: PyTorch calls this method where a dataset has it."""
        together = getattr(self._vitprof_dataset, "__getitems__", None)
        missing = [i for i in indices if i not in self._vitprof_kept]
        new = {}
        if together is not None and missing:
            new = {i: self._keep(i, sample) for i, sample in zip(missing, together(missing), strict=True)}
        return [new[i] if i in new else self[i] for i in indices]

    def _keep(self, index: Any, sample: Any) -> Any:
        if self._vitprof_left > 0:
            self._vitprof_left -= n_bytes(sample) + SAMPLE_OVERHEAD
            if self._vitprof_left > 0:
                self._vitprof_kept[index] = sample
            else:
                self._say_full()
        return sample

    def _say_full(self) -> None:
        n, of = len(self._vitprof_kept), f" of {len(self)}" if hasattr(self._vitprof_dataset, "__len__") else ""
        tell(
            "notice",
            f"decode_cache=ram does not fit: {self._vitprof_limit / 1e9:.3g} GB for each loading process were full "
            f"after {n}{of} samples; the others are read again each time",
        )


def n_bytes(value: Any) -> int:
    """Returns the approximate bytes of a sample: its arrays, tensors and PIL images, also in containers."""
    if isinstance(size := getattr(value, "nbytes", None), int):  # NumPy and PyTorch
        return size
    if isinstance(value, Mapping):
        return sum(map(n_bytes, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(n_bytes, value))
    if isinstance(size := getattr(value, "size", None), tuple) and hasattr(value, "getbands"):  # a PIL image
        return int(size[0] * size[1] * len(value.getbands()))
    return sys.getsizeof(value)
