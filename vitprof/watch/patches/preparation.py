"""Steps that are looked at, now and then: when the script calls a model with a batch, how long its
thread used a core from there to the optimizer's step, and what it reads from the batch to the backward
pass.

A hook of all modules costs each of their calls, so it is there for a few steps only, chosen at random.
What the script did with the batch before is then known by what is recorded anyway. Where the model is
no module, or is compiled, its call is not seen: what the thread used and read is known there, too.
"""

from __future__ import annotations

import math
import os
import random
import resource
import sys
from collections.abc import Callable
from threading import get_ident
from time import perf_counter, thread_time
from typing import Any

from vitprof.watch import frameworks
from vitprof.watch.events import NAN, Kind
from vitprof.watch.fetch_times import queued_so_far
from vitprof.watch.patches import Recorder, Replacements
from vitprof.watch.patches.models import compiled
from vitprof.watch.rank_identity import distributed

LOOKED_AT, MODEL_CALLED, USED = int(Kind.LOOKED_AT), int(Kind.MODEL_CALLED), int(Kind.USED)
SPENT = int(Kind.SPENT)
EVERY_S = 0.02
RARELY_S = 0.2
"""About how often (s) a step is looked at, up to `OFTEN` of them and later: to look takes 0.16 ms."""
OFTEN = 32
MOST_CALLS = 16
"""Updates on one batch after which calls are listened to: some scripts have an optimizer for each
parameter."""
UNSEEN = 16
"""After so many steps without a call of a model, which is then no module, calls are no longer listened
to."""
READ_SO_FAR = "/proc/thread-self/io"
"""Where Linux says what a thread has read: `rchar` in the first line, by system calls of any kind."""


def install(recorder: Recorder, between: Callable[[], float] | None = None) -> Replacements:
    """Looks at steps from the first backward pass on. `between` returns a factor of the time to the next
    one, 1 on average."""
    replacements = Replacements()
    uniform = random.Random().uniform
    sampler = PreparationSampler(recorder, between or (lambda: uniform(0.5, 1.5)))
    replacements.keep(sampler)
    recorder.on_first_work.append(sampler.begin)
    return replacements


class PreparationSampler:
    """What is listened to in the thread that trains."""

    def __init__(self, recorder: Recorder, between: Callable[[], float]) -> None:
        self._recorder = recorder
        self._between = between
        self._thread = 0
        self._next_s = math.inf
        """When a batch that comes is looked at."""
        self._hook: Any = None
        self._is_looking = False
        """Whether a step is looked at."""
        self._is_called = False
        """Whether the model was called in it."""
        self._n_calls = 0
        self._n = 0
        self._n_unseen = 0

    def begin(self) -> None:
        """Begins to look, in the thread that trains."""
        self._thread = get_ident()
        self._look_at(0.0)

    def remove(self) -> None:
        self._look_at(math.inf)
        self._end()

    def received(self, now_s: float) -> None:
        if get_ident() != self._thread:
            return
        if self._is_looking:
            self._note_spent(now_s)
            return
        if now_s < self._next_s:
            return
        self._is_looking = True
        self._recorder.note_looking(is_on=True)
        self._is_called = False
        self._n_calls = 0
        self._n += 1
        every_s = EVERY_S if self._n < OFTEN else RARELY_S
        self._look_at(now_s + every_s * self._between())
        little_s = frameworks.little_s(sys.modules)
        self._recorder.emit((LOOKED_AT, now_s, self._thread, 0, little_s, NAN, NAN))
        self._note_spent(now_s)
        if self._n_unseen < UNSEEN and not compiled():
            self._listen()

    def requested(self) -> None:
        """Ends a look whose step has come to the model. Before that the batch was fetched ahead."""
        if not self._is_looking or get_ident() != self._thread:
            return
        if self._is_called:
            self._end()
        else:
            self._note_spent(perf_counter())

    def waited(self, now_s: float) -> None:
        """Notes the end of a wait which began after the batch had come, as of an iterator's workers."""
        if self._is_looking and not self._is_called and get_ident() == self._thread:
            self._note_spent(now_s)

    def backward(self, now_s: float) -> None:
        """Ends a look where no module was called: it is not known where the model began."""
        if not self._is_looking or get_ident() != self._thread:
            return
        self._note_spent(now_s)
        if not self._is_called:
            self._n_unseen += 1
            self._end()

    def stepped(self, now_s: float) -> None:
        """Listens again: some scripts call the model several times with one batch."""
        if not self._is_looking or get_ident() != self._thread:
            return
        if not self._is_called:
            self._note_spent(now_s)
            self._end()
        elif self._n_calls <= MOST_CALLS:
            self._emit(USED, now_s)
            self._listen()

    def _called(self, module: Any, _: Any) -> None:
        now_s = perf_counter()
        try:
            if get_ident() != self._thread or next(module.parameters(), None) is None:
                return
            self._unlisten()
            self._is_called = True
            self._n_calls += 1
            self._n_unseen = 0
            self._emit(MODEL_CALLED, now_s)
        except Exception as error:
            self._recorder.give_up(error)

    def _emit(self, kind: int, now_s: float) -> None:
        """Records what this thread has used so far: its CPU time, and how often others took a core from the
        process. Not where it may sleep while it waits for a device or for other ranks."""
        cpu_s = taken = NAN
        if not self._may_wait():
            cpu_s = thread_time()
            taken = float(resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw)
        self._recorder.emit((kind, now_s, self._thread, 0, cpu_s, taken, NAN))

    def _note_spent(self, now_s: float) -> None:
        """Records its CPU time, for how long it has waited for a core, and what it has read so far."""
        cpu_s = waited_s = NAN
        if not self._may_wait():
            cpu_s = thread_time()
            waited_s = queued_so_far()
        self._recorder.emit((SPENT, now_s, self._thread, 0, cpu_s, waited_s, read_so_far()))

    def _may_wait(self) -> bool:
        """Returns whether the thread may sleep while it waits for a device or for other ranks."""
        return self._recorder.marks is not None or distributed() is not None

    def _listen(self) -> None:
        from torch.nn.modules.module import register_module_forward_pre_hook

        if self._hook is None:
            self._hook = register_module_forward_pre_hook(self._called)

    def _unlisten(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _look_at(self, at_s: float) -> None:
        """Looks at the step of the first batch that comes from then on."""
        self._next_s = at_s
        self._recorder.look_with(self, at_s)

    def _end(self) -> None:
        self._is_looking = False
        self._recorder.note_looking(is_on=False)
        self._unlisten()


def read_so_far() -> float:
    """Returns the bytes that the calling thread has read; NaN where the system does not say it."""
    try:
        descriptor = os.open(READ_SO_FAR, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return NAN
    try:
        return float(os.read(descriptor, 64).split()[1])
    except (OSError, ValueError, IndexError):
        return NAN
    finally:
        os.close(descriptor)
