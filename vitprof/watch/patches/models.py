"""The first call of a model with a batch that was requested without gradients: it tells a validation
from a script that switches gradients off to fetch alone.

Where a model was called without gradients, the next call with them is listened to, too: a script that
scores a batch and then trains on a part of it (hard example mining) calls the model with some of the
same samples again. What is compared is what the model is called with, so transforms before it do not matter.
"""

from __future__ import annotations

import sys
from collections import Counter
from threading import get_ident
from time import perf_counter
from typing import Any

from vitprof.watch.events import NAN, Kind
from vitprof.watch.patches import Recorder

CALLED = int(Kind.CALLED)
MOST_LOOKS = 8
"""Batches of a loader after which the call of a model is listened to: a hook of all modules costs each
of their calls, and more than that tell nothing new."""
MOST_VALUES = 64
"""Values of a sample, spread over it, by which it is known again."""
MOST_SAMPLES = 4
"""Samples of the second call that are looked for among those of the first."""


class FirstCall:
    """Listens to the next call of a model in the thread that has just got a batch."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._n_looks: Counter[int] = Counter()
        self._hook: Any = None
        self._thread = 0
        self._is_scored = False
        """Whether a model was called with the batch without gradients."""
        self._scored: Any = None
        """Values of the samples that it was called with; None before these are known: a module within it
        may be the first that is called with a tensor by its place."""

    def listen(self, loader: int) -> None:
        """Listens, unless enough is known of this loader."""
        if self._is_scored and get_ident() == self._thread:
            self._end()  # nothing was trained on the batch before
        if self._hook is not None or self._n_looks[loader] >= MOST_LOOKS or compiled():
            return
        from torch.nn.modules.module import register_module_forward_pre_hook

        self._n_looks[loader] += 1
        self._thread = get_ident()
        self._hook = register_module_forward_pre_hook(self._called)

    def _called(self, module: Any, arguments: Any) -> None:
        import torch

        try:
            if get_ident() != self._thread or next(module.parameters(), None) is None:
                return
            gradients = torch.is_grad_enabled()
            if not self._is_scored:
                self._emit(gradients=gradients)
                self._is_scored = True
                if gradients or is_compiled(module):
                    self._end()
                    return
            if not gradients:
                if self._scored is None:
                    self._scored = values_of_samples(arguments)
            elif self._scored is None:
                self._end()
            else:
                self._compare(arguments)
        except Exception as error:
            self._recorder.give_up(error)

    def _compare(self, arguments: Any) -> None:
        """Records that a model is called with gradients with samples that it was called with before."""
        values = values_of_samples(arguments)
        if values is None:
            return  # a module within it may be called with them
        if are_among(values, self._scored):
            self._emit(gradients=True)
        self._end()

    def _emit(self, *, gradients: bool) -> None:
        row = (CALLED, perf_counter(), self._thread, 0, float(gradients), NAN, NAN)
        self._recorder.emit(row)

    def _end(self) -> None:
        self._hook.remove()
        self._hook = None
        self._is_scored = False
        self._scored = None


def values_of_samples(arguments: Any) -> Any:
    """Returns some values of each sample in the first tensor of a call, (samples, values); None where
    there is none.

    Not while a CUDA graph is captured, which would have this in it.
    """
    import torch

    for argument in arguments:
        if not isinstance(argument, torch.Tensor) or argument.dim() < 2 or not argument.numel():
            continue
        if argument.is_cuda and torch.cuda.is_current_stream_capturing():
            return None
        try:
            with torch.no_grad():
                rows = argument.detach().flatten(1)
                every = -(-rows.shape[1] // MOST_VALUES)
                return rows[:, ::every].clone()
        except Exception:  # a tensor of a kind of its own
            return None
    return None


def are_among(values: Any, scored: Any) -> bool:
    """Returns whether the first of these samples are some of those that were scored, and not all of
    them, as where all samples are alike."""
    import torch

    if values.shape[1:] != scored.shape[1:] or values.dtype != scored.dtype:
        return False
    try:
        with torch.no_grad():
            same = (values[:MOST_SAMPLES, None] == scored[None]).all(2)
            found = same.any(1) & ~same.all(1)
            return bool(found.all())
    except Exception:  # on two devices, or a tensor of a kind of its own
        return False


def is_compiled(module: Any) -> bool:
    """Returns whether any part of a model is to be compiled: it would be once more, as a hook goes."""
    return any(
        hasattr(part, "_orig_mod") or getattr(part, "_compiled_call_impl", None) is not None
        for part in module.modules()
    )


def compiled() -> bool:
    """Returns whether anything was compiled: it may have to be compiled again for a new hook."""
    return bool(getattr(sys.modules.get("torch._dynamo.convert_frame"), "FRAME_COUNTER", 0))
