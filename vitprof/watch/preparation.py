"""How long a script works on its batches after `next()` and before the model gets them: in a generator around the
loader, or in the training loop. And how long it sleeps between the model and the optimizer, for parts of a batch that
come later. That is the training's wait too, and no wait for the loader has it.
"""

from __future__ import annotations

import math
import random
import resource
import sys
import threading
from dataclasses import dataclass, field
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Any

from vitprof.watch import frameworks
from vitprof.watch.patching import Guard
from vitprof.watch.ranks import distributed

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from vitprof.watch.loop import Loop

SAMPLE_EVERY_S, RARELY_S = 0.02, 0.2
"""About how often (s) a step is looked at, chosen at random, up to `OFTEN` of them and later: to look takes 0.16 ms."""
OFTEN = 32
LEAST_SAMPLES = 8
MOST_STEPS = 16
"""Steps of optimizers for one batch that are looked at: some have an optimizer for each parameter."""
NOTHING = (0.0,) * 5
UNSEEN = 16
"""After so many steps without a call of a model, which is then no module, no more are looked at."""


@dataclass
class Look:
    """A step that is looked at."""

    loop: Loop
    asked_s: float
    since_s: float
    """When the batch came, or the last copy of it ended; NaN while something else is waited for, and after it."""
    between_s: float
    """Time from the optimizer's step before it to its request; NaN where that is not known."""
    thread: int = field(default_factory=threading.get_ident)
    mark: Any = None
    """The device's mark as the batch came, where it works asynchronously."""
    spans: list[tuple[float, float]] = field(default_factory=list)
    """From a batch, or a copy, to the next copy, request or model (s)."""
    is_seen: bool = False
    """Whether the model was called."""
    working: tuple[float, float, int] | None = None
    """`_used` as the model was called, until the optimizer steps; only where the CPU is the device."""
    asleep_s: float = math.nan
    """Time in between that the thread used no core; NaN if not known, as where others took one from the process."""
    stepped_s: float = math.nan
    """When the optimizer stepped, until the model is called again for the same batch."""
    n_stepped: int = 0
    until_s: float = math.nan

    def close_span(self, now_s: float) -> None:
        if not math.isnan(self.since_s):
            self.spans.append((self.since_s, now_s))
            self.since_s = math.nan


