"""A Dataset whose samples are kept in memory after their first reading."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from vitprof.watch.tell import tell

SAMPLE_OVERHEAD = 100
"""Bytes for the entry itself, about."""


class KeptSamples:
    """Passes for the dataset that it is made from, and keeps its samples by their number, up to `limit_bytes`.

    What a random transform made of a sample at its first reading is kept with it. Each worker process keeps what it
    has read itself, for as long as it lives.
    """

    def __init__(self, dataset: Any, limit_bytes: int) -> None:
        self._vitprof_dataset = dataset
        self._vitprof_limit = limit_bytes
        self._vitprof_kept: dict[Any, Any] = {}
        self._vitprof_left = limit_bytes

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """`isinstance` says of it what it says of the dataset."""
        return type(self._vitprof_dataset)

    def __reduce__(self) -> tuple[type[KeptSamples], tuple[Any, int]]:
        return KeptSamples, (self._vitprof_dataset, self._vitprof_limit)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_vitprof"):  # while it is being made: there is nothing to ask yet
            raise AttributeError(name)
        return getattr(self._vitprof_dataset, name)

    def __len__(self) -> int:
        return len(self._vitprof_dataset)

    def __getitem__(self, index: Any) -> Any:
        if (kept := self._vitprof_kept.get(index, self)) is not self:
            return kept
        return self._keep(index, self._vitprof_dataset[index])

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        """PyTorch asks for a whole batch where a dataset has this method."""
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
            f"decode_cache=ram does not fit: {self._vitprof_limit / 1e9:.3g} GB for each process that reads were full "
            f"after {n}{of} samples; the others are read again each time",
        )


def n_bytes(value: Any) -> int:
    """Returns about how much memory a sample takes: its arrays and tensors, and what containers hold of them."""
    if isinstance(size := getattr(value, "nbytes", None), int):  # NumPy and PyTorch
        return size
    if isinstance(value, Mapping):
        return sum(map(n_bytes, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(n_bytes, value))
    if isinstance(size := getattr(value, "size", None), tuple) and hasattr(value, "getbands"):  # a PIL image
        return int(size[0] * size[1] * len(value.getbands()))
    return sys.getsizeof(value)
