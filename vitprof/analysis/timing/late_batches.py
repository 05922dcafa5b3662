"""Why batches came late, by what was seen of the process that made them, while it did.

Nothing here reads a clock or a process: the same looks give the same cause. Where they point at
several causes, or at none, the cause is not told.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import PurePath
from typing import Any

from vitprof import formats
from vitprof.recording.late_batches import LateBatch, MachineSeen, ProcessSeen
from vitprof.telemetry import looks
from vitprof.telemetry.looks import Look, ProcessLook, Stack

MOSTLY = 0.7
"""Share of the time, or of the looks, from which one thing is what a process did. Two things can
never both have it."""
NO_MORE_THAN_USUAL = 1.5
MORE_THAN_USUAL = 2.0
"""Times that other batches take to make. A batch whose time with a core is at most the former is late only
for the time without one. From the latter on it would be late with a core all the time, too. Chosen apart: of
those between, neither is said."""
OTHERS_CORES = 0.5
"""Cores that other programs take from which they are the ones that took them from a worker."""
LITTLE = 0.25
"""Cores, or a share, that are too few to be a cause."""
LEAST_S = 0.05
"""Looks over less time than this (s) tell no shares: CPU time is counted by ticks of 10 ms."""
FEWEST = 2
"""Looks that a cause needs. A process that is stopped, or gone, needs one."""
ENOUGH = 4
"""Looks of which one would have met it, had the process done something else for half of the time (15 of 16)."""
READS_BYTES_PER_S = 16 << 20
"""Bytes from drives a second from which a process that hardly works is one that reads them."""

BY_CALL = {
    looks.SLEEP: "sleep",
    looks.PAGE: "page",
    "futex": "lock",
    "file lock": "file lock",
    "open": "drive",
    "stat": "drive",
    "poll": "poll",
    "connect": "socket",
    "receive": "socket",
    "wait": "child",
}
"""What a thread waits for that is asleep in a call."""
BY_TARGET = (("pipe:", "pipe"), ("socket:", "socket"), ("/dev/", "device"))
"""The same of a call that works on a descriptor, by what that is of; else it is a file."""
BY_FUNCTION = (
    ("hrtimer_nanosleep", "sleep"),
    ("futex", "lock"),
    ("pipe_read", "pipe"),
    ("pipe_write", "pipe"),
    ("do_wait", "child"),
    ("poll_schedule", "poll"),
    ("do_sys_poll", "poll"),
    ("do_select", "poll"),
    ("ep_poll", "poll"),
    ("flock", "file lock"),
    ("locks_lock", "file lock"),
    ("fuse", "drive"),
    ("request_wait_answer", "drive"),
    ("rpc_wait", "drive"),
    ("nfs", "drive"),
    ("folio_wait", "drive"),
    ("wait_on_page", "drive"),
    ("io_schedule", "drive"),
    ("sk_wait", "socket"),
    ("wait_woken", "socket"),
    ("unix_stream", "socket"),
    ("skb", "socket"),
)
"""What a thread waits for by the function of the kernel in which it does, where its call is not
told: by a part of its name, as names change with the kernel."""


FOR_A_THREAD = ("threading.wait ", "threading.join ", "threading._wait_for_tstate_lock ")
"""How the innermost frame of a thread begins that waits for another one: for its end, or until it gives a
result, puts something into a queue, or sets an event."""


def doing(look: ProcessLook) -> str:
    """Returns what the main thread of a process did at a look: see `ProcessSeen.doing`."""
    if look.state == looks.GONE:
        return "ended"
    if look.state in ("T", "t"):
        return "stopped"
    if look.state == "R":
        return "running"
    known = _by_call(look)
    if known:
        return known
    if look.call:  # one that says nothing of what it waits for
        return "asleep"
    for part, kind in BY_FUNCTION:
        if part in look.waits_in:
            return kind
    # It cannot be woken by a signal: where nothing else is known, a drive makes it wait.
    return "drive" if look.state == "D" else "asleep"


def _by_call(look: ProcessLook) -> str:
    if look.call not in looks.OF_A_DESCRIPTOR or look.call in BY_CALL:
        return BY_CALL.get(look.call, "")
    for begins, kind in BY_TARGET:
        if look.target.startswith(begins):
            return kind
    return "drive" if looks.is_regular(look.target) else ""


def process_seen(seen: Sequence[Look], pid: int) -> ProcessSeen | None:
    """Returns what some looks saw of a process; None where none of them is of it."""
    found = [process for look in seen for process in look.processes if process.pid == pid]
    if not found:
        return None
    stacks = [look.stacks[pid] for look in seen if pid in look.stacks]
    stack = _usual(stacks)
    alive = [process for process in found if process.state != looks.GONE]
    # Not the times of the looks: where these are held up on a busy machine, shares would be beyond 1.
    seconds = alive[-1].at_s - alive[0].at_s if alive else 0.0

    def rise(of: Callable[[ProcessLook], float]) -> float | None:
        return _known(of(alive[-1]) - of(alive[0])) if len(alive) > 1 else None

    def share(of: Callable[[ProcessLook], float]) -> float | None:
        risen = rise(of)
        return None if risen is None or seconds < LEAST_S else risen / seconds

    return ProcessSeen(
        looks=len(found),
        seconds=seconds,
        doing=dict(Counter(doing(process) for process in found)),
        own_cpu_frac=share(lambda process: process.main_cpu_s),
        own_system_frac=share(lambda process: process.main_system_s),
        queued_frac=share(lambda process: process.queued_s),
        cpu_frac=share(lambda process: process.cpu_s),
        read_bytes=rise(lambda process: process.read_bytes),
        major_faults=rise(lambda process: process.major_faults),
        file=_file(found, stacks),
        own=stack.own,
        calls=stack.calls,
        frames=list(stack.frames),
        answers=len(stacks),
        making=sum(each.makes_a_batch for each in stacks),
        unanswered=sum(pid in look.unanswered for look in seen),
    )


def batch_seen(
    late: Mapping[str, Any], taken: Sequence[Look], loop: int, usual_making_s: float | None
) -> LateBatch:
    """Returns what some looks saw while a batch was late: of the process that made it, at the looks at which
    it did.

    `late`: as of `watch.core.late_batches`, with hindsight; `loop`: the training process; `usual_making_s`:
    how long other batches took to make, None where that is not known.
    """
    maker = late["pid"]
    if late["worker"] is None and late["made_s"] is not None:
        maker = loop
    while_made = list(taken)
    if late["made_s"] is not None:
        while_made = [look for look in taken if late["begun_s"] <= look.at_s <= late["made_s"]]
    is_made = len(while_made) >= MOSTLY * len(taken)
    seen = while_made if is_made else taken
    return LateBatch(
        step=late["step"],
        waited_s=late["waited_s"],
        worker=late["worker"],
        making_s=None if late["made_s"] is None else late["made_s"] - late["begun_s"],
        usual_making_s=usual_making_s,
        looks=len(taken),
        made_meanwhile=is_made,
        maker=None if maker is None else process_seen(seen, maker),
        loop=None if maker == loop else process_seen(taken, loop),
        machine=machine_seen(seen),
    )


def machine_seen(seen: Sequence[Look]) -> MachineSeen | None:
    """Returns what some looks saw of the machine; None where they are of one moment."""
    if len(seen) < FEWEST:
        return None
    first = seen[0].machine
    last = seen[-1].machine
    seconds = last.at_s - first.at_s
    if not seconds >= LEAST_S:
        return None
    others_s = (last.busy_s - first.busy_s) - (last.job_s - first.job_s)

    def share(risen_s: float) -> float | None:
        known = _known(risen_s)
        return None if known is None else known / seconds

    return MachineSeen(
        others_cores=share(others_s),
        cpu_pressure_frac=share(last.cpu_pressure_s - first.cpu_pressure_s),
        io_pressure_frac=share(last.io_pressure_s - first.io_pressure_s),
        memory_pressure_frac=share(last.memory_pressure_s - first.memory_pressure_s),
        swapped_pages=_known(last.swapped_pages - first.swapped_pages),
    )


def _known(risen: float) -> float | None:
    """Returns how far a count has risen; None where it is not known. One that is read of several files
    may seem to fall a little."""
    return None if math.isnan(risen) else max(0.0, risen)


def _usual(stacks: Sequence[Stack]) -> Stack:
    """Returns the stack that was seen most often, of those in which a batch was made."""
    making = [stack for stack in stacks if stack.makes_a_batch]
    if not making:
        return stacks[-1] if stacks else Stack()
    ((own, calls), _), *_ = Counter((stack.own, stack.calls) for stack in making).most_common(1)
    return next(stack for stack in making if (stack.own, stack.calls) == (own, calls))


def _file(found: Sequence[ProcessLook], stacks: Sequence[Stack]) -> str:
    """Returns the file that a process worked on: that of the call it was in, else the one that it opened
    last, where it is about to or has it open still, else the only one that it had open."""
    targets = [process.target for process in found if looks.is_regular(process.target)]
    if targets:
        return Counter(targets).most_common(1)[0][0]
    files = {name for process in found for name in process.files}
    opens = any(process.call == "open" for process in found)
    making = [stack.opened for stack in stacks if stack.makes_a_batch and stack.opened]
    opened = [name for name in making if opens or name in files]
    if opened:
        return Counter(opened).most_common(1)[0][0]
    return files.pop() if len(files) == 1 else ""


class Cause(Enum):
    """Why a batch came late. The values are the words that follow "worker 2"."""

    FILE = "waited for a drive"
    MEMORY = "waited for memory"
    FILE_LOCK = "waited for a lock on a file"
    LOCK = "waited for a lock"
    PYTHON_LOCK = "waited for Python's lock (the GIL), which another thread held"
    SLEEP = "slept, as it was told to"
    PROGRAM = "waited for a program that it had started"
    ELSEWHERE = "waited for another process or the network"
    CPU = "worked"
    CPU_ALONE = "worked, and held Python's lock (the GIL): C code, or garbage collection"
    THREADS = "waited for its other threads, which worked"
    CORES = "waited for a core: the script's own processes took all"
    OTHER_PROGRAMS = "waited for a core: other programs took them"
    STOPPED = "was stopped, by a signal or a debugger"
    ENDED = "had ended"
    NOT_TOLD = ""


WAITS = {
    "sleep": Cause.SLEEP,
    "file lock": Cause.FILE_LOCK,
    "child": Cause.PROGRAM,
    "pipe": Cause.ELSEWHERE,
    "socket": Cause.ELSEWHERE,
}
"""The causes of a process that mostly waits for one thing, and needs no other evidence."""


@dataclass(frozen=True)
class Told:
    """The cause of a late batch, or why there is none to tell."""

    cause: Cause
    why_not: str = ""
    detail: str = field(default="", compare=False)
    """Figures of this batch that belong to that."""


def cause_of(batch: LateBatch) -> Told:
    """Returns why a batch came late."""
    maker = batch["maker"]
    if maker is None:
        return Told(Cause.NOT_TOLD, "it is not known which process made it")
    if maker["doing"].get("ended"):
        return Told(Cause.ENDED)
    if _looks_frac(maker, "stopped") >= MOSTLY:
        return Told(Cause.STOPPED)
    if not batch["made_meanwhile"] or (maker["answers"] and not maker["making"]):
        return _of_handing_over(batch)
    if maker["looks"] < FEWEST or maker["seconds"] < LEAST_S:
        return Told(Cause.NOT_TOLD, "it came before a second look")
    used = maker["own_cpu_frac"]
    queued = maker["queued_frac"]
    if used is None or queued is None:
        return _without_a_schedule(maker)
    if queued > LITTLE:
        return _of_queueing(batch, maker, queued)
    return _of_shares(maker, used, queued, batch["machine"]) or _mixed(used, queued)


def _of_shares(
    maker: ProcessSeen, used: float, queued: float, machine: MachineSeen | None
) -> Told | None:
    """Returns the cause by what the process did for most of the time; None where it did several things."""
    if used >= MOSTLY:
        is_alone = maker["unanswered"] and not maker["answers"]
        return Told(Cause.CPU_ALONE if is_alone else Cause.CPU)
    if used + queued <= 1 - MOSTLY:
        return _of_waiting(maker, machine)
    return _of_reading(maker, machine)


def _looks_frac(seen: ProcessSeen, kind: str) -> float:
    return seen["doing"].get(kind, 0) / seen["looks"]


def _of_handing_over(batch: LateBatch) -> Told:
    """Returns the cause where the batch was made before, and was on its way to the loop."""
    maker = batch["maker"]
    if maker is not None and maker["unanswered"] and not maker["answers"]:
        # A thread of the worker sends what was made, and needs that lock: which the main thread has, or another.
        used = maker["own_cpu_frac"] or 0.0
        if used >= MOSTLY:
            return Told(Cause.CPU_ALONE)
        if used + (maker["queued_frac"] or 0.0) <= 1 - MOSTLY:
            return Told(Cause.PYTHON_LOCK)
        # it works where it has a core, and may hold that lock itself
        return Told(
            Cause.NOT_TOLD, "it did not get Python's lock, and which thread held it is not clear"
        )
    loop = batch["loop"]
    if loop is not None and loop["unanswered"] and (loop["cpu_frac"] or 0.0) >= MOSTLY:
        return Told(Cause.NOT_TOLD, "it was made, and a thread of the script held Python's lock")
    why_not = "it was not being made at most of the looks: it was begun late, or handed over late"
    return Told(Cause.NOT_TOLD, why_not)


def _without_a_schedule(maker: ProcessSeen) -> Told:
    """Returns the cause where the system does not say for how long a thread waited for a core."""
    if _looks_frac(maker, "running") >= MOSTLY:
        if (maker["cpu_frac"] or 0.0) >= MOSTLY:
            return Told(Cause.CPU)
        return Told(Cause.NOT_TOLD, "it ran, and whether it had a core is not known")
    return Told(Cause.NOT_TOLD, "this system does not say how long a thread waits for a core")


def _of_queueing(batch: LateBatch, maker: ProcessSeen, queued: float) -> Told:
    """Returns the cause where the process had no core for a good part of the time, `queued`.

    That alone made the batch late if the rest of the time is as long as other batches take to make. If it is
    much longer, the batch would be late with a core all the time, too, for what the process did in it.
    """
    making_s = batch.get("making_s")
    usual_s = batch.get("usual_making_s")
    share = f"it had no core {formats.percent(queued)} of the time"
    if making_s is None or usual_s is None:
        why_not = "it waited for a core, and how long such a batch takes with one is not known"
        return Told(Cause.NOT_TOLD, why_not, share)
    if making_s * (1 - queued) <= NO_MORE_THAN_USUAL * usual_s:
        return _of_cores(batch["machine"])
    # Only the time of the looks: before them it may have had no core at all.
    if maker["seconds"] * (1 - queued) >= MORE_THAN_USUAL * usual_s:
        rest = _with_a_core(maker, queued)
        used = rest["own_cpu_frac"] or 0.0
        return _of_shares(rest, used, 0.0, batch["machine"]) or _mixed(used * (1 - queued), queued)
    why_not = "it waited for a core, and whether that alone made it late is not clear"
    return Told(Cause.NOT_TOLD, why_not, share)


def _with_a_core(maker: ProcessSeen, queued: float) -> ProcessSeen:
    """Returns the same of the time in which the process did not wait for a core."""
    rest = 1 - queued

    def of_the_rest(share: float | None) -> float | None:
        return None if share is None else share / rest

    return {
        **maker,
        "seconds": maker["seconds"] * rest,
        "own_cpu_frac": of_the_rest(maker["own_cpu_frac"]),
        "own_system_frac": of_the_rest(maker.get("own_system_frac")),
        "cpu_frac": of_the_rest(maker["cpu_frac"]),
        "queued_frac": 0.0,
    }


def _of_cores(machine: MachineSeen | None) -> Told:
    """Returns the cause where the process was ready to run, and had no core."""
    others = None if machine is None else machine["others_cores"]
    if others is None:
        return Told(Cause.NOT_TOLD, "it waited for a core, and who took them is not known")
    if others >= OTHERS_CORES:
        return Told(Cause.OTHER_PROGRAMS)
    if others <= LITTLE:
        return Told(Cause.CORES)
    return Told(Cause.NOT_TOLD, "it waited for a core, and who took them is not clear")


def _of_waiting(maker: ProcessSeen, machine: MachineSeen | None) -> Told:
    """Returns the cause where the process neither used a core nor waited for one."""
    n_asleep = maker["looks"] - maker["doing"].get("running", 0)
    kinds = Counter({kind: n for kind, n in maker["doing"].items() if kind != "running"})
    # both are the data of a file, read by a call or as memory
    of_drive = kinds["drive"] + kinds["page"]
    if n_asleep < FEWEST:
        return Told(Cause.NOT_TOLD, "what it waited for was seen only once")
    if of_drive >= MOSTLY * n_asleep:
        return _of_drive(kinds, machine)
    kind, n = kinds.most_common(1)[0]
    if n < MOSTLY * n_asleep:
        return Told(Cause.NOT_TOLD, f"it waited for several things: {', '.join(sorted(kinds))}")
    if kind == "lock":
        return _of_lock(maker)
    if kind == "poll" and maker["making"] >= MOSTLY * max(1, maker["answers"]):
        return Told(Cause.ELSEWHERE)
    cause = WAITS.get(kind)
    if cause is None:
        return Told(Cause.NOT_TOLD, "it waited, and for what was not seen")
    return Told(cause)


def _of_reading(maker: ProcessSeen, machine: MachineSeen | None) -> Told | None:
    """Returns the cause where the process waited for a drive, or the kernel worked on what it reads or
    writes there: a fast drive takes a third of a core. None where it did anything else.
    """
    used = maker["own_cpu_frac"] or 0.0
    queued = maker["queued_frac"] or 0.0
    in_kernel = maker.get("own_system_frac")
    if in_kernel is None or used + queued > MOSTLY or used - in_kernel + queued > 1 - MOSTLY:
        return None
    waiting = _of_waiting(maker, machine)
    if waiting.cause in (Cause.FILE, Cause.MEMORY):
        return waiting
    # A drive answers so fast that hardly any look meets the wait.
    reads = (maker["read_bytes"] or 0.0) >= READS_BYTES_PER_S * maker["seconds"]
    if reads and maker["looks"] >= ENOUGH and set(maker["doing"]) <= {"running", "drive", "page"}:
        return _of_drive(Counter(maker["doing"]), machine)
    return None


def _of_drive(kinds: Mapping[str, int], machine: MachineSeen | None) -> Told:
    """Returns the cause where the process waited for data: of a drive, or of its memory, which may be
    read back from swap."""
    pressed = 0.0
    swapped = 0.0
    if machine is not None:
        pressed = machine["memory_pressure_frac"] or 0.0
        swapped = machine["swapped_pages"] or 0.0
    if pressed < LITTLE and not swapped:
        return Told(Cause.FILE)
    if kinds["page"] > kinds["drive"] and pressed >= LITTLE:
        return Told(Cause.MEMORY)
    return Told(Cause.NOT_TOLD, "it waited for a drive, and memory was short meanwhile")


def _of_lock(maker: ProcessSeen) -> Told:
    """Returns the cause where the main thread waited for a lock: of whatever kind."""
    others = (maker["cpu_frac"] or 0.0) - (maker["own_cpu_frac"] or 0.0)
    if maker["unanswered"]:
        return Told(Cause.PYTHON_LOCK)
    if others >= MOSTLY:
        return Told(Cause.THREADS)
    innermost = maker["frames"][0] if maker["frames"] else ""
    if innermost.startswith(FOR_A_THREAD):
        # such as a pool of threads that read files: that is no lock that somebody holds
        return Told(
            Cause.NOT_TOLD, "it waited for a thread of its own, and what that did was not seen"
        )
    return Told(Cause.LOCK)


def _mixed(used: float, queued: float) -> Told:
    shares = (
        f"it used a core {formats.percent(used)} of the time, and waited for one "
        f"{formats.percent(queued)}"
    )
    return Told(Cause.NOT_TOLD, "it did several things", shares)


@dataclass(frozen=True)
class Cluster:
    """Late batches that have their cause in common, and where."""

    told: Told
    place: str
    """Where the process was: "PIL.Image.open <- dataset.py:41"; empty where that was not seen."""
    batches: tuple[LateBatch, ...]
    """That which was waited for longest comes first."""

    @property
    def n(self) -> int:
        return len(self.batches)

    @property
    def waited_s(self) -> float:
        return sum(batch["waited_s"] for batch in self.batches)

    @property
    def longest(self) -> LateBatch:
        return self.batches[0]

    @property
    def who(self) -> str:
        """Returns which processes made them."""
        workers = {batch["worker"] for batch in self.batches}
        if workers == {None}:
            return "the training process"
        return f"worker {workers.pop()}" if len(workers) == 1 else "workers"

    @property
    def file(self) -> str:
        """Returns the file of the longest, where a file is to blame."""
        maker = self.longest["maker"]
        is_of_files = self.told.cause in (Cause.FILE, Cause.FILE_LOCK)
        return maker["file"] if maker is not None and is_of_files else ""

    @property
    def reason(self) -> str:
        """Returns the cause in words: "worker 2 waited for a drive in PIL.Image.open <- dataset.py:41,
        /data/old/0481.jpg"."""
        if self.told.cause is Cause.NOT_TOLD:
            details = f" ({self.told.detail})" if self.told.detail else ""
            return f"the cause is not told, as {self.told.why_not}{details}"
        where = f" in {self.place}" if self.place else ""
        file = f", {self.file}" if self.file else ""
        return f"{self.who} {self.told.cause.value}{where}{file}"


