"""What was seen of the batches that came late in a watched run, while it waited for them."""

from typing import NotRequired

from typing_extensions import TypedDict


class ProcessSeen(TypedDict):
    """A process over the looks that were taken while a batch was late.

    Shares are of the time from the first look to the last one; null where they are not known.
    """

    looks: int
    """Looks at it."""
    seconds: float
    """From the first look to the last one; 0 where there is only one."""
    doing: dict[str, int]
    """In how many looks its main thread did what: running, drive, page, sleep, lock, file lock,
    pipe, poll, socket, child, asleep (it is not known for what), stopped, ended."""
    own_cpu_frac: float | None
    """Share in which its main thread used a core."""
    own_system_frac: NotRequired[float | None]
    """The part of that in the kernel; not in runs of before it was looked at."""
    queued_frac: float | None
    """Share in which its main thread was ready to run and had no core."""
    cpu_frac: float | None
    """CPU time of all its threads over the time."""
    read_bytes: float | None
    """Bytes that were read from drives for it."""
    major_faults: float | None
    """Pages that it waited for until they were read."""
    file: str
    """The file that it worked on; empty where none was seen."""
    own: str
    """The innermost place in the script's own code, of those seen most often; empty where none was
    seen."""
    calls: str
    """What that place calls."""
    frames: list[str]
    """At most 8 places of that stack, the innermost first."""
    answers: int
    """How often it said where it is in its Python code."""
    making: int
    """In how many of these answers it made a batch."""
    unanswered: int
    """Looks at which it had not answered for a second: no thread of it got Python's lock."""


class MachineSeen(TypedDict):
    """The machine over these looks. Shares are of the time; null where they are not counted."""

    others_cores: float | None
    """Cores that programs took which are not the script."""
    cpu_pressure_frac: float | None
    """Share in which some thread had no core."""
    io_pressure_frac: float | None
    """Share in which some thread waited for a drive."""
    memory_pressure_frac: float | None
    """Share in which some thread waited for memory."""
    swapped_pages: float | None
    """Pages that were written to swap, or read from it."""


class LateBatch(TypedDict):
    """A batch that came late, and what was seen meanwhile."""

    step: int
    """The step that waited for it."""
    waited_s: float
    """How long it was waited for."""
    worker: int | None
    """The worker that made it; null where the training process did."""
    making_s: NotRequired[float | None]
    """How long it took to make; not in runs of before it was kept."""
    usual_making_s: NotRequired[float | None]
    """How long nine of ten batches of the run took to make at most, until then; null before 20."""
    looks: int
    """Looks that were taken."""
    made_meanwhile: bool
    """Whether it was being made at most of the looks; else it was begun late, or handed over late."""
    maker: ProcessSeen | None
    """The process that made it, while it did; null where that is not known."""
    loop: ProcessSeen | None
    """The training process, where another one made the batch."""
    machine: MachineSeen | None
    """Null with a single look."""


class LateBatches(TypedDict, total=False):
    """The batches of a watched run that came late."""

    late: int
    """How many there were, with those that nothing was seen of: looks may take 0.05% of a core in the long
    run."""
    waited_s: float
    """How long all of them were waited for."""
    listed: list[LateBatch]
    """The last 200 of those that were looked at."""
    not_seen: str
    """Why none could be looked at, or no more; left out where they could."""
