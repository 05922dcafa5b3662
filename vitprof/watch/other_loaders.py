"""The batches of other loaders than the train loader: those of zipped loaders, and those of a validation."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from vitprof.measure.devices import Device
from vitprof.measure.step_columns import UNKNOWN_TIMES, BatchTimes
from vitprof.watch.batches import Ahead, Step, batch_times, n_samples, together
from vitprof.watch.fetch_times import FetchTimes, TransformTimes
from vitprof.watch.loaders import UNKNOWN, Seen


class OtherBatch(NamedTuple):
    """A batch of another loader."""

    loader: Seen
    asked_s: float
    got_s: float
    asked: Any
    """The device's mark when it was requested."""
    samples: int
    made: BatchTimes | None
    first: bool
    """Whether its iteration began with it."""

    @property
    def wait_s(self) -> float:
        return self.got_s - self.asked_s


def with_others(
    made: BatchTimes | None, got_s: float, others: Sequence[OtherBatch], device: Device
) -> BatchTimes:
    """Returns the times of a step's batch, which it `got_s`, with those of `others`, as if it had waited for them at
    once; their marks, which the device has passed, are released.
    """
    wait_s = exposed_s = 0.0
    for other in others:
        idle_s = other.got_s - max(other.asked_s, device.seconds(other.asked))
        wait_s, exposed_s = wait_s + other.wait_s, exposed_s + min(other.wait_s, max(0.0, idle_s))
        device.release(other.asked)
        if (then := other.made) is not None:
            earlier_s = other.got_s - (got_s + wait_s)
            then = then._replace(start_s=then.start_s - earlier_s, end_s=then.end_s - earlier_s)
        made = together(made, then)
    return (made or UNKNOWN_TIMES)._replace(other_wait_s=wait_s, other_exposed_s=exposed_s)


class OtherLoaders:
    """What a loop got of other loaders since its last work, and in which steps.

    Work that follows works on these batches too: the step waits for them. If the next batch of the train loader is
    requested first, they are the next step's. Two of one loader without work after them, or one after an epoch's last,
    are validation.
    """

    def __init__(
        self, device: Device, add_transforms: Callable[[Sequence[TransformTimes], int], None]
    ) -> None:
        self._device, self._add_transforms = device, add_transforms
        self.batches: list[OtherBatch] = []
        """Those since the last work."""
        self._requested: tuple[float, Any, Seen, bool] | None = None
        self.first: Seen | None = None
        """The loader that the last two steps asked first, before the train loader: what trains should begin with it."""
        self._last_carried = -1
        """The last step with batches that were carried into it."""
        self.last_after_update = -1
        """The last step after which another loader was asked, with a backward pass, but not as for a validation."""
        self._validated = -2
        """The last step that ended in validation with gradients."""
        self._waits: dict[Seen, list[float]] = {}
        """Loader -> its batches in steps that asked several, and the seconds waited for them."""
        self._joined = self.unclear = self._told = 0
        """Steps that asked several loaders; steps after which it is not clear what another one is for."""

    def request(self, now_s: float, loader: Seen) -> None:
        """Notes that a batch of `loader` is requested; the wait for the first one has the iteration's beginning."""
        begun, loader.begun = loader.begun, UNKNOWN
        first = begun is not UNKNOWN
        asked_s = now_s - (begun.until_s - begun.since_s) if first else now_s
        self._requested = (
            asked_s,
            asked_s if self._device.immediate else self._device.mark(),
            loader,
            first,
        )

    def receive(self, now_s: float, batch: Any, times: FetchTimes | None) -> bool:
        """Notes the batch that was requested, None where the loader has no more; returns whether there is one."""
        if self._requested is None:
            return False
        (asked_s, asked, loader, first), self._requested = self._requested, None
        if batch is None:
            self._device.release(asked)
            return False
        samples, made = n_samples(batch), None
        if times is not None:
            made = batch_times(times, math.nan)
            self._add_transforms(times[-1], samples)
        self.batches.append(OtherBatch(loader, asked_s, now_s, asked, samples, made, first))
        return True

    def take(self) -> list[OtherBatch]:
        """Returns the batches since the last work that count for a step."""
        batches, self.batches = self.batches, []
        self._device.release(*(other.asked for other in batches if not other.loader.trains))
        return [other for other in batches if other.loader.trains]

    def drop(self) -> None:
        self._device.release(*(other.asked for other in self.batches))
        self.batches = []

    def validated_since_s(self, *, last: bool) -> float:
        """Returns since when batches after the last work validate; NaN where they do not. `last`: the epoch is over."""
        are = self.batches and (
            last or len({other.loader for other in self.batches}) < len(self.batches)
        )
        return self.batches[0].asked_s if are else math.nan

    def validation(
        self, step: int, others: list[OtherBatch], updated: int, *, last: bool
    ) -> list[OtherBatch]:
        """Returns those of `others`, a step's, that validate, with backward passes and without a step of an optimizer:
        an iteration that begins in the step, or anything after an epoch's last. `updated`: how many came before the
        last step of an optimizer; -1 where none stepped. What comes after that now and then may validate.
        """
        after = others[max(0, updated) :]
        if last or not after:
            return after
        begins = (
            one.first and one.loader is then.loader for one, then in itertools.pairwise(after)
        )
        if validation := next((after[i:] for i, begun in enumerate(begins) if begun), []):
            return validation
        regular, self.last_after_update = updated < 0 or self.last_after_update >= step - 1, step
        self.unclear += not regular
        return [] if regular else after

    def before(self, ahead: Ahead, carried: Sequence[OtherBatch]) -> Ahead:
        """Returns `ahead` and these batches, which came before the train loader's."""
        for other in carried:
            self._device.release(other.asked)
            made = together(ahead.made, other.made)
            ahead = Ahead(ahead.wait_s + other.wait_s, ahead.samples + other.samples, made)
        return ahead

    def count(self, number: int, own: Seen | None, step: Step) -> None:
        """Notes which loader a step asked first; counts it, unless `own`, the train loader, is None."""
        carried = step.carried
        self.first = carried[0].loader if carried and self._last_carried == number - 1 else None
        if carried:
            self._last_carried = number
        if own is None:
            return
        self._joined += 1
        own_wait_s = step.marks.t_got - step.marks.t_start - sum(other.wait_s for other in carried)
        for loader, s in [
            (own, own_wait_s),
            *[(other.loader, other.wait_s) for other in (*carried, *step.others)],
        ]:
            sums = self._waits.setdefault(loader, [0, 0.0])
            sums[0], sums[1] = sums[0] + 1, sums[1] + s

    def count_end(self, step: int, *, validated: bool) -> None:
        """Counts a step's end; after every step there is no validation: loaders are asked in turn."""
        if validated:
            self.unclear += self._validated == step - 1
            self._validated = step

    def send(self, facts: Callable[[dict[str, Any]], None], *, at_end: bool) -> None:
        """Sends what is counted when it has doubled, and at the end."""
        if (n := self._joined + self.unclear) and (at_end or n >= 2 * self._told):
            self._told = n
            loaders = [
                {**seen.facts, "batches": int(n), "wait_s": s}
                for seen, (n, s) in self._waits.items()
            ]
            facts({"loaders": loaders, "unclear_loaders_steps": self.unclear})
