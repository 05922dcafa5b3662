"""The training loop: a config in, events out. No threads, no files of its own, no user interface."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitprof import data
from vitprof.catalog import dataset_info, model_preset
from vitprof.devices import Clock, Device, open_device
from vitprof.environment import CpuMeter, describe
from vitprof.events import Events
from vitprof.loaders import Loader, open_loader
from vitprof.model import build_model
from vitprof.recorder import StepRecorder
from vitprof.records import RunConfig
from vitprof.storage import Batch, open_storage
from vitprof.strategies import resolve, strategy
from vitprof.transfer import Transfer, open_transfer
from vitprof.transfer.normalise import ToInput

Stop = Callable[[], bool]
NO_LOSS = math.nan
REPORT_EVERY_S = 0.2


@dataclass
class Job:
    """Everything a job has open while it trains."""

    config: RunConfig
    events: Events
    stop: Stop
    clock: Clock
    device: Device
    transfer: Transfer
    to_input: ToInput
    model: Callable[[Tensor], Tensor]
    optimizer: torch.optim.Optimizer
    recorder: StepRecorder
    cpu: CpuMeter
    train_loader: Loader
    test_loader: Loader | None

    def autocast(self) -> AbstractContextManager[Any]:
        if self.config.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device.torch_device.type, dtype=torch.bfloat16)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Report how long the block took, also where it fails."""
        start = self.clock()
        try:
            yield
        finally:
            self.events.phase(name, start, self.clock())


def train(config: RunConfig, events: Events, stop: Stop, *, clock: Clock = time.perf_counter) -> bool:
    """Run the job that `config` describes and report to `events`.

    Returns True when the budget was spent, False when `stop()` said so in between. Raises `VitprofError` for what a
    person can mend, and whatever a Dataset, a worker or torch raises.
    """
    config = resolve(config)
    plan, info = strategy(config.strategy), dataset_info(config.dataset)
    if config.threads:
        torch.set_num_threads(config.threads)

    events.stage("starting", math.nan)
    start = clock()
    device = open_device(config.device, clock)
    transfer = open_transfer(plan.transfer, device.torch_device)
    events.environment(describe() | device.environment() | {"device": device.name})
    prepare_start = clock()
    events.phase("startup", start, prepare_start)
    root = data.prepare(
        config.dataset,
        progress=lambda fraction, message: events.stage("preparing", fraction, message),
        stop=stop,
    )
    evaluating = config.evaluate and not config.loader_only
    splits = [
        transfer.place(open_storage(plan.storage, info, root, train=train_split))
        for train_split in ((True, False) if evaluating else (True,))
    ]
    start = clock()
    events.phase("prepare", prepare_start, start)

    events.stage("starting", math.nan)
    torch.manual_seed(config.seed)
    model, optimizer = _build(config, device)
    with ExitStack() as open_loaders:
        loaders = []
        for storage, train_split in zip(splits, (True, False), strict=False):
            loader = open_loader(plan.loader, storage, config, train=train_split)
            open_loaders.callback(loader.close)
            loaders.append(loader)
        job = Job(
            config=config,
            events=events,
            stop=stop,
            clock=clock,
            device=device,
            transfer=transfer,
            to_input=ToInput(info, splits[0].pixels, config.image_size or info.image_size),
            model=model,
            optimizer=optimizer,
            recorder=StepRecorder(device, events.step),
            cpu=CpuMeter(),
            train_loader=loaders[0],
            test_loader=loaders[1] if evaluating else None,
        )
        events.phase("startup", start, clock())
        try:
            completed = _fit(job)
        finally:
            job.recorder.resolve()
            events.facts(
                {
                    "n_train": len(splits[0]),
                    "cpu_s": job.cpu.cpu_s,
                    "cpu_samples": job.cpu.samples,
                    "gpu_mem_peak_bytes": device.peak_memory_bytes(),
                }
            )
            with job.phase("shutdown"):
                events.stage("finishing", math.nan)
                open_loaders.close()
    return completed


