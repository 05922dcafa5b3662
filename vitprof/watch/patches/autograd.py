"""Backward passes; and whether parameters change between them, where no optimizer of PyTorch's
steps (Keras, fastai, training by hand)."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from threading import get_ident
from time import perf_counter
from typing import Any

from vitprof.watch.events import NAN, Kind
from vitprof.watch.patches import Recorder, Replacements

BACKWARD, CHANGED = int(Kind.BACKWARD), int(Kind.CHANGED)
DIFFERENTIATED = int(Kind.DIFFERENTIATED)
LOOKED_AT = (3, 6, 12, 24, 48, 96)
"""After so many passes the parameters are looked at: gradients may be accumulated over many."""
MOST_KEPT = 8
"""Parameters whose values are kept: the smallest ones that the first loss depends on."""


def install(recorder: Recorder) -> Replacements:
    """Replaces `torch.autograd.backward`, where `Tensor.backward` looks it up, too."""
    import torch

    replacements = Replacements()
    wrap = functools.partial(_backward_recorded, recorder, KeptParameters(), torch.Tensor)
    replacements.replace(torch.autograd, "backward", wrap)
    return replacements


def _backward_recorded(
    recorder: Recorder,
    kept: KeptParameters,
    tensor: type[Any],
    differentiate: Callable[..., Any],
) -> Callable[..., Any]:
    @functools.wraps(differentiate)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        now_s = perf_counter()
        try:
            loss = tensors
            if type(loss) is not tensor:
                loss = _only_one(tensors)
            figure = device = NAN
            if type(loss) is tensor:
                if loss.is_cpu:
                    device = recorder.cpu or recorder.device(loss.device)
                    if loss.numel() == 1:
                        figure = float(loss.item())
                else:
                    device = _accelerator(recorder, loss.device)
            recorder.emit((BACKWARD, now_s, get_ident(), 0, figure, device, NAN))
            recorder.backward(now_s, loss)
            if not recorder.optimizers_step and kept.have_changed(loss):
                recorder.emit((CHANGED, now_s, get_ident(), 0, NAN, NAN, NAN))
        except Exception as error:
            recorder.give_up(error)
        returned = differentiate(tensors, *args, **kwargs)
        if recorder.marks is not None:
            recorder.marks.differentiated()
        recorder.emit((DIFFERENTIATED, perf_counter(), get_ident(), 0, now_s, NAN, NAN))
        return returned

    return backward


def _accelerator(recorder: Recorder, device: Any) -> int:
    """Returns the number of a device that is not the CPU, and has its work marked from here on."""
    if recorder.marks is None:
        recorder.begin_marks(device)
    return recorder.device(device)


def _only_one(tensors: Any) -> Any:
    """Returns the loss in a list or tuple of one; None for several."""
    if isinstance(tensors, (list, tuple)) and len(tensors) == 1:
        return tensors[0]
    return None


class KeptParameters(threading.local):
    """Parameters as they were at this thread's first backward pass."""

    def __init__(self) -> None:
        self._passes = 0
        self._over = False
        self._kept: list[tuple[Any, Any]] = []

    def have_changed(self, loss: Any) -> bool:
        """Counts a backward pass from `loss`; returns True once, where it shows that they changed."""
        if self._over:
            return False
        self._passes += 1
        if self._passes == 1:
            smallest = sorted(parameters_of(loss), key=lambda p: int(p.numel()))[:MOST_KEPT]
            self._kept = [(p, p.detach().clone()) for p in smallest if is_in_memory(p)]
        self._over = self._passes >= LOOKED_AT[-1]
        if self._passes not in LOOKED_AT:
            return False
        now = {id(parameter) for parameter in parameters_of(loss)}
        changed = any(
            id(parameter) in now
            and is_in_memory(parameter)
            and not parameter.detach().equal(before)
            for parameter, before in self._kept
        )
        self._over |= changed
        if self._over:
            self._kept.clear()
        return changed


def is_in_memory(parameter: Any) -> bool:
    """Returns whether the values of a plain tensor are in memory: FSDP frees those of a whole one
    meanwhile."""
    if type(parameter).__name__ not in ("Parameter", "Tensor"):
        return False
    needed = parameter.numel() * parameter.element_size()
    return bool(parameter.untyped_storage().nbytes() >= needed)


def parameters_of(loss: Any) -> Iterator[Any]:
    """Yields the tensors that a backward pass from `loss` computes the gradients of."""
    nodes = [getattr(loss, "grad_fn", None)]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        variable = getattr(node, "variable", None)
        if variable is not None:
            yield variable
        new = {following for following, _ in getattr(node, "next_functions", ())} - seen
        seen |= new
        nodes += new
