"""The hooks in a watched process: a file for each thing that is patched.

Each has `install(recorder)`, which returns what takes the patches back. A hook records an event and
lets the script's call go on; it decides nothing. Where a hook itself fails, all of them stop
recording, and the script goes on.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import sys
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, MutableSequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

from vitprof.watch.events import NAN, Buffer, Description, Emit, Kind
from vitprof.watch.patches.causal import CausalHooks
from vitprof.watch.patches.declared import DeclaredLoaders
from vitprof.watch.patches.limits import StepLimit
from vitprof.watch.patches.replay import ReplayPlan
from vitprof.watch.patches.stages import StageSums
from vitprof.watch.patches.unpickling import UnpicklingClock
from vitprof.watch.pickling import PickledBatches, PickleTimes
from vitprof.watch.script_objects import ByIdentity, ScriptLoader
from vitprof.watch.tensors import contents
from vitprof.watch.worker_facts import WorkerSays, descriptor_limit

LOADER = "_vitprof_loader"
"""Attribute of an iterator of PyTorch's: the description of its loader."""
MARK = "_vitprof_original"
"""Attribute of a replacement: what it replaces."""
TIMED = ("cpu", "cuda")
"""Types of the devices whose work is timed; ROCm's are "cuda", too. Of a script on any other one the
waits of the loop are known."""


@dataclass(slots=True)
class Numbered:
    """The object that was asked for last: nearly always it is the only optimizer, once in each step. To
    look it up among all takes three times as long."""

    object: Callable[[], Any]
    """Returns it, if it is still there."""
    number: int


_NOTHING = Numbered(object, 0)
"""Is no object of a script: each call returns another one."""


class DeviceMarks(Protocol):
    """Marks points in the work of the device that trains, at what hooks see.

    Each call comes from any thread, and marks nothing where that is not the one that trains on the
    device, or while it captures a graph: a mark would become part of that.
    """

    def before_begin(self) -> None:
        """Marks that an iteration over a loader is about to begin: its first wait includes that."""

    def before_request(self) -> None:
        """Marks a request for a batch; before its event, so that no wait has what it costs."""

    def received(self, batch: Any) -> None:
        """Marks that a batch came, and notes its tensors: copies of them are marked."""

    def waited(self) -> None:
        """Marks that a wait is over: without a batch, or later than that came."""

    def before_taking(self) -> None:
        """Marks that something is taken from a queue, unless a batch is requested already."""

    def took(self, item: Any) -> None:
        """Marks that a batch came out of a queue, unless it is one that was requested."""

    def backward(self, loss: Any) -> None:
        """Marks a backward pass, and keeps the loss where it is one of a single number."""

    def stepping(self) -> None:
        """Marks where an optimizer begins to step."""

    def differentiated(self) -> None:
        """Marks that again after a backward pass within its step."""

    def stepped(self) -> None:
        """Marks a step of an optimizer."""

    def entered(self) -> None:
        """Marks that the script enters a step that it marks."""

    def left(self) -> None:
        """Marks that it leaves one."""

    def awaiting(self) -> None:
        """Marks that it begins to send to other ranks what the work waits for."""

    def awaited(self) -> None:
        """Marks that this is launched."""

    def finish(self) -> None:
        """Waits until the device has passed all marks, at the script's end."""


class StepSampler(Protocol):
    """Looks at some steps: what the script does with a batch before its model.

    Nearly all steps are not looked at, so a hook asks only for the time of the next look: see
    `Recorder.look_at_s`.
    """

    def received(self, now_s: float) -> None:
        """Looks at the step of a batch that has come, if it is time for one."""

    def requested(self) -> None:
        """Notes a request for a batch."""

    def backward(self, now_s: float) -> None:
        """Notes a backward pass."""

    def stepped(self, now_s: float) -> None:
        """Notes a step of an optimizer."""

    def waited(self, now_s: float) -> None:
        """Notes that a wait is over which began after a batch had come."""

    def remove(self) -> None:
        """Looks at no more steps."""


def drop(_row: object) -> None:
    """Takes an event that nobody wants."""


class _HandedOver:
    """What was described of what crosses from workers, by the numbers of their loaders."""

    def __init__(self) -> None:
        self.batches_of = set[int]()
        """The loaders of which a batch was described."""
        self.workers_of: dict[int, Description] = {}
        """What the first worker of each says of itself."""
        self.timed: list[Description] = []
        """How long it takes to pickle and to unpickle batches of each."""
        self.pickled_of = defaultdict[int, PickledBatches](PickledBatches)
        self.unpickling: UnpicklingClock | None = None
        """None where nothing more is timed."""


