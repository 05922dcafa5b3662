"""Training loops as people write them, in many combinations of what they choose, each with a clock
of its own. Nothing in them knows of vitprof.

`Loop` is what somebody chose; `trained` trains so, and returns what the loop's own clock says. The work
is to sleep.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import copy
import functools
import itertools
import os
import queue
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)

BATCH = 2


@dataclass(frozen=True, kw_only=True)
class Loop:
    """What somebody chose for a training loop."""

    shape: str = "usual"
    """A function of `SHAPES`."""
    data: str = "samples"
    """A function of `LOADERS`, which makes the loader that trains."""
    n: int = 8
    """Batches in an epoch."""
    epochs: int = 2
    wait_s: float = 0.004
    """What making a batch takes."""
    work_s: float = 0.003
    """What the work on it takes."""
    workers: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    """More arguments of the loader."""
    around: str = ""
    """A function of `AROUND`: what the loop has around its loader."""
    anew: bool = False
    """Whether it makes a loader for each epoch."""
    most: int = 0
    """Batches after which it leaves an epoch; 0 for all."""
    update: str = "usual"
    """A function of `UPDATES`: how it trains on a batch."""
    every: int = 1
    """Batches that gradients are accumulated over."""
    check: str = ""
    """A function of `CHECKS`: how it validates; "" where it does not."""
    check_every: int = 0
    """Batches after which it validates; 0 at the end of each epoch."""


# the clock


@dataclass(frozen=True, slots=True)
class Timed:
    """A step, by the loop's own clock."""

    epoch: int
    waits: tuple[tuple[float, float], ...]
    """When it asked for each of its batches, and had it (s)."""
    done_s: float

    @property
    def wait_s(self) -> float:
        return sum(until_s - since_s for since_s, until_s in self.waits)


