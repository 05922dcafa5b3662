"""The records that flow through vitprof: every number that is stored, charted or exported is a
field of one of them.

What is stored, CSV headers and help texts follow from `columns()`. Units are in the names: `_s`
seconds, `_ms` milliseconds, `_pct` percent 0..100, `_frac` share 0..1, `_bytes` bytes.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal, get_type_hints

SCHEMA_VERSION = 4
"""Version of the JSON objects and of the CSV columns.

It rises when a column changes its meaning or is removed."""

Status = Literal["queued", "running", "done", "stopped", "failed", "interrupted"]
Stage = Literal["sampler", "read", "decode", "transform", "collate", "hand_over", "transfer"]
"""The stages of making a batch and bringing it to the device, in order."""
TIMED_STAGES: tuple[Stage, ...] = ("read", "decode", "transform", "collate")
"""The stages that are timed inside the loader: `<stage>_s` of a step record."""
DELAYED_STAGES: tuple[Stage, ...] = (*TIMED_STAGES, "transfer")
"""The stages that a wait of known length can be added to (`RunConfig.inject`)."""
LIVE_STATUSES: tuple[Status, ...] = ("queued", "running")
STARTED_BY = "started_by"
"""Name of the fact that says which logged-in user of the dashboard started the run."""
ENDED_STATUSES: tuple[Status, ...] = ("done", "stopped", "failed", "interrupted")


LEAST_LAG_S = 100e-6
"""The host set the pace of a step if less than this passed from its last launch to the end of its
work."""
LAG_FRAC = 0.05
"""So it did if less than this share of its compute passed."""


class NullIsNaN:
    """Marks a float that JSON has as null where it is NaN or infinite, for pydantic.

    Nothing is imported for it: the watched process, which has the records, may lack pydantic.
    """

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Returns how such a float is read and written."""
        from pydantic_core import core_schema

        def read(value: Any) -> Any:
            return math.nan if value is None else value

        return core_schema.no_info_before_validator_function(read, handler(source))


Figure = Annotated[float, NullIsNaN()]
"""A float that is NaN where it is not known or does not apply."""


def measured(doc: str) -> Any:
    """Returns a float field of a record, with `doc` as its description and NaN (not known) as its
    default.
    """
    return field(default=math.nan, metadata={"description": doc})


def counted(doc: str) -> Any:
    """Returns an integer field of a record, with `doc` as its description and 0 as its default."""
    return field(default=0, metadata={"description": doc})


@dataclass(frozen=True)
class Column:
    """One column of a table or a CSV file."""

    name: str
    integer: bool
    doc: str


def columns(record: type) -> tuple[Column, ...]:
    """Returns the columns of a record class, in order."""
    types = get_type_hints(record)
    return tuple(
        Column(f.name, integer=types[f.name] is int, doc=f.metadata.get("description", ""))
        for f in fields(record)
    )