class Recorder:
    """What all hooks share: where events go, the numbers of objects, and the marks of a device."""

    def __init__(
        self,
        buffer: Buffer,
        failed: Callable[[Exception], None] = lambda error: None,
        on_iteration: Callable[[], None] = lambda: None,
    ) -> None:
        """`failed` is called with the error of a hook, after which none records. `on_iteration` is called
        as an iteration over a loader begins."""
        self.buffer = buffer
        self.on_iteration = on_iteration
        self._on_failure = failed
        self.emit = buffer.emit
        self._described = ByIdentity[Description]()
        self._last_numbered = _NOTHING
        self._next_number = itertools.count(1)
        self._handed_over = _HandedOver()
        self._devices: dict[Any, Description] = {}
        self.cpu = 0
        """The number of the CPU as a device; 0 while it has none."""
        self.renew_locks()
        self.stages = StageSums(self._next_number)
        """What the batches of each loader took in its transforms."""
        self.declared = DeclaredLoaders()
        """Those that the script says it trains on."""
        self.optimizers_step = False
        """Whether any optimizer of PyTorch's has stepped."""
        self.acts = False
        """Whether anything is done as a batch is requested, besides recording that: by one of the next
        three."""
        self.headroom: ReplayPlan | None = None
        """Serves kept batches again, where headroom is measured."""
        self.causal: CausalHooks | None = None
        """Makes stages seem faster, where a causal profile is measured."""
        self.limit: StepLimit | None = None
        """Ends the script, or its watching, after some steps."""
        self.pending: MutableSequence[float] = [0.0]
        """Its first word: since when the script waits for a batch; see `pending_wait`. Any word, until a program
        looks at one."""
        self.failed: Exception | None = None
        """The error of a hook, after which none records."""
        self.notes = False
        """Whether anything is noted at what hooks see, besides the event and the time of the next look:
        marks of a device, collectives, work where steps are counted, or a step that is looked at. Where a
        process trains alone on the CPU that is a few steps in a hundred, so a hook asks for this before it
        calls a method here."""
        self.marks: DeviceMarks | None = None
        """Of the device that trains, once that is known; None for the CPU, and a device that is not
        timed."""
        self.begin_marks: Callable[[Any], None] = drop
        """Begins to mark the work of a `torch.device`, which the script has used: a loss or a
        parameter is on it."""
        self.count: Callable[[float], None] | None = None
        """Records how many collectives were begun by that time; None where the process trains alone."""
        self.sampler: StepSampler | None = None
        """None before the first work."""
        self.look_at_s = math.inf
        """The step of the first batch that comes from then on is looked at."""
        self.is_looking = False
        """Whether a step is looked at."""
        self.on_first_work: list[Callable[[], None]] = []
        """Called once, at the first backward pass or optimizer's step, in its thread."""
        self._ended_marks: list[DeviceMarks] = []
        """Kept: in a forked process their events are the parent's, and to free them there would end
        the process."""

    def number(self, of: Any, kind: str, facts: Callable[[], dict[str, Any]] = dict) -> int:
        """Returns the number of an object; describes it, by `facts`, where it is new."""
        last = self._last_numbered
        if last.object() is of:
            return last.number
        return self.described(of, kind, facts).number

    def described(
        self, of: Any, kind: str, facts: Callable[[], dict[str, Any]] = dict
    ) -> Description:
        """Returns the description of an object; describes it, by `facts`, where it is new."""
        known = self._described.get(of)
        if known is not None:
            self._last_numbered = Numbered(weakref.ref(of), known.number)
            return known
        described = Description(self._new_number(), kind, facts())
        # What refuses a weak reference has another number each time.
        with contextlib.suppress(TypeError):
            self._described[of] = described
        self.buffer.describe(described)
        return described

    def describe(self, kind: str, facts: dict[str, Any]) -> int:
        """Describes what is no object; returns its number."""
        number = self._new_number()
        self.buffer.describe(Description(number, kind, facts))
        return number

    def describe_batch(self, loader: Description | None, batch: Any) -> None:
        """Describes what a batch of a loader is made of, once for each loader."""
        if loader is None or loader.number in self._handed_over.batches_of:
            return
        self._handed_over.batches_of.add(loader.number)
        facts = {"loader": loader.number, "descriptor_limit": descriptor_limit()}
        self.describe("batch", {**facts, **contents(batch)})

    def describe_worker(self, loader: Description, says: WorkerSays) -> None:
        """Describes what a worker of a loader says of itself, once for each loader."""
        if loader.number in self._handed_over.workers_of:
            return
        sharing, torch_threads = says
        facts = {"loader": loader.number, "sharing": sharing, "torch_threads": torch_threads}
        described = Description(self._new_number(), "worker", facts)
        self._handed_over.workers_of[loader.number] = described
        self.buffer.describe(described)

    def time_unpickling(self) -> UnpicklingClock:
        """Begins to time how long it takes to unpickle what workers send."""
        self._handed_over.unpickling = clock = UnpicklingClock(
            functools.partial(self._describe_timed, "unpickled")
        )
        return clock

    def _describe_timed(self, kind: str, facts: dict[str, Any]) -> None:
        described = Description(self._new_number(), kind, facts)
        self._handed_over.timed.append(described)
        self.buffer.describe(described)

    def add_pickled(self, loader: Description, pickled: PickleTimes) -> None:
        """Adds what a worker of a loader took to pickle earlier batches."""
        facts = self._handed_over.pickled_of[loader.number].add(pickled)
        if facts is not None:
            self._describe_timed("pickled", {"loader": loader.number, **facts})

    def received_from_worker(self, loader: Description) -> None:
        """Notes that a batch of a loader came from a worker."""
        clock = self._handed_over.unpickling
        if clock is not None and not clock.received(loader.number):
            clock.remove()
            self._handed_over.unpickling = None

    def device(self, device: Any) -> int:
        """Returns the number of a `torch.device`."""
        described = self._devices.get(device)
        if described is None:
            facts = {"name": str(device), "environment": environment_of(device)}
            described = Description(self._new_number(), "device", facts)
            self._devices[device] = described
            if device.type == "cpu":
                self.cpu = described.number
            self.buffer.describe(described)
        return described.number

    def loader(self, number: int) -> ScriptLoader:
        """Returns the loader with this number, as far as it or its iterators are still there."""
        facts: dict[str, Any] = {}
        references = list[weakref.ref[Any]]()
        for reference, described in self._described.items():
            if described.number == number:
                facts = described.facts
                references.insert(0, reference)
            elif described.kind == "iterator" and described.facts.get("loader") == number:
                references.append(reference)
                loader = getattr(reference(), LOADER, None)
                facts = facts if loader is None else loader.facts
        return ScriptLoader(facts, tuple(references))

    def default_device(self) -> None:
        """Describes the device that the script would compute on by now, unless any is described."""
        import torch

        if not self._devices:
            on_cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
            index = torch.cuda.current_device() if on_cuda else 0
            self.device(torch.device("cuda", index) if on_cuda else torch.device("cpu"))

    def describe_again(self) -> None:
        """Describes all objects once more, as for another reader: in a forked process, or for the next
        run."""
        of_workers = (*self._handed_over.workers_of.values(), *self._handed_over.timed)
        for described in [*self._described.values(), *self._devices.values(), *of_workers]:
            self.buffer.describe(described)
        self._handed_over.batches_of.clear()
        self.stages.forget()
        self.end_marks()

    def renew_locks(self) -> None:
        """Makes the locks anew, in a forked process: another thread of its parent may have held them."""
        self._numbering = threading.Lock()
        self.forking = threading.RLock()
        """Held while an iteration begins, which may fork workers, and while a tracker of the script's writes
        to a local database: only where the script's figures are written to one."""

    def _new_number(self) -> int:
        with self._numbering:
            return next(self._next_number)

    def kept_batch(self, loader: Description | None, iterator: int) -> Any:
        """Returns the kept batch to serve in place of one that was requested; None for a new one."""
        headroom = self.headroom
        if headroom is None or loader is None or not headroom.is_of(loader):
            return None
        now_s = perf_counter()
        refused_before = headroom.refused
        settles = headroom.request(now_s)
        batch = headroom.batch()
        block = float(headroom.block)
        thread = threading.get_ident()
        self.emit((int(Kind.BLOCK), now_s, thread, iterator, block, float(settles), NAN))
        if headroom.refused != refused_before:
            self.describe("headroom", {"refused": headroom.refused})
        return batch

    def keep_batch(self, loader: Description | None, batch: Any) -> None:
        """Keeps a new batch that was requested with gradients, where more are to be kept."""
        headroom = self.headroom
        if headroom is not None and loader is not None and headroom.is_of(loader):
            headroom.keep(batch)

    def measure_headroom(self, headroom: ReplayPlan) -> None:
        """Has kept batches served again from here on."""
        self.headroom = headroom
        self.acts = True

    def measure_causal(self, causal: CausalHooks) -> None:
        """Has stages seem faster in blocks of steps from here on."""
        self.causal = causal
        self.acts = True
        self._note()

    def limit_steps(self, limit: StepLimit) -> None:
        """Has the script, or its watching, end after some steps."""
        self.limit = limit
        self.acts = True
        self._note()

    def before_batch(
        self, now_s: float, loader: Description | None, iterator: int, *, gradients: bool
    ) -> Any:
        """Does what is to be done as a batch is requested, which was recorded; `gradients`: whether they
        were on. Returns a kept batch to serve in its place; None for a new one."""
        if self.causal is not None:
            block = self.causal.requested(now_s)
            if block:
                thread = threading.get_ident()
                self.emit((int(Kind.BLOCK), now_s, thread, iterator, block, 0.0, NAN))
        if self.limit is not None and self.limit.requested(gradients=gradients):
            self.hold(now_s)
        return self.kept_batch(loader, iterator) if gradients else None

    def hold(self, since_s: float) -> None:
        """Records that vitprof itself has held up the script, in this thread, since then."""
        self.emit((int(Kind.OWN), perf_counter(), threading.get_ident(), 0, since_s, NAN, NAN))

    def pause(self, number: int) -> None:
        """Records that the script's run is over for now, as is described by this number."""
        self.emit((int(Kind.PAUSED), perf_counter(), threading.get_ident(), number, NAN, NAN, NAN))

    def finish(self, status: float = NAN) -> None:
        """Records that the process is about to end, or its watching."""
        self.emit((int(Kind.FINISHED), perf_counter(), threading.get_ident(), 0, status, NAN, NAN))

    # What else is noted at what hooks see.

    def mark_with(self, marks: DeviceMarks) -> None:
        """Has points in the work of a device marked from here on."""
        self.marks = marks
        self._note()

    def count_with(self, count: Callable[[float], None]) -> None:
        """Has collectives counted from here on."""
        self.count = count
        self._note()

    def look_with(self, sampler: StepSampler, at_s: float) -> None:
        """Has the step of the first batch looked at that comes from then on; no more where that is
        infinite."""
        self.sampler = sampler
        self.look_at_s = at_s

    def note_looking(self, *, is_on: bool) -> None:
        """Notes whether a step is looked at from here on."""
        self.is_looking = is_on
        self._note()

    def _note(self) -> None:
        noting = (self.marks, self.count, self.limit, self.causal)
        self.notes = self.is_looking or any(each is not None for each in noting)

    def before_begin(self) -> None:
        """Notes that an iteration over a loader is about to begin."""
        if self.marks is not None:
            self.marks.before_begin()
        if self.sampler is not None and self.is_looking:
            self.sampler.requested()

    def before_request(self, loader: Description | None = None, *, gradients: bool = False) -> None:
        """Notes that a batch is about to be requested: before the event, so that no wait has what it
        costs. `loader`: PyTorch's of which it is; `gradients`: whether they are on."""
        if self.marks is not None:
            self.marks.before_request()
        if self.count is not None:
            self.count(perf_counter())
        if self.sampler is not None and self.is_looking:
            self.sampler.requested()
        if self.causal is not None:
            self.causal.before_request(loader, gradients=gradients)
        if self._handed_over.unpickling is not None and loader is not None:
            self._handed_over.unpickling.requested(loader.number)

    def received(self, now_s: float, batch: Any) -> None:
        """Notes a batch that came."""
        if self.count is not None:
            self.count(now_s)
        if self.marks is not None:
            self.marks.received(batch)
        if self.sampler is not None and (self.is_looking or now_s >= self.look_at_s):
            self.sampler.received(now_s)

    def before_taking(self) -> None:
        """Notes that something is about to be taken from a queue, a pool or a future."""
        if self.marks is not None:
            self.marks.before_taking()
        if self.sampler is not None and self.is_looking:
            self.sampler.requested()

    def took(self, now_s: float, item: Any) -> None:
        """Notes a batch that came out of one. It may be one of a loader that is asked meanwhile."""
        if self.marks is not None:
            self.marks.took(item)
        if self.sampler is not None and (self.is_looking or now_s >= self.look_at_s):
            self.sampler.received(now_s)

    def exhausted(self, now_s: float) -> None:
        """Notes that no batch came."""
        if self.count is not None:
            self.count(now_s)
        if self.marks is not None:
            self.marks.waited()

    def shut_down(self, now_s: float) -> None:
        """Notes that the workers of an iterator have ended."""
        if self.marks is not None:
            self.marks.waited()
        if self.sampler is not None and self.is_looking:
            self.sampler.waited(now_s)

    def backward(self, now_s: float, loss: Any) -> None:
        """Notes a backward pass."""
        if self.limit is not None:
            self.limit.worked()
        if self.count is not None:
            self.count(now_s)
        if self.marks is not None:
            self.marks.backward(loss)
        if self.sampler is not None and self.is_looking:
            self.sampler.backward(now_s)

    def stepped(self, now_s: float) -> None:
        """Notes a step of an optimizer."""
        if self.count is not None:
            self.count(now_s)
        if self.marks is not None:
            self.marks.stepped()
        if self.sampler is not None and self.is_looking:
            self.sampler.stepped(now_s)

    def work_begins(self) -> None:
        """Calls what waits for the first work: to be called before it is noted."""
        waiting = self.on_first_work[:]
        self.on_first_work.clear()
        for begin in waiting:
            begin()

    def end_marks(self) -> None:
        """Makes no more marks: the device failed, or this is a forked process."""
        if self.marks is not None:
            self._ended_marks.append(self.marks)
            self.marks = None
            self._note()

    def stop(self, emit: Emit = drop) -> None:
        """Makes all hooks record nothing from here on. `emit` takes their events all the same."""
        self.emit = emit
        if self.causal is not None:
            self.causal.plan.refuse("")
            self.causal = None
        self.end_marks()

    def give_up(self, error: Exception) -> None:
        """Notes the error of a hook: none of them records any more, and who reads the events knows."""
        if self.failed is None:
            self.failed = error
            self.stop()
            # its words may be about the script's data
            facts = {"error": type(error).__name__}
            self.buffer.describe(Description(next(self._next_number), "failure", facts))
            self._on_failure(error)


