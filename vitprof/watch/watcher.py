"""Turns what a script does with its loaders and optimizers into events of the loop that trains."""

from __future__ import annotations

import functools
import math
import os
import threading
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from vitprof.watch.fast_path import PlainSteps
from vitprof.watch.fetch_times import FetchTimes
from vitprof.watch.loaders import (
    STEPS_WITHOUT_LOADER,
    BackwardPasses,
    Begun,
    Loaders,
    describe_dataset,
)
from vitprof.watch.patching import (
    SOCKET,
    STEPS,
    Guard,
    leave_sign,
    makes_workers,
    report_exit,
    say,
    whole_number,
)
from vitprof.watch.preparation import Preparation

if TYPE_CHECKING:
    from vitprof.watch.loop import Loop  # needs PyTorch, which is half imported when this is
    from vitprof.watch.send import Wanted
    from vitprof.watch.sources import Source

DETACH = "VITPROF_WATCH_DETACH_AFTER"
"""Environment variable: the number of steps after which the script goes on unwatched."""
HEADROOM = "VITPROF_WATCH_HEADROOM"
"""Environment variable: set where kept batches are served again, to measure headroom."""


class EnoughSteps(SystemExit):
    """Raised to end the script after the number of steps to run, as `sys.exit(0)` in its own loop would."""


def in_turn(report: Callable[..., None]) -> Callable[..., None]:
    """Makes a method of `Watcher` wait until no other thread of the script is in one."""

    @functools.wraps(report)
    def report_in_turn(self: Watcher, *args: Any, **kwargs: Any) -> None:
        with self.turn:
            report(self, *args, **kwargs)

    return report_in_turn


