"""A step, and the batches that it waits for: their samples, the times of their making, the script's copies of them."""

from __future__ import annotations

import functools
import math
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from vitprof.measure.devices import Device
from vitprof.measure.devices.events import EventDevice
from vitprof.measure.step_columns import UNKNOWN_TIMES, BatchTimes, StepMarks
from vitprof.watch.fetch_times import FetchTimes
from vitprof.watch.patching import Guard
from vitprof.watch.script_objects import parts

if TYPE_CHECKING:
    from vitprof.watch.other_loaders import OtherBatch, OtherLoaders


class Ahead(NamedTuple):
    """Batches that were fetched ahead for a step."""

    wait_s: float
    samples: int
    made: BatchTimes | None
    """The times of their stages, summed, from the first one's beginning to the last one's end; None if not known."""


NOTHING = Ahead(0.0, 0, None)


def batch_times(times: FetchTimes, queue_depth: float) -> BatchTimes:
    """Returns the times of making a batch: reading is the dataset's time without transforms, decoding is NaN."""
    dataset_s, transform_s, collate_s, start_s, end_s, worker, _ = times
    number = math.nan if worker < 0 else float(worker)
    read_s = max(0.0, dataset_s - transform_s)
    return BatchTimes(read_s, math.nan, transform_s, collate_s, start_s, end_s, number, queue_depth)


def together(first: BatchTimes | None, then: BatchTimes | None) -> BatchTimes | None:
    """Returns the sum of the stages of two batches, the second fetched after the first."""
    if first is None or then is None:
        return first or then
    return BatchTimes(
        *[*(a + b for a, b in zip(first[:4], then[:4], strict=True)), first.start_s, *then[5:]]
    )


def n_samples(batch: Any) -> int:
    """Returns the length of the first tensor in a batch that is not empty; 0 where there is none."""
    if (
        type(batch) in (list, tuple)
        and batch
        and type(batch[0]) is Tensor
        and batch[0].dim()
        and batch[0].numel()
    ):
        return batch[0].size(0)  # most batches; the general way takes ten times as long
    for tensor in tensors(batch):
        if tensor.numel():
            return (
                tensor.size(0) if tensor.dim() else 1
            )  # `len(tensor)` would run PyTorch's Python code
    return 0


MOST_OPTIMIZERS = 4
"""The most steps of optimizers in a step of the loop whose times are marked."""


def n_values(batch: Any) -> float:
    """Returns the numbers in the largest tensor of a batch, padding too; NaN where it has none."""
    return float(max((tensor.numel() for tensor in tensors(batch)), default=math.nan))


class Step:
    """The current step."""

    __slots__ = (
        "carried",
        "end",
        "forward",
        "last",
        "marks",
        "n_stepped",
        "others",
        "scaled",
        "stepped",
        "updated",
    )

    def __init__(self, marks: StepMarks, carried: Sequence[OtherBatch], *, last: bool) -> None:
        self.marks, self.carried = marks, carried
        self.last = last
        """Whether no batch came for it: the iteration is over."""
        self.end: tuple[float, Any] | None = None
        """When it may have ended, with the device's mark."""
        self.others: list[OtherBatch] = []
        """The batches of other loaders that came before its last work; `carried`: that came before its own batch."""
        self.updated = -1
        """How many of them had come when an optimizer last stepped; -1 if none has."""
        self.stepped: tuple[float, Any] | None = None
        """When an optimizer last stepped, with the device's mark; None if more work was seen since."""
        self.n_stepped = 0
        self.forward: Sequence[Any] = ()
        """The device's marks of its forward pass, where other ranks train, too (`ranks.Forward`)."""
        self.scaled: tuple[Any, Any] = (None, None)
        """A loss scaled by a GradScaler, and the loss."""

    def note(self, **times: float) -> None:
        """Notes further times of its batch, by the names of `BatchTimes`."""
        self.marks.made = (self.marks.made or UNKNOWN_TIMES)._replace(**times)

    def note_values(self, batch: Any) -> None:
        self.note(batch_values=n_values(batch))

    def wait_longer(self, device: Device, seconds: float) -> None:
        """Adds time to the wait for its batch, until now, before the script has done anything with that."""
        marks = self.marks
        if marks.compute_start is marks.copy_start:
            device.release(marks.compute_start)
            marks.copy_start = marks.copy_end = marks.compute_start = device.mark()
        marks.t_got += seconds

    def note_end(self, device: Device, now_s: float) -> None:
        """Notes that it may end now."""
        if self.end is not None:
            device.release(self.end[1])
        self.end = (now_s, device.mark())

    def note_stepped(self, device: Device, now_s: float) -> None:
        """Notes a step of an optimizer. Where there is one for each parameter, none is marked."""
        if self.stepped is not None:
            device.release(self.stepped[1])
        self.stepped = (now_s, device.mark()) if self.n_stepped <= MOST_OPTIMIZERS else None

    def work(self, copies: Copies | None, others: OtherLoaders) -> None:
        """Notes work. Batches of other loaders before it are part of the step: the script works on them too."""
        if copies is not None:
            copies.work()
        self.others += others.take()
        self.stepped = None