class Clock:
    """The loop's own clock: when it asked for a batch, had it, and was done with it."""

    def __init__(self) -> None:
        self.steps: list[Timed] = []
        self.evaluations: list[tuple[float, float]] = []
        """When each began and ended (s)."""
        self.checked: list[DataLoader[Any]] = []
        """The loaders that are there to evaluate."""
        self.epoch = -1
        self._asked_s = 0.0
        self._waits: list[tuple[float, float]] = []
        """Those of the step that follows."""
        self._skips = False

    def ask(self) -> None:
        """Notes that the loop asks for a batch."""
        self._asked_s = perf_counter()

    def got(self) -> None:
        """Notes that it has the batch, or that there is none."""
        self._waits.append((self._asked_s, perf_counter()))

    def done(self) -> None:
        """Notes that a step is over: it has had the batches since the one before."""
        if not self._skips:
            self.steps.append(Timed(max(0, self.epoch), tuple(self._waits), perf_counter()))
            self._waits.clear()
        self._skips = False

    def skip(self) -> None:
        """Notes that the batch is not used: the step that follows has waited for it."""
        self._skips = True

    def next_of(self, iterator: Iterator[Any]) -> Any:
        """Returns the next batch; raises `StopIteration` where there is none."""
        self.ask()
        try:
            return next(iterator)
        finally:
            self.got()

    def each(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yields the batches of an epoch; each is a step."""
        is_first = True
        self.ask()
        for batch in batches:
            self.got()
            self.epoch += is_first
            is_first = False
            try:
                yield batch
            finally:
                self.done()
            self.ask()
        self.got()

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Notes that the loop evaluates. What it has waited for before is no step's."""
        self._waits.clear()
        since_s = perf_counter()
        yield
        self.evaluations.append((since_s, perf_counter()))

    def checks_on(self, batches: DataLoader[Any]) -> DataLoader[Any]:
        """Notes and returns a loader that is there to evaluate."""
        self.checked.append(batches)
        return batches

    @property
    def wait_frac(self) -> float:
        """Returns the share of the time of training that it waits. The first step is left out: much
        else begins in it."""
        evaluated_until_s = [until_s for _, until_s in self.evaluations]
        wait_s = took_s = 0.0
        for before, step in itertools.pairwise(self.steps):
            # What the loop does between two epochs counts, an evaluation does not.
            evaluated_before = [s for s in evaluated_until_s if s < step.done_s]
            took_s += step.done_s - max([before.done_s, *evaluated_before])
            wait_s += step.wait_s
        return wait_s / took_s

    def truth(self) -> dict[str, Any]:
        """Returns what the core should say of the loop."""
        truth: dict[str, Any] = {
            "steps": len(self.steps),
            "wait_frac": self.wait_frac,
            "waits_s": [step.wait_s for step in self.steps],
            "evaluations": len(self.evaluations),
        }
        if self.epoch >= 0:
            truth["epochs"] = self.epoch + 1
        if self.evaluations:
            truth["evaluated_s"] = sum(until_s - since_s for since_s, until_s in self.evaluations)
        return truth


# the data


class Samples(Dataset[Any]):
    """Samples that take a while each."""

    def __init__(self, n: int, s: float) -> None:
        self.n = n
        self.s = s

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        if self.s:
            time.sleep(self.s)
        return torch.full((4,), float(index)), index % 3


class Named(Samples):
    """The same by name, as of a text."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return {"x": x, "y": y, "name": f"sample {index}"}


class Whole(Samples):
    """Batches as they are."""

    def __len__(self) -> int:
        return self.n // BATCH

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.s * BATCH)
        return torch.full((BATCH, 4), float(index)), torch.arange(BATCH)


class Annotated(Samples):
    """Samples with objects of Python, as annotations are."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x, y, [{"id": k, "box": [float(k), 2.0, 3.0, 4.0]} for k in range(20)]


class Read(Samples):
    """Samples that a thread of the data set's own reads."""

    reading: asyncio.AbstractEventLoop | None = None

    def __getitem__(self, index: int) -> Any:
        if self.reading is None:
            self.reading = asyncio.new_event_loop()
            threading.Thread(target=self.reading.run_forever, daemon=True).start()
        return asyncio.run_coroutine_threadsafe(self._read(index), self.reading).result()

    async def _read(self, index: int) -> Any:
        return super().__getitem__(index)


class Broken(Samples):
    """Samples of which some cannot be read."""

    def __getitem__(self, index: int) -> Any:
        if index % 6 == 5:
            raise OSError(index)
        return super().__getitem__(index)


class Inner(Samples):
    """Samples that a model of theirs is asked about, without gradients."""

    def __getitem__(self, index: int) -> Any:
        with torch.no_grad():
            torch.nn.Linear(4, 4)(torch.zeros(1, 4))
        return super().__getitem__(index)


class Stream(IterableDataset[Any]):
    """Samples one after another; each worker has a part of them, or (`whole`) all."""

    def __init__(self, n: int, s: float, *, whole: bool = False) -> None:
        self.n = n
        self.s = s
        self.whole = whole

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        first, every = 0, 1
        if worker is not None and not self.whole:
            first, every = worker.id, worker.num_workers
        for index in range(first, self.n, every):
            time.sleep(self.s)
            yield torch.full((4,), float(index)), index % 3


class SlowSampler:
    """Says which samples are in a batch, and takes a while for it."""

    def __init__(self, n: int, s: float) -> None:
        self.n = n
        self.s = s

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[list[int]]:
        for number in range(self.n):
            time.sleep(self.s)
            yield list(range(number * BATCH, (number + 1) * BATCH))


def annotated(samples: Sequence[Any]) -> Any:
    """Puts samples with annotations together."""
    images, labels, notes = zip(*samples, strict=True)
    return torch.stack(images), torch.tensor(labels), notes


def _options(loop: Loop) -> dict[str, Any]:
    return {"num_workers": loop.workers, **loop.options}


def _of(kind: type[Samples], loop: Loop, **more: Any) -> DataLoader[Any]:
    """Returns a loader of as many batches as the loop has in an epoch."""
    samples = kind(loop.n * BATCH, loop.wait_s / BATCH)
    return DataLoader(samples, **{"batch_size": BATCH, **_options(loop), **more})


def _sampled(loop: Loop, sampler: Callable[[Samples, int], Any]) -> DataLoader[Any]:
    """Returns a loader of a part of a larger set."""
    samples = Samples(8 * loop.n * BATCH, loop.wait_s / BATCH)
    return DataLoader(samples, BATCH, sampler=sampler(samples, loop.n * BATCH), **_options(loop))


def _streamed(loop: Loop, *, whole: bool) -> DataLoader[Any]:
    stream = Stream(loop.n * BATCH, loop.wait_s / BATCH, whole=whole)
    return DataLoader(stream, BATCH, **_options(loop))


def _by_batches(loop: Loop, sampler: Any) -> DataLoader[Any]:
    samples = Samples(loop.n * BATCH, loop.wait_s / BATCH)
    return DataLoader(samples, batch_sampler=sampler, **_options(loop))


def _odd(loop: Loop) -> DataLoader[Any]:
    samples = Samples(loop.n * BATCH + 1, loop.wait_s / BATCH)
    return DataLoader(samples, BATCH, **_options(loop))


def _joined(loop: Loop) -> DataLoader[Any]:
    samples = Samples(loop.n * BATCH, loop.wait_s / BATCH)
    parts = [Subset(samples, range(BATCH)), Subset(samples, range(BATCH, len(samples)))]
    return DataLoader(ConcatDataset(parts), BATCH, shuffle=True, **_options(loop))


LOADERS: dict[str, Callable[[Loop], DataLoader[Any]]] = {
    "samples": functools.partial(_of, Samples),
    "shuffled": functools.partial(_of, Samples, shuffle=True),
    "named": functools.partial(_of, Named),
    "whole": functools.partial(_of, Whole, batch_size=None),
    "one by one": functools.partial(_of, Samples, batch_size=1),
    "annotated": functools.partial(_of, Annotated, collate_fn=annotated),
    "lists": functools.partial(_of, Samples, collate_fn=list),
    "read by a thread": functools.partial(_of, Read),
    "broken": functools.partial(_of, Broken),
    "with a model": functools.partial(_of, Inner),
    "odd": _odd,
    "joined": _joined,
    "stream": functools.partial(_streamed, whole=False),
    "stream without parts": functools.partial(_streamed, whole=True),
    "subset": lambda loop: _sampled(loop, lambda _, n: SubsetRandomSampler(range(n))),
    "weighted": lambda loop: _sampled(
        loop, lambda samples, n: WeightedRandomSampler([1.0] * len(samples), n)
    ),
    "random": lambda loop: _sampled(
        loop, lambda samples, n: RandomSampler(samples, replacement=True, num_samples=n)
    ),
    "batch sampler": lambda loop: _by_batches(
        loop, BatchSampler(SequentialSampler(range(loop.n * BATCH)), BATCH, drop_last=False)
    ),
    "slow sampler": lambda loop: _by_batches(
        replace(loop, wait_s=0.0), SlowSampler(loop.n, loop.wait_s)
    ),
}
"""What people make loaders of."""


def loader_of(loop: Loop, **changed: Any) -> DataLoader[Any]:
    """Returns a loader of the loop, or of one like it with some things changed."""
    changed_loop = replace(loop, **changed)
    return LOADERS[changed_loop.data](changed_loop)


# what a loop has around its loader


def _one_ahead(batches: Iterable[Any], loop: Loop) -> Iterator[Any]:
    """Asks for the next batch before it gives the one before."""
    iterator = iter(batches)
    following = next(iterator, None)
    while following is not None:
        batch = following
        following = next(iterator, None)
        yield batch


def _by_a_thread(batches: Iterable[Any], loop: Loop) -> Iterator[Any]:
    """Has a thread fetch them into a queue, from now on."""
    filled: queue.Queue[Any] = queue.Queue(2)

    def fill() -> None:
        for batch in batches:
            filled.put(batch)
        filled.put(None)

    thread = threading.Thread(target=fill)
    thread.start()
    return _taken(filled, thread)


def _taken(filled: queue.Queue[Any], thread: threading.Thread) -> Iterator[Any]:
    while (batch := filled.get()) is not None:
        yield batch
    thread.join()


def _by_a_pool(batches: Iterable[Any], loop: Loop) -> Iterator[Any]:
    """Has the next one fetched by a pool of one thread."""
    iterator = iter(batches)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, iterator, None)
        while (batch := coming.result()) is not None:
            coming = pool.submit(next, iterator, None)
            yield batch