@dataclass(frozen=True)
class StepRecord:
    """Where the time of one training step went.

    Times of an asynchronous device are mapped to the host's clock.
    """

    rank: int = counted("rank of the process that made the step; 0 in a job of one process")
    step: int = counted("number of the step in the run, from 0")
    epoch: int = counted("epoch the step belongs to, from 0")
    t_start_s: float = measured(
        "when the loop asked the loader for the batch, on the monotonic clock"
    )
    data_wait_s: float = measured(
        "time the loop was blocked in next(loader), host clock; with decode_wait_s"
    )
    h2d_s: float = measured(
        "time of the copy to the device: CUDA events on CUDA, host clock on cpu"
    )
    compute_start_s: float = measured(
        "when the device began the compute, monotonic clock; its batch was ready"
    )
    compute_s: float = measured(
        "device time from the end of the copy to the end of the optimizer's work; includes device_prepare_s and waits "
        "for kernel launches"
    )
    gap_s: float = measured(
        "device time from the previous step's end to this compute, without device_prepare_s"
    )
    exposed_wait_s: float = measured(
        "the part of data_wait_s that lies inside gap_s; a hidden wait costs nothing"
    )
    step_s: float = measured(
        "from the previous step's end to this one's on the device: gap_s + compute_s"
    )
    samples: int = counted("samples in the batch")
    loss: float = measured("training loss of the batch; not available in a loader-only run")
    warmup: int = counted(
        "1 where steady-state figures leave the step out: warm-up, or the job was stopped in it"
    )
    read_s: float = measured(
        "inside the loader: reading bytes from storage, summed over the threads of a batch"
    )
    decode_s: float = measured(
        "inside the loader: decoding and cropping, where the loader can tell"
    )
    transform_s: float = measured(
        "inside the loader: transforms and augmentation, where the loader can tell"
    )
    collate_s: float = measured(
        "inside the loader: putting samples together in a batch, where the loader can tell"
    )
    queue_depth: float = measured("batches that were ready when the loop asked for one")
    h2d_start_s: float = measured("when the copy to the device began, on the monotonic clock")
    host_s: float = measured(
        "from the return of next(loader) to the step's last launch, host clock"
    )
    made_start_s: float = measured(
        "when the loader began to make the batch, on the monotonic clock, where it can tell"
    )
    made_end_s: float = measured(
        "when the batch was made, on the monotonic clock, where the loader can tell"
    )
    hand_over_s: float = measured(
        "the part of data_wait_s after the batch was made: queues, pinning, copies"
    )
    worker: float = measured("number of the worker process that made the batch, where one did")
    kernel_s: float = measured(
        "device time of the kernels alone, all launched beforehand, in the last warm-up steps"
    )
    launch_idle_s: float = measured(
        "part of compute_s that waited for kernel launches: compute_s minus the median kernel_s"
    )
    decode_wait_s: float = measured(
        "part of data_wait_s in which the device waited for its own decoding"
    )
    device_prepare_s: float = measured(
        "part of compute_s before compute_start_s: preparing the batch on the device"
    )
    outside_s: float = measured(
        "loop time since the last step, in neither step nor next(loader), host clock"
    )
    batch_values: float = measured(
        "numbers in the batch's largest tensor, padding too, where several processes train"
    )
    between_s: float = measured(
        "where several processes train: from the last update to this step, without data_wait_s"
    )
    collectives: float = measured(
        "where several processes train: collectives begun since the batch before"
    )
    awaited_s: float = measured(
        "where several processes train: waits for others since the batch before, where seen"
    )
    forward_s: float = measured(
        "where several processes train: from the batch to the first backward pass, own time"
    )
    forward_compute_s: float = measured(
        "part of compute_s before backward passes, loss included; on a GPU by marks of some steps"
    )
    backward_compute_s: float = measured(
        "part of compute_s from where a backward pass begins to where the optimizer steps"
    )
    optimizer_compute_s: float = measured("part of compute_s in which the optimizer steps")
    sampler_s: float = measured(
        "part of data_wait_s in which a watched script's sampler gave the indices of a batch"
    )
    iterator_s: float = measured(
        "part of data_wait_s in which a loader's iterator began (workers start) or ended"
    )


