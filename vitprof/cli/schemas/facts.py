"""The machine that a run was made on, and what was measured once in the run."""

from __future__ import annotations

from vitprof.cli.schemas.fields import (
    ANYTHING,
    NUMBER,
    SWITCH,
    TEXT,
    UNKNOWN,
    WHOLE,
    Field,
    Kind,
    Shape,
    by_name,
    field,
    fields_of,
    listed,
    named,
)
from vitprof.recording.columns import STARTED_BY, RunSummary, Stop, columns

OWN, WATCHED = "in a run of a user's own script", "in a job of vitprof's own"
NO_GPU, NOT_SIMULATED = "without a GPU", "on a real device"
NOT_SAID = "where it was not recorded"


def _fact(kind: Kind | Shape, doc: str, *, null: str = "", absent: str = NOT_SAID, unit: str = "") -> Field:
    return field(kind, doc, null=null, absent=absent, unit=unit)


LOADER = Shape(
    "watched",
    "The train loader of a script",
    "The train DataLoader of a user's own script, in PyTorch's words. A loader of another kind has fewer of these.",
    {
        "dataset": _fact(TEXT, "class of the dataset"),
        "n_samples": _fact(WHOLE, "length of the dataset", null="where it has none"),
        "batch_size": _fact(WHOLE, "samples for each step", null="where the script makes its own batches"),
        "num_workers": _fact(WHOLE, "worker processes"),
        "prefetch_factor": _fact(WHOLE, "batches that each worker keeps ready", null="without workers"),
        "pin_memory": _fact(SWITCH, "whether batches come in page-locked memory"),
        "persistent_workers": _fact(SWITCH, "whether workers are kept between epochs"),
        "start_method": _fact(TEXT, "how workers start", null="where the script leaves it to PyTorch"),
        "collate": _fact(TEXT, "the collate function", null="where there is none"),
        "sampler": _fact(TEXT, "class of the sampler", null="where there is none"),
        "drop_last": _fact(SWITCH, "whether a last batch that is not full is left out"),
        "name": _fact(TEXT, "the name that the script gave to `vitprof.watch`"),
    },
    open=True,
)
STOP = Shape(
    "stop",
    "Times in which the job could not run",
    "A span of time in which a job could not run, whatever its loader did: stopped (a signal or a debugger stopped the "
    "job's process), worker (it stopped another process of the job), paused (the job stood still together with the "
    "program that records it), asleep (the machine slept). Steps that it fell into are left out of the figures.",
    fields_of(Stop, null=""),
)
ENVIRONMENT = Shape(
    "environment",
    "The machine",
    "The machine and the software, as the job found them. Which facts there are depends on the device; a newer version "
    "may add some.",
    {
        "vitprof": _fact(TEXT, "version of vitprof"),
        "python": _fact(TEXT, "version of Python"),
        "torch": _fact(TEXT, "version of PyTorch"),
        "torchvision": _fact(TEXT, "version of torchvision", absent=OWN),
        "torch_threads": _fact(WHOLE, "threads that PyTorch uses within an operation"),
        "platform": _fact(TEXT, "operating system"),
        "hostname": _fact(TEXT, "name of the machine"),
        "cpu_count": _fact(WHOLE, "logical cores", null="where the system does not report it"),
        "memory_bytes": _fact(WHOLE, "memory of the machine", unit="bytes", absent=OWN),
        "variables": _fact(
            TEXT, "environment variables that can change results, as NAME=VALUE; empty for none", absent=OWN
        ),
        "device": _fact(TEXT, "device that it trained on: cpu, cuda:N or simulated:..."),
        "device_name": _fact(TEXT, "name that the device reports"),
        "lap_s": _fact(NUMBER, "time that reading the clock inside the loader takes", unit="s", absent=OWN),
        "simulated": _fact(SWITCH, "true where the device was simulated", absent=NOT_SIMULATED),
        "simulated_origin": _fact(TEXT, "where the times of the simulated device come from", absent=NOT_SIMULATED),
        "gpu_uuid": _fact(TEXT, "unique id of the GPU", null="where it does not report one", absent=NO_GPU),
        "cuda_version": _fact(TEXT, "version of CUDA that PyTorch was built for", absent=NO_GPU),
        "gpu_memory_bytes": _fact(WHOLE, "memory of the GPU", unit="bytes", absent=NO_GPU),
        "gpu_memory_free_bytes": _fact(
            NUMBER,
            "free memory of the GPU when the job began",
            unit="bytes",
            null="where it cannot be read",
            absent=NO_GPU,
        ),
        "gpu_capability": _fact(TEXT, "compute capability, such as 9.0", absent=NO_GPU),
        "driver_version": _fact(TEXT, "version of the driver", absent=NO_GPU),
        "gpu_power_limit_w": _fact(NUMBER, "power limit", unit="W", null="where it cannot be read", absent=NO_GPU),
        "gpu_not_available": _fact(TEXT, "figures that NVML never gave, and why", null="where it gave all"),
        "sm_activity_not_available": _fact(TEXT, "why there is no SM activity", null="where there is"),
        "pid": _fact(WHOLE, "id of the process that was watched", absent=WATCHED),
        "world_size": _fact(WHOLE, "ranks of a distributed job", absent=WATCHED),
        "watched": _fact(LOADER, "the train loader", absent=WATCHED),
    },
    open=True,
)

