"""The ranks of a distributed job: which one this process is, and what is its own of a step's forward pass."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import sys
from _thread import get_ident
from time import perf_counter

from vitprof.watch.patching import SOCKET, whole_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    # this is imported in each process below `vitprof watch`
    from collections.abc import Callable, Sequence
    from typing import Any

    from vitprof.measure.devices import Device
    from vitprof.measure.step_columns import StepMarks
    from vitprof.watch.batches import Step

ALL_RANKS = "VITPROF_WATCH_RANKS"
"""Environment variable: set where that program records the steps of all ranks of a distributed job."""
RANKS = (
    ("RANK",),
    ("LOCAL_RANK", "NODE_RANK"),
    ("OMPI_COMM_WORLD_RANK",),
    ("PMI_RANK",),
    ("SLURM_PROCID",),
)
"""Variables that tell a process its rank; all of the first group that there is are 0 in the first process."""


def distributed() -> Any:
    """Returns `torch.distributed` if this process has joined a group of several; else None."""
    module = sys.modules.get("torch.distributed")
    return module if getattr(module, "is_initialized", bool)() else None


def is_watched_rank() -> bool:
    """Returns whether this process is watched in any case: rank 0 of a distributed job, or a job of one process."""
    return rank() == 0


def rank() -> int:
    """Returns this process's rank in a distributed job; 0 in a job of one process. Before the job's processes have
    joined, and where nothing names their number on a node, that of another node's process is only known not to be 0.
    """
    if (group_of_ranks := distributed()) is not None:
        return int(group_of_ranks.get_rank())
    names = next((names for names in RANKS if names[0] in os.environ), ())
    first, *others = [whole_number(name) for name in names] or [0]
    return first + sum(others) * max(1, whole_number("LOCAL_WORLD_SIZE"))


def local_rank() -> int:
    """Returns the number of this process among those of its node; its rank where nothing names that."""
    name = next((name for name in ("LOCAL_RANK", "SLURM_LOCALID") if name in os.environ), "")
    return whole_number(name) if name else rank()


def job_key() -> str:
    """Returns what all processes of a distributed job have in common, on all its nodes, and no other one: an id in the
    store by which they met. Without that it is their meeting point, which the next job may have, too; "" where nothing
    names it.
    """
    if not os.environ.get("MASTER_ADDR"):
        return ""
    names = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")
    key = "/".join(os.environ.get(name, "") for name in names)
    with contextlib.suppress(Exception):
        store = sys.modules["torch.distributed.distributed_c10d"]._get_default_store()
        key += "/" + store.compare_set("vitprof-job", "", os.urandom(16).hex()).decode()
    return key


def is_recorded() -> bool:
    """Returns whether the steps of this process are recorded: of rank 0, and where a command records all ranks."""
    return is_watched_rank() or bool(os.environ.get(SOCKET) and os.environ.get(ALL_RANKS))


def n_ranks() -> int:
    """Returns the number of the job's processes."""
    return (
        whole_number("WORLD_SIZE")
        if (group := distributed()) is None
        else int(group.get_world_size())
    )


BROADCAST = "_broadcast_coalesced"
"""The function of `torch.distributed` by which DistributedDataParallel sends buffers (BatchNorm has some), from rank 0
before each forward pass."""
WAITS = (
    (
        "torch.distributed",
        "Work",
        "wait",
    ),  # of all collectives but those in C++: DDP's in the backward pass
    ("torch.distributed", "ProcessGroup", "monitored_barrier"),
    ("multiprocessing.synchronize", "Barrier", "wait"),
)
"""Modules, their classes, and the methods in which a process waits for others."""


def n_collectives() -> float:
    """Returns how many collectives this process has begun in all its groups; NaN where PyTorch does not count them."""
    try:
        groups = sys.modules["torch.distributed.distributed_c10d"]._world.pg_map
        return float(sum(group._get_sequence_number_for_group() for group in groups))
    except (KeyError, AttributeError, RuntimeError):
        return math.nan


