"""The training loop: a config in, events out.

With the facts of the machine and the CPU time of the job.
"""

import itertools
import math
import os
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from importlib import metadata
from typing import Any

import psutil
import torch

from vitprof.config import RunConfig, bounds
from vitprof.config.gpu_findings import recorded_variables
from vitprof.config.resolve import resolve
from vitprof.datasets import catalog
from vitprof.datasets.files import Stop
from vitprof.datasets.own.layout import named_errors, users_paths
from vitprof.engine.loaders.contract import Batch
from vitprof.engine.pipeline import Pipeline, Split, open_pipeline
from vitprof.engine.trainer import Trainer, open_trainer
from vitprof.engine.transfer import Moved, Transfer
from vitprof.errors import DataError
from vitprof.measure.devices import Clock, Device, not_kept, open_device, software
from vitprof.measure.devices.cuda_findings import limits, report_out_of_memory
from vitprof.measure.recorder import MAX_PENDING, NAN, LaunchProbe, StepRecorder
from vitprof.measure.stage_look import StageUses
from vitprof.measure.step_columns import StepMarks
from vitprof.measure.stopwatch import stopwatch_cost_s
from vitprof.measure.wire import Events

REPORT_EVERY_S = 0.2
"""How often (s) progress is reported."""
NAMED_UNREADABLE = 5
"""Unreadable samples that a run names; the others are only counted."""


def describe() -> dict[str, Any]:
    """Returns the facts about machine and software, as JSON values; the device adds its own."""
    return {
        **software(),
        # From its metadata: importing it takes as long as torch.
        "torchvision": metadata.version("torchvision"),
        "memory_bytes": psutil.virtual_memory().total,
        "variables": recorded_variables(os.environ),
    }


def process_tree_cpu_s() -> float:
    """Returns the CPU seconds that this process and its descendants have used, user and system.

    Those that have ended are counted through their parents' `children_` times: the time of workers
    that end with their epoch must not be lost.
    """
    me = psutil.Process()
    total = 0.0
    for process in [me, *me.children(recursive=True)]:
        # A worker may have ended since the list was made.
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


class CpuMeter:
    """A meter of the CPU seconds of this process and its workers while it runs: over the steady
    part of training.

    The training loop adds the samples of that part to `samples`.
    """

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self.samples = 0
        self.running = False
        self._since = 0.0

    def start(self) -> None:
        """Starts or continues to count."""
        self._since = process_tree_cpu_s()
        self.running = True

    def pause(self) -> None:
        """Adds the CPU seconds since `start` to `cpu_s`, if it runs."""
        if self.running:
            self.cpu_s += process_tree_cpu_s() - self._since
            self.running = False


@dataclass
class Job:
    """Everything a job has open while it trains."""

    config: RunConfig
    events: Events
    stop: Stop
    clock: Clock
    device: Device
    pipeline: Pipeline
    trainer: Trainer
    launches: LaunchProbe
    recorder: StepRecorder
    cpu: CpuMeter = field(default_factory=CpuMeter)
    stage_uses: StageUses = field(default_factory=StageUses)
    unreadable: int = 0
    named: set[str] = field(default_factory=set)

    def leave_out(self, batch: Batch, transfer: Transfer) -> None:
        """Leaves out a batch of which nothing could be read."""
        self.left_out(batch.unreadable)
        transfer.discard(batch)

    def note(self, batch: Batch, *, warmup: bool) -> None:
        """Notes what a batch says of itself: samples that are not in it, and what its stages used of
        the cores.
        """
        self.left_out(batch.unreadable)
        if batch.looked is not None and not warmup:
            self.stage_uses.add(batch.looked)

    def left_out(self, lines: tuple[str, ...]) -> None:
        """Counts samples that could not be read, and names the first few, each once, without what
        to do about it.
        """
        self.unreadable += len(lines)
        for line in lines:
            if line not in self.named and len(self.named) < NAMED_UNREADABLE:
                self.named.add(line)
                what = self.pipeline.original_paths(line.partition(";")[0])
                self.events.notice(f"left out: {users_paths(what)}")