def _build(config: RunConfig, device: Device) -> tuple[Callable[[Tensor], Tensor], torch.optim.Optimizer]:
    info, preset = dataset_info(config.dataset), model_preset(config.model)
    image_size = config.image_size or preset.image_size
    model: nn.Module = build_model(preset, image_size=image_size, channels=info.channels, classes=info.classes)
    model.to(device.torch_device)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.lr or preset.lr)
    return (torch.compile(model) if config.compile else model), optimizer


def _fit(job: Job) -> bool:
    """Train until the budget is spent (True) or the job is asked to stop (False), evaluating on the way."""
    # names of its own for what each step calls: with a fast loader a step takes 12 us
    config, clock, mark, transfer = job.config, job.clock, job.device.mark, job.transfer
    recorder, record, cpu, stop = job.recorder, job.recorder.step, job.cpu, job.stop
    total = config.steps or (config.epochs or 0) * len(job.train_loader)
    seconds = config.seconds or math.inf
    step = epoch = 0
    job.events.stage("training", 0.0)
    began = reported = clock()
    recorder.resume()
    while True:
        t_start = clock()
        for batch in job.train_loader.epoch(epoch):
            t_got = clock()
            h2d_start = mark()
            on_device = transfer(batch)
            h2d_end = mark()
            if config.loader_only:
                loss, compute_end = _no_loss, None
            else:
                value = _train_step(job, on_device)
                compute_end = mark()
                loss = job.device.keep(value)
            samples = len(on_device[1])
            record(
                step, epoch, t_start, t_got, h2d_start, h2d_end, compute_end, loss, samples, step < config.warmup_steps
            )
            step += 1
            if cpu.running:
                cpu.samples += samples
            elif step == config.warmup_steps or step == 1 > config.warmup_steps:
                cpu.start()
                recorder.resume()  # asking for CPU times takes a moment that no step should be charged with
            now = clock()
            fraction = step / total if total else (now - began) / seconds
            if now - reported > REPORT_EVERY_S:
                reported = now
                job.events.stage("training", min(fraction, 1.0))
            if fraction >= 1 or stop():
                break
            t_start = clock()
        epoch += 1
        spent = fraction >= 1
        if job.stop() and not spent:
            job.cpu.pause()
            return False
        if job.test_loader is not None and (spent or config.epochs):
            job.cpu.pause()
            with job.phase("evaluate"):
                if not _evaluate(job, job.test_loader):
                    return False
            job.cpu.start()
            job.events.stage("training", fraction)
            recorder.resume()
        if spent:
            job.cpu.pause()
            return True


def _no_loss() -> float:
    return NO_LOSS


def _train_step(job: Job, batch: Batch) -> Tensor:
    """Launch one step of training; the loss stays on the device."""
    images, labels = batch
    job.optimizer.zero_grad(set_to_none=True)
    with job.autocast():
        logits = job.model(job.to_input(images))
    loss = F.cross_entropy(logits.float(), labels)
    loss.backward()  # type: ignore[no-untyped-call]
    job.optimizer.step()
    return loss.detach()


@torch.no_grad()
def _evaluate(job: Job, loader: Loader) -> bool:
    """Mean loss and accuracy over the test set, reported as facts. False if the job was asked to stop in between."""
    n = correct = 0
    loss = torch.zeros((), dtype=torch.float64, device=job.device.torch_device)
    hits = torch.zeros((), dtype=torch.int64, device=job.device.torch_device)
    batches = len(loader)
    for done, batch in enumerate(loader.epoch(0)):
        job.events.stage("evaluating", done / batches)
        images, labels = job.transfer(batch)
        with job.autocast():
            logits = job.model(job.to_input(images))
        loss += F.cross_entropy(logits.float(), labels, reduction="sum")
        hits += (logits.argmax(1) == labels).sum()
        n += len(labels)
        if job.stop():
            return False
    correct = int(hits)
    job.events.facts({"test_loss": float(loss) / n, "test_accuracy": correct / n})
    return True