@dataclass(frozen=True)
class TelemetrySample:
    """What the machine and the job's processes were doing at one moment.

    A figure that cannot be read is NaN.
    """

    t_s: float = measured("when the sample was taken, on the monotonic clock")
    gpu_util_pct: float = measured(
        "NVML: share of the past 1/6 to 1 s in which any kernel ran, not how full it was"
    )
    gpu_mem_used_bytes: float = measured("device memory in use by all processes, NVML")
    gpu_mem_job_bytes: float = measured("device memory in use by the job's processes, NVML")
    gpu_power_w: float = measured("power draw, NVML")
    gpu_sm_clock_mhz: float = measured("clock of the multiprocessors, NVML")
    gpu_temp_c: float = measured("temperature of the GPU, NVML")
    pcie_rx_bytes_per_s: float = measured(
        "bytes the GPU received over PCIe, NVML, over a 20 ms window"
    )
    cpu_pct: float = measured("CPU use of the whole machine, 100 = all cores busy")
    job_cpu_pct: float = measured(
        "CPU use of the job's process and its workers, 100 = one core busy"
    )
    job_rss_bytes: float = measured(
        "resident memory of the job's processes; pages that workers share count each time"
    )
    disk_read_bytes_per_s: float = measured(
        "bytes the machine's disks delivered; a warm page cache shows as 0"
    )
    job_cpu_wait_pct: float = measured(
        "time that threads of the job waited for a core, 100 = one thread; schedstat"
    )
    workers_cpu_wait_pct: float = measured(
        "the part of job_cpu_wait_pct outside of the process that trains"
    )
    gpu_sm_active_pct: float = measured(
        "multiprocessors that were busy since the last sample, NVML (Hopper and later)"
    )
    gpu_sm_occupancy_pct: float = measured(
        "SM occupancy: warps in flight since the previous sample, as a share of those that all multiprocessors can "
        "hold, NVML's GPM counters (Hopper and later)"
    )
    cpu_pressure_pct: float = measured(
        "share of the time since the last sample in which some thread of the machine waited for a core, Linux's PSI"
    )
    shm_used_bytes: float = measured("used of /dev/shm, by all programs")
    shm_free_bytes: float = measured("free of /dev/shm")
    worker_threads: float = measured("threads of a worker of a watched script, mean over them")
    worker_cpu_pct: float = measured(
        "CPU use of a worker of a watched script, mean over them, 100 = one core busy"
    )
    worker_private_bytes: float = measured(
        "memory that a worker of a watched script shares with nobody, mean, every 15 s; smaps_rollup"
    )
    worker_pss_bytes: float = measured(
        "the same with its part of shared pages (proportional set size), every 15 s"
    )
    worker_rss_bytes: float = measured("the same with all shared pages (resident), every 15 s")
    workers_age_s: float = measured(
        "time since these workers were seen first: it falls where others took their place"
    )
    memory_available_bytes: float = measured(
        "memory that programs can still use, of the machine or the control group, every 15 s"
    )
    gpu_energy_j: float = measured(
        "energy that the job's GPUs on this machine used since the first sample, summed, NVML's counter"
    )
    energy_gpus: float = measured("GPUs of the job behind gpu_energy_j")