@dataclass(frozen=True)
class LateBatches:
    """The late batches of a run, by their causes."""

    n: int
    waited_s: float
    clusters: tuple[Cluster, ...]
    """Those that were waited for longest come first."""

    @property
    def sentence(self) -> str:
        """Returns how many there were, and the cause that cost most, of those that are told."""
        count = "1 batch was late" if self.n == 1 else f"{self.n} batches were late"
        total = f"{count}, {formats.seconds(self.waited_s)} of waits in all"
        told = [each for each in self.clusters if each.told.cause is not Cause.NOT_TOLD]
        most = told[0] if told else self.clusters[0]
        reason = most.reason
        if most.n == self.n:
            return f"{total}: {reason}."
        share = f"{most.n} of them, {formats.seconds(most.waited_s)}"
        if most.waited_s > self.waited_s / 2:
            share = f"Most of it, {share}"
        return f"{total}. {share}: {reason}."


def late_batches(facts: Mapping[str, Any]) -> LateBatches | None:
    """Returns the late batches of a watched run by their causes; None where none was looked at."""
    fact = facts.get("late_batches")
    if not isinstance(fact, Mapping) or not fact.get("listed"):
        return None
    clusters = clustered(fact["listed"])
    return LateBatches(int(fact["late"]), float(fact["waited_s"]), clusters)


def clustered(batches: Iterable[LateBatch]) -> tuple[Cluster, ...]:
    """Returns batches by cause, place, and the folder of the file."""
    groups: dict[tuple[Told, str, str], list[LateBatch]] = {}
    for batch in batches:
        told = cause_of(batch)
        folder = ""
        maker = batch["maker"]
        if told.cause is Cause.FILE and maker is not None:
            folder = str(PurePath(maker["file"]).parent)
        groups.setdefault((told, place_of(batch), folder), []).append(batch)
    clusters = []
    for (_, place, _), group in groups.items():
        group.sort(key=lambda batch: -batch["waited_s"])
        clusters.append(Cluster(cause_of(group[0]), place, tuple(group)))
    return tuple(sorted(clusters, key=lambda cluster: -cluster.waited_s))


def place_of(batch: LateBatch) -> str:
    """Returns where the process was that made a batch, most of the time."""
    maker = batch["maker"]
    if maker is None or not maker["own"]:
        return ""
    return f"{maker['calls']} <- {maker['own']}" if maker["calls"] else maker["own"]
