"""Hooks that show that a script works on a batch: its backward passes, with their loss, and its optimizer's steps."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from vitprof.watch.fast_path import PlainSteps


def install(
    plain: PlainSteps,
    backward: Callable[[Any], None],
    scaled: Callable[[Any, Any], None],
    stepped: Callable[[], None],
) -> None:
    """Makes PyTorch call `backward(tensors)` before each backward pass, `scaled(loss, result)` after a GradScaler has
    scaled a loss, and `stepped()` after each step of an optimizer. While the loop is plain, `plain` is told instead.
    """
    differentiate, scale = torch.autograd.backward, torch.amp.GradScaler.scale

    @functools.wraps(differentiate)
    def backward_told(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if plain.on:
            plain.backward(tensors)
        else:
            backward(tensors)
        return differentiate(tensors, *args, **kwargs)

    @functools.wraps(scale)
    def scale_told(self: Any, outputs: Any) -> Any:
        result = scale(self, outputs)
        scaled(outputs, result)
        return result

    def stepped_told(*_: Any) -> None:
        if plain.on:
            plain.worked = True
        else:
            stepped()

    torch.autograd.backward = backward_told  # Tensor.backward() looks it up there, too
    torch.amp.GradScaler.scale = scale_told  # type: ignore[method-assign]
    register_optimizer_step_post_hook(stepped_told)