class Watcher:
    """The watching of this process: which loader trains, and when its loop begins and ends."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.receiver: Any = self
        """The receiver of the loaders' events: this, or an `Inside` while a watched loader makes a batch."""
        self.wanted: Wanted | None = None
        """The wishes of a script that watches itself."""
        self.loaders = Loaders()
        self.plain = PlainSteps(self)
        self.passes, self.preparation = BackwardPasses(), Preparation(guard)
        self.turn, self.forking = threading.RLock(), threading.RLock()
        """`forking`: held while workers are forked, as an iteration begins, and by the thread that sends."""
        self.loop: Loop | None = None
        """None until a loader is iterated with gradients on."""
        self.has_begun = False
        """Whether any loader that may train was iterated with gradients on; then work on batches is reported."""
        self.kept: Any = None
        self._entered = 0  # steps that the script has entered and not left
        self._asked_in = self._worked_in = self._stepped_in = 0
        """The threads of the last request for a batch of the train loader, backward pass, and step of an optimizer."""
        self.source: Source | None = None
        """Where the training thread gets its batches, if not in `next()` of a loader."""
        self._unfed = 0  # steps of optimizers before any loader was iterated over with gradients on
        self._end_after, self._detach_after = whole_number(STEPS), whole_number(DETACH)

    # events of the loaders

    @in_turn
    def beginning(self, loader: Any, now: float) -> None:
        """Notes the beginning of an iteration over `loader`: for the train loader it ends a step and validation."""
        if self.source is None and self.loaders.is_apart(loader):
            return
        self.plain.leave()
        if self.source is not None:
            self.source.epoch += self.loaders.of(loader) is (self.source.fetched or self)
        if (loop := self.loop) is None or (ours := self.loaders.ours) is None:
            return
        ended = loop.steps.confirmed and (ours.is_over or loop.state.name == "WORKED")
        if self.loaders.is_ours(loader) or (
            ended and not ours.is_alive
        ):  # one made anew for each epoch
            loop.begin_epoch(now)

    @in_turn
    def begun(
        self, loader: Any, iterator: Any, since_s: float, until_s: float, facts: Any = None
    ) -> None:
        """Notes the times between which an iteration over `loader` was begun; `facts` of one that is no DataLoader."""
        if (
            self.loaders.begins_another_job()
            and self.loop is not None
            and self.loop.steps.confirmed
        ):
            self.guard.given_up = True
            self.leave()
            say(
                "hydra's next job is not recorded: this run is of the first; watch another one by its values alone"
            )
        seen = self.loaders.begun(loader, iterator, facts)
        seen.begun = Begun(since_s, until_s, perf_counter())

    @in_turn
    def asked(self, iterator: Any, now: float) -> None:
        """Notes the script's request for a batch, at which the previous step ends."""
        import torch

        leave_sign("gradients" if torch.is_grad_enabled() else "batch")
        in_loop = torch.is_grad_enabled() or getattr(
            self.loaders.of(iterator), "trains_quietly", False
        )
        if self.source is not None and iterator is not self.source:
            if not (self.source.has_given or in_loop) or self.source.is_foreign(iterator):
                return  # the first is a check before a batch whose wait is not known anyway
            if not self.source.has_given:  # it iterates over a loader after all
                self.source.close()
        elif self.source is None and self.loaders.is_apart(iterator):
            self.plain.alone = False
            return
        self.plain.leave()
        self.preparation.ask(now, ends=self.loaders.is_ours(iterator) or not in_loop)
        if not in_loop:
            self.preparation.stepped_s = math.nan
        self.kept = None
        loop, seen = self.loop, self.loaders.request(iterator, in_loop=in_loop)
        if in_loop and loop is not None and seen is not None and loop.steps.others.first is seen:
            self.loaders.ours, loop.steps.others.first, seen.updates = seen, None, True
        ours = self.loaders.is_ours(iterator)
        if not in_loop:
            if loop is not None and not ours:
                loop.request_other(now, None)
            return
        if not ours and not self._take(iterator, now):
            elsewhere = self.loaders.declares and threading.get_ident() != self._asked_in
            if (
                self.loop is not None and seen is not None and not elsewhere
            ):  # there, the declared loop's wait has it
                seen.trains = seen.declared or not self.loaders.declares
                self.loop.request_other(now, seen)
            return
        assert self.loop is not None
        assert self.loaders.ours is not None
        self._asked_in = threading.get_ident()
        self.loop.end(now)
        if not self._enough(self.loop.steps):
            begun_since_s = self.loaders.begun_since_s(self.loaders.ours.begun.told_s)
            self.kept = self.loop.request(iterator, now, self.loaders.ours, begun_since_s)

    @in_turn
    def given(self, iterator: Any, now: float, batch: Any, times: FetchTimes | None) -> None:
        """Notes the batch that was requested: its step begins. `times`: how it was made; None if not known."""
        if self.source is not None and self.source.is_foreign(iterator):
            self.source.note(batch, times)
            return
        if self.loaders.in_thread_apart:
            return
        loop, ours = self.loop, self.loaders.ours
        self.preparation.open_span(now)
        if loop is None or ours is None or not self.loaders.is_ours(iterator):
            if (
                loop is not None
                and loop.steps.others.receive(now, batch, times)
                and loop.copies is not None
            ):
                loop.copies.add(batch)
            return
        if loop.requested is None:
            return
        if ours.facts.get("batch_size") is None:
            from vitprof.watch.batches import n_samples

            ours.facts["batch_size"] = n_samples(batch) or None
        if ours.declared:
            self.confirm()
        loop.receive(now, batch, times)
        if not ours.declared and loop.step is not None:
            self.preparation.begin(loop, loop.step.marks.t_start, now)
        never_plain = self._end_after or self._detach_after or self.source
        if self._entered:  # the script requested the batch inside its step
            loop.enter(now)
        elif (
            (ours.updates or not self.loaders.trainer)
            and not never_plain
            and self._stepped_in == self._asked_in
        ):
            self.plain.enter(ours.alive[-1], loop, times)

    @in_turn
    def left_empty(self, iterator: Any, now: float) -> None:
        """Notes the end of an iteration: it is over, or failed."""
        if (seen := self.loaders.of(iterator)) is not None:
            seen.is_over = True
        if self.loaders.in_thread_apart or (
            self.source is not None and self.source.is_foreign(iterator)
        ):
            return
        self.plain.leave()
        if (loop := self.loop) is None:
            return
        if not self.loaders.is_ours(iterator):
            loop.steps.others.receive(now, None, None)
        elif loop.requested is not None:
            loop.receive(now, None, None, last=True)
            if self._entered:
                loop.enter(now)

    # which loader trains

    def _take(self, iterator: Any, now: float) -> bool:
        seen, ours = self.loaders.of(iterator), self.loaders.ours
        if self.loaders.declares and (seen is None or not seen.declared):
            return False
        if self.loop is None:
            self.loop = _open(self)
        if seen is None:
            return False
        if ours is not None and (steps := self.loop.steps).confirmed:
            worked = self.loop.state.name == "WORKED" or steps.n > steps.n_before_epoch
            validates = (
                worked and not ours.updates and not ours.declared and self.loaders.trainer != 0
            )
            if ours.is_alive and not validates:
                return False
            steps.others.unclear += validates * (steps.n - steps.n_before_epoch)
        if seen is not ours:
            self.loaders.ours, self.passes = seen, BackwardPasses()
        self.loop.change_loader(now, expects_work=not seen.each_is_a_step)
        return True

    @in_turn
    def stepped(self, optimizer: Any) -> None:
        """Notes a step of an optimizer."""
        self.plain.leave()
        if self.loaders.in_thread_apart:
            if self.loop is not None and not self.loaders.several_train:
                self.loaders.several_train = True
                self.loop.steps.facts({"several_threads_train": True})
            return
        trained = next((p for group in optimizer.param_groups for p in group["params"]), None)
        if (
            trained is not None and trained.device.type != "cpu"
        ):  # optimizers that are offloaded have theirs there
            _follow(self, trained)
        fed = self.loaders.is_main(optimizer) and self.loaders.without_gradients.step()
        if self.loop is None:
            self._unfed = 0 if fed else self._unfed + (not self.loaders.declares)
            if self._unfed < STEPS_WITHOUT_LOADER:
                return
            self.loop = _open(self, None if trained is None else trained.device)
        (loop := self.loop).optimizer_stepped(perf_counter())
        fetches = (
            self._worked_in == self._asked_in
        )  # else autograd's thread may step, in a hook of a gradient
        self._stepped_in = self._asked_in if fetches and self._asked_in else threading.get_ident()
        fetched, leaves = self.loaders.step(optimizer, self._stepped_in), False
        if (ours := self.loaders.ours) is not None:
            ours.updates = True
        if not (elsewhere := self._asked_in != self._stepped_in):
            self.loaders.trainer = self._stepped_in
            leaves = loop.steps.confirmed and self.loaders.goes_on_without_ours(
                settled=not loop.steps.warming_up
            )
        if self.source is None and (leaves or (fetched is None and elsewhere)):
            from vitprof.watch.sources import open_source  # needs PyTorch

            open_source(self, loop, self.loaders.fetched_apart if leaves else ours)
        elif (
            self.source is None and elsewhere and not loop.steps.confirmed
        ):  # threads that train began together
            self.loaders.ours, self.loaders.trainer, self._asked_in = (
                fetched,
                self._stepped_in,
                self._stepped_in,
            )
            loop.change_loader(perf_counter(), expects_work=True)
        if self.source is not None:
            self.source.stepped(optimizer)
        if loop.step is not None:
            self.confirm()
        self.preparation.step(perf_counter())

    def confirm(self) -> None:
        """Confirms the candidate as the train loader: what was recorded is training."""
        if (
            self.loop is not None
            and self.loaders.ours is not None
            and not self.loop.steps.confirmed
        ):
            self.loop.steps.confirm(
                self.loaders.ours.facts, headroom=bool(os.environ.get(HEADROOM))
            )

    # a script that marks its steps, and watches itself

    def mark_step(self, entering: bool) -> None:
        """Notes that the script enters or leaves a step that it marks. A step inside another one is part of it."""
        self.plain.leave()
        self._entered += 1 if entering else -1
        if self.loop is not None and self._entered == entering:
            (self.loop.enter if entering else self.loop.leave)(perf_counter())
            if (
                self.loop.step is not None and not entering
            ):  # the one sign of training where a CUDA graph is a step
                self.confirm()

    def pause(self, status: str, error: str, *, over: bool = False) -> None:
        """Ends the run until the next batch, which begins another one if it is `over`. No step has the time between."""
        self.plain.leave()
        if self.loop is not None:
            self.loop.pause()
            if self.loop.steps.confirmed:
                self.loop.steps.pause(status, error)
        if over:
            self.leave()
            if self.source is not None:
                self.source.close()
            self.loop = self.loaders.ours = None

    def _enough(self, steps: Any) -> bool:
        ends = bool(self._end_after and steps.n >= self._end_after)
        if not steps.confirmed or not (
            ends or (self._detach_after and steps.n >= self._detach_after)
        ):
            return False
        self.guard.given_up = True
        self.leave()
        if ends:
            describe_dataset(self.loaders.ours)
            raise EnoughSteps(0)
        return True

    def leave(self) -> None:
        """Sends what is left, at the script's end, at the run's, or after enough steps."""
        self.plain.leave()
        if self.loop is not None:
            self.preparation.close(self.loop)
            self.loop.pause()
            self.loop.close()

    def close(self) -> None:
        self.plain.drop()
        self.preparation.unlisten()
        if self.loop is not None:
            self.loop.close()

    def forget(self) -> None:
        """Ends watching in a forked process if its parent trains, or makes a loader's workers; else begins anew."""
        trains = self.loop is not None and self.loop.steps.confirmed
        self.guard.given_up = bool(
            self.guard.given_up or trains or not os.environ.get(SOCKET) or makes_workers()
        )
        self.preparation.is_on = False
        self.plain.drop()
        self.turn, self.forking = threading.RLock(), threading.RLock()
        if self.loop is not None:
            self.loop.steps.forget()
        # its events and pinned memory are the parent's: to free them here would end the process
        self._of_parent, self.loop = self.loop, None


