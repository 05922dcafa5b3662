"""The configuration of a job: `RunConfig`, the help text of each field, and the checks that need nothing else.

Nothing in this folder imports torch: the dashboard and the command line use it before a job exists.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from types import NoneType
from typing import Any, Literal, TypeVar, cast, get_args, get_type_hints

from vitprof.config.accelerators import CARDS, Precision, accelerator, is_simulated
from vitprof.config.bounds import DEVICE_BOUNDS, INJECTED_MS, RUN_BOUNDS
from vitprof.errors import ConfigError
from vitprof.names import MAX_NAME, tamed_name, why_no_name
from vitprof.recording.columns import DELAYED_STAGES

Isolation = Literal["process", "thread"]
BUDGETS: tuple[str, ...] = ("epochs", "steps", "seconds")
PARTS: tuple[str, ...] = ("storage", "location", "loader", "transfer")
"""Fields of `RunConfig` that replace a part of the strategy. None means the strategy's own part."""
DATALOADER = ("workers", "prefetch_factor", "pin_memory", "persistent_workers", "start_method")
LOADING = (*DATALOADER, "decoder", "shuffle")
CACHE_AND_DRIVE = ("cache_mb", "slow_drive", "slow_mb_s", "slow_latency_ms")
KNOBS: tuple[str, ...] = (*LOADING, *CACHE_AND_DRIVE)
CHOICES: dict[str, tuple[str, ...]] = {
    "precision": ("fp32", "tf32", "bf16", "fp16"),
    "compile_mode": ("reduce-overhead", "max-autotune"),
    "isolation": ("process", "thread"),
    "start_method": ("fork", "forkserver", "spawn"),
    "decoder": ("simplejpeg", "opencv", "pil", "torchvision", "torchcodec"),
    "shuffle": ("full", "block", "none"),
    "slow_drive": ("network-drive", "mechanical-disk"),
    "augment": ("off", "cpu", "device"),
    "page_cache": ("as-is", "warm", "cold"),
    "replay": ("host", "device"),
}
"""Field of `RunConfig` that takes one of a few values -> these values. `resolve` checks names in registries."""


T = TypeVar("T")


def described(default: T, text: str) -> T:
    """Returns a field of a dataclass with its help text."""
    made: Any = field(default=default, metadata={"description": text})
    return cast(T, made)


