"""Training on a GPU as people write it, with waits and work of known length. Nothing in it knows of vitprof. Each
function returns what an independent clock says: the wall clock (s) from one batch's making to the last one's, and on
the null device the time in which it had work then, by the device itself. `benchmarks.watch_matrix` runs them on a real
GPU too. Of a framework that is not installed the function cannot be called."""

import contextlib
import functools
import itertools
import json
import logging
import math
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

import vitprof
from tests.nullcuda import N_BATCHES
from tests.nullcuda.busy import Busy, spans
from tests.watch import quiet_lightning, quiet_transformers
from vitprof.selftest.gpu.device_cases import union

# A GPU's owner may have none of them, or one that cannot be imported.
with contextlib.suppress(Exception):
    import accelerate
with contextlib.suppress(Exception):
    import lightning
with contextlib.suppress(Exception):
    import timm.data.loader
with contextlib.suppress(Exception):
    import transformers

warnings.simplefilter("ignore")
for _name in ("lightning.pytorch", "transformers", "accelerate"):
    logging.getLogger(_name).setLevel(logging.ERROR)

CYCLES_PER_S = 1.4e9
"""Of `torch.cuda._sleep` on the null device. On another one it is measured and set first."""
LOSSES: list[Tensor] = []
"""Of every step of this process, on the device: to read them would wait for it."""
BATCH = 4


class Images(Dataset[Any]):
    """Small tensors; making a batch takes `wait_s`. Notes wall clock and work of the device at each batch."""

    def __init__(self, wait_s: float, n_batches: int = N_BATCHES) -> None:
        self.wait_s, self.n_batches = wait_s, n_batches
        self.noted: list[tuple[float, float]] = []
        self.waited: list[float] = []
        """How long each batch really took to make: a busy machine sleeps for longer."""
        self._busy: Busy | None = None

    def __len__(self) -> int:
        return BATCH * self.n_batches

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((4,), float(index)), index % 3

    def collate(self, samples: list[tuple[Tensor, int]]) -> dict[str, Tensor]:
        if os.path.exists(os.environ.get("NULLCUDA_SHM", "")):
            self._busy = self._busy or Busy()
        self.noted.append(self._now())
        began = time.perf_counter()
        if self.wait_s:  # a sleep of 0 s gives the core to others
            time.sleep(self.wait_s)
        images, labels = zip(*samples, strict=True)
        batch = {"x": torch.stack(images), "y": torch.tensor(labels)}
        self.waited.append(time.perf_counter() - began)
        return batch

    def _now(self) -> tuple[float, float]:
        """Returns the wall clock and the device's work at one time: read again where something came between the two."""
        for _ in range(20):
            now = time.perf_counter()
            busy_s = self._busy.seconds() if self._busy else math.nan
            if time.perf_counter() - now < 1e-4:
                break
        return now, busy_s

    def loader(self) -> DataLoader[Any]:
        return DataLoader(self, batch_size=BATCH, collate_fn=self.collate)

    def found(self) -> str:
        """Returns the wall clock and the device's work from a quarter of the batches on, as JSON."""
        first = self.n_batches // 4
        since, until = self.noted[first], self.noted[-1]
        found = {"since_s": since[0], "until_s": until[0], "busy_s": until[1] - since[1]}
        found["waited_s"] = sum(self.waited[first - len(self.noted) : -1])
        if self._busy is not None:
            found["exposed_wait_s"], found["compute_s"] = by_spans(since[0], until[0])
        return json.dumps(found)


WAITS: list[tuple[float, float]] = []
"""When each `next()` of what is looped over began and ended, in this process: of a DataLoader, or of what a
framework makes of it (`_wait_for`)."""


