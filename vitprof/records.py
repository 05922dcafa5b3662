"""The records that flow through vitprof, and the one table of their columns.

Every number that is stored, charted or exported is a field of a dataclass here; `columns()` reads name, unit and
meaning from it, and the store's tables, the CSV headers and the help texts are made from that. Units stand in the
names: `_s` seconds, `_ms` milliseconds, `_pct` percent 0..100, `_frac` share 0..1, `_bytes` bytes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from vitprof.errors import ConfigError

SCHEMA_VERSION = 1
"""Version of the JSON object and of the CSV columns. Rises when a column changes its meaning or goes away."""

Status = Literal["queued", "running", "done", "stopped", "failed", "interrupted"]
LIVE_STATUSES: tuple[Status, ...] = ("queued", "running")
ENDED_STATUSES: tuple[Status, ...] = ("done", "stopped", "failed", "interrupted")


def measured(doc: str) -> Any:
    """A float field of a record: its docstring where a program can read it, and "unknown" as the default."""
    return field(default=math.nan, metadata={"doc": doc})


def counted(doc: str) -> Any:
    """An integer field of a record."""
    return field(default=0, metadata={"doc": doc})


@dataclass(frozen=True)
class Column:
    """One column of a table or a CSV file."""

    name: str
    integer: bool
    doc: str


def columns(record: type) -> tuple[Column, ...]:
    """The columns of a record class, in order."""
    return tuple(
        Column(f.name, integer=f.type in ("int", int), doc=f.metadata.get("doc", ""))
        for f in dataclasses.fields(record)
    )


@dataclass(frozen=True)
class StepRecord:
    """Where the time of one training step went.

    The loop itself writes plain tuples in this order (`STEP_COLUMNS`); building an object for each step would be
    part of what is measured. Times are on the host's monotonic clock; those of an asynchronous device are mapped to it.
    """

    rank: int = counted("process of a distributed job that made the step; 0 where there is one")
    step: int = counted("number of the step in the run, from 0")
    epoch: int = counted("epoch the step belongs to, from 0")
    t_start_s: float = measured("when the loop asked the loader for the batch, on the monotonic clock")
    data_wait_s: float = measured("time the loop was blocked in next(loader), host clock")
    h2d_s: float = measured("time of the copy to the device: CUDA events on CUDA, host clock on cpu")
    compute_start_s: float = measured("when the device began the step's compute, on the monotonic clock")
    compute_s: float = measured(
        "device time from the end of the copy to the end of the optimizer's work; waits for launches count"
    )
    gap_s: float = measured(
        "from the previous step's end to this step's compute on the device; a copy in between counts"
    )
    exposed_wait_s: float = measured("the part of data_wait_s that lies inside gap_s; a hidden wait costs nothing")
    step_s: float = measured("from the previous step's end to this one's on the device: gap_s + compute_s")
    samples: int = counted("samples in the batch")
    loss: float = measured("training loss of the batch; not available in a loader-only run")
    warmup: int = counted("1 for warm-up steps, which steady-state figures leave out")
    read_s: float = measured("inside the loader: reading bytes from storage, where the loader can tell")
    decode_s: float = measured("inside the loader: decoding, where the loader can tell")
    transform_s: float = measured("inside the loader: transforms, where the loader can tell")
    collate_s: float = measured("inside the loader: collating, where the loader can tell")
    queue_depth: float = measured("batches that were ready when the loop asked, where the loader can tell")


@dataclass(frozen=True)
class TelemetrySample:
    """What the machine and the job's processes were doing at one moment. What cannot be read is NaN, never 0."""

    t_s: float = measured("when the sample was taken, on the monotonic clock")
    gpu_util_pct: float = measured(
        "NVML utilisation: share of the past 1/6 to 1 s in which any kernel ran; not how full the GPU was"
    )
    gpu_mem_used_bytes: float = measured("device memory in use by everybody, NVML")
    gpu_mem_job_bytes: float = measured("device memory in use by the job's processes, NVML")
    gpu_power_w: float = measured("power draw, NVML")
    gpu_sm_clock_mhz: float = measured("clock of the multiprocessors, NVML")
    gpu_temp_c: float = measured("temperature of the GPU, NVML")
    pcie_rx_bytes_per_s: float = measured("bytes the GPU received over PCIe, NVML, over a 20 ms window")
    cpu_pct: float = measured("CPU use of the whole machine, 100 = all cores busy")
    job_cpu_pct: float = measured("CPU use of the job's process and its workers, 100 = one core busy")
    job_rss_bytes: float = measured("resident memory of the job's processes; pages that workers share count each time")
    disk_read_bytes_per_s: float = measured("bytes the machine's disks delivered; a warm page cache shows as 0")


