"""Marks in the work of the device that trains: events of CUDA at the places where hooks see something,
and when the device has passed each.

They begin with the first loss, or parameter, that is seen on the device: by then the script has
started it, and nothing here ever does. Only the thread that trains makes marks, asks whether the
device has passed them, and releases them. To ask from another one would break the capture of a CUDA
graph: `cudaEventQuery` is forbidden in all threads meanwhile.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections import deque
from collections.abc import Callable
from threading import get_ident
from time import perf_counter
from typing import Any, Concatenate, NamedTuple, ParamSpec

from vitprof.watch.events import NAN, Kind, MarkedPoint
from vitprof.watch.patches import Recorder, Replacements
from vitprof.watch.patches.copies import TimedMethods
from vitprof.watch.patches.replay import KeptCopies
from vitprof.watch.tensors import tensors_of_kind

MARKED, REACHED = int(Kind.MARKED), int(Kind.REACHED)
MOST_PENDING = 4096
"""Marks that the device has not passed yet. CUDA lets a host run ahead by some 1,000 launches, a few
dozen steps; but of steps that are one CUDA graph each, so many. Above it the loop waits for the
oldest ones: that bounds memory and, as far behind as the device is, costs it nothing."""
MOST_OPTIMIZERS = 4
"""Steps of optimizers that are marked after a batch: some scripts have an optimizer for each
parameter."""
EACH_UNTIL = 64
"""Batches in whose steps it is marked where an optimizer begins to step."""
PARTS_EVERY_S = 0.02
"""After that, how often (s): to mark it and to read when it was passed takes some 5 us."""
MOST_ASIDE = 16
"""Marks of other streams between two requests."""
MOST_WATCHED = 256
"""Tensors of batches whose copies are marked: some frameworks fetch several batches ahead."""
P = ParamSpec("P")


def install(recorder: Recorder) -> Replacements:
    """Makes marks begin with the first device that the script is seen to use. Nothing is replaced
    before that."""
    replacements = Replacements()
    tried = set[str]()
    replaced = False

    def begin(where: Any) -> None:
        """Begins on a device, once for each; another one takes the place of the one before. So does that
        of an optimizer's parameters, where it is not that of the loss."""
        nonlocal replaced
        if str(where) in tried or _captures(where):
            return
        tried.add(str(where))
        marks = _open(recorder, where)
        if marks is None:
            return
        if not replaced:
            replaced = True
            replacements.keep(TimedMethods(_current(recorder)))
            _follow_streams(recorder, replacements)
        recorder.mark_with(marks)

    recorder.begin_marks = begin
    return replacements


def _open(recorder: Recorder, where: Any) -> Marks | None:
    """Returns what marks the work of a device; None where it is not timed."""
    from vitprof.errors import DeviceError
    from vitprof.measure.devices import open_device

    if where.type != "cuda":
        return None
    try:
        device = open_device(str(where), perf_counter, in_use=True)
    except (DeviceError, RuntimeError):
        return None
    return Marks(recorder, device, recorder.device(where))


def _captures(where: Any) -> bool:
    """Returns whether a CUDA graph is being captured: to open a device waits for it."""
    import torch

    return where.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _current(recorder: Recorder) -> Callable[[], Marks | None]:
    return lambda: recorder.marks if isinstance(recorder.marks, Marks) else None


def _follow_streams(recorder: Recorder, replacements: Replacements) -> None:
    """Has it marked where the script leaves a stream: `torch.cuda.stream` calls this function, too."""
    import torch

    def following(set_stream: Callable[[Any], None]) -> Callable[[Any], None]:
        @functools.wraps(set_stream)
        def set_stream_marked(stream: Any) -> None:
            if isinstance(recorder.marks, Marks):
                recorder.marks.leave_stream()
            set_stream(stream)

        return set_stream_marked

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        replacements.replace(torch.cuda, "set_stream", following)