def _timed(next_of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(next_of)
    def timed(self: Any) -> Any:
        began = time.perf_counter()
        batch = next_of(self)
        WAITS.append((began, time.perf_counter()))
        return batch

    return timed


_next_of_dataloader = _BaseDataLoaderIter.__next__
_BaseDataLoaderIter.__next__ = _timed(_next_of_dataloader)  # type: ignore[method-assign]


def _wait_for(looped_over: Any) -> None:
    """Takes the waits of another class, in place of those of DataLoaders within it."""
    _BaseDataLoaderIter.__next__ = _next_of_dataloader  # type: ignore[method-assign]
    looped_over.__next__ = _timed(looped_over.__next__)


def by_spans(since_s: float, until_s: float) -> tuple[float, float]:
    """Returns for how long (s) of a time the null device had nothing to do while the loop waited in `next()`, and for
    how long it was in a step: from the copy before the first kernel that was launched after a wait, to the last one's
    end."""
    exposed_s = compute_s = ended_s = 0.0
    rows = spans()
    queued, kernel = rows[:, 0], rows[:, 3] > 0
    for (began, end), (next_began, _) in itertools.pairwise([*WAITS, (math.inf, math.inf)]):
        if since_s <= began <= until_s:
            worked = np.clip(rows[queued < end, 1:3], began, end)
            exposed_s += (
                end - began - union((since, until) for since, until in worked if since < until)
            )
        mine = (queued >= end) & (queued < next_began)
        if (mine & kernel).any():
            first = rows[mine & kernel, 0].min()
            copies = rows[mine & ~kernel & (queued < first), 2]
            start_s = max(ended_s, copies.max() if len(copies) else end)
            ended_s = max(ended_s, rows[mine & kernel, 2].max())
            compute_s += max(0.0, min(until_s, ended_s) - max(since_s, start_s))
    return exposed_s, compute_s


class Model(torch.nn.Module):
    """Keeps the device busy for `work_s`, behind a few launches."""

    def __init__(self, work_s: float) -> None:
        super().__init__()
        self.linear, self.cycles = torch.nn.Linear(4, 3), int(work_s * CYCLES_PER_S)

    def forward(self, x: Tensor, y: Tensor | None = None, **_: Any) -> Any:
        logits = self.linear(x)
        if x.is_cuda:
            torch.cuda._sleep(self.cycles)
        if y is None:
            return logits
        loss = torch.nn.functional.cross_entropy(logits, y)
        LOSSES.append(loss.detach())
        return {"loss": loss, "logits": logits}


def _made(
    wait_s: float, work_s: float, device: str = "cuda"
) -> tuple[Images, Model, torch.optim.Optimizer]:
    model = Model(work_s).to(device)
    return Images(wait_s), model, torch.optim.SGD(model.parameters(), lr=0.1)


def _loop(
    model: Any,
    optimizer: Any,
    batches: Any,
    backward: Callable[[Tensor], Any],
    *,
    item: bool = False,
) -> None:
    for batch in batches:
        x, y = batch["x"].cuda(non_blocking=True), batch["y"].cuda(non_blocking=True)
        loss = model(x, y)["loss"]
        optimizer.zero_grad()
        backward(loss)
        optimizer.step()
        if item:
            loss.item()


def plain(*, wait_s: float, work_s: float, item: bool = False, n_batches: int = N_BATCHES) -> str:
    images, model, optimizer = _made(wait_s, work_s)
    images.n_batches = n_batches
    _loop(model, optimizer, images.loader(), Tensor.backward, item=item)
    return images.found()


def two_loaders(*, wait_s: float, work_s: float, apart: bool = False, late: bool = False) -> str:
    """A slow and a fast loader in each step, with one backward pass for both or (`apart`) for each; the slow one is
    asked first, or (`late`) last."""
    images, model, optimizer = _made(wait_s, work_s / 2)
    loaders = [images.loader(), Images(0.0).loader()]
    iterators = [iter(loader) for loader in (loaders[::-1] if late else loaders)]
    for _ in range(N_BATCHES):
        losses = []
        for batches in iterators:
            batch = next(batches)
            losses.append(
                model(batch["x"].cuda(non_blocking=True), batch["y"].cuda(non_blocking=True))[
                    "loss"
                ]
            )
            if apart:
                losses[-1].backward()
        if not apart:
            sum(losses).backward()
        optimizer.step()
        optimizer.zero_grad()
    return images.found()


def accumulating(*, wait_s: float, work_s: float) -> str:
    """Updates after each third batch."""
    images, model, optimizer = _made(wait_s, work_s)
    for number, batch in enumerate(images.loader(), 1):
        x, y = batch["x"].cuda(non_blocking=True), batch["y"].cuda(non_blocking=True)
        model(x, y)["loss"].backward()
        if number % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
    return images.found()


def copied_ahead(*, wait_s: float, work_s: float) -> str:
    """Fetches each batch, and copies it in a stream of its own, before the work on the one before."""
    images, model, optimizer = _made(wait_s, work_s)
    copying = torch.cuda.Stream()

    def ahead() -> Any:
        before = None
        for batch in images.loader():
            with torch.cuda.stream(copying):
                copied = {name: part.cuda(non_blocking=True) for name, part in batch.items()}
            if before is not None:
                yield before
            torch.cuda.current_stream().wait_stream(copying)
            before = copied
        yield before

    _loop(model, optimizer, ahead(), Tensor.backward)
    return images.found()


def quickstart(*, wait_s: float, work_s: float) -> str:
    """Looks at a batch before there is anything on the device, as PyTorch's Quickstart does."""
    images = Images(wait_s)
    batches = images.loader()
    next(iter(batches))
    images.noted.clear()
    model = Model(work_s).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _loop(model, optimizer, batches, Tensor.backward)
    return images.found()


def in_a_stream(*, wait_s: float, work_s: float) -> str:
    """Requests batches outside of the stream that it trains in."""
    (images, model, optimizer), stream = _made(wait_s, work_s), torch.cuda.Stream()
    for batch in images.loader():
        with torch.cuda.stream(stream):
            _loop(model, optimizer, [batch], Tensor.backward)
    return images.found()


def beside(
    *, wait_s: float = 0.02, work_s: float = 0.002, beside_s: float = 0.015, how: str = ""
) -> str:
    """Each step gives work to another stream, too. `how`: the one that trains waits for it ("joined"), and all of it is
    in a step that the script marks ("marked"); or it comes after that of the step ("after")."""
    (images, model, optimizer), stream = _made(wait_s, work_s), torch.cuda.Stream()
    for batch in images.loader():
        with vitprof.step() if how == "marked" else contextlib.nullcontext():
            if how == "after":
                _loop(model, optimizer, [batch], Tensor.backward)
                stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                torch.cuda._sleep(int(beside_s * CYCLES_PER_S))
            if how == "after":
                continue
            if how == "joined":
                torch.cuda.current_stream().wait_stream(stream)
            _loop(model, optimizer, [batch], Tensor.backward)
            if how == "marked":
                torch.cuda.current_stream().wait_stream(stream)
    return images.found()


def graphed(*, wait_s: float, work_s: float) -> str:
    """Each step is one CUDA graph."""
    images, model, optimizer = _made(wait_s, work_s)
    x, y = (
        torch.zeros((BATCH, 4), device="cuda"),
        torch.zeros(BATCH, dtype=torch.int64, device="cuda"),
    )
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(torch.cuda.Stream()):
        _loop(model, optimizer, [{"x": x, "y": y}], Tensor.backward)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        loss = model(x, y)["loss"]
        loss.backward()
        optimizer.step()
    for batch in images.loader():
        with vitprof.step():
            x.copy_(batch["x"], non_blocking=True)
            y.copy_(batch["y"], non_blocking=True)
            graph.replay()
    return images.found()


def by_accelerate(*, wait_s: float, work_s: float, watched_first: bool = False) -> str:
    accelerator, images, model = accelerate.Accelerator(), Images(wait_s), Model(work_s)
    batches: Any = images.loader()
    if watched_first:
        batches = vitprof.watch(batches)
    model, optimizer, batches = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.1), batches
    )
    _loop(model, optimizer, batches, accelerator.backward)
    return images.found()