@dataclass(frozen=True)
class RunSummary:
    """The figures of a run, over its steady state unless they say otherwise.

    Steady state: all steps but warm-up steps and the first step of each epoch. NaN (null in JSON, empty in CSV) where
    a figure does not apply or could not be measured.
    """

    n_steps: int = counted("all steps recorded")
    n_steady_steps: int = counted("steps the steady-state figures rest on")
    n_samples: int = counted("samples trained on")
    samples_per_s: float = measured("steady-state throughput: samples / time of the steady steps")
    samples_per_s_low: float = measured("lower end of the 95% interval of samples_per_s (block bootstrap over steps)")
    samples_per_s_high: float = measured("upper end of the 95% interval of samples_per_s (block bootstrap over steps)")
    epoch_s: float = measured(
        "training time of an epoch: median of the whole ones (the first only if alone), else n_train / samples_per_s"
    )
    n_epochs_measured: int = counted("whole epochs behind epoch_s; 0 means that it is extrapolated")
    step_ms_median: float = measured("median time of a step")
    step_ms_p95: float = measured("time that 95% of the steps stay below")
    data_wait_frac: float = measured("share of the steady time that the loop was blocked in next(loader)")
    h2d_frac: float = measured("share of the steady time taken by copies to the device")
    compute_frac: float = measured("share of the steady time that the device computed")
    exposed_wait_frac: float = measured("share of the steady time that the device idled because of a data wait")
    device_idle_frac: float = measured(
        "share of the steady time that the device did not compute between steps: gaps / (gaps + compute)"
    )
    gpu_util_pct_mean: float = measured("mean of NVML's utilisation while training")
    gpu_mem_peak_bytes: float = measured("highest device memory of the job (NVML, else PyTorch's allocator)")
    rss_peak_bytes: float = measured("highest resident memory of the job's process tree")
    cpu_s_per_sample: float = measured("CPU seconds of job and workers for each sample; process isolation only")
    prepare_s: float = measured("making or checking the data set and opening the storage, once")
    startup_s: float = measured("start of the job to the first request for a batch, without prepare_s")
    first_batch_s: float = measured("wait for the very first batch, worker start included")
    epoch_restart_s: float = measured("median wait for the first batch of each later epoch")
    evaluate_s: float = measured("all evaluations on the test set together")
    shutdown_s: float = measured("from the last step or evaluation to the end of loader and workers")
    wall_s: float = measured("start of the job to its end")
    loss_first: float = measured("training loss of the first step")
    loss_last: float = measured("training loss of the last step")
    test_loss: float = measured("mean loss on the test set at the last evaluation")
    test_accuracy: float = measured("share of the test set classified right at the last evaluation")


@dataclass(frozen=True)
class Phase:
    """A named stretch of a run that is not a step: prepare, startup, evaluate, shutdown."""

    name: str
    t_start_s: float
    t_end_s: float


STEP_COLUMNS: tuple[str, ...] = tuple(c.name for c in columns(StepRecord))
TELEMETRY_COLUMNS: tuple[str, ...] = tuple(c.name for c in columns(TelemetrySample))
SUMMARY_COLUMNS: tuple[str, ...] = tuple(c.name for c in columns(RunSummary))
RUN_COLUMNS: tuple[str, ...] = ("run_id", "name", "status", "created_utc")
"""What stands before config and summary in a row of the comparison CSV."""

Precision = Literal["fp32", "bf16"]
Isolation = Literal["process", "thread"]
BUDGETS: tuple[str, ...] = ("epochs", "steps", "seconds")
KNOBS: tuple[str, ...] = ("workers", "prefetch_factor", "pin_memory", "persistent_workers")
"""Fields of `RunConfig` that only some strategies take. None means: the strategy's default."""


KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "give text"),
    "bool": ((bool,), "give true or false"),
    "float": ((int, float), "give a number"),
}
"""What a field of `RunConfig` with this annotation takes; whole numbers and choices are checked one by one."""


