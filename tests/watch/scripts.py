"""Training scripts as people write them: nothing in them knows of vitprof. Stalls are of known length."""

import collections
import concurrent.futures
import itertools
import json
import math
import multiprocessing
import os
import queue
import sys
import threading
import time
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from vitprof.watch import fetch_times, sample_times
from vitprof.watch.patches import CURRENT

READ_S, TRANSFORM_S, COLLATE_S, BODY_S, CHECK_S = 0.004, 0.002, 0.003, 0.004, 0.03
N_SAMPLES, BATCH = 16, 2


SPENT: dict[str, list[float]] = {
    "read_s": [],
    "transform_s": [],
    "collate_s": [],
    "compose_s": [],
    "collated_s": [],
}
"""How long each stall really took, in this process: a busy machine sleeps for longer. And each call of the
Compose, and of the collate function."""


def stall(stage: str, seconds: float) -> None:
    began = time.perf_counter()
    time.sleep(seconds)
    SPENT[stage].append(time.perf_counter() - began)


class Transform:
    def __call__(self, value: Tensor) -> Tensor:
        stall("transform_s", TRANSFORM_S)
        return value * 2


class Samples(Dataset[Any]):
    def __init__(self) -> None:
        from torchvision.transforms import Compose

        self.transform = Compose([Transform(), Compose([torch.nn.Identity()])])

    def __len__(self) -> int:
        return N_SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        stall("read_s", READ_S)
        began = time.perf_counter()
        image = self.transform(torch.full((4,), float(index)))
        SPENT["compose_s"].append(time.perf_counter() - began)
        return image, index % 3


def collate(samples: Sequence[tuple[Tensor, int]]) -> dict[str, Any]:
    began = time.perf_counter()
    stall("collate_s", COLLATE_S)
    images, labels = zip(*samples, strict=True)
    batch = {"names": ["x"] * len(samples), "x": torch.stack(images), "y": torch.tensor(labels)}
    SPENT["collated_s"].append(time.perf_counter() - began)
    return batch


def linear(
    inputs: int = 4, outputs: int = 3, lr: float = 0.001
) -> tuple[Any, torch.optim.Optimizer]:
    """A model with the same weights each time, and what trains it."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Linear(inputs, outputs)
    return model, torch.optim.SGD(model.parameters(), lr=lr)


def fit(batches: Iterable[Any], inputs: int = 4) -> list[str]:
    """Trains a model on each batch; the losses, exact to the bit."""
    model, optimizer = linear(inputs)
    losses = []
    for (x,) in batches:
        loss = model(x).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    return losses


def train(
    *,
    workers: int = 0,
    start_method: str | None = None,
    epochs: int = 2,
    samples: str = "Samples",
    given: Callable[[Any], Any] = lambda x: x,
) -> list[str]:
    """Trains, and checks once an epoch, on what it is `given` for its loaders; the losses, exact to the bit."""
    model, optimizer = linear()
    options: dict[str, Any] = (
        {"num_workers": workers, "multiprocessing_context": start_method} if workers else {}
    )
    batches = given(
        DataLoader(
            globals()[samples](), batch_size=BATCH, shuffle=True, collate_fn=collate, **options
        )
    )
    checks = given(DataLoader(Samples(), batch_size=BATCH, collate_fn=collate))
    losses = []
    for _ in range(epochs):
        for batch in batches:
            time.sleep(BODY_S)
            loss = torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item().hex())
        with torch.no_grad():
            for batch in checks:
                model(batch["x"])
                time.sleep(CHECK_S)
                break
    return losses


def leaves(*, how: str, steps: int) -> list[float]:
    """Trains for some steps of a loader that has more; for each step when it asked, had the batch, and had stepped."""
    model, optimizer = linear()
    batches, times = DataLoader(Samples(), batch_size=1, collate_fn=collate), list[float]()
    iterator = iter(batches)
    asked = time.perf_counter()
    for n, batch in enumerate(iterator, 1):
        got = time.perf_counter()
        time.sleep(BODY_S)
        for _ in range(30 if how == "overfitted" else 1):
            torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"]).backward()
            optimizer.step()
        times += [asked, got, time.perf_counter()]
        asked = time.perf_counter()
        if n == steps and how == "error":
            raise SystemExit(3)
        if n == steps and how == "os._exit":
            os._exit(0)
        if n == steps:
            break
    if how == "freed":
        del iterator
    time.sleep(10 * BODY_S)
    return times


def jobs_of_hydra() -> None:
    """Two jobs in one process, as with `--multirun`, each with its own loader."""
    for number in range(2):
        job = types.SimpleNamespace(job=types.SimpleNamespace(num=number))
        config = types.SimpleNamespace(HydraConfig=types.SimpleNamespace(get=lambda job=job: job))
        sys.modules["hydra.core.hydra_config"] = config  # type: ignore[assignment]
        train(epochs=2)


def on_another_device() -> None:
    """Trains on a device that is neither a CPU nor a GPU of NVIDIA's."""
    model = linear()[0].to("meta")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        for batch in DataLoader(Samples(), batch_size=BATCH, collate_fn=collate):
            time.sleep(BODY_S)
            model(batch["x"].to("meta")).sum().backward()
            optimizer.step()