class Forward:
    """What is this rank's own of its steps: its work between two of them and its forward pass, without what waits for
    other ranks. DDP's sending of buffers is timed and taken off; with any other collective in it, a time is not known.
    Waits for collectives are timed wherever they are: one inside the loader is no wait for data.
    """

    def __init__(self, device: Device, *, shares: bool) -> None:
        """`shares`: whether other ranks train, too."""
        from vitprof.watch.fetch_times import MAKING

        self._making = MAKING
        self.shares = shares
        self.n_unknown = self.n_waited = 0
        """Requests for a batch in which there was a collective: those without its wait being known, and all."""
        self._device, self._is_on = device, shares and device.timed
        self._thread, self._n = 0, math.nan
        self._awaited_s, self._n_waits = 0.0, 0
        """The seconds in which the training thread has waited for other ranks so far, and how often."""
        self._begun = 0.0, 0
        """The same as the batch came."""
        self._stepped = math.nan, math.nan, 0.0, 0
        """When an optimizer last stepped, the number of collectives then, and waits."""
        self._requested: tuple[float, float, int] | None = None
        """The number of collectives as the batch was requested, and waits; None once it came."""
        self._waits: list[tuple[Any, Any]] = []
        """The device's marks around such waits since the batch came."""
        self._module = sys.modules.get("torch.distributed") if self._is_on else None
        self._broadcast = getattr(self._module, BROADCAST, None)
        if self._broadcast is not None:
            setattr(self._module, BROADCAST, self._timed_broadcast)
        self._patched: list[tuple[Any, str, Any, Any]] = []
        for module, kind, name in WAITS if self._is_on else ():
            if (
                method := getattr(owner := getattr(sys.modules.get(module), kind, None), name, None)
            ) is not None:
                timed = self._timed(method)
                setattr(owner, name, timed)
                self._patched.append((owner, name, timed, method))

    def stepped(self, now_s: float) -> None:
        """Notes a step of an optimizer."""
        if self._is_on:
            self._stepped = now_s, n_collectives(), self._awaited_s, self._n_waits

    def request(self) -> None:
        """Notes that a batch is requested."""
        if self._is_on:
            self._requested = n_collectives(), self._awaited_s, self._n_waits

    def received(self, asked_s: float, *, ended: bool = False) -> float:
        """Returns when a batch that has come was requested, as if waits for other ranks in that came before it. If the
        step before has `ended`, they are no part of it either.
        """
        if self._requested is None or get_ident() != self._thread:
            return asked_s
        n, awaited_s, n_waits = self._requested
        unseen = n_collectives() - n - (self._n_waits - n_waits if self._device.immediate else 0)
        waited_s = self._awaited_s - awaited_s
        self.n_unknown += unseen > 0 or (ended and waited_s > 0)
        self.n_waited += unseen > 0 or waited_s > 0
        return asked_s + waited_s

    def begin(self, asked_s: float) -> tuple[float, float, float]:
        """Begins with a batch that was requested then. Returns how long the rank worked on its own since the optimizer
        stepped (s), the collectives since the batch before, and how long it waited for other ranks meanwhile, where
        that is seen (s); NaN if not known.
        """
        if not self._is_on:
            return math.nan, math.nan, math.nan
        for marks in self._waits:
            self._device.release(*marks)
        before, self._n = self._n, n_collectives()
        awaited_s, self._begun = self._awaited_s - self._begun[0], (self._awaited_s, self._n_waits)
        n_requested, *_ = self._requested or (self._n,)
        self._thread, self._waits, self._requested = get_ident(), [], None
        (stepped_s, n, until_s, n_waits), self._stepped = (
            self._stepped,
            (math.nan, math.nan, 0.0, 0),
        )
        known = n == n_requested and (self._device.immediate or n_waits == self._n_waits)
        between_s = asked_s - stepped_s - (self._awaited_s - until_s) if known else math.nan
        return between_s, self._n - before, awaited_s

    def begin_step(self, step: Step, batch: Any) -> None:
        """Begins with a step's batch, and notes how much that is."""
        if self.shares:
            step.note_values(batch)
            between_s, collectives, awaited_s = self.begin(step.marks.t_start)
            step.note(between_s=between_s, collectives=collectives, awaited_s=awaited_s)

    def host_s(self, got_s: float) -> float:
        """Returns the seconds of the pass since the batch came, where the host waits for the device; NaN if unknown."""
        if not self._is_on or n_collectives() != self._n:
            return math.nan
        return perf_counter() - got_s - (self._awaited_s - self._begun[0])

    def end(self, step: Step) -> None:
        """Ends the pass as the backward pass begins."""
        if self._is_on and self._device.immediate:
            step.note(forward_s=self.host_s(step.marks.t_got))
        elif self._is_on and n_collectives() == self._n and self._n_waits == self._begun[1]:
            step.forward, self._waits = [*self._waits, (self._device.mark(),)], []

    def settle(self, marks: StepMarks, forward: Sequence[Sequence[Any]]) -> None:
        """Notes the device's times of a step that it has passed: of the pass, and idle before it, its data aside."""
        if forward and marks.made is not None:
            *waits, (end,) = forward
            waited_s = sum(self._device.seconds(b) - self._device.seconds(a) for a, b in waits)
            took_s = self._device.seconds(end) - marks.compute_start - waited_s
            before_s, begun_s = marks.previous_end, marks.compute_start
            for_data_s = max(0.0, min(marks.t_got, begun_s) - max(marks.t_start, before_s))
            between_s = (
                begun_s - before_s - for_data_s + 0 * marks.made.between_s
            )  # NaN where that is not known
            awaited_s = marks.made.awaited_s + waited_s
            marks.made = marks.made._replace(
                between_s=between_s, awaited_s=awaited_s, forward_s=max(0.0, took_s)
            )
        for found in forward:
            self._device.release(*found)

    def close(self) -> None:
        """Restores PyTorch's functions, unless another tool has replaced them since."""
        if (
            self._broadcast is not None
            and getattr(self._module, BROADCAST) == self._timed_broadcast
        ):
            setattr(self._module, BROADCAST, self._broadcast)
        for owner, name, timed, method in self._patched:
            if getattr(owner, name) is timed:
                setattr(owner, name, method)

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def wait(
            awaited: Any, *args: Any, **kwargs: Any
        ) -> Any:  # pybind11 looks for this name: no call by C++
            if get_ident() != self._thread:
                return method(awaited, *args, **kwargs)
            since_s = perf_counter()
            try:
                return method(awaited, *args, **kwargs)
            finally:
                self._note(perf_counter() - since_s)
                self._n_waits += 1

        return wait

    def _note(self, waited_s: float) -> None:
        self._awaited_s += waited_s
        if self._making.now.laps is not None:  # in the dataset of a loader without workers
            self._making.now.waited_s += waited_s

    def _timed_broadcast(self, *args: Any, **kwargs: Any) -> Any:
        assert self._broadcast is not None
        if get_ident() != self._thread:
            return self._broadcast(*args, **kwargs)
        before, since_s = n_collectives(), perf_counter()
        marked = None if self._device.immediate else self._device.mark()
        sent = self._broadcast(*args, **kwargs)
        if marked is not None:
            self._waits.append((marked, self._device.mark()))
        self._note(perf_counter() - since_s)
        self._n += n_collectives() - before
        return sent