def knob_doc(doc: str, default: Any) -> Any:
    """A field of `RunConfig` with its help text, which the command line and the sidebar both show."""
    return field(default=default, metadata={"doc": doc})


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One job, as asked for. Checked once, here, as far as it can be without knowing data set and strategy."""

    name: str = knob_doc("what to call the run; made from strategy and batch size if empty", "")
    dataset: str = knob_doc("data set to train on", "digits")
    model: str = knob_doc("Vision Transformer to train", "tiny")
    strategy: str = knob_doc("how samples are stored, loaded and brought to the device", "per-sample")
    batch_size: int = knob_doc("samples for each step", 128)
    epochs: int | None = knob_doc("budget: whole passes over the training set", None)
    steps: int | None = knob_doc("budget: training steps", None)
    seconds: float | None = knob_doc("budget: seconds of training", None)
    device: str = knob_doc("auto (the first GPU, else the CPU), cpu, or cuda:N", "auto")
    precision: Precision = knob_doc("fp32, or bf16 by autocast", "fp32")
    compile: bool = knob_doc("compile the model with torch.compile (slow first step)", False)
    image_size: int | None = knob_doc("side of the model's input in pixels; images are resized on the device", None)
    lr: float | None = knob_doc("learning rate for Adam; the model's own if not given", None)
    seed: int = knob_doc("seed of the weights and of the sample order", 42)
    workers: int | None = knob_doc("DataLoader worker processes", None)
    prefetch_factor: int | None = knob_doc("batches each worker keeps ready", None)
    pin_memory: bool | None = knob_doc("copy batches to page-locked memory before they go to the GPU", None)
    persistent_workers: bool | None = knob_doc("keep the workers alive between epochs", None)
    warmup_steps: int = knob_doc("first steps left out of steady-state figures", 5)
    evaluate: bool = knob_doc("evaluate on the test set: after each epoch of a budget in epochs, else at the end", True)
    loader_only: bool = knob_doc("fetch and transfer batches without training", False)
    threads: int = knob_doc("torch's intra-op CPU threads; 0 leaves torch's own choice", 0)
    isolation: Isolation = knob_doc("train in a process of its own (recommended) or in a thread of this one", "process")
    telemetry_hz: float = knob_doc("telemetry samples per second", 5.0)

    def __post_init__(self) -> None:
        budgets = [b for b in BUDGETS if getattr(self, b) is not None]
        if len(budgets) > 1:
            first, second = budgets[:2]
            raise ConfigError(second, getattr(self, second), f"give one budget only, and {first} is given already")
        if not budgets:
            object.__setattr__(self, "epochs", 1)
        self._at_least("batch_size", 1)
        self._at_least("epochs", 1)
        self._at_least("steps", 1)
        self._check_kinds()
        if self.seconds is not None and not (0 < self.seconds < math.inf):
            raise ConfigError("seconds", self.seconds, "give a number above 0")
        self._one_of("precision", ("fp32", "bf16"))
        self._one_of("isolation", ("process", "thread"))
        if self.device not in ("auto", "cpu") and not (
            self.device.startswith("cuda:") and self.device.removeprefix("cuda:").isdecimal()
        ):
            raise ConfigError("device", self.device, "choose auto, cpu or cuda:N, such as cuda:0")
        self._at_least("image_size", 1)
        if self.lr is not None and not (0 < self.lr < math.inf):
            raise ConfigError("lr", self.lr, "give a number above 0")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < 2**32:
            raise ConfigError("seed", self.seed, "give a whole number from 0 to 4294967295")
        self._at_least("workers", 0)
        self._at_least("prefetch_factor", 1)
        self._at_least("warmup_steps", 0)
        self._at_least("threads", 0)
        if not 0 < self.telemetry_hz <= 50:
            raise ConfigError("telemetry_hz", self.telemetry_hz, "give a number above 0 and up to 50")
        if len(self.name) > 200:
            raise ConfigError("name", self.name[:20] + "...", "give at most 200 characters")
        if any("\ud800" <= c <= "\udfff" for c in self.name):  # an argument in another encoding; cannot be stored
            raise ConfigError("name", self.name, "give text in UTF-8")

    def _check_kinds(self) -> None:
        for f in dataclasses.fields(self):
            kind, _, optional = str(f.type).partition(" | ")
            value = getattr(self, f.name)
            if kind not in KINDS or (optional and value is None):
                continue
            wanted, allowed = KINDS[kind]
            if not isinstance(value, wanted) or isinstance(value, bool) != (kind == "bool"):
                raise ConfigError(f.name, value, allowed)

    def _at_least(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if value is None and getattr(type(self), name) is None:  # the default: it may be left out
            return
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(name, value, f"give a whole number of at least {least}")

    def _one_of(self, name: str, allowed: tuple[str, ...]) -> None:
        if getattr(self, name) not in allowed:
            raise ConfigError(name, getattr(self, name), f"choose one of {', '.join(allowed)}")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunConfig:
        """The inverse of `to_dict`. Raises `ConfigError` on a name that is no field."""
        known = {f.name for f in dataclasses.fields(cls)}
        for name in values:
            if name not in known:
                raise ConfigError(name, values[name], "there is no such setting")
        return cls(**values)

    @property
    def label(self) -> str:
        """The run's name, or one made from what tells runs apart."""
        parts = [
            self.strategy,
            f"batch {self.batch_size}",
            f"{self.workers} worker{'s' if self.workers > 1 else ''}" if self.workers else "",
            self.model if self.model != "tiny" else "",
            self.precision if self.precision != "fp32" else "",
            "compiled" if self.compile else "",
            "loader only" if self.loader_only else "",
        ]
        return self.name or ", ".join(filter(None, parts))


CONFIG_COLUMNS: tuple[str, ...] = tuple(f.name for f in dataclasses.fields(RunConfig) if f.name != "name")


def json_number(value: float | int | None) -> float | int | None:
    """`value` as JSON can carry it: NaN and infinities become None."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value


def summary_to_dict(summary: RunSummary) -> dict[str, float | int | None]:
    """The summary with None for what is not available."""
    return {name: json_number(getattr(summary, name)) for name in SUMMARY_COLUMNS}


def summary_from_dict(values: Mapping[str, Any]) -> RunSummary:
    """The inverse of `summary_to_dict`; unknown names are passed over, missing ones stay "not available"."""
    return RunSummary(**{n: values[n] for n in SUMMARY_COLUMNS if values.get(n) is not None})