def by_own_clock(*, epochs: int, in_place: bool = False) -> str:
    """Trains, and times its own steps: whether it has had the batch before, and seconds."""
    model, optimizer = linear()
    number = itertools.count()
    told, had = [], set()

    def numbered(samples: Sequence[tuple[Tensor, int]]) -> dict[str, Any]:
        return {**collate(samples), "number": next(number)}

    for _ in range(epochs):
        asked = time.perf_counter()
        for batch in DataLoader(Samples(), batch_size=BATCH, collate_fn=numbered):
            time.sleep(BODY_S)
            if in_place:
                batch["x"].mul_(0.5)
            torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"]).backward()
            optimizer.step()
            now = time.perf_counter()
            told.append((batch["number"] in had, now - asked))
            had.add(batch["number"])
            asked = now
    return json.dumps(told)


class Slow(Dataset[Any]):
    """Samples that take `s` seconds each."""

    def __init__(self, s: float) -> None:
        self.s = s

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.s)
        return (torch.zeros(4),)


class Quick(Slow):
    """Another class of samples."""


def several_loaders(
    *, order: str, apart: bool = False, check: bool = False, quiet: bool = False
) -> list[list[float]]:
    """Trains on batches of several loaders in each step, "s" of `Slow` and "q" of `Quick` samples, with one backward
    pass for all or (`apart`) for each; with `check`, validates after each epoch with gradients on. Returns for each
    step of the first epoch when it began, and for how long it waited. `quiet`: later ones are asked without gradients.
    """
    model, optimizer = linear()
    kinds = {"s": Slow(0.004), "q": Quick(0.0)}
    loaders = [DataLoader(kinds[kind], batch_size=BATCH) for kind in order]
    times = list[list[float]]()
    for _ in range(2):
        iterators = [iter(loader) for loader in loaders]
        for _ in range(len(loaders[0])):
            times.append([time.perf_counter(), 0.0])
            losses = []
            for iterator in iterators:
                asked = time.perf_counter()
                with torch.set_grad_enabled(not (quiet and iterator is not iterators[0])):
                    (x,) = next(iterator)
                times[-1][1] += time.perf_counter() - asked
                time.sleep(BODY_S / len(iterators))
                losses.append(model(x).mean())
                if apart:
                    losses[-1].backward()
            if not apart:
                sum(losses).backward()
            optimizer.step()
        if check:
            for (x,) in DataLoader(Slow(0.0), batch_size=BATCH):
                model(x)
    return times[: len(loaders[0])]


