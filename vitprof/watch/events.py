"""Events: what the hooks in a watched process see. A hook records an event and decides nothing.

What an event means often shows only later: a batch was fetched ahead if another one is requested
before any work; a loader validates if no optimizer steps on its batches. So the process that trains
records events alone, and `vitprof.watch.core` decides outside of it, with what came after.

An event is a row of seven numbers: its kind, when it happened (s, the monotonic clock), the thread,
the number of its object (an iterator, a loader, an optimizer), and three values, as `FIELDS` names
them. What a kind has no value for is NaN. What is no number, such as the arguments of a loader, is
a `Description`, sent once for each object.

Needs no PyTorch: who reads events imports this, too.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

Row = tuple[float, float, float, float, float, float, float]
"""Kind, time (s), thread, object, and three values."""
Emit = Callable[[Row], None]
"""Takes an event. `list.append` of a buffer: it takes 0.05 us and no lock."""
WIDTH = 7
COLUMNS = ("kind", "at_s", "thread", "object", "first", "second", "third")
"""The names of an event's numbers on the way."""
NAN = math.nan


class Kind(enum.IntEnum):
    """What happened. The names of its values are in `FIELDS`."""

    BEGUN = 1
    """An iteration over a loader has begun: the object is its iterator."""
    REQUESTED = 2
    """A batch was requested of an iterator."""
    RECEIVED = 3
    """The batch that was requested has come."""
    EXHAUSTED = 4
    """There is no further batch, or making it failed."""
    MADE = 5
    """How the batch that has just come was made: seconds of its stages."""
    MADE_BETWEEN = 6
    """When, and in which worker."""
    SLOW_SAMPLE = 38
    """A sample of that batch for which the dataset took several times the median."""
    BACKWARD = 7
    """A backward pass begins."""
    DIFFERENTIATED = 21
    """A backward pass has ended: on the CPU with all of its work."""
    STEPPED = 8
    """An optimizer has stepped: the object is the optimizer."""
    CHANGED = 9
    """Parameters that a loss depends on have changed since an earlier backward pass."""
    WAITED = 10
    """A call that returns what another thread or process has made has returned: the object is the
    queue, pool or future."""
    GIVEN = 43
    """A thread has given a queue or a future, the object, what it has made: whoever gets that may have waited for
    it elsewhere than in the call that returns it."""
    CALLED = 16
    """A model was called: the first call after a batch that was requested without gradients; once more where the
    first one was without them, and the next one with gradients had some of the same samples."""
    OWN = 40
    """vitprof itself has held up the script, since the request before."""
    BLOCK = 42
    """The step of the batch that is requested belongs to a block of steps on kept batches, or on new ones; of steps in
    which a stage seems faster, or none does."""
    SHUT_DOWN = 17
    """The workers of an iterator were ended."""
    SAMPLED = 18
    """A sampler has given the indices of a batch, and that took a while: the object is the iterator."""
    FREED = 19
    """An iterator was freed with what it held, as the list of a sampler's indices, and that took a while: the object is
    the iterator."""
    ENTERED = 11
    """The script enters a step that it marks (`vitprof.step`)."""
    LEFT = 12
    """The script leaves a step that it marks."""
    PAUSED = 41
    """The script's run is over for now: the object is a description of how it ended."""
    FINISHED = 14
    """The process is about to end."""
    DROPPED = 15
    """Events were dropped, because nothing had read those before them."""
    MARKED = 30
    """A point was marked in a stream of the device that trains, the object: after all that the thread
    has launched there. `MarkedPoint` says at what."""
    REACHED = 31
    """The device, the object, has passed a mark."""
    COUNTED = 32
    """The collectives that the process had begun by an event of this time, where that has changed. Where
    nothing is counted, no other ranks train."""
    AWAITED = 33
    """A wait for other ranks is over."""
    LOOKED_AT = 34
    """A batch has come, and the next call of a model is recorded."""
    MODEL_CALLED = 35
    """A model is called, in a step that is looked at."""
    USED = 36
    """An optimizer has stepped in such a step."""
    SPENT = 37
    """What the thread that trains has used so far, in such a step: where it has a batch, is about to request
    another one, and where a backward pass begins."""