TRANSFORM = Shape(
    "transform",
    "Times of a transform",
    "One transform of torchvision's Compose, over the train loader's batches after the warm-up.",
    {
        "s_per_sample": field(NUMBER, "mean time for each sample", unit="s a sample"),
        "calls": field(WHOLE, "calls that the mean is over"),
    },
)
BLOCK = Shape(
    "block",
    "Blocks of steps with kept batches",
    "Sums over a block of steps, for the headroom of a user's own script.",
    {
        "steps": field(WHOLE, "steps that count"),
        "step_s": field(NUMBER, "time of these steps", unit="s"),
        "compute_s": field(NUMBER, "compute in these steps", unit="s"),
        "data_wait_s": field(NUMBER, "data wait in these steps", unit="s"),
    },
)
_SUMMED = {c.name: c.doc for c in columns(RunSummary)}


def _summed(name: str, *, null: str = UNKNOWN, absent: str = NOT_SAID) -> Field:
    """Returns a fact with the docstring of the `RunSummary` field that is made from it."""
    return field(NUMBER, _SUMMED[name], unit=named(name), null=null, absent=absent)


FACTS = Shape(
    "facts",
    "Facts of a run",
    "What was measured once in a run. Which facts there are depends on the device, the loader and how far the run got.",
    {
        **{name: _summed(name) for name in ("storage_bytes", "storage_prepare_s", "stage_s", "stage_bytes")},
        "page_cached_frac": _summed("page_cached_frac", null="where the system does not report it"),
        "cache_hit_frac": _summed("cache_hit_frac", null="without a cache"),
        "n_unreadable": _summed("n_unreadable"),
        "n_train": _fact(WHOLE, "samples of the training set"),
        "n_beside": _fact(WHOLE, "jobs that ran at the same time", absent="where there was none"),
        "stops": _fact(listed(STOP), "times in which the job could not run", absent="where there was none"),
        "cpu_s": _fact(NUMBER, "CPU time of job and workers over the steady part", unit="s"),
        "cpu_samples": _fact(WHOLE, "samples that were loaded in that part"),
        "test_loss": _summed("test_loss"),
        "test_accuracy": _summed("test_accuracy"),
        "gpu_mem_reserved_peak_bytes": _summed("gpu_mem_reserved_peak_bytes", absent=NO_GPU),
        "gpu_mem_allocated_peak_bytes": _summed("gpu_mem_allocated_peak_bytes", absent=NO_GPU),
        "transforms": _fact(by_name(TRANSFORM), "each transform by its name, in their order", absent=WATCHED),
        "replay": _fact(
            by_name(BLOCK), "blocks by number; odd ones reuse kept batches", absent="without `watch --headroom`"
        ),
        "replay_refused": _fact(
            TEXT, "why no batches were kept", null="where they were", absent="without `watch --headroom`"
        ),
        STARTED_BY: _fact(TEXT, "user of the dashboard who started it", absent="where users do not log in"),
        "imported": _fact(ANYTHING, "host and run_id where the run was made", absent="in a run that was not imported"),
    },
    open=True,
)