def by_transformers(*, wait_s: float, work_s: float, callback: bool = False) -> str:
    images = Images(wait_s)
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            **quiet_transformers(folder),
            num_train_epochs=1,
            per_device_train_batch_size=BATCH,
            max_grad_norm=0.0,
            dataloader_pin_memory=False,
        )
        trainer = transformers.Trainer(
            Model(work_s),
            arguments,
            train_dataset=images,
            data_collator=images.collate,
            callbacks=[vitprof.TrainerCallback()] if callback else [],
        )
        trainer.train()
    return images.found()


def by_lightning(*, wait_s: float, work_s: float, callback: bool = False) -> str:
    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model(work_s)

        def training_step(self, batch: Any, _: int) -> Tensor:
            return self.model(batch["x"], batch["y"])["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    if callback:  # it watches what Lightning loops over
        _wait_for(lightning.pytorch.utilities.CombinedLoader)
    images = Images(wait_s)
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            **quiet_lightning(folder),
            max_epochs=1,
            accelerator="gpu",
            devices=1,
            callbacks=[vitprof.LightningCallback()] if callback else [],
        )
        trainer.fit(Module(), images.loader())
    return images.found()


def by_timm(*, wait_s: float, work_s: float) -> str:
    images, model, optimizer = _made(wait_s, work_s)

    def pair(samples: Any) -> tuple[Tensor, Tensor]:
        batch = images.collate(samples)
        return batch["x"].view(-1, 1, 2, 2), batch["y"]

    plain_loader: Any = DataLoader(images, batch_size=BATCH, collate_fn=pair)
    batches = timm.data.loader.PrefetchLoader(plain_loader, mean=(0.0,), std=(1.0,), channels=1)
    _loop(model, optimizer, ({"x": x.flatten(1), "y": y} for x, y in batches), Tensor.backward)
    return images.found()


