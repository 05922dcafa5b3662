"""The first call of a model with a batch that was requested without gradients: it tells a validation
from a script that switches gradients off to fetch alone."""

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


class FirstCall:
    """Listens to the next call of a model in the thread that has just got a batch."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._n_looks: Counter[int] = Counter()
        self._hook: Any = None
        self._thread = 0

    def listen(self, loader: int) -> None:
        """Listens, unless enough is known of this loader."""
        if self._hook is not None or self._n_looks[loader] >= MOST_LOOKS or compiled():
            return
        from torch.nn.modules.module import register_module_forward_pre_hook

        self._n_looks[loader] += 1
        self._thread = get_ident()
        self._hook = register_module_forward_pre_hook(self._called)

    def _called(self, module: Any, _: Any) -> None:
        import torch

        try:
            if get_ident() != self._thread or next(module.parameters(), None) is None:
                return
            self._hook.remove()
            self._hook = None
            gradients = torch.is_grad_enabled()
            row = (CALLED, perf_counter(), self._thread, 0, float(gradients), NAN, NAN)
            self._recorder.emit(row)
        except Exception as error:
            self._recorder.give_up(error)


def compiled() -> bool:
    """Returns whether anything was compiled: it may have to be compiled again for a new hook."""
    return bool(getattr(sys.modules.get("torch._dynamo.convert_frame"), "FRAME_COUNTER", 0))
