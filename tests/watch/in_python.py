"""Training scripts whose loader is given to `vitprof.watch`. Stalls are those of `tests.watch.scripts`."""

import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset, dataloader
from torch.utils.data._utils import worker

import vitprof
from tests.watch.scripts import (
    BATCH,
    BODY_S,
    CHECK_S,
    N_SAMPLES,
    READ_S,
    Samples,
    collate,
    linear,
    stall,
    train,
)
from vitprof.watch import transport
from vitprof.watch.callbacks import FrameworkRun
from vitprof.watch.connection import Connection, connected_to
from vitprof.watch.install import install
from vitprof.watch.patches import watching
from vitprof.watch.patches.making import time_fetching
from vitprof.watch.patching import DATALOADER

N_BATCHES = N_SAMPLES // BATCH
OUTSIDE_S = 0.003
LIMIT_S = 60.0
"""For what takes long on a busy machine."""


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    for i in range(N_BATCHES):
        stall("read_s", READ_S)
        yield torch.full((BATCH, 4), float(i)), torch.arange(BATCH)


class Iterable:
    """Such as people write: neither a length nor anything of PyTorch's."""

    def __iter__(self) -> Iterator[Any]:
        return batches()


class OwnIterator:
    """Its own iterator, which begins anew where it has ended, as those of DALI are."""

    def __init__(self) -> None:
        self._left = iter(())

    def __iter__(self) -> Iterator[Any]:
        self._left = batches()
        return self

    def __next__(self) -> Any:
        return next(self._left)


class Model:
    def __init__(self) -> None:
        self.model, self.optimizer = linear()
        self.losses: list[str] = []

    def train(self, x: Tensor, y: Tensor) -> None:
        time.sleep(BODY_S)
        loss = cross_entropy(self.model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss.item().hex())


def any_kind(*, kind: str) -> str:
    """Computes without PyTorch's gradients or an optimizer."""
    import webdataset

    loader: Any = {
        "list": lambda: list(batches()),
        "generator": batches,
        "iterable": Iterable,
        "own iterator": OwnIterator,
        "webdataset": lambda: webdataset.DataPipeline(batches, webdataset.map(lambda batch: batch)),
    }[kind]()
    seen = 0
    watched = vitprof.watch(loader, name=kind)
    for _ in range(1 if kind == "generator" else 2):
        for x, _y in watched:
            time.sleep(BODY_S)
            seen += len(x)
    return str(seen)


def torch_loader(*, watch: bool = True, **how: Any) -> str:
    """The losses of `scripts.train`, which watches both of its loaders."""
    losses = train(**how, given=vitprof.watch if watch else lambda loader: loader)
    foreign = sorted({"streamlit", "sqlalchemy", "pandas", "plotly"} & set(sys.modules))
    return json.dumps({"losses": losses, "foreign": foreign})


def no_optimizer() -> None:
    """A loader beside the one that trains, which no optimizer tells of."""
    other = DataLoader(TensorDataset(torch.zeros(6, 1)), batch_size=3)
    for batch in other:
        len(batch)
    for _ in vitprof.watch(DataLoader(TensorDataset(torch.zeros(8, 1)), batch_size=2)):
        next(iter(other))


def by_a_framework(*, workers: int) -> str:
    """Trains with a framework that has the loop, and calls `run`: all that its support takes."""
    model, run = Model(), FrameworkRun("toy")
    loader = DataLoader(Samples(), batch_size=BATCH, num_workers=workers, collate_fn=collate)
    run.begin(loader)
    for _ in range(2):
        for batch in loader:
            time.sleep(OUTSIDE_S)
            run.enter_step()
            model.train(batch["x"], batch["y"])
            run.leave_step()
    run.end()
    return " ".join(model.losses)


def says_its_steps(*, how: str) -> None:
    model = Model()
    watched = vitprof.watch(Iterable())
    decorated = vitprof.step(model.train)
    for _ in range(2):
        if how == "inside":
            it = iter(watched)
            for _ in range(N_BATCHES):
                with vitprof.step():
                    model.train(*next(it))
                time.sleep(OUTSIDE_S)
            continue
        for i, (x, y) in enumerate(watched):
            if how == "skips" and i % 2:  # what was waited for belongs to the step after it
                continue
            time.sleep(OUTSIDE_S)
            if how == "decorator":
                decorated(x, y)
            elif how == "two":
                with vitprof.step():
                    model.model(x)
                with vitprof.step(), vitprof.step():
                    model.train(x, y)
            else:
                with vitprof.step():
                    model.train(x, y)
            time.sleep(OUTSIDE_S)