@report_out_of_memory
def train(
    config: RunConfig,
    events: Events,
    stop: Stop,
    *,
    clock: Clock = time.perf_counter,
    device: Device | None = None,
    trains: Callable[[RunConfig, Device], Trainer] | None = None,
    budgets: Callable[..., "Budget"] | None = None,
) -> bool:
    """Runs the job that `config` describes and reports to `events`.

    A `device` that is open already is used in place of opening the config's. `trains` makes another
    trainer, `budgets` another `Budget`: the self-test has them do work of a known length.

    Returns True when the budget was spent, False when `stop()` turned true before. Raises
    `VitprofError` for what a person can mend, and whatever a Dataset, a worker or PyTorch raises.
    """
    config = resolve(config)
    if config.threads:
        torch.set_num_threads(config.threads)

    events.stage("starting", math.nan)
    start = clock()
    if device is None:
        device = open_device(config.device, clock, events.notice)
        # "auto" is settled once, for loaders, too.
        config = replace(config, device=device.name)
    torch.backends.cudnn.benchmark = config.cudnn_benchmark
    events.environment(
        describe() | device.environment() | {"device": device.name, "lap_s": stopwatch_cost_s()}
    )
    if device.gauges is not None:
        events.gauges(device.gauges)
    if device.torch_device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device.torch_device)
        for limit in limits(device.torch_device, config):
            events.notice(limit.line)
    events.phase("startup", start, clock())
    evaluating = config.evaluate and not config.loader_only
    opened = open_pipeline(config, device, events, stop, clock, evaluate=evaluating)
    with named_errors(catalog.dataset_info(config.dataset)), opened as pipeline:
        start = clock()
        events.stage("starting", math.nan)
        events.facts(pipeline.facts)
        torch.manual_seed(config.seed)
        # A loader-only run launches nothing.
        launches = LaunchProbe(device, 0 if config.loader_only else config.warmup_steps)
        trainer = (trains or open_trainer)(config, device)
        recorder = StepRecorder(device, events.step, launches)
        job = Job(config, events, stop, clock, device, pipeline, trainer, launches, recorder)
        events.phase("startup", start, clock())
        try:
            return _fit(job, budgets or Budget)
        finally:
            job.recorder.resolve()
            facts: dict[str, Any] = {
                "n_train": pipeline.train.n,
                "n_unreadable": pipeline.facts["n_unreadable"] + job.unreadable,
                "cpu_s": job.cpu.cpu_s,
                "cpu_samples": job.cpu.samples,
            }
            held_up = trainer.held_up_frac()
            if math.isfinite(held_up):
                facts["held_up_frac"] = held_up
            facts |= job.stage_uses.facts()
            events.facts(pipeline.facts | facts | device.peak_memory())


@dataclass
class Budget:
    """The length of a job, and how much of it is done."""

    steps: int
    """Steps to make; 0 if the job is not limited in steps."""
    seconds: float
    """Seconds to train for; infinite if the job is not limited in seconds."""
    began: float
    """When training began, on the job's clock."""
    least: int = 0
    """Steps to make even if the seconds are over."""
    done: int = 0
    """Steps made."""
    reported: float = -math.inf
    """When progress was last reported, on the job's clock."""

    def steps_left(self, now: float) -> float:
        """Returns the number of steps left; for a job limited in seconds, an estimate from its pace
        so far.
        """
        if self.steps:
            return self.steps - self.done
        spent = now - self.began
        if not spent > 0:
            return math.inf
        return self.done * (self.seconds - spent) / spent

    def spent_frac(self, now: float) -> float:
        """Returns the share of the budget that is spent; 1 or more when all of it is."""
        if self.steps:
            return self.done / self.steps
        frac = (now - self.began) / self.seconds
        if self.done < self.least and frac < bounds.LONGEST_TIMES:
            return min(frac, self.done / self.least)
        return frac


def _fit(job: Job, budgets: Callable[..., Budget]) -> bool:
    """Trains and evaluates.

    Returns True once the budget is spent, False if the job was asked to stop before.
    """
    config = job.config
    epochs = job.config.epochs or 0
    least = 0
    if config.least_steps:
        least = config.least_steps + config.warmup_steps
    steps = config.steps or epochs * len(job.pipeline.train.loader)
    budget = budgets(steps, config.seconds or math.inf, job.clock(), least)
    job.events.stage("training", 0.0)
    job.recorder.resume()
    for epoch in itertools.count():
        before = budget.done
        if least and (epoch or not config.warmup_steps):
            # An epoch's first step counts neither as steady nor as warm-up.
            budget.least += 1
        spent = _train_epoch(job, budget, epoch)
        if budget.done == before:
            raise DataError(
                f"no sample of {config.dataset} could be read from storage {config.storage}"
            )
        # Where unreadable samples are left out, an epoch has fewer batches than the budget counts.
        spent = spent or epoch + 1 == epochs
        if job.stop() and not spent:
            job.cpu.pause()
            return False
        if job.pipeline.test is not None and (spent or epochs):
            job.cpu.pause()
            began = job.clock()
            try:
                if not _evaluate(job, job.pipeline.test):
                    return False
            finally:
                job.events.phase("evaluate", began, job.clock())
            job.cpu.start()
            job.events.stage("training", min(budget.spent_frac(job.clock()), 1.0))
            job.recorder.resume()
        if spent:
            break
    job.cpu.pause()
    return True