@dataclass
class Current:
    """The recorder of this process."""

    recorder: Recorder | None = None
    """None where nobody keeps the events."""


CURRENT = Current()


class Replacements:
    """Attributes of other packages that hooks have replaced."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        self._handles: list[Any] = []

    def replace(
        self,
        owner: Any,
        name: str,
        wrap: Callable[[Any], Any],
        left: Callable[[Any], Any] = lambda original: original,
    ) -> None:
        """Replaces an attribute of a class or module by what `wrap` makes of it. `left`: makes of it what is
        there once this is taken back."""
        original = vars(owner)[name]
        replacement = wrap(original)
        setattr(replacement, MARK, original)
        setattr(owner, name, replacement)
        self._replaced.append((owner, name, replacement, left(original)))

    def keep(self, handle: Any) -> None:
        """Keeps the handle of a registered hook, whose method `remove` takes it back."""
        self._handles.append(handle)

    def remove(self) -> None:
        """Takes all of it back, unless another tool has replaced it since."""
        for owner, name, replacement, left in reversed(self._replaced):
            if vars(owner).get(name) is replacement:
                setattr(owner, name, left)
        self._replaced.clear()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def environment_of(device: Any) -> dict[str, Any]:
    """Returns the facts about a `torch.device`, and this process's software, as in
    `recording.Environment`."""
    # needs PyTorch, which is half imported when this is
    from vitprof.measure.devices import open_device, software

    if device.type not in TIMED:
        facts = {"device_name": device.type, "untimed_device": device.type}
        return {"device": str(device), **software(), **facts}
    opened = open_device(str(device), perf_counter, in_use=True)
    return {"device": opened.name, **software(), **opened.environment()}


def loaded(module: str, name: str) -> Any:
    """Returns a class of a module that is imported already; None where either is missing."""
    return getattr(sys.modules.get(module), name, None)
