"""Copies of batches to the device: calls of `Tensor.to` and `Tensor.cuda` of their tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

from vitprof.watch.patches.replay import KeptCopies

METHODS = ("to", "cuda")


class CopyMarks(Protocol):
    """Marks the copies of tensors that are watched."""

    def is_watched(self, tensor: Any) -> bool:
        """Returns whether the copies of a tensor are marked."""

    def kept_copies(self, tensor: Any) -> KeptCopies | None:
        """Returns the copies so far of a kept batch that is served again, if the tensor is one of it."""

    def copying(self) -> None:
        """Marks the beginning of a copy."""

    def copied(self, moved: Any) -> None:
        """Marks its end; `moved` is what it returned."""


class TimedMethods:
    """The replaced methods of `Tensor`, until they are removed."""

    def __init__(self, current: Callable[[], CopyMarks | None]) -> None:
        """`current` returns what marks copies now; None where nothing does."""
        from torch import Tensor

        self._tensor = Tensor
        self._before = {name: vars(Tensor).get(name) for name in METHODS}
        self._methods = {name: _TimedMethod(getattr(Tensor, name), current) for name in METHODS}
        for name, method in self._methods.items():
            setattr(Tensor, name, method)

    def remove(self) -> None:
        """Restores them, unless another tool has replaced them since."""
        for name, method in self._methods.items():
            if vars(self._tensor).get(name) is not method:
                continue
            delattr(self._tensor, name)
            before = self._before[name]
            if before is not None:
                setattr(self._tensor, name, before)


class _TimedMethod:
    """A descriptor that replaces a method of `Tensor`.

    Read from the class it is that method: other libraries know it by its identity.
    """

    def __init__(self, method: Any, current: Callable[[], CopyMarks | None]) -> None:
        self._method = method
        self._current = current

    def __get__(self, tensor: Any, owner: type | None = None) -> Any:
        if tensor is None:
            return self._method
        call = self._method.__get__(tensor, owner)
        marks = self._current()
        if marks is None or not marks.is_watched(tensor):
            return call
        kept = marks.kept_copies(tensor)
        if kept is None:
            return functools.partial(_copy, marks, call)
        return functools.partial(_copy_once, marks, kept, tensor, call)


def _copy(marks: CopyMarks, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    marks.copying()
    moved = call(*args, **kwargs)
    marks.copied(moved)
    return moved


def _copy_once(
    marks: CopyMarks,
    kept: KeptCopies,
    tensor: Any,
    call: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Copies a tensor of a kept batch, unless that was done before: its data are free then, on the device,
    too."""
    moved = kept.copy_of(tensor, args, kwargs)
    if moved is None:
        moved = _copy(marks, call, *args, **kwargs)
        kept.add(tensor, args, kwargs, moved)
    return moved