@dataclass(frozen=True)
class RunSummary:
    """The figures of a run.

    The training time is the wall clock of training: that of the steady steps (neither warm-up nor
    the first of an epoch) and of those that begin a later epoch; times of a step and of stages are
    of steady ones. NaN (null in JSON, empty in CSV) where a figure does not apply or could not be
    measured.
    """

    n_steps: int = counted("number of steps recorded")
    n_steady_steps: int = counted(
        "number of steps that are neither warm-up nor the first of an epoch"
    )
    n_samples: int = counted("samples trained on")
    samples_per_s: Figure = measured("samples / training time")
    samples_per_s_low: Figure = measured("lower end of the 95% interval of samples_per_s")
    samples_per_s_high: Figure = measured("upper end of the 95% interval of samples_per_s")
    epoch_s: Figure = measured(
        "training time of an epoch: median of the whole ones, else by the length of the set or loader"
    )
    n_epochs_measured: int = counted("whole epochs behind epoch_s; 0 means that it is extrapolated")
    epoch_samples: Figure = measured(
        "samples of an epoch: of the set, by the length of the loader, else of whole epochs"
    )
    step_ms_median: Figure = measured("median time of a step")
    step_ms_p95: Figure = measured("time that 95% of the steps stay below")
    data_wait_frac: Figure = measured(
        "share of the training time that the loop was blocked in next(loader)"
    )
    h2d_frac: Figure = measured("share of the training time taken by copies to the device")
    compute_frac: Figure = measured("share of the training time that the device computed")
    exposed_wait_frac: Figure = measured(
        "share of the training time that the device idled because of a data wait"
    )
    device_idle_frac: Figure = measured(
        "share of the time the device idled between steps: gaps / (gaps + compute)"
    )
    gpu_util_pct_mean: Figure = measured("mean of NVML's utilisation while training")
    gpu_mem_peak_bytes: Figure = measured(
        "highest device memory of the job: by NVML, else what the allocator reserved"
    )
    rss_peak_bytes: Figure = measured("highest resident memory of the job's process tree")
    cpu_s_per_sample: Figure = measured(
        "CPU seconds of job and workers for each sample; process isolation only"
    )
    prepare_s: Figure = measured(
        "time to make or check the data set and the storage, to open it and to fill its cache"
    )
    storage_prepare_s: Figure = measured(
        "time to make the storage when it was made; 0 for a data set's own files"
    )
    storage_bytes: Figure = measured("disk space that the storage takes")
    stage_s: Figure = measured("time to copy the storage to RAM disk or local disk in this run")
    stage_bytes: Figure = measured("bytes copied to RAM disk or local disk")
    page_cached_frac: Figure = measured(
        "share of the storage's files in the system's page cache when training began"
    )
    cache_hit_frac: Figure = measured(
        "share of the samples that the partial cache holds: its hit rate in every epoch"
    )
    n_unreadable: int = counted(
        "times that an unreadable sample was left out: as the storage was made, and in each epoch"
    )
    startup_s: Figure = measured(
        "from the job's start to the first request for a batch, without prepare_s, stage_s"
    )
    first_batch_s: Figure = measured("wait for the very first batch, worker start included")
    epoch_restart_s: Figure = measured("median wait for the first batch of each later epoch")
    evaluate_s: Figure = measured("time of all evaluations on the test set together")
    shutdown_s: Figure = measured(
        "time from the last step or evaluation to the end of loader and workers"
    )
    wall_s: Figure = measured("time from the start of the job to its end")
    loss_first: Figure = measured("training loss of the first step")
    loss_last: Figure = measured("training loss of the last step")
    test_loss: Figure = measured("mean loss on the test set at the last evaluation")
    test_accuracy: Figure = measured(
        "share of the test set classified correctly at the last evaluation"
    )
    exposed_h2d_frac: Figure = measured(
        "share of the training time that the device idled because of a copy to it"
    )
    idle_host_frac: Figure = measured(
        "share of the training time that the device idled for Python, kernel launches, optimizer"
    )
    idle_recording_frac: Figure = measured(
        "share of the training time that the device idled for vitprof's own recording"
    )
    recording_frac: Figure = measured(
        "share of the training time that the loop spent in vitprof's recording"
    )
    loader_times_frac: Figure = measured(
        "share of the training time that measuring inside the loader took, about"
    )
    sampler_ms: Figure = measured(
        "for each batch: the loop's wait for the sampler of a watched script"
    )
    read_ms: Figure = measured("inside the loader, for each batch: reading bytes from storage")
    decode_ms: Figure = measured("inside the loader, for each batch: decoding and cropping")
    transform_ms: Figure = measured(
        "inside the loader, for each batch: transforms and augmentation"
    )
    collate_ms: Figure = measured(
        "inside the loader, for each batch: putting samples together in a batch"
    )
    hand_over_ms: Figure = measured("for each batch: the loop's wait after the batch was made")
    queue_depth_mean: Figure = measured("batches that were ready when the loop asked for one")
    gpu_mem_nvml_peak_bytes: Figure = measured(
        "highest device memory of the job, NVML; CUDA's libraries included"
    )
    gpu_mem_reserved_peak_bytes: Figure = measured(
        "highest device memory reserved by PyTorch's allocator"
    )
    gpu_mem_allocated_peak_bytes: Figure = measured(
        "highest device memory allocated to PyTorch's tensors"
    )
    gpu_sm_active_pct_mean: Figure = measured(
        "mean of SM activity while training: multiprocessors that were busy"
    )
    gpu_sm_occupancy_pct_mean: Figure = measured(
        "mean of SM occupancy while training: warps in flight"
    )
    n_divided_steps: int = counted(
        "steady steps whose compute was divided into forward, backward and optimizer"
    )
    compute_ms_median: Figure = measured("median compute of these steps")
    forward_compute_frac: Figure = measured(
        "share of the compute of these steps before backward passes: the forward pass and the loss"
    )
    backward_compute_frac: Figure = measured(
        "share of the compute of these steps from a backward pass to the optimizer's step"
    )
    optimizer_compute_frac: Figure = measured(
        "share of the compute of these steps in which the optimizer steps"
    )
    other_compute_frac: Figure = measured(
        "share of the compute of these steps that is none of the three"
    )
    forward_compute_ms_median: Figure = measured("median time of forward_compute_frac in a step")
    backward_compute_ms_median: Figure = measured("median time of backward_compute_frac in a step")
    optimizer_compute_ms_median: Figure = measured(
        "median time of optimizer_compute_frac in a step"
    )
    other_compute_ms_median: Figure = measured("median time of other_compute_frac in a step")
    training_s: Figure = measured(
        "training time of one device: its compute and its idle time between steps, summed"
    )
    energy_j: Figure = measured(
        "energy that the GPUs used in the training time, summed, by NVML's counter of total energy"
    )
    energy_by_power_j: Figure = measured(
        "the same as the integral of power samples, where the GPU has no counter"
    )
    n_energy_gpus: int = counted("GPUs behind energy_j or energy_by_power_j")