def _train_epoch(job: Job, budget: Budget, epoch: int) -> bool:
    """Trains on one epoch's batches; returns whether the budget was spent. False also where the job is to stop."""
    # local names for what each step calls: with a fast loader a step takes 12 us
    clock = job.clock
    record = job.recorder.step
    cpu = job.cpu
    stop = job.stop
    launches = job.launches
    transfer = job.pipeline.train.transfer
    compute = _computing(job)
    step = budget.done
    with closing(job.pipeline.train.epoch(epoch)) as batches:
        t_start = clock()
        for batch in batches:
            t_got = clock()
            samples = batch.labels.shape[0]
            if not samples:  # nothing in it could be read: no step
                job.leave_out(batch, transfer)
                continue
            moved = transfer(batch)
            marks = StepMarks()
            _, _, marks.copy_start, marks.copy_end, marks.compute_start, marks.prepared = moved
            if compute is None:
                marks.backward_start = marks.optimizer_start = marks.compute_end = None
                marks.loss = not_kept
            else:
                compute(moved, marks, step)
            marks.t_start, marks.t_got, marks.t_launched = t_start, t_got, clock()
            marks.step = step
            marks.epoch = epoch
            marks.warmup = step < launches.steady_from
            marks.samples = samples
            marks.made = batch.made
            marks.decoded = batch.decoded
            marks.outside_s = NAN
            record(marks)
            budget.done = step = step + 1
            if step == launches.asks_at:
                _ask_launches(job, budget)
            if cpu.running:
                cpu.samples += samples
            elif step == launches.steady_from or step == 1 > launches.steady_from:
                _begin_steady(job)
            if batch.unreadable or batch.looked is not None:
                job.note(batch, warmup=marks.warmup)
            now = clock()
            spent_frac = budget.spent_frac(now)
            if now - budget.reported > REPORT_EVERY_S:
                _report(job, budget, now)
            if spent_frac >= 1:
                return True
            if stop():
                break
            t_start = clock()
    return False


def _computing(job: Job) -> Callable[[Moved, StepMarks, int], None] | None:
    """Returns a function that computes a step on a batch, and notes its marks and its loss; None where nothing is
    computed.
    """
    if job.config.loader_only:
        return None
    mark = job.device.mark
    keep = job.device.keep
    train_step = job.trainer.step
    launches = job.launches
    split = job.pipeline.train
    to_input = None if split.transfer.normalises else split.to_input

    def compute(moved: Moved, marks: StepMarks, step: int) -> None:
        if launches.gates_left:
            moved = moved._replace(ready=launches.gate())
        launched = train_step(moved, to_input)
        marks.compute_end = mark()
        marks.compute_start = launched.compute_start
        marks.backward_start = launched.backward_start
        marks.optimizer_start = launched.optimizer_start
        marks.loss = not_kept if launched.loss is None else keep(launched.loss, step)

    return compute


def _ask_launches(job: Job, budget: Budget) -> None:
    """Lets the launch probe say what it found so far, and whether it needs more steps."""
    job.recorder.resolve(at_most_pending=MAX_PENDING)
    longer = job.launches.ask(budget.steps_left(job.clock()))
    if budget.least:
        budget.least += longer


def _begin_steady(job: Job) -> None:
    """Begins to count CPU time and what holds up the trainer: the warm-up is over."""
    job.cpu.start()
    job.trainer.held_up_frac()  # counts from here on
    job.recorder.resume()  # asking for CPU times takes a moment that no step should be charged with


def _report(job: Job, budget: Budget, now: float) -> None:
    budget.reported = now
    job.events.stage("training", min(budget.spent_frac(now), 1.0))


def _evaluate(job: Job, split: Split) -> bool:
    """Reports mean loss and accuracy over the test set as facts.

    Returns False if the job was asked to stop before.
    """
    batches = len(split.loader)
    to_input = None if split.transfer.normalises else split.to_input
    for done, batch in enumerate(split.epoch(0)):
        job.events.stage("evaluating", done / batches)
        if not len(batch.labels):  # nothing in it could be read
            job.leave_out(batch, split.transfer)
            continue
        job.left_out(batch.unreadable)
        job.trainer.evaluate(split.transfer(batch), to_input)
        if job.stop():
            return False
    job.events.facts(job.trainer.evaluated())
    return True
