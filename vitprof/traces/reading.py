"""A trace's file as what a run needs: its steps, its evaluations, and what is known of device and loader."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitprof import formats
from vitprof.measure.step_columns import Columns
from vitprof.names import tamed_name
from vitprof.recording.columns import Phase
from vitprof.recording.recording import TraceSource, WatchedLoader
from vitprof.traces.columns import columns_of, n_warmup, without_device
from vitprof.traces.events import EventCollector, TraceEvents
from vitprof.traces.loop import Loop, NoStepsError, find_loop
from vitprof.traces.trace_file import OnProgress, TraceError, TraceFile

IN_THE_LOOP = "_SingleProcessDataLoaderIter"
"""PyTorch's class of the iterators that make batches in the training loop, without workers."""
NOT_IN_A_TRACE = (
    "stages of making a batch in workers",
    "start of workers as an epoch begins",
    "losses",
    "the machine's and the GPU's use, memory and clocks",
)
"""What a recording has and no trace says."""
NO_SAMPLES = "samples of a batch (--batch-size tells)"
NO_WORKERS = "number of workers (--workers tells)"
NO_LAUNCHES = "launches of the device's work, and so waits for them inside the steps"
OPTIONS = ("record_shapes", "with_stack", "profile_memory", "with_flops", "with_modules")
"""What a profiler can be asked to record, too: each makes the host slower."""
MICROSECONDS_OF_NOW = 1e15
"""A time from which on it is one since 1970: older profilers write these (September 2001 on)."""
UNTIMED_GPU = "the GPU of this trace, which has no event of it"


@dataclass(frozen=True, slots=True)
class ReadTrace:
    """What a trace says of a training. Times are seconds since its beginning."""

    steps: Columns
    phases: tuple[Phase, ...]
    environment: dict[str, Any]
    """Device, ranks and train loader, as far as they are known (`recording.Environment`)."""
    facts: dict[str, Any]
    """Facts of the run (`recording.Facts`), "trace" among them."""
    notices: tuple[str, ...]
    seconds: float
    """How long what was recorded took."""


def read_trace(
    path: Path,
    *,
    batch_size: int | None = None,
    workers: int | None = None,
    on_progress: OnProgress | None = None,
) -> ReadTrace:
    """Returns what a trace says of a training.

    `batch_size`, `workers`: what no trace says of its train loader. Raises `TraceError` where the file
    is no trace, not a whole one, or has no steps.
    """
    file = TraceFile(path, on_progress)
    collector = EventCollector()
    for event in file.events():
        collector.add(event)
    events = collector.finish()
    try:
        loop = find_loop(events.threads)
    except NoStepsError as error:
        raise TraceError(f"{path} cannot be read as a training: {error}") from None
    steps = columns_of(loop, events.work, batch_size=batch_size or 0)
    environment = _environment(file.about, events)
    if "untimed_device" in environment:
        steps = without_device(steps)
    loader = _loader(loop, events, batch_size, workers)
    environment["watched"] = loader
    source = _source(file, events, loop, loader)
    return ReadTrace(
        steps=steps,
        phases=tuple(
            Phase("evaluate", evaluated.start_s, evaluated.end_s) for evaluated in loop.evaluations
        ),
        environment=environment,
        facts={"trace": source, **_loop_facts(loop, events)},
        notices=_notices(source, events, environment),
        seconds=events.seconds,
    )


def _loader(
    loop: Loop, events: TraceEvents, batch_size: int | None, workers: int | None
) -> WatchedLoader:
    """Returns what is known of the train loader."""
    loader: WatchedLoader = {"dataset": None, "batch_size": batch_size}
    if loop.loader_class == IN_THE_LOOP:
        workers = 0
    if workers is not None:
        loader["num_workers"] = workers
    if events.copies:
        loader["pin_memory"] = 2 * events.pinned_copies > events.copies
    return loader


def _environment(about: Mapping[str, Any], events: TraceEvents) -> dict[str, Any]:
    """Returns what the file says of device and ranks. Nothing of it is trusted to be there, or to be
    what it should."""
    environment: dict[str, Any] = {}
    gpus = [gpu for gpu in _list(about.get("deviceProperties")) if isinstance(gpu, Mapping)]
    if events.device is not None:
        environment["device"] = f"cuda:{max(0, events.device)}"
        own = next((gpu for gpu in gpus if gpu.get("id") == events.device), None)
        environment |= _gpu(own or {})
    elif gpus or events.launched_unseen:
        environment["untimed_device"] = UNTIMED_GPU
    else:
        environment["device"] = "cpu"
    version = about.get("cuda_runtime_version")
    if isinstance(version, int) and version > 0:
        environment["cuda_version"] = f"{version // 1000}.{version % 1000 // 10}"
    distributed = about.get("distributedInfo")
    if isinstance(distributed, Mapping):
        world_size = _whole(distributed.get("world_size"))
        rank = _whole(distributed.get("rank"))
        if world_size is not None and world_size > 1:
            environment["world_size"] = world_size
            environment["rank"] = rank or 0
    return environment