StopKind = Literal["stopped", "worker", "paused", "asleep"]
"""stopped: a signal or a debugger stopped the job's process; worker: it stopped another process of
the job; paused: the job stood still together with the program that records it; asleep: the machine
slept."""


@dataclass(frozen=True)
class Stop:
    """A span of time in which a job could not run, whatever its loader did."""

    kind: StopKind
    """What stood still: stopped, worker, paused or asleep."""
    t_start_s: float
    """When it was first seen, on the monotonic clock: it began after the previous telemetry
    sample."""
    t_end_s: float
    """When it was last seen, on the monotonic clock: it had ended by the next telemetry sample."""
    seconds: float
    """How long it took, to half a telemetry period.

    The length of a sleep is in no other figure: the monotonic clock does not run meanwhile."""
    rank: int | None = None
    """The rank of the job that it was, or whose worker or node; null where it is the one whose steps
    the run has."""


@dataclass(frozen=True)
class Phase:
    """A named span of a run that is not a step: prepare, stage, startup, evaluate or shutdown."""

    name: str
    """prepare, stage, startup, evaluate or shutdown."""
    t_start_s: float
    """When it began, on the monotonic clock; in JSON since the job left the queue."""
    t_end_s: float
    """When it ended, on the same clock."""


STEP_COLUMNS: tuple[str, ...] = tuple(c.name for c in columns(StepRecord))
TELEMETRY_COLUMNS: tuple[str, ...] = tuple(c.name for c in columns(TelemetrySample))
SUMMARY_COLUMNS: tuple[str, ...] = tuple(c.name for c in columns(RunSummary))
RUN_COLUMNS: tuple[str, ...] = ("run_id", "name", "status", "created_utc")
"""Columns in front of config and summary in a row of the comparison CSV."""


def json_number(value: float | int | None) -> float | int | None:
    """Returns `value` as JSON can carry it: NaN and infinities become None."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def summary_to_dict(summary: RunSummary) -> dict[str, float | int | None]:
    """Returns the summary with None for what is not available."""
    return {name: json_number(getattr(summary, name)) for name in SUMMARY_COLUMNS}


def summary_from_dict(values: Mapping[str, Any]) -> RunSummary:
    """Returns the inverse of `summary_to_dict`; unknown names are ignored, missing ones stay "not
    available".
    """
    known = {name: values[name] for name in SUMMARY_COLUMNS if values.get(name) is not None}
    return RunSummary(**known)