def example(*, source: str) -> str:
    """Runs an example of the documents. Returns how many steps it took."""
    model, steps = Model(), list[None]()
    model.optimizer.register_step_post_hook(lambda *_: steps.append(None))
    names = {
        "loader": DataLoader(TensorDataset(torch.zeros(16, 4), torch.arange(16) % 3), batch_size=2)
    }
    names |= {
        "model": model.model,
        "optimizer": model.optimizer,
        "criterion": cross_entropy,
        "vitprof": vitprof,
    }
    exec(source, names | {"log": lambda _: time.sleep(OUTSIDE_S)})
    return str(len(steps))


def a_step_without_a_loop() -> str:
    """Nobody watches: it is a function and a context like others."""

    @vitprof.step
    def named(x: int) -> int:
        "Doubles."
        return 2 * x

    with vitprof.step():
        return f"{named.__name__} {named.__doc__} {named(3)}"


def notebook() -> None:
    """Three cells: two with a loop, the second one interrupted, and one without. Then the kernel ends."""
    events: list[Any] = []
    shell = SimpleNamespace(events=SimpleNamespace(register=lambda _, call: events.append(call)))
    sys.modules["IPython"] = SimpleNamespace(get_ipython=lambda: shell)  # type: ignore[assignment]
    os.environ["VITPROF_WATCH_SOCKET"], path = "", os.environ["VITPROF_WATCH_SOCKET"]

    def connect() -> Connection:
        return Connection(connected_to(path))

    watching.connect = connect  # type: ignore[assignment]
    model, watched = Model(), vitprof.watch(Iterable())
    (cell_ended,) = events
    for x, y in watched:
        model.train(x, y)
    cell_ended(SimpleNamespace(error_before_exec=None, error_in_exec=None))
    time.sleep(CHECK_S)
    for i, (x, y) in enumerate(watched):
        model.train(x, y)
        if i == 2:
            break
    cell_ended(SimpleNamespace(error_before_exec=None, error_in_exec=KeyboardInterrupt()))
    cell_ended(None)


def two_runs(*, then: str) -> None:
    """A loader made anew in each epoch, and then another one. Recorded beside the script, into the store."""
    transport.END_LIMIT_S = LIMIT_S
    sent = list[None]()
    really_flush = transport.Transport._flush
    transport.Transport._flush = lambda *a, **kw: sent.append(really_flush(*a, **kw))  # type: ignore[method-assign, func-returns-value]
    model = Model()
    for _ in range(2):
        for x, y in vitprof.watch(OwnIterator(), name="first"):
            model.train(x, y)
    for i, (x, y) in enumerate(vitprof.watch(Iterable(), name="second")):
        model.train(x, y)
        if i == 3 and then == "killed":
            if os.fork() == 0:  # it has what its parent has open
                time.sleep(1.5)
                os._exit(0)
            before = len(sent)
            while len(sent) < before + 2:  # all so far has been sent
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        if i == 3 and then == "fails":
            sys.last_value = error = ValueError(
                "no more"
            )  # as Python does before it ends with an error
            raise error


def closed() -> str:
    """Ends its watching early, and shows what it says."""
    transport.END_LIMIT_S = LIMIT_S
    loader = vitprof.watch(OwnIterator(), quiet=False)
    model = Model()
    for epoch in range(2):
        for x, y in loader:
            model.train(x, y)
        if not epoch:
            loader.close()
    return " ".join(model.losses)


def a_loader_inside_a_worker() -> str:
    """What a dataset gets from a DataLoader of its own where only workers are timed, as in a process from scratch."""
    time_fetching(dataloader)
    worker._worker_info = worker.WorkerInfo(id=1, num_workers=2, seed=0, dataset=[])
    return str([batch.tolist() for batch in DataLoader([1, 2], batch_size=1)])


def imports_the_loader_anew() -> int:
    """Has all put in place as a Python does at its start, and imports the DataLoader's module, as if PyTorch had not
    been imported yet; returns the number of batches."""
    del sys.modules[DATALOADER]
    install()
    return len(list(importlib.import_module(DATALOADER).DataLoader([1, 2])))