def _follow(watcher: Watcher, worked_on: Any) -> None:
    """Moves the loop to the device of a tensor that the script trains with, until it is known that it trains."""
    import torch

    loop = watcher.loop
    if loop is None or loop.steps.confirmed or not isinstance(worked_on, torch.Tensor):
        return
    if worked_on.device != loop.device.torch_device:
        watcher.loop = _open(watcher, worked_on.device, instead_of=loop)
        loop.close()


def _open(watcher: Watcher, where: Any = None, *, instead_of: Loop | None = None) -> Loop:
    """Returns a new loop, at its first batch with gradients on; does what had to wait for PyTorch."""
    import torch

    from vitprof.measure.devices import open_device
    from vitprof.watch.loop import Loop

    on_cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    name = str(where or (f"cuda:{torch.cuda.current_device()}" if on_cuda else "cpu"))
    device = open_device(name, perf_counter, in_use=True)
    if not watcher.has_begun:
        watcher.has_begun = True
        report_work(watcher)

        def leave_now() -> None:
            in_its_thread = threading.get_ident() in (watcher._asked_in, watcher._stepped_in)
            (watcher.leave if in_its_thread else watcher.close)()

        report_exit(watcher.guard, watcher.leave, leave_now)
    return Loop(device, watcher, instead_of)


def report_work(watcher: Watcher) -> None:
    """Makes PyTorch report each backward pass, and loss that a GradScaler has scaled."""
    import torch

    differentiate, scale = torch.autograd.backward, torch.amp.GradScaler.scale
    plain, guard = watcher.plain, watcher.guard

    def note_backward(tensors: Any) -> None:
        with watcher.turn:
            if watcher.loop is None or watcher.loaders.in_thread_apart:
                return
            loss = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors
            _follow(watcher, loss)
            watcher._worked_in = threading.get_ident()
            watcher.preparation.work()
            if watcher.loop.backward(tensors) and watcher.passes.train(watcher.loop, loss):
                watcher._stepped_in = threading.get_ident()
                watcher.confirm()

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

    torch.autograd.backward = backward  # Tensor.backward() looks it up there, too
    torch.amp.GradScaler.scale = scale_noted  # type: ignore[method-assign]


@functools.cache
def the_watcher() -> Watcher:
    guard = Guard()
    watcher = Watcher(guard)
    guard.at_end = watcher.close
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=watcher.forget)
    return watcher
