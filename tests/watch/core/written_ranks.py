"""A rank of a distributed job, written by hand."""

from __future__ import annotations

from tests.watch.core.written import MAIN, Script
from tests.watch.core.written_device import DeviceScript
from vitprof.watch.core.columns import columns_of
from vitprof.watch.core.device_columns import DeviceSteps
from vitprof.watch.core.loop import find_steps
from vitprof.watch.core.rank_own_times import RankSteps
from vitprof.watch.core.training import find_training
from vitprof.watch.events import NAN, Kind, MarkedPoint

COUNTED_BEFORE = (*(Kind.REQUESTED, Kind.RECEIVED, Kind.EXHAUSTED, Kind.STEPPED, Kind.BACKWARD),)


class RankScript(Script):
    """A rank on a device that works at once. It begins collectives and waits for them."""

    collectives = 0
    _counted = -1

    def all_reduce(self, seconds: float = 0.0, *, seen: bool = True) -> None:
        """Waits for others in a collective; `seen`: by a call of Python's."""
        since_s = self.now_s
        self.collectives += 1
        self.now_s += seconds
        if seen:
            self._add(Kind.AWAITED, MAIN, 0, since_s, 1.0, 0.0)

    def wait_at_barrier(self, seconds: float) -> None:
        """Waits for other processes in what is no collective."""
        since_s = self.now_s
        self.now_s += seconds
        self._add(Kind.AWAITED, MAIN, 0, since_s, 0.0, 0.0)

    def send_buffers(self, seconds: float) -> None:
        """Sends buffers as DistributedDataParallel does, in two collectives."""
        since_s = self.now_s
        self.collectives += 2
        self.now_s += seconds
        self._add(Kind.AWAITED, MAIN, 0, since_s, 2.0, 1.0)

    def fetch_with_ranks(self, loader: int, seconds: float, *, seen: bool = True) -> None:
        """Fetches a batch; in the loader it waits for others."""
        self.fetch(loader)
        received = self.log.events.pop()
        since_s = self.now_s
        self.all_reduce(seconds, seen=seen)
        assert since_s == received.at_s
        self._add(Kind.RECEIVED, received.thread, received.object, *received.values)

    def exhaust_with_ranks(self, loader: int, seconds: float) -> None:
        """Finds an iteration over; in the loader it waits for other processes at a barrier."""
        self.exhaust(loader)
        exhausted = self.log.events.pop()
        self.wait_at_barrier(seconds)
        self._add(Kind.EXHAUSTED, exhausted.thread, exhausted.object, *exhausted.values)

    def _add(self, kind: Kind, thread: int, number: int, *values: float) -> None:
        if kind in COUNTED_BEFORE and self.collectives != self._counted:
            self._counted = self.collectives
            super()._add(Kind.COUNTED, thread, 0, float(self.collectives), NAN)
        super()._add(kind, thread, number, *values)


class RankOnDevice(RankScript, DeviceScript):
    """The same on a device that works on its own."""

    def send_buffers(self, seconds: float) -> None:
        self.mark(MarkedPoint.AWAITING)
        self.launch(seconds)
        self.mark(MarkedPoint.AWAITED)
        super().send_buffers(self._work_s)


def replayed(script: Script) -> tuple[dict[str, list[float]], RankSteps]:
    """Returns the columns of its steps, rounded to microseconds, and what counted them."""
    if isinstance(script, DeviceScript):
        script.pass_marks()
    training = find_training(script.log)
    assert training is not None
    device = DeviceSteps(warmup_steps=0)
    device.add(script.log.events, find_steps(training).steps)
    steps, figures = device.take(training.thread, finished=True)
    ranks = RankSteps(warmup_steps=0)
    ranks.add(script.log.events)
    columns = columns_of(steps, device=figures, ranks=ranks.take(training.thread, steps, figures))
    rounded = {name: [round(value, 6) for value in column] for name, column in columns.items()}
    return rounded, ranks