def _endlessly(batches: Iterable[Any], loop: Loop) -> Iterator[Any]:
    while True:
        yield from batches


def _begun_again(batches: Iterable[Any], loop: Loop) -> Iterator[Any]:
    """Begins again where there are no more, as loops do that count their steps."""
    iterator = iter(batches)
    while True:
        try:
            batch = next(iterator)
        except StopIteration:
            iterator = iter(batches)
            batch = next(iterator)
        yield batch


def _two_at_once(batches: Iterable[Any], loop: Loop) -> Iterator[Any]:
    iterator = iter(batches)
    for one in iterator:
        other = next(iterator)
        yield [torch.cat(parts) for parts in zip(one, other, strict=True)]


def _from_a_buffer(batches: Iterable[Any], loop: Loop) -> Iterator[Any]:
    """Keeps some batches, and gives one of these for each that comes."""
    kept: list[Any] = []
    choose = random.Random(0)
    for batch in batches:
        kept.append(batch)
        if len(kept) > 3:
            yield kept.pop(choose.randrange(len(kept)))
    yield from kept


def _zipped(batches: Iterable[Any], loop: Loop) -> Iterator[Any]:
    """With those of another loader, which is faster."""
    other = loader_of(loop, data="named", wait_s=loop.wait_s / 4)
    return (batch for batch, _ in zip(batches, other, strict=False))


