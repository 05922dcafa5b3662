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

    yield from _tensors(Tensor, batch, DEEPEST)


def _tensors(tensor: type[Any], batch: Any, depth: int) -> Iterator[Any]:
    if issubclass(type(batch), tensor):  # `isinstance` would run the batch's own `__class__`
        yield batch
    elif depth:
        for part in parts(batch):
            yield from _tensors(tensor, part, depth - 1)