KINDS: dict[Any, str] = {str: "give text", bool: "give true or false"}
"""Type of a field of `RunConfig` -> the message for other values. Numbers are in `vitprof.config.bounds`."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The settings of one job as asked for, checked (`ConfigError`) as far as can be without data set and strategy."""

    name: str = described("", "name of the run; made from strategy and batch size if empty")
    dataset: str = described("digits", "data set to train on")
    n_images: int | None = described(
        None, "number of training images to make, where the data set can have any number (photos)"
    )
    model: str = described("tiny", "Vision Transformer to train")
    strategy: str = described(
        "per-sample", "how samples are stored, loaded and brought to the device"
    )
    batch_size: int = described(128, "samples for each step")
    epochs: int | None = described(None, "budget: whole passes over the training set")
    steps: int | None = described(None, "budget: training steps")
    seconds: float | None = described(None, "budget: seconds of training")
    device: str = described(
        "auto",
        "auto (the first GPU, else the CPU), cpu, cuda:N (N counts what CUDA_VISIBLE_DEVICES "
        "shows), or a simulated GPU: simulated:NAME, or simulated:A_MS,B_US for A ms a step and B "
        "us a sample",
    )
    precision: Precision = described(
        "fp32",
        "fp32; tf32 (fp32 with products of lower precision on tensor cores); bf16 or fp16 by "
        "autocast, fp16 with scaled gradients",
    )
    compile: bool = described(False, "compile the model with torch.compile (slow first step)")
    compile_mode: str | None = described(
        None,
        "mode of torch.compile: reduce-overhead (CUDA graphs: fewer kernel launches) or max-autotune; its "
        "default if not given",
    )
    fused_optimizer: bool = described(
        False, "run Adam as one kernel for all parameters: fewer kernel launches"
    )
    image_size: int | None = described(
        None, "side of the model's input in pixels; images are resized on the device"
    )
    lr: float | None = described(None, "learning rate for Adam; the model's default if not given")
    seed: int = described(42, "seed of the weights and of the sample order")
    storage: str | None = described(
        None, "how samples are stored, in place of the strategy's storage"
    )
    location: str | None = described(
        None, "where the storage is kept, in place of the strategy's location"
    )
    loader: str | None = described(None, "what builds batches, in place of the strategy's loader")
    transfer: str | None = described(
        None, "how a batch reaches the device, in place of the strategy's transfer"
    )
    workers: int | None = described(
        None, "worker processes of the DataLoader, or threads of a loader that has threads"
    )
    prefetch_factor: int | None = described(
        None, "batches kept ready by each worker process, or by a thread that reads ahead"
    )
    pin_memory: bool | None = described(
        None, "copy batches to page-locked memory before they go to the GPU"
    )
    persistent_workers: bool | None = described(None, "keep the workers alive between epochs")
    start_method: str | None = described(
        None,
        "how worker processes start; if not given, fork where the job has a process of its own",
    )
    decoder: str | None = described(
        None,
        "decoder for JPEG (simplejpeg is the fastest) or PNG (opencv is); torchvision's is "
        "deprecated for torchcodec",
    )
    shuffle: str | None = described(
        None,
        "order of an epoch: full, block (shuffled blocks of neighbours, for chunked files), none "
        "(as stored)",
    )
    cache_mb: float | None = described(
        None, "memory in MB for a cache of part of the set, a fixed random subset"
    )
    slow_drive: str | None = described(
        None,
        "drive that the throttled one imitates: network-drive (30 MB/s, 207 ms a file) or "
        "mechanical-disk (150 MB/s, 12 ms)",
    )
    slow_mb_s: float | None = described(
        None, "bandwidth of the throttled drive in MB/s; the preset's if not given"
    )
    slow_latency_ms: float | None = described(
        None, "time to open a file on the throttled drive; the preset's if not given"
    )
    augment: str | None = described(
        None,
        "random flip, crop and rotation: off, on the CPU for each sample, or on the device for "
        "each batch",
    )
    skip_unreadable: bool = described(
        False, "leave out and count samples that cannot be read, instead of failing"
    )
    page_cache: str = described(
        "as-is",
        "the system's cache of the storage's files at the start: left unchanged, warmed, or dropped",
    )
    cudnn_benchmark: bool = described(
        False, "let cuDNN try its algorithms and keep the fastest (CUDA only)"
    )
    warmup_steps: int = described(5, "first steps left out of steady-state figures")
    least_steps: int = described(
        0,
        "least number of steady steps of a run with a budget in seconds, which may take up to ten "
        "times its seconds",
    )
    replay: str | None = described(
        None,
        "keep the first batches and use only those, as if data were free: from host memory (pinned "
        "where the transfer pins), or on the device",
    )
    inject: str | None = described(
        None,
        "wait to add to each batch, to check what is reported: STAGE:MS, such as read:20 (read, "
        "decode, transform, collate, transfer)",
    )
    loader_times: bool = described(
        True, "measure inside the loader: read, decode, transform, collate, queue"
    )
    evaluate: bool = described(
        True, "evaluate on the test set: after each epoch of a budget in epochs, else at the end"
    )
    loader_only: bool = described(False, "fetch and transfer batches without training")
    threads: int = described(0, "torch's intra-op CPU threads; 0 leaves the number to torch")
    ranks: int = described(
        1,
        "processes that train together by DistributedDataParallel, each on its part of an epoch "
        "and on a device of its own; batch_size is each one's",
    )
    slow_rank: str | None = described(
        None,
        "wait of one rank before it reads a batch, to check what is reported: RANK:MS, such as "
        "1:20",
    )
    share_machine: bool = described(
        False,
        "run at the same time as jobs on other devices that also set this; if not, one job runs at "
        "a time, as jobs compete for CPU and disk",
    )
    isolation: Isolation = described(
        "process", "train in a separate process (recommended) or in a thread of this one"
    )
    telemetry_hz: float = described(5.0, "telemetry samples per second")

    def __post_init__(self) -> None:
        budgets = [b for b in BUDGETS if getattr(self, b) is not None]
        if len(budgets) > 1:
            first, second = budgets[:2]
            raise ConfigError(
                second, getattr(self, second), f"give one budget only, and {first} is given already"
            )
        if not budgets:
            object.__setattr__(self, "epochs", 1)
        for name, (kind, *others) in types_of(RunConfig).items():
            value = getattr(self, name)
            if kind in KINDS and not isinstance(value, (kind, *others)):
                raise ConfigError(name, value, KINDS[kind])
            if value is None and NoneType in others:  # an optional field that is not given
                continue
            if name in RUN_BOUNDS:
                RUN_BOUNDS[name].check(name, value)
            elif name in CHOICES and value not in CHOICES[name]:
                raise ConfigError(name, value, f"choose one of {', '.join(CHOICES[name])}")
        if self.inject is not None:
            injection(self.inject)
        object.__setattr__(self, "name", self.name.strip())
        if reason := why_no_name(self.name):
            shown = self.name if len(self.name) <= MAX_NAME else self.name[:20] + "..."
            raise ConfigError("name", shown, reason)
        if self.simulated:
            accelerator(self.device)
        elif self.device not in ("auto", "cpu") and not _is_gpu(self.device):
            allowed = (
                f"choose auto, cpu, cuda:N such as cuda:0 (up to {DEVICE_BOUNDS['cuda'].most}), "
            )
            allowed += f"simulated:NAME ({', '.join(CARDS)}), or simulated:A_MS,B_US such as simulated:66,70"
            raise ConfigError("device", self.device, allowed)

    @property
    def simulated(self) -> bool:
        return is_simulated(self.device)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunConfig:
        """Returns the inverse of `to_dict`; replaces characters of a name that can't be shown. Raises `ConfigError`."""
        known = {f.name for f in fields(cls)}
        for name in values:
            if name not in known:
                raise ConfigError(name, values[name], "there is no such setting")
        run_name = values.get("name")
        if isinstance(run_name, str) and len(run_name) <= MAX_NAME:
            values = {**values, "name": tamed_name(run_name)}
        return cls(**values)