def _gpu(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what is known of a GPU, by the names of a recording."""
    known: dict[str, Any] = {}
    name = properties.get("name")
    if isinstance(name, str):
        known["device_name"] = tamed_name(name)
    memory_bytes = _whole(properties.get("totalGlobalMem"))
    if memory_bytes:
        known["gpu_memory_bytes"] = memory_bytes
    major = _whole(properties.get("computeMajor"))
    minor = _whole(properties.get("computeMinor"))
    if major is not None and minor is not None:
        known["gpu_capability"] = f"{major}.{minor}"
    return known


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _whole(value: object) -> int | None:
    """Returns a whole number; None for anything else."""
    if isinstance(value, int | float | str):
        try:
            return int(value)
        except (ValueError, OverflowError):
            return None
    return None


def _loop_facts(loop: Loop, events: TraceEvents) -> dict[str, Any]:
    """Returns the facts for which there may be no verdict."""
    facts: dict[str, Any] = {}
    if loop.others_train:
        facts["several_threads_train"] = True
    if not loop.loader_class:
        facts["unknown_wait_steps"] = len(loop.steps)
        facts["fetched_by"] = "a thread" if loop.fetched_elsewhere else "no loader"
    return facts


def _source(file: TraceFile, events: TraceEvents, loop: Loop, loader: WatchedLoader) -> TraceSource:
    """Returns where the run comes from, and what is missing there."""
    missing = list(NOT_IN_A_TRACE)
    if not loader.get("batch_size"):
        missing.append(NO_SAMPLES)
    if "num_workers" not in loader and loop.loader_class:
        missing.append(NO_WORKERS)
    if len(events.work) and not events.work.launch_is_known.any():
        missing.append(NO_LAUNCHES)
    asked = [name for name in OPTIONS if file.about.get(name)]
    return {
        "file": tamed_name(file.path.name),
        "bytes": file.n_bytes,
        "events": file.n_events,
        "device_events": len(events.work),
        "profiler": _profiler(file.about),
        "options": asked,
        "recorded_utc": _recorded_utc(file.about, events.origin_us),
        "steps_by": loop.steps_by,
        "first_iteration": loop.first_iteration,
        "warmup_steps": min(n_warmup(loop), len(loop.steps)),
        "missing": missing,
    }


def _profiler(about: Mapping[str, Any]) -> str:
    """Returns what has written a trace, with the version of the form: no trace names PyTorch's."""
    version = _whole(about.get("schemaVersion"))
    if version is None:
        return "a profiler of PyTorch that names no version"
    return f"torch.profiler (Kineto), form {version}"


def _recorded_utc(about: Mapping[str, Any], origin_us: float) -> str | None:
    """Returns when a trace begins, ISO 8601 with a Z; None where it does not say so."""
    base_ns = _whole(about.get("baseTimeNanoseconds")) or 0
    moment_s = base_ns / 1e9 + origin_us / 1e6
    if moment_s < MICROSECONDS_OF_NOW / 1e6 or not math.isfinite(moment_s):
        return None
    try:
        moment = dt.datetime.fromtimestamp(moment_s, dt.UTC)
    except (OverflowError, ValueError, OSError):
        return None
    return f"{moment:%Y-%m-%dT%H:%M:%S}Z"


def _notices(
    source: TraceSource, events: TraceEvents, environment: Mapping[str, Any]
) -> tuple[str, ...]:
    """Returns what to know when reading the figures of a trace."""
    slows = "the profiler slows the host down"
    if source["options"]:
        slows += f", more so with {', '.join(source['options'])}"
    notices = [
        f"read from a trace of torch.profiler, {source['file']}: {slows}, so Python and launches "
        "look slower than they are without it",
        f"not in the trace: {'; '.join(source['missing'])}. `vitprof watch` measures these",
    ]
    if events.device is None and "untimed_device" not in environment:
        notices.append(
            "the trace has no work of a GPU: it is read as training on the CPU. Of a GPU, record "
            "with ProfilerActivity.CUDA"
        )
    if events.other_devices:
        n = formats.count(events.other_devices, "other device")
        notices.append(
            f"{n} worked in the same process: the figures are of {environment['device']}"
        )
    if events.untimed:
        notices.append(f"events without a time are left out: {events.untimed:,}")
    return tuple(notices)