def _zipped_with_fewer(batches: Iterable[Any], loop: Loop) -> Iterator[Any]:
    """With those of a loader that has fewer, again and again."""
    fewer = loader_of(loop, data="named", n=3)
    return (batch for batch, _ in zip(batches, _endlessly(fewer, loop), strict=False))


def _with_a_bar(batches: Iterable[Any], loop: Loop) -> Iterator[Any]:
    from tqdm import tqdm

    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        yield from tqdm(batches, file=nowhere)


AROUND: dict[str, Callable[[Any, Loop], Iterable[Any]]] = {
    "": lambda batches, loop: batches,
    "enumerate": lambda batches, loop: (batch for _, batch in enumerate(batches)),
    "tqdm": _with_a_bar,
    "islice": lambda batches, loop: itertools.islice(batches, loop.n - 2),
    "map": lambda batches, loop: map(list, batches),
    "chain": lambda batches, loop: itertools.chain(batches, loader_of(loop, data="named", n=4)),
    "cycle": lambda batches, loop: itertools.cycle(batches),
    "endless": _endlessly,
    "begun again": _begun_again,
    "one ahead": _one_ahead,
    "thread": _by_a_thread,
    "pool": _by_a_pool,
    "list": lambda batches, loop: list(batches),
    "two at once": _two_at_once,
    "buffer": _from_a_buffer,
    "zip": _zipped,
    "zip with fewer": _zipped_with_fewer,
}
"""What people have around a loader."""
HIDE_EPOCHS = ("chain", "cycle", "endless", "begun again", "thread", "pool")
"""With these the loop does not see where an iteration over its data ends, or somebody else iterates."""


def around(batches: Any, loop: Loop) -> Iterator[Any]:
    """Yields the batches that the loop gets. To begin is a part of the wait for the first one, but for a
    thread: that has begun before the loop asks."""
    if loop.around == "thread":
        return _by_a_thread(batches, loop)
    return _begun_when_asked(batches, loop)


def _begun_when_asked(batches: Any, loop: Loop) -> Iterator[Any]:
    yield from AROUND[loop.around](batches, loop)


# the work


class Model(torch.nn.Module):
    """A model whose forward pass takes a while."""

    def __init__(self, loop: Loop) -> None:
        super().__init__()
        torch.set_num_threads(1)
        self.linear = torch.nn.Linear(4, 3)
        self.s = loop.work_s

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.s)
        return self.linear(x)


Batch = tuple[Tensor, Tensor]
Update = Callable[[Tensor, Tensor], None]


def pair(batch: Any) -> Batch:
    """Returns images and labels of a batch of any form."""
    if isinstance(batch, dict):
        return batch["x"], batch["y"]
    if isinstance(batch[0], tuple):
        return torch.stack([x for x, _ in batch]), torch.tensor([y for _, y in batch])
    return batch[0], batch[1]


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.001)


def _usual(model: Model, loop: Loop) -> Update:
    optimizer = sgd(model)
    numbers = itertools.count(1)

    def update(x: Tensor, y: Tensor) -> None:
        (cross_entropy(model(x), y) / loop.every).backward()
        if next(numbers) % loop.every == 0:
            optimizer.step()
            optimizer.zero_grad()

    return update