def _where_it_trains(
    mark: Callable[Concatenate[Marks, P], None],
) -> Callable[Concatenate[Marks, P], None]:
    """Makes a method do nothing in another thread, or while a graph is captured.

    Where the device fails, marks end and nothing else does: the script will see why."""

    @functools.wraps(mark)
    def mark_if_it_trains(self: Marks, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            if get_ident() == self.thread and not self.captures():
                mark(self, *args, **kwargs)
        except RuntimeError:
            self.recorder.end_marks()
        except Exception as error:
            self.recorder.give_up(error)

    return mark_if_it_trains


class _Pending(NamedTuple):
    """A mark that the device has not passed."""

    token: int
    mark: Any
    loss: Callable[[], float] | None
    """Gives the loss that was copied before the mark, where one was."""


class Marks:
    """The marks of one device, which is in use. See `patches.DeviceMarks` for what hooks call."""

    def __init__(self, recorder: Recorder, device: Any, number: int) -> None:
        import torch

        self.recorder = recorder
        self._device = device
        self._number = float(number)
        self._tensor = torch.Tensor
        self.thread = get_ident()
        """The one that trains."""
        self._is_cuda = device.torch_device.type == "cuda"
        self._is_capturing = torch.cuda.is_current_stream_capturing
        self._pending: dict[Any, deque[_Pending]] = {}
        """By stream: they are passed in order in each."""
        self._n_pending = 0
        self._tokens = 0
        self._streams: dict[Any, float] = {}
        self._copying_in = set[Any]()
        """Other streams than that of the work in which batches were copied."""
        self._watched: dict[int, weakref.ref[Any]] = {}
        """Tensors of batches in the host's memory, by `id()`; weak, as another tensor may get the
        `id()` of a freed one."""
        self._is_fetching = False
        """Whether a batch of a loader is requested."""
        self._is_waiting = False
        """Whether a request for a batch, from a loader or a queue, is marked since the last work."""
        self._has_worked = False
        """Whether a backward pass has begun since the last batch, or step of an optimizer."""
        self._n_backward = 0
        self._n_stepped = 0
        self._n_aside = 0
        self._n_batches = 0
        self._parts_at_s = 0.0
        """When the last batch came in whose step the optimizer's beginning is marked."""
        self._marks_parts = False
        self._is_stepping = False
        """Whether an optimizer steps."""

    def captures(self) -> bool:
        return self._is_cuda and self._is_capturing()

    # what hooks see

    @_where_it_trains
    def before_begin(self) -> None:
        self._mark(MarkedPoint.REQUESTED)

    @_where_it_trains
    def before_request(self) -> None:
        self._is_fetching = True
        self._request()

    @_where_it_trains
    def before_taking(self) -> None:
        # A script may ask a queue over and over until there is a batch.
        if not self._is_waiting:
            self._request()

    @_where_it_trains
    def received(self, batch: Any) -> None:
        self._is_fetching = False
        self._is_waiting = False
        self._has_worked = False
        self._n_stepped = 0
        self._mark(MarkedPoint.RECEIVED)
        self._choose_parts()
        self._watch(batch)

    @_where_it_trains
    def waited(self) -> None:
        self._mark(MarkedPoint.RECEIVED)

    @_where_it_trains
    def took(self, item: Any) -> None:
        # A loader's own queue is read within its `next()`, by which its batches are marked.
        if not self._is_fetching:
            self.received(item)

    def backward(self, loss: Any) -> None:
        self._follow_thread()
        self._begin_backward(loss)

    @_where_it_trains
    def _begin_backward(self, loss: Any) -> None:
        self._work()
        if not self._has_worked:
            self._n_backward += 1
        kept = self._kept_loss(loss)
        if kept is not None or not self._has_worked:
            self._mark(MarkedPoint.BACKWARD, loss=kept)
        self._has_worked = True

    @_where_it_trains
    def stepping(self) -> None:
        if self._marks_parts and self._n_stepped < MOST_OPTIMIZERS:
            self._is_stepping = True
            self._mark(MarkedPoint.STEPPING)

    @_where_it_trains
    def differentiated(self) -> None:
        if self._is_stepping:
            self._mark(MarkedPoint.STEPPING)

    @_where_it_trains
    def stepped(self) -> None:
        self._work()
        self._is_stepping = False
        self._has_worked = False
        self._n_stepped += 1
        if self._n_stepped <= MOST_OPTIMIZERS:
            self._mark(MarkedPoint.STEPPED)

    @_where_it_trains
    def entered(self) -> None:
        self._device.follow()
        self._mark(MarkedPoint.ENTERED)

    @_where_it_trains
    def left(self) -> None:
        self._is_fetching = False
        self._is_waiting = False
        self._mark(MarkedPoint.LEFT)

    @_where_it_trains
    def leave_stream(self) -> None:
        """Marks where the work in a stream ends that is neither that of the work, nor one in which
        batches are copied, nor the default one."""
        stream = self._device.current_stream()
        usual = stream == self._device.work_stream() or stream in self._copying_in
        if usual or not stream.cuda_stream or self._n_aside == MOST_ASIDE:
            return
        self._n_aside += 1
        self._mark(MarkedPoint.ASIDE, stream)

    @_where_it_trains
    def awaiting(self) -> None:
        self._mark(MarkedPoint.AWAITING)

    @_where_it_trains
    def awaited(self) -> None:
        self._mark(MarkedPoint.AWAITED)

    def finish(self) -> None:
        self._follow_thread()
        self._wait_for_all()

    @_where_it_trains
    def _wait_for_all(self) -> None:
        self._device.synchronize()
        self._resolve()

    def _follow_thread(self) -> None:
        """Goes on in this thread where the one that trained is gone."""
        thread = get_ident()
        if thread != self.thread and self.thread not in sys._current_frames():
            self.thread = thread

    def _request(self) -> None:
        self._is_waiting = True
        self._n_aside = 0
        self._mark(MarkedPoint.REQUESTED)
        self._resolve()

    def _choose_parts(self) -> None:
        """Chooses whether the parts of the next step are marked."""
        now_s = perf_counter()
        self._n_batches += 1
        is_time = now_s - self._parts_at_s >= PARTS_EVERY_S
        self._marks_parts = self._n_batches <= EACH_UNTIL or is_time
        if self._marks_parts:
            self._parts_at_s = now_s

    def _work(self) -> None:
        """Notes work: what is marked from here on is in its stream, unless said otherwise."""
        self._device.follow()
        self._is_fetching = False
        self._is_waiting = False

    # copies

    def is_watched(self, tensor: Any) -> bool:
        """Returns whether a tensor is one of a batch that came."""
        watched = self._watched.get(id(tensor))
        return watched is not None and watched() is tensor

    def kept_copies(self, tensor: Any) -> KeptCopies | None:
        """Returns the copies of kept batches, where a tensor is of one."""
        headroom = self.recorder.headroom
        if headroom is None or not headroom.copies.is_kept(tensor):
            return None
        return headroom.copies

    @_where_it_trains
    def copying(self) -> None:
        """Marks the beginning of a copy of a batch's tensor."""
        stream = self._device.current_stream()
        if stream != self._device.work_stream():
            self._mark(MarkedPoint.BEFORE_COPY)
        self._mark(MarkedPoint.COPYING, stream)

    @_where_it_trains
    def copied(self, moved: Any) -> None:
        """Marks the end of a copy, where it was one to a device."""
        if moved.is_cpu:
            return
        stream = self._device.current_stream()
        if stream != self._device.work_stream():
            self._copying_in.add(stream)
        self._mark(MarkedPoint.COPIED, stream)

    def _watch(self, batch: Any) -> None:
        watched = self._watched
        for tensor in tensors_of_kind(self._tensor, batch):
            if tensor.is_cpu:
                watched.pop(id(tensor), None)
                watched[id(tensor)] = weakref.ref(tensor)
        while len(watched) > MOST_WATCHED:
            del watched[next(iter(watched))]

    # marks

    def _mark(
        self, place: MarkedPoint, stream: Any = None, *, loss: Callable[[], float] | None = None
    ) -> None:
        """Marks a point in a stream, by default that of the work."""
        if stream is None:
            stream = self._device.work_stream()
        mark = self._device.mark(stream)
        self._tokens += 1
        numbered = self._streams.setdefault(stream, float(len(self._streams) + 1))
        pending = self._pending.get(stream)
        if pending is None:
            pending = self._pending[stream] = deque()
        pending.append(_Pending(self._tokens, mark, loss))
        self._n_pending += 1
        self.recorder.emit(
            (MARKED, mark.recorded_s, self.thread, self._number, self._tokens, place, numbered)
        )

    def _resolve(self) -> None:
        """Records when the device has passed its marks, and releases them. It waits for none, unless
        too many are pending."""
        device = self._device
        for pending in self._pending.values():
            while pending:
                first = pending[0]
                if not device.reached(first.mark):
                    if self._n_pending <= MOST_PENDING:
                        break
                    device.wait(first.mark)
                pending.popleft()
                self._n_pending -= 1
                self._emit_reached(first)

    def _emit_reached(self, passed: _Pending) -> None:
        at_s = self._device.seconds(passed.mark)
        loss = NAN if passed.loss is None else passed.loss()
        self._device.release(passed.mark)
        self.recorder.emit(
            (REACHED, perf_counter(), self.thread, self._number, passed.token, at_s, loss)
        )

    def _kept_loss(self, loss: Any) -> Callable[[], float] | None:
        """Copies a loss of one number to the host, now and then; returns what gives it later."""
        from vitprof.measure.devices import not_kept

        is_one = type(loss) is self._tensor and loss.numel() == 1
        if not is_one or loss.device != self._device.torch_device:
            return None
        kept: Callable[[], float] = self._device.keep(loss, self._n_backward - 1)
        return None if kept is not_kept else kept