class MarkedPoint(enum.IntEnum):
    """What the thread did where it marked a point."""

    REQUESTED = 1
    """It requests a batch, or begins an iteration: the mark comes just before that, so that no wait has
    its cost."""
    RECEIVED = 2
    """Its wait is over: it has a batch, or there is none; again where it then waited until the workers
    of its iterator had ended."""
    BACKWARD = 3
    """It begins the first backward pass on a batch, or one whose loss is copied to the host."""
    STEPPED = 4
    """An optimizer has stepped."""
    ENTERED = 5
    """It enters a step that the script marks."""
    LEFT = 6
    """It leaves one."""
    COPYING = 7
    """It begins to copy a tensor of a batch, in this stream."""
    COPIED = 8
    """That copy is launched. None follows where the tensor stayed in the host's memory."""
    BEFORE_COPY = 9
    """It begins to copy in another stream than this one, in which it works."""
    ASIDE = 10
    """It leaves this stream, and works in another one."""
    AWAITING = 11
    """It begins to send to other ranks what the work waits for."""
    AWAITED = 12
    """That is launched."""
    STEPPING = 13
    """An optimizer begins to step: after the backward pass in it, where it calls a closure."""


FIELDS: dict[Kind, tuple[str, ...]] = {
    Kind.BEGUN: ("loader", "since_s"),
    Kind.REQUESTED: ("n_ready", "gradients"),
    Kind.RECEIVED: ("samples", "first_tensor", "values"),
    Kind.EXHAUSTED: ("failed",),
    Kind.MADE: ("dataset_s", "transform_s", "collate_s"),
    Kind.MADE_BETWEEN: ("start_s", "end_s", "worker"),
    Kind.SLOW_SAMPLE: ("index", "took_s"),
    Kind.BACKWARD: ("loss", "device"),
    Kind.DIFFERENTIATED: ("since_s",),
    Kind.STEPPED: ("device", "since_s"),
    Kind.CHANGED: ("since_s",),
    Kind.WAITED: ("since_s", "first_tensor", "samples"),
    Kind.GIVEN: ("first_tensor",),
    Kind.CALLED: ("gradients",),
    Kind.SHUT_DOWN: ("since_s",),
    Kind.OWN: ("since_s",),
    Kind.BLOCK: ("block", "settles"),
    Kind.SAMPLED: ("since_s",),
    Kind.FREED: ("since_s",),
    Kind.ENTERED: (),
    Kind.LEFT: (),
    Kind.PAUSED: (),
    Kind.FINISHED: ("status",),
    Kind.DROPPED: ("count",),
    Kind.MARKED: ("token", "place", "stream"),
    Kind.REACHED: ("token", "reached_s", "loss"),
    Kind.COUNTED: ("collectives",),
    Kind.AWAITED: ("since_s", "collectives", "sent"),
    Kind.LOOKED_AT: ("little_s",),
    Kind.MODEL_CALLED: ("cpu_s", "taken"),
    Kind.USED: ("cpu_s", "taken"),
    Kind.SPENT: ("cpu_s", "queued_s", "read_bytes"),
}
"""The values of each kind, in order.

`loader`: the number of the loader. `since_s`: when the call began, on the same clock. `n_ready`:
batches that workers had ready; NaN without workers. `gradients`: 1 where they were on, else 0.
`samples`: the length of the batch's first tensor that is not empty. `first_tensor`: a number by
which a batch is known again when it comes out of a queue; another batch may have it later. `values`:
the numbers in its largest tensor. `failed`: 1 where an error ended the iteration. `start_s`,
`end_s`: on the same clock. `worker`: NaN where none made the batch. `loss`: NaN where it is not a
single number on the CPU; with `REACHED` the loss that was copied before the mark. `device`: the
number of a described device. `token`: the number of a mark. `place`: a `MarkedPoint`. `stream`: a number
for each stream of the process. `reached_s`: on the clock of the host. `index`: of the
sample, in the dataset. `took_s`: for how long the dataset made it. `block`: odd where kept batches are served
again, or a stage seems faster.
`settles`: 1 where the step does not count there.
`collectives`: begun so far, in all groups; with `AWAITED` those that the wait ended. `sent`:
1 where it was for buffers that DistributedDataParallel sends, else 0. `little_s`: what a framework of the
script does itself between a batch and the model. `cpu_s`: for how long the thread has used a core so
far. `taken`: how often others took one from the process; both NaN where the thread may sleep while it
waits for a device, or for other ranks. `queued_s`: for how long
it has waited for a core so far; NaN likewise, and where the system does not say it. `read_bytes`: what the
thread has read so far by system
calls; NaN where the system does not count it."""
OF_DEVICE = (Kind.MARKED, Kind.REACHED)
"""Kinds that say when a device worked, and nothing of what a thread does."""