def launch_bound(*, kernels: int = 200, host_s: float = 0.008) -> str:
    """1 ms of kernels (5 us each) that take `host_s` to launch."""
    images, model, optimizer = _made(0.0, 0.0)
    buffer = torch.zeros(1, device="cuda")

    def launching(x: Tensor, y: Tensor) -> Any:
        for i in range(kernels):
            buffer.add_(1.0)
            if i % 20 == 0:
                time.sleep(host_s / kernels * 20)
        return model(x, y)

    _loop(launching, optimizer, images.loader(), Tensor.backward)
    return images.found()


def works_after(
    *, host_s: float, device_s: float, wait_s: float = 0.0, work_s: float = 0.004
) -> str:
    """Does something else after each step: on the host, or on the device, and waits for it."""
    images, model, optimizer = _made(wait_s, work_s)
    for batch in images.loader():
        _loop(model, optimizer, [batch], Tensor.backward, item=True)
        time.sleep(host_s)
        if device_s:
            torch.cuda._sleep(int(device_s * CYCLES_PER_S))
            torch.cuda.synchronize()
    return images.found()


def on_the_second() -> str:
    """Trains on the second card while the first one is current. Returns which is current then, and both cards' work."""
    images, model, optimizer = _made(0.0, 0.004, "cuda:1")
    for batch in images.loader():
        x, y = batch["x"].to("cuda:1"), batch["y"].to("cuda:1")
        with torch.cuda.device(1):
            loss = model(x, y)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    busy = Busy()
    return json.dumps(
        {"current": torch.cuda.current_device(), "busy_s": [busy.seconds(card) for card in (0, 1)]}
    )


def clock_rate() -> float:
    """Returns how long 100 ms of the host last by events."""
    torch.cuda.init()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    began = time.perf_counter()
    marks[0].record()
    time.sleep(0.1)
    marks[1].record()
    lasted = time.perf_counter() - began
    torch.cuda.synchronize()
    return marks[0].elapsed_time(marks[1]) / 1e3 / lasted