def differentiates_in_checks(
    *, accumulate: int = 1, every: int = 0, anew: bool = False
) -> list[float]:
    """Trains, and checks with backward passes and no step of the optimizer `every` so many batches, or after each
    epoch; `anew`: each with another loader. Returns the seconds that it waits for batches to train on, and checks."""
    model, optimizer = linear()
    batches: Any = DataLoader(Quick(0.0), batch_size=BATCH)
    checks = DataLoader(Slow(0.002), batch_size=16)
    waited_s, checked_s = 0.0, 0.0

    def check() -> float:
        since_s = time.perf_counter()
        for (x,) in checks:
            model(x.requires_grad_()).mean().backward()
        return time.perf_counter() - since_s

    for _ in range(2):
        asked = time.perf_counter()
        for n, (x,) in enumerate(DataLoader(Quick(0.0), batch_size=BATCH) if anew else batches, 1):
            waited_s += time.perf_counter() - asked
            model(x).mean().backward()
            if n % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
            if every and n % every == 0:
                checked_s += check()
            asked = time.perf_counter()
        waited_s += time.perf_counter() - asked
        checked_s += 0.0 if every else check()
    next(iter(batches))
    return [waited_s, checked_s]


def goes_on_without_loader(*, how: str) -> None:
    """Trains on batches of a loader, then on those that it has kept; "inner": several steps on each batch."""
    model, optimizer = linear()

    def step(x: Tensor) -> None:
        model(x).mean().backward()
        optimizer.step()

    kept = []
    for (x,) in DataLoader(Quick(0.0), batch_size=BATCH):
        kept.append(x)
        for _ in range(5 if how == "inner" else 1):
            step(x)
        if how == "break" and len(kept) == 16:
            break
    if how == "checks":
        with torch.no_grad():
            list(DataLoader(Quick(0.0), batch_size=BATCH))
    for x in kept[:4] if how == "inner" else 2 * kept:
        step(x)


class Learning(Slow):
    """Samples that a model of theirs trains on, wherever they are made."""

    def __getitem__(self, index: int) -> Any:
        fit([(torch.ones(1, 4),)] * 4)
        return super().__getitem__(index)


def trains_in_a_fork(*, how: str) -> None:
    """Trains in a child of this process; "worker": in this one, on samples of a worker that trains, too."""

    def train_there() -> None:
        dataset = Learning(0.0) if how == "worker" else Quick(0.0)
        fit(DataLoader(dataset, batch_size=BATCH, num_workers=how == "worker"))

    next(iter(DataLoader(Quick(0.0), batch_size=BATCH)))
    if how == "worker":
        train_there()
    elif how == "process":
        process = multiprocessing.get_context("fork").Process(target=train_there)
        process.start()
        process.join()
    elif (pid := os.fork()) == 0:
        train_there()
        os._exit(0)
    else:
        os.waitpid(pid, 0)


def trains_on_in_a_fork() -> None:
    """Trains in this process, and then in a child of it."""
    loader = DataLoader(Quick(0.0), batch_size=BATCH)
    fit(loader)
    if (pid := os.fork()) == 0:
        fit(loader)
        os._exit(0)
    os.waitpid(pid, 0)


def iterates_anew_for_each_batch() -> float:
    """Trains on the first batch of an iteration with a worker, each time; returns how long it waited past step 5."""
    (model, optimizer), waited_s = linear(), 0.0
    loader = DataLoader(Quick(0.0), batch_size=BATCH, num_workers=1)
    for step in range(16):
        asked = time.perf_counter()
        (x,) = next(iter(loader))
        waited_s += (time.perf_counter() - asked) * (step >= 5)
        model(x).mean().backward()
        optimizer.step()
    next(iter(loader))
    return waited_s