WORK = ("made_s", "cpu_s", "queued_s", "opened")
"""The names of an entry like that of a Compose: the seconds that a batch took to make, the CPU time of its thread
and of others that did a part of the work, how long these waited for a core (NaN where that is not known), and the files
that were opened."""
CORES_OF_STAGES = ("cores of stages",)
"""The name of an entry with what a batch used of the cores (`core_use.CoreTimes`): four numbers of the dataset with its
transforms, four of collate, and the seconds in transforms."""
CORES_OF_COMPOSE = "cores of transforms"
"""The first name of an entry with the same of some calls of a Compose: the names of its transforms follow; four numbers
of each."""
OF_TRAINING = (Kind.STEPPED, Kind.CHANGED, Kind.LEFT)
"""Kinds that say that something was trained."""
OF_ANY_PROCESS = (Kind.WAITED, Kind.GIVEN, Kind.FINISHED, Kind.DROPPED)
"""Kinds that say nothing of a loop."""
FORKED = "forked"
"""The kind of a description that is of no object: a process trains which was forked from this one."""


class Event(NamedTuple):
    """An event, as a reader gets it."""

    kind: Kind
    at_s: float
    """When it happened, on the monotonic clock (s)."""
    thread: int
    object: int
    """The number of what it is about; 0 where it is about nothing."""
    values: tuple[float, float, float]

    def value(self, name: str) -> float:
        """Returns the value that `FIELDS` gives this name. Raises `ValueError` if the kind has none."""
        return self.values[FIELDS[self.kind].index(name)]


@dataclass(frozen=True, slots=True)
class Description:
    """What is known of an object by words: sent once, before the first event that has its number."""

    number: int
    kind: str
    """process, loader, iterator, optimizer, source, device, batch: what one is made of, worker: what one of a
    loader says of itself, stages, end: how a run ended, forked: see `FORKED`, or failure: of a hook, which
    ended the recording."""
    facts: dict[str, Any]


PENDING_MARK = 5642.7341
"""The second word of the memory in which a process says that it waits for a batch: see `pending_wait`."""


def stack_address(pid: int) -> str:
    """Returns where a process says where it is in its Python code: a socket of Linux's that has no file."""
    return f"\0vitprof-stack-{pid}"


class Buffer:
    """The events of a process that are not sent yet. Any thread may emit; one takes."""

    MOST = 200_000
    """Events that are kept while nothing reads them, 11 MB: a minute of a fast loop."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self.emit: Emit = self._rows.append
        self._descriptions: list[Description] = []
        self.describe: Callable[[Description], None] = self._descriptions.append

    def take(self) -> tuple[list[Description], list[Row]]:
        """Removes and returns what was recorded since the last call.

        Copying and deleting a part of a list are one operation each: what is appended meanwhile
        stays.
        """
        # Rows first: the descriptions of all their objects are there by then.
        rows = self._rows[:]
        del self._rows[: len(rows)]
        descriptions = self._descriptions[:]
        del self._descriptions[: len(descriptions)]
        return descriptions, rows

    def has_training(self) -> bool:
        """Returns whether anything was trained: an update, or a step that the script marks."""
        return any(row[0] in OF_TRAINING for row in self._rows[:])

    def has_work(self) -> bool:
        """Returns whether any event is more than what each process has: the workers of a loader wait
        for queues, and every process ends."""
        return any(row[0] not in OF_ANY_PROCESS for row in self._rows[:])

    def bound(self, now_s: float) -> None:
        """Drops the oldest events where nothing was trained for long, and says how many."""
        excess = len(self._rows) - self.MOST
        if excess > 0:
            del self._rows[:excess]
            self._rows.insert(0, (Kind.DROPPED, now_s, 0, 0, excess, NAN, NAN))

    def forget(self) -> None:
        """Drops everything: in a forked process, whose parent sends it."""
        self._rows.clear()
        self._descriptions.clear()
