"""Hooks that show that a script works on a batch: its backward passes, with their loss, and its optimizer's steps."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

if TYPE_CHECKING:
    from vitprof.watch.watcher import Watcher


def install(watcher: Watcher) -> None:
    """Makes PyTorch report each backward pass before it begins, each loss that a GradScaler has scaled, and each step
    of an optimizer, to `watcher`; while the loop is plain, to the fast path.
    """
    differentiate, scale = torch.autograd.backward, torch.amp.GradScaler.scale
    plain, guard = watcher.plain, watcher.guard

    def note_backward(tensors: Any) -> None:
        if watcher.loop is not None:
            watcher.loop.backward(tensors)

    def note_scaled(loss: Any, result: Any) -> None:
        plain.leave()
        if watcher.loop is not None and watcher.loop.step is not None:
            watcher.loop.step.scaled = (result, loss)

    @functools.wraps(differentiate)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if plain.on:
            plain.backward(tensors)
        else:
            guard(note_backward, tensors)
        return differentiate(tensors, *args, **kwargs)

    @functools.wraps(scale)
    def scale_noted(self: Any, outputs: Any) -> Any:
        result = scale(self, outputs)
        guard(note_scaled, outputs, result)
        return result

    def stepped(*_: Any) -> None:
        if plain.on:
            plain.worked = True
        else:
            guard(watcher.stepped)

    torch.autograd.backward = backward  # Tensor.backward() looks it up there, too
    torch.amp.GradScaler.scale = scale_noted  # type: ignore[method-assign]
    register_optimizer_step_post_hook(stepped)