@functools.cache
def types_of(record: type) -> dict[str, tuple[Any, ...]]:
    """Returns the types that values of each field of a dataclass may have: one, and `NoneType` where it is optional."""
    return {name: get_args(hint) or (hint,) for name, hint in get_type_hints(record).items()}


@functools.cache
def descriptions() -> dict[str, str]:
    """Returns the help text of each field of `RunConfig`: what command line, sidebar and files show."""
    return {each.name: each.metadata["description"] for each in fields(RunConfig)}


def _is_gpu(device: str) -> bool:
    number = device.removeprefix("cuda:")
    most = DEVICE_BOUNDS["cuda"].most
    # its length first: int() refuses thousands of digits
    return (
        number != device
        and number.isdecimal()
        and len(number) <= len(str(most))
        and int(number) <= most
    )


def injection(text: str) -> tuple[str, float]:
    """Returns the stage, and the wait in seconds for each batch, of a text "STAGE:MS". Raises `ConfigError`."""
    stage, _, number = text.partition(":")
    try:
        ms = float(number)
    except ValueError:
        ms = math.nan
    if stage not in DELAYED_STAGES or not INJECTED_MS.least <= ms <= INJECTED_MS.most:
        stages = ", ".join(DELAYED_STAGES)
        limits = f"from {INJECTED_MS.least} to {INJECTED_MS.most} ms"
        allowed = f"give STAGE:MILLISECONDS, such as read:20; stages are {stages}, {limits}"
        raise ConfigError("inject", text, allowed)
    return stage, ms / 1e3


CONFIG_COLUMNS: tuple[str, ...] = tuple(f.name for f in fields(RunConfig) if f.name != "name")

GROUPS: dict[str, tuple[str, ...]] = {
    "What to train": (
        *("dataset", "n_images", "model", "image_size", "precision"),
        *("compile", "compile_mode", "fused_optimizer", "lr", "cudnn_benchmark"),
    ),
    "Budget": (
        "epochs",
        "steps",
        "seconds",
        "warmup_steps",
        "least_steps",
        "evaluate",
        "loader_only",
    ),
    "Strategy and its parts": ("strategy", "batch_size", *PARTS),
    "Loading": (*LOADING, "augment", "skip_unreadable"),
    "Drive and cache": ("page_cache", *CACHE_AND_DRIVE),
    "Run": (
        "name",
        "device",
        "ranks",
        "share_machine",
        "threads",
        "seed",
        "isolation",
        "telemetry_hz",
    ),
    "Measuring": ("loader_times", "replay", "inject", "slow_rank"),
}
"""Heading -> fields of `RunConfig`, grouped as a person looks for them: the panels of the command line's help."""
