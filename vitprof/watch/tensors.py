"""The tensors of a batch, whatever it is made of."""

from __future__ import annotations

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