ONE_AFTER_ANOTHER_S = 200e-6
"""A copy that begins this soon (s) after the one before is part of it; labels moved after the forward pass are not."""
METHODS = ("to", "cuda")
MOST_SIDES = 16
"""The most marks of other streams in a step."""


class Copy(NamedTuple):
    """The copy of a batch to the device, between two marks."""

    start: Any
    end: Any
    ended_s: float
    holds_up: bool
    """Whether the work launched after it waits for it, since both are in one stream."""


class Copies:
    """A hook that marks the copies of batches. A step's copy is that of its batch before the first work of the step. A
    copy after it is that of a batch fetched ahead (Accelerate, HF Trainer), unless more work follows.
    """

    def __init__(self, device: EventDevice, guard: Guard) -> None:
        self._device, self._guard = device, guard
        self._watched: dict[int, weakref.ref[Tensor]] = {}
        """The batch's tensors, by `id()`; weak references, as another tensor may get the `id()` of a freed one."""
        self._added: dict[int, weakref.ref[Tensor]] = {}
        """Those of batches of other loaders since the last work."""
        self._copy: Copy | None = None
        self._next: Copy | None = None
        self._ended: tuple[float, Any] | None = None
        """When and at which mark the current step ended: before the copy for the next one."""
        self._worked = False
        self._began: Any = None
        self._again = False
        self.preparation: Any = None
        """Of the watched loop: a copy is no part of it."""
        self._moved: dict[tuple[int, str], tuple[Tensor, int]] = {}
        """Their tensors' copies on the device, and versions, by the tensor's `id()` and the arguments."""
        self._copying: set[Any] = set()
        """The streams in which batches were copied."""
        self._sides: list[Any] = []
        """Where the work ends that the thread that trains gave to other streams since the last step."""
        self._thread = threading.get_ident()
        self._set_stream = torch.cuda.set_stream
        if device.torch_device.type == "cuda":
            torch.cuda.set_stream = self._change_stream
        self._before = {name: vars(Tensor).get(name) for name in METHODS}
        self._methods = {name: _TimedMethod(getattr(Tensor, name), self) for name in METHODS}
        for name, method in self._methods.items():
            setattr(Tensor, name, method)

    def begin(self, batch: Any, *, again: bool) -> None:
        """Begins a step: watches for copies of the tensors in `batch` that are in host memory."""
        self._again, self._worked, self._thread = again, False, threading.get_ident()
        self._watched = self._added | _in_host_memory(batch)
        if self._next is not None:
            self._copy, self._next = self._next._replace(holds_up=False), None

    def add(self, batch: Any) -> None:
        """Watches for copies of a batch of another loader, too."""
        self._added |= (more := _in_host_memory(batch))
        self._watched |= more

    def work(self) -> None:
        """Notes work on a batch: what is copied from here on may be the next step's."""
        self._worked, self._added = True, {}
        if self._ended is not None:
            self._device.release(self._ended[1], *self._next[:2] if self._next else ())
            self._ended = self._next = None

    def end(self, marks: StepMarks | None) -> tuple[float, Any] | None:
        """Ends a step and sets its marks (None: no work). Returns when and where it ended, if before the next copy."""
        self._watched = {}
        if marks is None:
            self._next, self._copy = self._next or self._copy, None
        elif self._copy is not None:
            given = marks.copy_start
            marks.copy_start, marks.copy_end, _, holds_up = self._copy
            begins = marks.compute_start  # of the step that a script marks, where it does
            if holds_up and marks.copy_end.recorded_s >= begins.recorded_s:
                marks.compute_start = marks.copy_end
            self._device.release(*{given, begins} - {marks.compute_start})
            self._copy = None
        ended, self._ended = self._ended, None
        return ended

    def close(self) -> None:
        """Restores the methods of `Tensor`, unless another tool has replaced them since."""
        self._watched = {}
        self._moved.clear()
        if torch.cuda.set_stream == self._change_stream:
            torch.cuda.set_stream = self._set_stream
        for name, method in self._methods.items():
            if vars(Tensor).get(name) is method:
                delattr(Tensor, name)
                if self._before[name] is not None:
                    setattr(Tensor, name, self._before[name])

    def method(self, tensor: Tensor, call: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Returns `call`, a bound method of `tensor`; where `tensor` is in the batch, with marks around it."""
        watched = self._watched.get(id(tensor))
        return (
            call
            if watched is None or watched() is not tensor
            else functools.partial(self._move, call)
        )

    def _move(self, call: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
        if not self._again:
            return self._timed(call, *args, **kwargs)
        which = id(call.__self__), repr((args, kwargs))  # type: ignore[attr-defined]
        moved, version = self._moved.get(which, (None, 0))
        if moved is None or moved._version != version:  # the script has changed the copy in place
            moved = self._timed(call, *args, **kwargs)
            self._moved[which] = moved, moved._version
        return moved

    def _timed(self, call: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
        self._guard(self._begin_copy)
        moved = call(*args, **kwargs)
        self._guard(self._end_copy, moved)
        return moved

    def take_sides(self) -> list[Any]:
        """Returns the marks in other streams since the last call."""
        taken, self._sides = self._sides, []
        return taken

    def _change_stream(self, stream: Any) -> None:
        self._guard(self._leave_stream)
        self._set_stream(stream)

    def _leave_stream(self) -> None:
        device = self._device
        left = device.current_stream()
        usual = left == device.work_stream() or left in self._copying or not left.cuda_stream
        if (
            usual
            or threading.get_ident() != self._thread
            or torch.cuda.is_current_stream_capturing()
        ):
            return
        if len(self._sides) < MOST_SIDES:
            self._sides.append(device.mark(left))

    def _begin_copy(self) -> None:
        if self._worked and self._next is None:
            self._ended = (perf_counter(), self._device.mark())
        if self.preparation is not None:
            self.preparation.close_span(perf_counter())
        self._began = self._device.mark(self._device.current_stream())

    def _end_copy(self, moved: Tensor) -> None:
        device, began = self._device, self._began
        if moved.device.type == "cpu":
            device.release(began)
            if self._ended is not None and self._next is None:
                device.release(self._ended[1])
                self._ended = None
            return
        stream = device.current_stream()
        ended, now_s = device.mark(stream), perf_counter()
        if self.preparation is not None:
            self.preparation.open_span(now_s)
        if stream != device.work_stream():
            self._copying.add(stream)
        before = self._next if self._worked else self._copy
        copy = Copy(began, ended, now_s, holds_up=stream == device.work_stream())
        if before is not None:
            if copy.start.recorded_s - before.ended_s > ONE_AFTER_ANOTHER_S:
                device.release(began, ended)
                return
            device.release(began, before.end)
            copy = copy._replace(start=before.start, holds_up=before.holds_up or copy.holds_up)
        if self._worked:
            self._next = copy
        else:
            self._copy = copy


def _in_host_memory(batch: Any) -> dict[int, weakref.ref[Tensor]]:
    return {
        id(tensor): weakref.ref(tensor) for tensor in tensors(batch) if tensor.device.type == "cpu"
    }


class _TimedMethod:
    """A descriptor that replaces a method of `Tensor`; read from the class it is that method, which has an identity."""

    def __init__(self, method: Any, copies: Copies) -> None:
        self._method, self._copies = method, copies

    def __get__(self, tensor: Tensor | None, owner: type | None = None) -> Any:
        if tensor is None:
            return self._method
        return self._copies.method(tensor, self._method.__get__(tensor, owner))


DEEPEST = 16
"""How deep tensors are looked for in a batch: one that contains itself has no end."""


def tensors(batch: Any, depth: int = DEEPEST) -> Iterator[Tensor]:
    """Yields the tensors of a batch in order, through mappings, lists, tuples and objects with a method `values`."""
    if issubclass(type(batch), Tensor):  # `isinstance` would run the batch's own `__class__`
        yield batch
    elif depth:
        for part in parts(batch):
            yield from tensors(part, depth - 1)