def in_two_threads(*, shared: bool = False) -> None:
    """Trains in two threads, step by step in turns, each with a model and a loader (`shared`: one) of its own."""
    both, one = threading.Barrier(2), DataLoader(Quick(0.0), batch_size=BATCH)

    def train_one() -> None:
        model, optimizer = linear()
        for (x,) in one if shared else DataLoader(Quick(0.0), batch_size=BATCH):
            both.wait()
            model(x).mean().backward()
            optimizer.step()

    threads = [threading.Thread(target=train_one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


STEPS_ELSEWHERE = 60


def _made(*, arrays: bool = False) -> Any:
    for number in range(STEPS_ELSEWHERE):
        time.sleep(4 * BODY_S)
        yield number, {"x": np.zeros((BATCH, 4), np.float32) if arrays else torch.zeros(BATCH, 4)}


def _queued(batches: Iterable[Any], *, polled: bool = False) -> Iterator[Any]:
    filled: queue.Queue[Any] = queue.Queue(1)

    def fill() -> None:
        for batch in batches:
            filled.put(batch)
        filled.put(None)

    thread = threading.Thread(target=fill)
    thread.start()
    while thread.is_alive() or filled.qsize():
        try:
            batch = filled.get(block=not polled)
        except queue.Empty:
            time.sleep(0.001)
            continue
        if batch is not None:
            yield batch
    thread.join()


def _promised(batches: Iterable[Any]) -> Iterator[Any]:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        batches = iter(batches)
        coming = pool.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = pool.submit(next, batches, None)
            yield batch


def _appended(batches: Iterable[Any]) -> Iterator[Any]:
    ready: collections.deque[Any] = collections.deque()
    thread = threading.Thread(target=lambda: [ready.append(batch) for batch in batches])
    thread.start()
    while thread.is_alive() or ready:
        if ready:
            yield ready.popleft()
        else:
            time.sleep(0.0005)
    thread.join()


def _slowly(batch: Any) -> Any:
    time.sleep(BODY_S)
    return [batch[0] + 1]


class Endless(IterableDataset[Any]):
    """Samples without end that take 2 ms each."""

    def __iter__(self) -> Iterator[Any]:
        while True:
            time.sleep(0.002)
            yield (torch.zeros(4),)


def _from_nodes() -> Iterator[Any]:
    from torchdata import nodes

    return iter(
        nodes.Loader(nodes.Mapper(nodes.IterableWrapper(_made()), lambda batch: batch[1]["x"]))
    )


def _from_webloader() -> Iterator[Any]:
    """Of batches of three samples it makes some of two, from a buffer that it has filled first."""
    import webdataset

    loader = webdataset.WebLoader(Endless(), batch_size=3, num_workers=0)
    return itertools.islice(loader.unbatched().shuffle(20).batched(BATCH), STEPS_ELSEWHERE)


def _without_gradients(loader: Iterable[Any]) -> Iterator[Any]:
    iterator, batch = iter(loader), None
    while True:
        with torch.no_grad():
            batch = next(iterator, None)
        if batch is None:
            return
        yield batch


def batches_from_elsewhere(*, how: str) -> list[list[float]]:
    """Trains on batches that reach the loop in one of several ways; when it asked for each, and when it got it."""

    class Samples(Slow):
        def __len__(self) -> int:
            return STEPS_ELSEWHERE * BATCH

    loader = DataLoader(Samples(2 * BODY_S), batch_size=BATCH)
    batches = {
        "queue": lambda: _queued(loader),
        "polled": lambda: _queued(loader, polled=True),
        "renewed": lambda: _queued({"x": batch[0] + 1} for batch in loader),
        "future": lambda: _promised(loader),
        "deque": lambda: _appended(loader),
        "queue without loader": lambda: _queued(_made(arrays=True)),
        "function, with checks": _made,
        "stepped in a thread": lambda: loader,
        "no_grad": lambda: _without_gradients(loader),
        "in the loop": lambda: loader,
        "in parts": lambda: loader,
        "generator": lambda: (_slowly(batch) for batch in loader),
        "late": lambda: (
            _slowly(batch) if i > STEPS_ELSEWHERE // 8 else batch for i, batch in enumerate(loader)
        ),
        "nodes": _from_nodes,
        "webloader": _from_webloader,
    }[how]()
    batches, checks = iter(batches), iter(DataLoader(Samples(0.0), batch_size=BATCH))
    model, optimizer = linear()
    waits: list[tuple[float, float]] = []
    while True:
        asked = time.perf_counter()
        batch = next(batches, None)
        if how == "in the loop" and batch is not None:
            _slowly(batch)
        waits.append((asked, time.perf_counter()))
        if batch is None:
            break
        while not isinstance(batch, (Tensor, np.ndarray)):
            batch = batch["x"] if isinstance(batch, dict) else batch[-1]
        if how == "in parts":
            for _ in range(2):
                model(batch).mean().backward()
                optimizer.step()
                asked = time.perf_counter()
                _slowly(batch)
                waits[-1] = (waits[-1][0], waits[-1][1] + time.perf_counter() - asked)
        loss = model(torch.as_tensor(batch)).mean()
        time.sleep(BODY_S)
        loss.backward()
        if how == "stepped in a thread":  # as a hook of a gradient is called by autograd's
            thread = threading.Thread(target=optimizer.step)
            thread.start()
            thread.join()
            continue
        optimizer.step()
        if how == "function, with checks":
            with torch.no_grad():
                model(next(checks)[0])
    return [list(wait) for wait in waits[:-1]]


class Ending(torch.utils.data.IterableDataset[Any]):
    """Takes a moment to end, as workers do."""

    def __iter__(self) -> Any:
        yield from (torch.full((4,), float(i)) for i in range(12 * BATCH))
        stall("read_s", CHECK_S)


class Opening(DataLoader[Any]):
    """Takes a moment to begin."""

    def __iter__(self) -> Any:
        stall("collate_s", CHECK_S)
        return super().__iter__()


class Generating(Opening):
    """The same, in a generator."""

    def __iter__(self) -> Any:
        yield from super().__iter__()


def epoch_starts(*, kind: str) -> list[float]:
    """Trains for three epochs, those of "new" loaders each; how long each but the first was waited for, with the end of
    the one before."""
    model, optimizer = linear()

    def made() -> Any:
        of = globals()[kind.removeprefix("2x").removeprefix("new ")]
        return [of(Ending(), BATCH) for _ in range(1 + kind.startswith("2x"))]

    loaders = made()
    waits, now = [], time.perf_counter()
    for _ in range(3):
        first, loaders = True, made() if kind.startswith("new") else loaders
        for x, *_ in zip(*loaders, strict=False):
            if first:
                waits.append(time.perf_counter() - now)
                first = False
            model(x).sum().backward()
            optimizer.step()
            now = time.perf_counter()
    return waits[1:]


def evaluate() -> int:
    """Trains nothing."""
    return sum(len(x) for (x,) in DataLoader(TensorDataset(torch.zeros(8, 1)), batch_size=2))


def check_first() -> None:
    """Looks through another loader before it trains, with gradients on."""
    model, optimizer = linear(1, 1, lr=0.1)
    for (x,) in DataLoader(TensorDataset(torch.zeros(6, 1)), batch_size=3):
        model(x)
    for _ in range(2):
        for (x,) in DataLoader(
            TensorDataset(torch.zeros(8, 1)), batch_size=2
        ):  # another one each time
            model(x).sum().backward()
            optimizer.step()


class Augmented(Samples):
    """Two transforms of one class and a function, by torchvision's second kind of Compose."""

    def __init__(self) -> None:
        from torchvision.transforms import v2

        self.transform = v2.Compose([Transform(), torch.neg, Transform()])

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(torch.full((4,), float(index))), 0


class Nested(torch.utils.data.IterableDataset[Any]):
    """Reads another loader's batches, which it begins with `iter(self)`: in the loop's process or in a worker."""

    def __iter__(self) -> Any:
        return iter(DataLoader(TensorDataset(torch.arange(8.0).view(8, 1)), batch_size=1))


class NestedInSamples(Dataset[Any]):
    """Reads another loader's batches for each sample."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        inner = DataLoader(TensorDataset(torch.arange(4.0).view(4, 1)), batch_size=2)
        return (torch.cat([x for (x,) in inner]).sum(0) + index,)


def nested_in_samples() -> int:
    """Trains on samples that another loader gives; the number of batches."""
    return len(fit(DataLoader(NestedInSamples(), batch_size=2), inputs=1))


def nested(*, workers: int) -> list[str]:
    """Trains on what another loader gives."""
    loader = DataLoader(
        Nested(), batch_size=1, num_workers=workers, collate_fn=lambda samples: samples[0]
    )
    return fit(loader, inputs=1)


def scaled() -> list[str]:
    """Trains in mixed precision: its losses are scaled before they are differentiated."""
    model, optimizer = linear(1, 1, lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)  # type: ignore[no-untyped-call]
    losses = []
    for (x,) in DataLoader(TensorDataset(torch.arange(8.0).view(8, 1)), batch_size=2):
        with torch.autocast("cpu"):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item().hex())
    return losses


def compiled() -> str:
    """Trains a step that dynamo has traced."""

    @torch.compile(backend="eager", fullgraph=True)
    def forward(x: Tensor) -> Tensor:
        return model(x.to(torch.float32)).sum()

    model, optimizer = linear(1, 1, lr=0.1)
    for (x,) in DataLoader(TensorDataset(torch.arange(8.0).view(8, 1)), batch_size=2):
        forward(x).backward()
        optimizer.step()
    return "ok"


def count_work(*, batch: int) -> list[float]:
    """Trains, and counts for each step the calls of functions of vitprof, and the clock readings in them."""
    from torchvision.transforms import Compose

    # On a busy machine slow samples would be timed one by one, and the CPU time of other threads looked at.
    sample_times.LEAST_SAMPLE_S = math.inf
    fetch_times.OTHERS_S = math.inf

    class Plain(Dataset[Any]):
        transform = Compose([torch.nn.Identity()])

        def __len__(self) -> int:
            return batch * 30

        def __getitem__(self, index: int) -> Tensor:
            return self.transform(torch.zeros(1))

    counts = {"call": 0, "c_call": 0}

    def note(frame: FrameType, event: str, called: Any) -> None:
        if event in counts and f"{os.sep}vitprof{os.sep}" in frame.f_code.co_filename:
            counts[event] += event == "call" or called is time.perf_counter

    model, optimizer = linear(1, 1, lr=0.1)
    for i, x in enumerate(DataLoader(Plain(), batch_size=batch)):
        if i == 1 and CURRENT.recorder is not None and CURRENT.recorder.sampler is not None:
            CURRENT.recorder.sampler.remove()  # steps chosen at random are not counted
        if i == 10:
            sys.setprofile(note)
        if i == 20:
            sys.setprofile(None)
        model(x).sum().backward()
        optimizer.step()
    return [count / 10 for count in counts.values()]


def fail() -> None:
    """Ends with a status of its own because of an error in its collate function."""

    def divide(samples: Any) -> float:
        return len(samples) / 0

    try:
        list(DataLoader(TensorDataset(torch.zeros(8, 1)), batch_size=2, collate_fn=divide))
    except ZeroDivisionError as error:
        raise SystemExit(5) from error


if __name__ == "__main__":
    sys.stdout.write(" ".join(train(epochs=int(sys.argv[1]))) + "\n")
    sys.stdout.write(
        " ".join(sorted({"streamlit", "sqlalchemy", "pandas", "plotly"} & set(sys.modules))) + "\n"
    )
    sys.exit(int(sys.argv[2]))