def _read_loss(model: Model, loop: Loop) -> Update:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)

    def update(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        loss.item()

    return update


def _clipped(model: Model, loop: Loop) -> Update:
    optimizer = sgd(model)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4)

    def update(x: Tensor, y: Tensor) -> None:
        cross_entropy(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    return update


def _with_closure(model: Model, loop: Loop, optimizer: torch.optim.Optimizer) -> Update:
    def update(x: Tensor, y: Tensor) -> None:
        def loss_of() -> Tensor:
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            return loss

        optimizer.step(loss_of)  # type: ignore[arg-type]

    return update


def _closure(model: Model, loop: Loop) -> Update:
    return _with_closure(model, loop, sgd(model))


def _lbfgs(model: Model, loop: Loop) -> Update:
    return _with_closure(model, loop, torch.optim.LBFGS(model.parameters(), max_iter=3))


def _scaled(model: Model, loop: Loop) -> Update:
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)  # type: ignore[no-untyped-call]

    def update(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()

    return update


def _adversarial(model: Model, loop: Loop, *, critic_every: int = 1) -> Update:
    """Two models with an optimizer each: one makes, the other one judges."""
    maker = torch.nn.Linear(4, 4)
    of_judge, of_maker = sgd(model), sgd(maker)
    numbers = itertools.count(1)

    def update(x: Tensor, y: Tensor) -> None:
        of_judge.zero_grad()
        (cross_entropy(model(x), y) + model(maker(x).detach()).mean()).backward()
        of_judge.step()
        if next(numbers) % critic_every == 0:
            of_maker.zero_grad()
            model(maker(x)).mean().backward()
            of_maker.step()

    return update


def _compiled(model: Model, loop: Loop) -> Update:
    linear = torch.compile(model.linear, backend="eager")
    optimizer = sgd(model)

    def update(x: Tensor, y: Tensor) -> None:
        time.sleep(loop.work_s)
        cross_entropy(linear(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return update


def _by_hand(model: Model, loop: Loop) -> Update:
    """Without an optimizer."""

    def update(x: Tensor, y: Tensor) -> None:
        cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(0.001 * parameter.grad)
                parameter.grad = None

    return update


def _distilled(model: Model, loop: Loop) -> Update:
    """Asks a teacher first, without gradients."""
    teacher = Model(loop)
    optimizer = sgd(model)

    def update(x: Tensor, y: Tensor) -> None:
        with torch.no_grad():
            wanted = teacher(x)
        torch.nn.functional.mse_loss(model(x), wanted).backward()
        optimizer.step()
        optimizer.zero_grad()

    return update


def _checkpointed(model: Model, loop: Loop) -> Update:
    """Computes the forward pass again in the backward pass."""
    from torch.utils.checkpoint import checkpoint

    optimizer = sgd(model)

    def update(x: Tensor, y: Tensor) -> None:
        x.requires_grad_()
        cross_entropy(checkpoint(model, x, use_reentrant=False), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return update


def _twice(model: Model, loop: Loop) -> Update:
    once = _usual(model, loop)

    def update(x: Tensor, y: Tensor) -> None:
        once(x, y)
        once(x, y)

    return update


def _sharpness_aware(model: Model, loop: Loop) -> Update:
    """Steps up, and from there down."""
    up, down = torch.optim.SGD(model.parameters(), lr=0.01, maximize=True), sgd(model)

    def update(x: Tensor, y: Tensor) -> None:
        for optimizer in (up, down):
            cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()

    return update


def _in_hooks(model: Model, loop: Loop) -> Update:
    """Each parameter has an optimizer, which steps within the backward pass."""
    optimizers = {p: torch.optim.SGD([p], lr=0.001) for p in model.parameters()}

    def stepped(parameter: Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(stepped)

    def update(x: Tensor, y: Tensor) -> None:
        cross_entropy(model(x), y).backward()

    return update


def _two_losses(model: Model, loop: Loop) -> Update:
    """Differentiates one graph twice."""
    optimizer = sgd(model)

    def update(x: Tensor, y: Tensor) -> None:
        outputs = model(x)
        outputs.square().mean().backward(retain_graph=True)
        cross_entropy(outputs, y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return update


def _first_order(model: Model, loop: Loop) -> Update:
    """Asks for gradients by a function, and has an optimizer step on them."""
    optimizer = sgd(model)

    def update(x: Tensor, y: Tensor) -> None:
        parameters = list(model.parameters())
        for parameter, gradient in zip(
            parameters, torch.autograd.grad(cross_entropy(model(x), y), parameters), strict=True
        ):
            parameter.grad = gradient
        optimizer.step()

    return update


UPDATES: dict[str, Callable[[Model, Loop], Update]] = {
    "usual": _usual,
    "read loss": _read_loss,
    "clipped": _clipped,
    "closure": _closure,
    "lbfgs": _lbfgs,
    "scaled": _scaled,
    "adversarial": _adversarial,
    "adversarial, one more often": functools.partial(_adversarial, critic_every=2),
    "compiled": _compiled,
    "by hand": _by_hand,
    "distilled": _distilled,
    "checkpointed": _checkpointed,
    "twice": _twice,
    "sharpness aware": _sharpness_aware,
    "in hooks": _in_hooks,
    "two losses": _two_losses,
    "first order": _first_order,
}
"""How people train on a batch."""


# validation


def _without_gradients(
    mode: Callable[[], Any], model: Model, checks: Iterable[Any], loop: Loop
) -> None:
    with mode():
        for batch in checks:
            model(pair(batch)[0])


def _within(mode: Callable[[], Any], model: Model, checks: Iterable[Any], loop: Loop) -> None:
    """The model alone is asked without gradients, the loader with them."""
    for batch in checks:
        with mode():
            model(pair(batch)[0])


Check = Callable[[Model, Iterable[Any], Loop], None]
CHECKS: dict[str, Check] = {
    "no_grad": functools.partial(_without_gradients, torch.no_grad),
    "inference_mode": functools.partial(_without_gradients, torch.inference_mode),
    "within": functools.partial(_within, torch.no_grad),
    "gradients": functools.partial(_within, contextlib.nullcontext),
}
"""How people validate. `Loop.check` may say more after a comma: "itself", on the loader that trains;
"anew", on one that is made each time; "first", before the training, too."""


class Checking:
    """The validation of a loop."""

    def __init__(self, loop: Loop, model: Model, clock: Clock, batches: Any) -> None:
        """`batches`: the loader that trains."""
        self.loop = replace(loop, around="", most=0)
        self.model = model
        self.clock = clock
        self.how, _, on = loop.check.partition(", ")
        self.on = on
        self.batches = batches
        self.checks = self._made()

    def _made(self) -> Any:
        options = {k: v for k, v in self.loop.options.items() if k != "persistent_workers"}
        return self.clock.checks_on(loader_of(self.loop, n=4, data="samples", options=options))

    def run(self) -> None:
        """Validates once."""
        if not self.how:
            return
        with self.clock.evaluating():
            checks = self.checks
            if self.on == "itself":
                checks = self.batches
            elif self.on == "anew":
                checks = self._made()
            CHECKS[self.how](self.model, checks, self.loop)


# the loops


def usual(loop: Loop, clock: Clock) -> None:
    """Trains for some epochs, as most scripts do."""
    model = Model(loop)
    update = UPDATES[loop.update](model, loop)
    batches = loader_of(loop)
    checking = Checking(loop, model, clock, batches)
    if loop.check.endswith("first"):
        checking.run()
    for _ in range(loop.epochs):
        if loop.anew:
            batches = loader_of(loop)
        for number, batch in enumerate(clock.each(around(batches, loop)), 1):
            update(*pair(batch))
            if loop.check_every and number % loop.check_every == 0:
                clock.done()
                checking.run()
                clock.skip()
            if number == loop.most:
                break
        if not loop.check_every:
            checking.run()


def random_task(loop: Loop, clock: Clock) -> None:
    """Draws a task for each step, each with its loader."""
    model = Model(loop)
    update = UPDATES[loop.update](model, loop)
    waits_s = (loop.wait_s / 4, loop.wait_s, loop.wait_s / 2)
    iterators = [iter(loader_of(loop, n=loop.n * loop.epochs, wait_s=s)) for s in waits_s]
    choose = random.Random(1)
    for _ in range(loop.n * loop.epochs):
        batch = clock.next_of(choose.choices(iterators, (6, 2, 2))[0])
        update(*pair(batch))
        clock.done()


def federated(loop: Loop, clock: Clock) -> None:
    """Clients train in turn, each a copy of the model on its own loader."""
    common = Model(loop)
    loaders = [loader_of(loop, n=3, wait_s=loop.wait_s * k) for k in (1, 2, 3)]
    for _ in range(loop.epochs):
        copies = []
        for batches in loaders:
            model = copy.deepcopy(common)
            update = UPDATES[loop.update](model, loop)
            for batch in clock.each(batches):
                update(*pair(batch))
            copies.append(model.state_dict())
        mean = {key: sum(state[key] for state in copies) / len(copies) for key in copies[0]}
        common.load_state_dict(mean)


def tasks_in_sequence(loop: Loop, clock: Clock) -> None:
    """Learns tasks one after another; their loaders are made before."""
    model = Model(loop)
    update = UPDATES[loop.update](model, loop)
    for batches in [loader_of(loop, wait_s=loop.wait_s * k) for k in (1, 2, 3)]:
        for batch in clock.each(batches):
            update(*pair(batch))


def pretrained(loop: Loop, clock: Clock) -> None:
    """Trains one model, then another one on other data, with another optimizer."""
    for _ in range(2):
        usual(loop, clock)


def hard_mining(loop: Loop, clock: Clock) -> None:
    """Scores a batch without gradients, and trains on a part of it."""
    model = Model(loop)
    update = UPDATES[loop.update](model, loop)
    iterator = iter(loader_of(loop, n=loop.n * loop.epochs))
    for _ in range(loop.n * loop.epochs):
        with torch.no_grad():
            x, y = pair(clock.next_of(iterator))
            model(x)
        update(x[:1], y[:1])
        clock.done()


def iterator_each_step(loop: Loop, clock: Clock) -> None:
    """Takes the first batch of another loader in each step."""
    model = Model(loop)
    update = UPDATES[loop.update](model, loop)
    other = loader_of(loop, n=3)
    for batch in loader_of(replace(loop, workers=0), n=loop.n * loop.epochs, wait_s=0.0):
        pair(batch)
        clock.ask()
        another = next(iter(other))
        clock.got()
        update(*pair(another))
        clock.done()


def numbers_in_a_queue(loop: Loop, clock: Clock) -> None:
    """Counts its steps in a queue; its data are made in the loop."""
    model = Model(loop)
    update = UPDATES[loop.update](model, loop)
    numbers = torch.multiprocessing.get_context("fork").SimpleQueue()
    for step in range(loop.n * loop.epochs):
        numbers.put(step)
        numbers.get()
        update(torch.zeros(BATCH, 4), torch.zeros(BATCH, dtype=torch.long))
        clock.done()


def meta_learning(loop: Loop, clock: Clock) -> None:
    """Adapts a copy on a batch of one loader, and judges it on one of another."""
    model = Model(loop)
    optimizer = sgd(model)
    supports = iter(loader_of(loop, n=loop.n * loop.epochs))
    queries = iter(loader_of(loop, n=loop.n * loop.epochs, wait_s=loop.wait_s / 2))
    for _ in range(loop.n * loop.epochs):
        adapted = copy.deepcopy(model)
        inner = sgd(adapted)
        x, y = pair(clock.next_of(supports))
        for _ in range(2):
            cross_entropy(adapted(x), y).backward()
            inner.step()
            inner.zero_grad()
        x, y = pair(clock.next_of(queries))
        cross_entropy(adapted(x), y).backward()
        for mine, its in zip(model.parameters(), adapted.parameters(), strict=True):
            mine.grad = its.grad
        optimizer.step()
        clock.done()


def k_fold(loop: Loop, clock: Clock) -> None:
    """Trains a model for each fold, and validates it on the rest."""
    samples = Samples(loop.n * BATCH, loop.wait_s / BATCH)
    size = len(samples) // 2
    for fold in range(2):
        model = Model(loop)
        update = UPDATES[loop.update](model, loop)
        inside = range(fold * size, (fold + 1) * size)
        outside = [index for index in range(len(samples)) if index not in inside]
        batches = DataLoader(Subset(samples, outside), BATCH, shuffle=True, **_options(loop))
        checks = clock.checks_on(DataLoader(Subset(samples, inside), BATCH, **_options(loop)))
        for _ in range(loop.epochs):
            for batch in clock.each(batches):
                update(*pair(batch))
            with clock.evaluating():
                CHECKS["no_grad"](model, checks, loop)


def alternates(loop: Loop, clock: Clock) -> None:
    """Trains on two loaders in turn, a step on each."""
    model = Model(loop)
    update = UPDATES[loop.update](model, loop)
    slow, quick = loader_of(loop), loader_of(loop, wait_s=0.0)
    for _ in range(loop.epochs):
        iterators = [iter(slow), iter(quick)]
        for number in range(2 * loop.n):
            update(*pair(clock.next_of(iterators[number % 2])))
            clock.done()


def catches_errors_of_data(loop: Loop, clock: Clock) -> None:
    """Goes on with the next batch where one cannot be made."""
    model = Model(loop)
    update = UPDATES[loop.update](model, loop)
    for _ in range(loop.epochs):
        iterator = iter(loader_of(loop, data="broken"))
        for _ in range(loop.n):
            try:
                batch = clock.next_of(iterator)
            except OSError:
                continue
            update(*pair(batch))
            clock.done()


def catches_errors_of_work(loop: Loop, clock: Clock) -> None:
    """Leaves a batch out where the work on it fails, as for want of memory."""
    model = Model(loop)
    update = UPDATES[loop.update](model, loop)
    for _ in range(loop.epochs):
        for number, batch in enumerate(clock.each(loader_of(loop)), 1):
            x, y = pair(batch)
            try:
                update(x[:, :3] if number % 3 == 1 else x, y)
            except RuntimeError:
                clock.skip()


def skips_batches(loop: Loop, clock: Clock) -> None:
    """Does not train on every third batch."""
    model = Model(loop)
    update = UPDATES[loop.update](model, loop)
    for _ in range(loop.epochs):
        for number, batch in enumerate(clock.each(loader_of(loop)), 1):
            if number % 3 == 1:
                clock.skip()
                continue
            update(*pair(batch))


def stops_with_patience(loop: Loop, clock: Clock) -> None:
    """Validates within the epoch, and leaves all loops where that is no better."""
    model = Model(loop)
    update = UPDATES[loop.update](model, loop)
    batches, checks = loader_of(loop), clock.checks_on(loader_of(loop, n=3))
    for _ in range(loop.epochs):
        for number, batch in enumerate(clock.each(batches), 1):
            update(*pair(batch))
            if number % 4 == 0:
                clock.done()
                with clock.evaluating():
                    CHECKS["within"](model, checks, loop)
                clock.skip()
                if len(clock.evaluations) == 3:
                    return


def first_nothing(loop: Loop, clock: Clock) -> None:
    """An epoch without a batch, then some with batches."""
    model = Model(loop)
    update = UPDATES[loop.update](model, loop)
    for n in (0, *[loop.n] * loop.epochs):
        for batch in clock.each(loader_of(loop, n=n)):
            update(*pair(batch))


def curriculum(loop: Loop, clock: Clock) -> None:
    """Larger batches in each epoch."""
    model = Model(loop)
    update = UPDATES[loop.update](model, loop)
    for size in (1, 2, 4):
        samples = Samples(loop.n * size, loop.wait_s / size)
        for batch in clock.each(DataLoader(samples, size, **_options(loop))):
            update(*pair(batch))


def looks_first(loop: Loop, clock: Clock) -> None:
    """Looks at a batch and at all of the data before it trains on the same loader."""
    batches = loader_of(loop)
    next(iter(batches))
    with clock.evaluating():
        sum(float(pair(batch)[0].mean()) for batch in batches)
    model = Model(loop)
    update = UPDATES[loop.update](model, loop)
    for _ in range(loop.epochs):
        for batch in clock.each(batches):
            update(*pair(batch))


def learning_rates(loop: Loop, clock: Clock) -> None:
    """Tries learning rates on some batches, then trains a new model on the same loader."""
    batches = loader_of(loop)
    for most in (loop.n // 2, loop.n):
        model = Model(loop)
        update = UPDATES[loop.update](model, loop)
        for number, batch in enumerate(clock.each(batches), 1):
            update(*pair(batch))
            if number == most:
                break


def statistics_last(loop: Loop, clock: Clock) -> None:
    """Goes through its data once more without a loss at the end, for the statistics of a layer."""
    usual(loop, clock)
    model = Model(loop)
    with clock.evaluating():
        CHECKS["no_grad"](model, clock.checks_on(loader_of(loop)), loop)


def own_labels(loop: Loop, clock: Clock) -> None:
    """Labels other data itself between epochs, and trains on them, too."""
    model = Model(loop)
    update = UPDATES[loop.update](model, loop)
    batches, unlabelled = loader_of(loop), loader_of(loop, n=4)
    for _ in range(loop.epochs):
        for batch in clock.each(batches):
            update(*pair(batch))
        with clock.evaluating():
            CHECKS["no_grad"](model, unlabelled, loop)
        for batch in clock.each(unlabelled):
            update(*pair(batch))


def writes_between(loop: Loop, clock: Clock) -> None:
    """Takes its time between epochs, as to save a model."""
    model = Model(loop)
    update = UPDATES[loop.update](model, loop)
    batches = loader_of(loop)
    for _ in range(loop.epochs):
        for batch in clock.each(batches):
            update(*pair(batch))
        time.sleep(10 * loop.work_s)


def in_another_thread(loop: Loop, clock: Clock) -> None:
    """Trains in a thread, as a page does that stays alive."""
    thread = threading.Thread(target=usual, args=(loop, clock))
    thread.start()
    thread.join()


SHAPES: dict[str, Callable[[Loop, Clock], None]] = {
    "usual": usual,
    "random task": random_task,
    "federated": federated,
    "tasks in sequence": tasks_in_sequence,
    "pretrained": pretrained,
    "hard mining": hard_mining,
    "iterator each step": iterator_each_step,
    "numbers in a queue": numbers_in_a_queue,
    "meta learning": meta_learning,
    "k-fold": k_fold,
    "alternates": alternates,
    "catches errors of data": catches_errors_of_data,
    "catches errors of work": catches_errors_of_work,
    "skips batches": skips_batches,
    "stops with patience": stops_with_patience,
    "first nothing": first_nothing,
    "curriculum": curriculum,
    "looks first": looks_first,
    "learning rates": learning_rates,
    "statistics last": statistics_last,
    "own labels": own_labels,
    "writes between": writes_between,
    "in another thread": in_another_thread,
}
"""Loops that are written in another way than most."""


def trained(loop: Loop) -> Clock:
    """Trains; returns what the loop's own clock says."""
    torch.manual_seed(0)
    clock = Clock()
    SHAPES[loop.shape](loop, clock)
    if loop.around in HIDE_EPOCHS:
        clock.epoch = -1
    return clock