class Preparation:
    """The time from a batch to the model, of steps chosen at random. All calls come from the thread that trains."""

    def __init__(self, guard: Guard) -> None:
        self._guard, self._random = guard, random.Random()
        self.is_on = False
        """Whether a step is looked at."""
        self.skip = 0
        """So many batches follow before the next one is."""
        self.stepped_s = math.nan
        """When an optimizer stepped; NaN if something followed that is no step, such as validation."""
        self._look: Look | None = None
        self._hook: RemovableHandle | None = None
        """That of all modules, while their calls are listened to."""
        self._n, self._unseen, self._sent = 0, 0, LEAST_SAMPLES
        self._longest: tuple[float, ...] = NOTHING
        self._sums: tuple[float, ...] = NOTHING
        """Seconds of preparation, between the steps, asleep, of the steps for which that is known, and of all. One
        pause is no habit: the step with the longest is kept apart."""

    def begin(self, loop: Loop, asked_s: float, got_s: float) -> None:
        """Looks at the step of a batch that was asked for at `asked_s`, its iteration begun included, and came."""
        if self.is_on:
            return
        if self.skip:
            self.skip -= 1
            return
        if (
            self._unseen >= UNSEEN
            or not loop.steps.confirmed
            or loop.steps.warming_up
            or compiled()
        ):
            return
        self._settle()
        if self._look is not None:  # the device has not come to it
            return
        carried = loop.step is not None and loop.step.carried
        self._look = Look(loop, asked_s, got_s, math.nan if carried else asked_s - self.stepped_s)
        if not loop.device.immediate:
            self._look.mark = loop.device.mark()
        if loop.copies is not None:
            loop.copies.preparation = self
        self.is_on = True
        self._listen()

    def ask(self, now_s: float, *, ends: bool = True) -> None:
        """Notes a request for a batch; whether it `ends` a step that has come to the model."""
        if (look := self._look) is None or not self.is_on:
            return
        look.close_span(now_s)
        look.stepped_s = math.nan
        if look.is_seen and ends:
            self.unlisten()
            look.until_s, self.is_on = now_s, False
            if look.mark is None:
                self._settle()

    def open_span(self, now_s: float) -> None:
        """Notes that a batch has come, or that the copy of it has ended."""
        if self.is_on and self._look is not None and not self._look.is_seen:
            self._look.since_s = now_s

    def close_span(self, now_s: float) -> None:
        """Notes that a copy of a batch begins."""
        if self.is_on and self._look is not None:
            self._look.close_span(now_s)

    def work(self) -> None:
        """Notes a backward pass: where no module was called before it, it is not known where the model began."""
        if self._look is not None and not self._look.is_seen:
            self._unseen += 1
            self._drop()

    def called(self, module: Any) -> None:
        """Notes the call of a module: the first with parameters is the model."""
        look, has_parameters = self._look, next(module.parameters(), None) is not None
        if (
            self.is_on
            and look is not None
            and threading.get_ident() == look.thread
            and has_parameters
        ):
            if math.isfinite(look.stepped_s):
                look.since_s = look.stepped_s
            look.close_span(perf_counter())
            look.is_seen, look.stepped_s, self._unseen = True, math.nan, 0
            if (
                look.mark is None and distributed() is None
            ):  # else it may sleep while it waits for other ranks
                look.working, look.asleep_s = _used(), look.asleep_s if look.n_stepped else 0.0
            self.unlisten()

    def step(self, now_s: float) -> None:
        """Notes a step of an optimizer: where the model is called again for the same batch, that is prepared anew."""
        self.stepped_s = now_s
        if (
            self.is_on
            and (look := self._look) is not None
            and look.is_seen
            and look.n_stepped < MOST_STEPS
        ):
            if look.working is not None:
                wall_s, cpu_s, taken = (
                    now - then for now, then in zip(_used(), look.working, strict=True)
                )
                known = not taken and threading.get_ident() == look.thread
                look.asleep_s += max(0.0, wall_s - cpu_s) if known else math.nan
                look.working = None
            look.stepped_s, look.n_stepped = now_s, look.n_stepped + 1
            if self._hook is None:
                self._listen()

    def _drop(self) -> None:
        look, self._look, self.is_on = self._look, None, False
        self.unlisten()
        if look is not None and look.mark is not None:
            look.loop.device.release(look.mark)

    def _listen(self) -> None:
        """Makes modules report their calls, by a hook of all: to patch a method of `Module` costs 0.1 ms."""
        from torch.nn.modules.module import register_module_forward_pre_hook

        self._hook = register_module_forward_pre_hook(
            lambda module, _: self._guard(self.called, module)
        )

    def unlisten(self) -> None:
        if self._hook is not None:
            self._hook.remove()
        self._hook = None

    def _settle(self) -> None:
        """Adds the last step, if the device has come to its batch: before that, it was not kept waiting."""
        look, free_s = self._look, -math.inf
        if look is None:
            return
        if look.mark is not None:
            if not look.loop.device.reached(look.mark):
                return
            free_s = look.loop.device.seconds(look.mark)
            look.loop.device.release(look.mark)
        self._look = None
        little_s = frameworks.little_s(sys.modules)
        took_s = sum(max(0.0, until_s - max(since_s, free_s)) for since_s, until_s in look.spans)
        step_s = look.until_s - look.asked_s
        between_s = max(0.0, look.between_s - little_s) if math.isfinite(look.between_s) else 0.0
        known = look.working is None and math.isfinite(look.asleep_s)
        asleep = (look.asleep_s, step_s) if known else (0.0, 0.0)
        of_it: tuple[float, ...] = max(0.0, took_s - little_s), between_s, *asleep, step_s
        self._longest, of_it = sorted(
            (self._longest, of_it), key=lambda of: sum(of[:3]), reverse=True
        )
        self._sums = tuple([a + b for a, b in zip(self._sums, of_it, strict=True)])
        self._n += 1
        every_s = SAMPLE_EVERY_S if self._n < OFTEN else RARELY_S
        self.skip = int(every_s / step_s * self._random.uniform(0.5, 1.5))
        if self._n >= self._sent:
            self._sent *= 2
            self._send(look.loop)

    def close(self, loop: Loop) -> None:
        """Ends a look, and sends the shares."""
        if self.is_on:
            self._drop()
        self._settle()
        self._send(loop)

    def _send(self, loop: Loop) -> None:
        if self._n >= LEAST_SAMPLES:
            prepared_s, between_s, asleep_s, of_s, all_s = self._sums
            shares = {
                "outside_next_frac": prepared_s / all_s,
                "between_steps_frac": between_s / (all_s + between_s),
            }
            loop.steps.facts(
                shares | ({"asleep_frac": asleep_s / of_s} if of_s > all_s / 4 else {})
            )


def _used() -> tuple[float, float, int]:
    """Returns the time, this thread's CPU time (s), and how often others took a core from a thread of the process."""
    return perf_counter(), thread_time(), resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def compiled() -> bool:
    """Returns whether anything was compiled: what is compiled may have to be compiled again for a changed method."""
    return bool(getattr(sys.modules.get("torch._dynamo.convert_frame"), "FRAME_COUNTER", 0))
