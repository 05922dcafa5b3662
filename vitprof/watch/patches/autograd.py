"""Backward passes, with the loss before a `GradScaler` has scaled it; and whether parameters change
between them, where no optimizer of PyTorch's steps (Keras, fastai, training by hand)."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import get_ident
from time import perf_counter
from typing import Any

from vitprof.watch.events import NAN, Kind
from vitprof.watch.patches import Recorder, Replacements

BACKWARD, CHANGED = int(Kind.BACKWARD), int(Kind.CHANGED)
DIFFERENTIATED = int(Kind.DIFFERENTIATED)
FIRST_LOOK = 3
"""After so many passes the parameters are looked at, and again after half as many more: gradients may be
accumulated over many."""
MOST_KEPT = 8
"""Parameters whose values are kept: the smallest ones that the first loss depends on."""


def install(recorder: Recorder) -> Replacements:
    """Replaces `torch.autograd.backward`, where `Tensor.backward` looks it up, too."""
    import torch

    replacements = Replacements()
    scaled = ScaledLoss()
    replacements.replace(torch.amp.GradScaler, "scale", functools.partial(_scale_noted, scaled))
    wrap = functools.partial(_backward_recorded, recorder, KeptParameters(), scaled, torch.Tensor)
    replacements.replace(torch.autograd, "backward", wrap)
    return replacements


@dataclass(frozen=True, slots=True)
class Scaled:
    """A loss, and what it was scaled to."""

    loss: Any
    scaled: Any


class ScaledLoss:
    """The loss that each thread scaled last."""

    def __init__(self) -> None:
        self.pending: dict[int, Scaled] = {}
        """By thread, until its next backward pass; empty in a script that scales none, which a hook asks
        for itself: it is there in each step."""

    def note(self, loss: Any, scaled: Any) -> None:
        self.pending[get_ident()] = Scaled(loss, scaled)

    def take(self, differentiated: Any) -> Any:
        """Returns the loss that was scaled to what is differentiated; that itself, if none was."""
        last = self.pending.pop(get_ident(), None)
        if last is None or differentiated is not last.scaled:
            return differentiated
        return last.loss


def _scale_noted(scaled: ScaledLoss, scale: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(scale)
    def scale_noted(self: Any, outputs: Any) -> Any:
        result = scale(self, outputs)
        scaled.note(outputs, result)
        return result

    return scale_noted


def _backward_recorded(
    recorder: Recorder,
    kept: KeptParameters,
    scaled: ScaledLoss,
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
            if scaled.pending:
                loss = scaled.take(loss)
            figure = device = NAN
            if type(loss) is tensor:
                if loss.is_cpu:
                    device = recorder.cpu or recorder.device(loss.device)
                    if loss.numel() == 1:
                        figure = float(loss.item())
                else:
                    device = _accelerator(recorder, loss.device)
            recorder.emit((BACKWARD, now_s, get_ident(), 0, figure, device, NAN))
            if recorder.on_first_work:
                recorder.work_begins()
            if recorder.notes:
                recorder.backward(now_s, loss)
            if not recorder.optimizers_step and kept.have_changed(loss, now_s):
                recorder.emit((CHANGED, now_s, get_ident(), 0, kept.since_s, NAN, NAN))
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
    """Parameters as they were at an earlier backward pass of this thread."""

    def __init__(self) -> None:
        self._passes = 0
        self._look_at = FIRST_LOOK
        self._over = False
        self._kept: list[tuple[Any, Any]] = []
        self.since_s = NAN
        """When that was."""

    def have_changed(self, loss: Any, now_s: float) -> bool:
        """Counts a backward pass from `loss`; returns True once, where it shows that they changed."""
        if self._over:
            return False
        self._passes += 1
        if self._passes == 1:
            self._keep(loss, now_s)
        if self._passes < self._look_at:
            return False
        self._look_at += max(FIRST_LOOK, self._passes // 2)
        now = {id(parameter) for parameter in parameters_of(loss)}
        self._over = any(
            id(parameter) in now
            and is_in_memory(parameter)
            and not parameter.detach().equal(before)
            for parameter, before in self._kept
        )
        self._kept.clear()
        if not self._over:
            # Another model may be the one that trains.
            self._keep(loss, now_s)
        return self._over

    def _keep(self, loss: Any, now_s: float) -> None:
        self.since_s = now_s
        smallest = sorted(parameters_of(loss), key=lambda p: int(p.numel()))[:MOST_KEPT]
        self._kept = [(p, p.detach().clone()) for p in smallest if is_in_memory(p)]


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
    visited = set(nodes)
    while nodes:
        node = nodes.pop()
        variable = getattr(node, "variable", None)
        if variable is not None:
            yield variable
        new = {following for following, _ in getattr(node, "next_functions", ())} - visited
        visited |= new
        nodes += new
