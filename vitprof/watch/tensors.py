"""The tensors of a batch, whatever it is made of."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from vitprof.watch.script_objects import parts

if TYPE_CHECKING:
    from torch import Tensor

DEEPEST = 16
"""How deep tensors are looked for in a batch: one that contains itself has no end."""


def tensors(batch: Any) -> Iterator[Tensor]:
    """Yields the tensors of a batch in order, through mappings, lists, tuples and objects with a method
    `values`."""
    from torch import Tensor  # which is half imported when this is

    yield from tensors_of_kind(Tensor, batch)


def tensors_of_kind(kind: type[Any], batch: Any, depth: int = DEEPEST) -> Iterator[Any]:
    """Yields the same for who has PyTorch's class of tensors already, `kind`."""
    # `isinstance` would run the batch's own `__class__`.
    if issubclass(type(batch), kind):
        yield batch
    elif depth:
        for part in parts(batch):
            yield from tensors_of_kind(kind, part, depth - 1)


def contents(batch: Any) -> dict[str, Any]:
    """Returns what a batch is made of: the number of its "tensors", their "bytes", how many are of each
    of its "dtypes", and the number of its "storages" that are not empty: several tensors may share one,
    and each crosses from a worker as one segment of shared memory."""
    n_bytes = 0
    dtypes = Counter[str]()
    storages = set[int]()
    for tensor in tensors(batch):
        # A class derived from Tensor may have anything there.
        with contextlib.suppress(Exception):
            dtypes[str(tensor.dtype).removeprefix("torch.")] += 1
            n_bytes += tensor.numel() * tensor.element_size()
            storage = tensor.untyped_storage()
            if storage.nbytes():
                storages.add(storage.data_ptr())
    return {
        "tensors": dtypes.total(),
        "bytes": n_bytes,
        "dtypes": dict(dtypes),
        "storages": len(storages),
    }
