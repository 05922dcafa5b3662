"""A run as one value. What is printed as JSON, bundled and described by a schema follows from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NotRequired

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypedDict

from vitprof.config import RunConfig
from vitprof.recording import columns
from vitprof.recording.codec import CONFIG, ColumnsOf, KnownKeys
from vitprof.recording.idle_cost import IdleCost
from vitprof.recording.late_batches import LateBatches
from vitprof.recording.rank_facts import NodeFacts, RankFacts, RestartFacts
from vitprof.recording.verdict import Verdict

Columns = Mapping[str, NDArray[np.float64]]
"""A float64 array of the same length for each column, NaN where a value is not available."""


class WatchedLoader(TypedDict, total=False):
    """The train DataLoader of a user's own script, in PyTorch's words.

    Other loaders have fewer of these.
    """

    dataset: str | None
    """Class of the dataset; null where no loader was seen."""
    n_samples: int | None
    """Length of the dataset; null where it has none."""
    epoch_batches: int | None
    """Batches of an epoch, by its sampler; null where that is the script's own."""
    batch_size: int | None
    """Samples for each step; null where the script makes its own batches."""
    num_workers: int
    """Worker processes."""
    prefetch_factor: int | None
    """Batches that each worker keeps ready; null without workers."""
    pin_memory: bool
    """Whether batches come in page-locked memory."""
    persistent_workers: bool
    """Whether workers are kept between epochs."""
    start_method: str | None
    """How workers start; null where the script leaves it to PyTorch."""
    collate: str | None
    """The collate function."""
    by_batch: bool
    """Whether its dataset makes a whole batch at once, by `__getitems__` or with indices of batches."""
    sampler: str | None
    """Class of the sampler."""
    drop_last: bool
    """Whether a last batch that is not full is dropped."""
    in_order: bool
    """False where batches come as they are made, not in the sampler's order; else it is left out."""
    timeout_s: float
    """For how long it waits for a batch at most; left out where it waits for as long as it takes."""
    iterable: bool
    """Whether its dataset is an IterableDataset: each worker gives all that its own one yields."""
    shards: int | None
    """How many shards that has, of which each worker reads whole ones; null where it is not known."""
    divides: bool
    """Whether that is known to give each worker a part of its samples: by its library, or as its code asks
    for its worker."""
    framework: str
    """Package whose training loop iterates over it, such as transformers."""
    name: str
    """The name that the script gave to `vitprof.watch`."""


class LoaderWaits(WatchedLoader, total=False):
    """One of several loaders that a step of a watched run asks for a batch."""

    batches: int
    """Batches after the warm-up, in steps that asked several."""
    wait_s: float
    """How long the training thread waited for them."""


class OtherProgram(TypedDict):
    """A program other than the job's that used the CPU meanwhile."""

    name: str
    """The file name of its script or executable; of another user's program at most 15 characters."""
    pid: int
    """The id of its process; of several, of the one that used most."""
    cores: float
    """Cores that it used, on average, all its processes together."""
    processes: NotRequired[int]
    """How many of its processes used the CPU; missing in runs of earlier versions, which had a program for each."""


class Environment(TypedDict, total=False):
    """The machine and the software, as the job found them.

    Which keys there are depends on the device.
    """

    vitprof: str
    """Version of vitprof."""
    python: str
    """Version of Python."""
    torch: str
    """Version of PyTorch."""
    torchvision: str | None
    """Version of torchvision."""
    torch_threads: int
    """Threads that PyTorch uses within an operation."""
    platform: str
    """Operating system."""
    hostname: str
    """Name of the machine."""
    job_id: str
    """Id of the cluster's job that it was part of, such as Slurm's; empty for none."""
    cpu_count: int | None
    """Logical cores of the machine; null where the system does not report it."""
    job_cpu_count: int
    """Those of them that the job may use: by its affinity, or its control group's quota."""
    memory_bytes: int | None
    """Memory of the machine."""
    variables: str
    """Environment variables that can change results, as NAME=VALUE; empty for none."""
    device: str
    """Device that it trained on: cpu, cuda:N or simulated:..."""
    device_name: str
    """Name that the device reports."""
    untimed_device: str
    """Kind of the device, such as mps, where vitprof cannot time it: its columns are not
    available."""
    untested_device: str
    """Kind of the device, ROCm, where vitprof times it by calls that no hardware has tried."""
    lap_s: float
    """Time that reading the clock inside the loader takes."""
    simulated: bool
    """True where the device was simulated."""
    simulated_origin: str
    """Where the times of the simulated device come from."""
    gpu_uuid: str | None
    """Unique id of the GPU; null where it does not report one."""
    cuda_version: str | None
    """Version of CUDA that PyTorch was built for."""
    gpu_memory_bytes: int
    """Memory of the GPU."""
    gpu_memory_free_bytes: float | None
    """Free memory of the GPU when the job began; null where it cannot be read."""
    gpu_capability: str
    """Compute capability, such as 9.0."""
    driver_version: str | None
    """Version of the driver."""
    gpu_power_limit_w: float | None
    """Power limit; null where it cannot be read."""
    gpu_not_available: str | None
    """Figures that NVML never gave, and the reason; null where it gave all."""
    sm_activity_not_available: str | None
    """The reason why there is no SM activity; null where there is."""
    other_programs: list[OtherProgram]
    """Programs other than the job's that used most of the CPU while telemetry was taken; empty where none used much."""
    pid: int
    """Id of the process that was watched."""
    world_size: int
    """Ranks of a distributed job."""
    rank: int
    """The rank that the run's figures are of."""
    local_rank: int
    """Its number on its node."""
    job: str
    """What the processes of the distributed job have in common on all nodes."""
    began_unix_s: float
    """When its training began, in seconds since 1970."""
    watched: WatchedLoader
    """The train loader of a watched run."""


class TransformTime(TypedDict):
    """One transform of torchvision's Compose, over the train loader's batches after the warm-up."""

    s_per_sample: float
    """Mean time for each sample."""
    calls: int
    """Calls that the mean is over."""
    cpu_s_per_sample: NotRequired[float]
    """CPU time of all threads of its process meanwhile, from a few of these calls; where Linux says it."""
    queued_s_per_sample: NotRequired[float]
    """The part of that mean time in which its thread was ready to run and had no core; likewise."""
    threads_queued_s_per_sample: NotRequired[float]
    """The same of all other threads of its process together, for which it may have waited; likewise."""
    looked_s_per_sample: NotRequired[float]
    """The mean time in those few calls alone: where it is less than that of all, some may have waited."""


class StageUse(TypedDict):
    """What a stage used in the batches that were looked at, sums in seconds."""

    took_s: float
    """Wall time."""
    cpu_s: float
    """CPU time of all threads of the process that made them."""
    queued_s: float
    """For how long the thread that made them was ready to run and had no core."""
    threads_queued_s: float
    """The same of all other threads of its process together."""


class Making(TypedDict):
    """Sums over a fourth of the train loader's batches after the warm-up. Of a built-in job it is known what stages
    used, and the rest only of a watched script, whose batches are made by Python code of its own.
    """

    made_s: NotRequired[float]
    """Time to make them, in whichever process."""
    cpu_s: NotRequired[float]
    """CPU time of the threads that made them, and of other threads and of programs that did a part of the work."""
    queued_s: NotRequired[float]
    """Time that these threads waited for a core; NaN where that is not counted, and where programs did a part."""
    opened: NotRequired[float]
    """Files that these threads opened meanwhile with Python's functions."""
    stages: NotRequired[dict[str, StageUse]]
    """What stages used in some of these batches, where Linux says it: of a watched script read (the dataset without its
    transforms), transform and collate, of a built-in job also decode, and rest for what comes between them."""
    looked_batches: NotRequired[int]
    """How many batches that is."""
    looking_s: NotRequired[float]
    """Time that looking at them took in a built-in job."""
    batches: NotRequired[int]
    """Those batches, of a watched script."""


class HandedOver(TypedDict):
    """What a batch of a watched script is made of, and how its workers hand it over."""

    tensors: int
    """Its tensors: each crosses from a worker by itself."""
    bytes: int
    """Their bytes."""
    dtypes: dict[str, int]
    """How many there are of each dtype."""
    storages: NotRequired[int]
    """Segments of shared memory that it takes: several tensors may be views of one."""
    descriptor_limit: NotRequired[int | None]
    """Descriptors that the process which trains may have open (RLIMIT_NOFILE); null for any number."""
    sharing: NotRequired[str]
    """Sharing strategy of torch.multiprocessing in the workers: file_descriptor, with an open descriptor for
    each segment, or file_system, with a file in /dev/shm."""
    torch_threads: NotRequired[int]
    """Threads that PyTorch uses within an operation in a worker: 1, unless the script sets another number."""
    start_method: NotRequired[str]
    """How the workers were started: fork, spawn or forkserver."""
    pickle_s: NotRequired[float]
    """Time from begin to end of pickling a batch in a worker, in a thread of its own: a mean over 8 of the first. What
    collate has not put into shared memory is moved there."""
    pickle_cpu_s: NotRequired[float]
    """CPU time of that: the rest are waits, most of them for Python's lock while the worker makes its next batch."""
    unpickle_s: NotRequired[float]
    """Time that it takes to unpickle a batch from a worker: a mean over 16 of the first."""
    unpickle_cpu_s: NotRequired[float]
    """CPU time of that."""
    pinning_cpu_s: NotRequired[float]
    """CPU time of the thread that pins batches while the loop works on one: for unpickling, copying and freeing
    others. Known where the loop trains on a GPU."""
    pinning_queued_s: NotRequired[float]
    """Time for which that thread waited for a core meanwhile."""
    unpickled_in: NotRequired[str]
    """The thread that does that: "training", or "pinning" where batches are pinned."""


class SlowSample(TypedDict):
    """A sample for which the dataset took several times the median."""

    index: int
    """Its index in the dataset; for Subsets, in the one that they are of."""
    times: int
    """How often it was slow after the warm-up."""
    total_s: float
    """Time that the dataset took for it in all of them."""
    longest_s: list[float]
    """The longest of these times, at most 16."""
    steps: list[int]
    """The step for which each of them was made."""
    file: str
    """The file that the dataset opened last for it, with Python's functions; empty where it opened
    none."""
    file_bytes: int | None
    """Size of that file; null where it has none."""


class WorkerSamples(TypedDict):
    """How long one worker takes for a sample."""

    worker: int
    """Its number."""
    timed: int
    """Its samples that were timed."""
    median_s: float
    """The median of their times, known to 10%."""


class SlowSamples(TypedDict):
    """How long the dataset of a watched script takes for each sample, and which take longest."""

    timed: int
    """Samples that were timed, after the first batches."""
    median_s: float
    """The median of their times."""
    p99_s: float
    """The time that 99% of them stay below."""
    listed: list[SlowSample]
    """The slow samples that took longest in all, at most 50."""
    indices: NotRequired[list[int]]
    """Indices of the slow samples that took longest in all, at most 500."""
    indices_times: NotRequired[list[int]]
    """How often each of them was slow."""
    indices_longest_s: NotRequired[list[float]]
    """The longest time that the dataset took for each of them."""
    sketch: NotRequired[list[list[float]]]
    """How many samples took how long (s): the middle of a bucket 19% wide, and their number."""
    workers: NotRequired[list[WorkerSamples]]
    """The samples of each worker; empty without workers."""


class ReplayBlock(TypedDict):
    """Sums over a block of steps with kept batches, for the headroom of a user's own script."""

    steps: int
    """Steps that count."""
    step_s: float
    """Time of these steps."""
    compute_s: float
    """Compute in these steps."""
    data_wait_s: float
    """Data wait in these steps."""


class CausalLook(TypedDict):
    """What the stages took before any seemed faster, and how the blocks are."""

    steps: int
    """Steps that count."""
    wall_s: float
    """Time of these steps."""
    stage_s: dict[str, float]
    """Time in each stage for these steps' batches, wherever it ran."""
    tried: list[str]
    """Stages that take enough of it to be tried."""
    blocks_per_round: int
    """Blocks in which each stage seems faster once by each fraction, and those in which none does."""
    settle: int
    """Steps that every block begins with and that do not count."""
    needed: int
    """Least number of steps that count."""


class CausalBlock(TypedDict):
    """A block of steps in which a stage seemed faster, or none."""

    round: int
    """The number of its round, from 1 on."""
    stage: str
    """The stage; empty for none."""
    fraction: float
    """The fraction of its time by which it seemed faster."""
    steps: int
    """Steps that count."""
    wall_s: float
    """Time of these steps."""
    effective_s: float
    """Their time without the pauses: what they would take with a stage that is faster."""
    saved_s: float
    """For how long a process that does not run the stage was to pause."""
    stage_s: float
    """Time in the stage for these steps' batches."""


class Causal(TypedDict):
    """The causal profile of a user's own script: blocks of steps in which a stage seemed faster."""

    look: CausalLook | None
    """The first block, in which none did; null before it has ended."""
    blocks: list[CausalBlock]
    """The blocks after it that have ended, in order."""
    refused: str | None
    """Why there are none, or no more; null where nothing speaks against them."""


class TraceSource(TypedDict):
    """The file of a profiler that a run was read from."""

    file: str
    """Its name, without the folder."""
    bytes: int
    """Its size, compressed as it is."""
    events: int
    """Events in it, of all kinds."""
    device_events: int
    """Kernels, copies and fills of the device that the figures are of; 0 where the CPU trained."""
    profiler: str
    """What has written it, as far as it says so."""
    options: list[str]
    """What the profiler was asked to record, too, such as record_shapes: it makes the host slower."""
    recorded_utc: str | None
    """When it begins, ISO 8601 with a Z; null where it does not say so."""
    steps_by: str
    """What tells its steps apart: Optimizer.step, or ProfilerStep where no optimizer is seen."""
    first_iteration: int | None
    """The number of the profiler's first step in it; null without one."""
    warmup_steps: int
    """Steps at its beginning that count in no figure."""
    missing: list[str]
    """What a recording has and this file does not say."""


class Facts(TypedDict, total=False):
    """What was measured once in a run.

    Which keys there are depends on device and loader, and how far the run got.
    """

    own_set: dict[str, str | int | bool | None] | None
    """What was known of the user's own data set (`datasets add`), so that another machine can read
    the run."""
    storage_bytes: float | None
    """Disk space that the storage takes."""
    storage_prepare_s: float | None
    """Time that making the storage took when it was made; 0 for a data set's own files."""
    stage_s: float | None
    """Time to copy the storage to RAM disk or local disk in this run."""
    stage_bytes: float | None
    """Bytes copied to RAM disk or local disk."""
    drive_bytes_per_s: float | None
    """Bytes/s of direct reads of the storage's files, past the page cache; null where the system
    has none."""
    sample_file_bytes: float | None
    """Bytes of those files for a sample, as planned."""
    page_cached_frac: float | None
    """Share of the storage's files in the page cache when training began; null where the system
    does not report it."""
    cache_hit_frac: float | None
    """Share of the samples that the partial cache holds; null without one."""
    n_unreadable: float
    """Samples that could not be read."""
    n_train: int
    """Samples of the training set."""
    n_beside: int
    """Jobs that ran at the same time."""
    stops: list[columns.Stop]
    """Times in which the job could not run. Steps that they fell into are not in the figures."""
    cpu_s: float
    """CPU time of job and workers over the steady part."""
    cpu_samples: int
    """Samples that were loaded in that part."""
    held_up_frac: float
    """Share of the launching of steady steps on a GPU (forward pass and optimizer) in which the
    thread that trains was off the CPU: it waited for Python's lock or for a core."""
    test_loss: float | None
    """Mean loss on the test set at the last evaluation."""
    test_accuracy: float | None
    """Share of the test set classified correctly at the last evaluation."""
    gpu_mem_reserved_peak_bytes: float | None
    """Highest device memory reserved by PyTorch's allocator."""
    gpu_mem_allocated_peak_bytes: float | None
    """Highest device memory allocated to PyTorch's tensors."""
    nodes: list[NodeFacts]
    """The nodes of a distributed job, where it has several."""
    restarts: int
    """How often its launcher started the training of a watched run again (torchrun --max-restarts)."""
    restarted_at: list[RestartFacts]
    """Each start but the first, as far as steps of it were seen."""
    decoded: dict[str, str | int]
    """What became of the JPEG files of a tournament's trial that tries another decoder: how many it
    `decoded`, how many `stayed` with Pillow and `why` the first of them did, how many were `compared`, how many of
    these `differ`, and the `largest` difference of a pixel, of 255."""
    clocks: dict[str, float]
    """Median clock of each rank's GPU (MHz), by the rank's number, where several train."""
    disk_mb_per_s: float | None
    """What the machine's disks delivered, on average, of a job of several ranks; null where that is
    not known."""
    others_cores: float | None
    """Cores that other programs took, on average, of a job of several ranks; null where that is not
    known."""
    missing_ranks: int
    """Ranks of the job that other nodes trained and that are not in this run."""
    ranks: RankFacts
    """The ranks of a distributed job that was watched; the run's other figures are of rank 0."""
    transforms: dict[str, TransformTime]
    """Each transform of a watched run by its name, in their order."""
    making: Making
    """How the batches of a watched run were made."""
    handed_over: HandedOver
    """What each batch of a watched run is made of."""
    slow_samples: SlowSamples
    """The samples of a watched run that take longest to make; not in a run that measures its headroom."""
    late_batches: LateBatches
    """The batches of a watched run that came late, and what was seen meanwhile."""
    trace: TraceSource
    """The file that the run was read from (`vitprof read`); not in a run that was recorded."""
    replay: dict[str, ReplayBlock]
    """Blocks of a watched run by number; odd ones reuse kept batches."""
    causal: Causal
    """Blocks of a watched run in which a stage seemed faster."""
    replay_refused: str | None
    """The reason why no batches were kept; null where they were."""
    partly_watched: str
    """Why the watching of a run ended before its training may have: there is no verdict."""
    several_threads_train: bool
    """Another thread of a watched run trains than the one that is watched: there is no verdict."""
    forked_process_trains: bool
    """A process trains, too, that a watched script forked while it trained: there is no verdict."""
    outside_next_frac: float
    """Share of a watched run's time from `next()` to the model: with more than a few percent there
    is no verdict."""
    asleep_frac: float
    """Share of a watched run's time from the model to the optimizer's step in which the script's
    thread used no core; not on a GPU, and not where others took cores."""
    slept_frac: float
    """Share of a watched run's time from the batch to the backward pass in which the script's thread
    neither used a core nor waited for one; not on a GPU."""
    reading_steps_frac: float
    """Share of a watched run's steps in which the thread that trains read data itself, after its
    batch had come: with more than half of them there is no verdict that loading keeps up."""
    step_read_bytes: float
    """Bytes that it read there, on average."""
    between_steps_frac: float
    """Share of a watched run's time from the optimizer's step to the next request for a batch."""
    left_early_frac: float
    """Share of a watched run's time in which workers ended of loops that were left early (`break`), as the next batch
    was not requested yet."""
    updates_on_one_batch: int
    """Steps of the optimizer on the only batch of a watched run."""
    unknown_wait_steps: int
    """Steady steps of a watched run that got their batch where it was not seen: their waits are not
    known. With more than a few there is no verdict."""
    loader_waits_for_ranks: int
    """Batches of a rank in whose `next()` there was a collective."""
    unknown_loader_waits: int
    """Those of which its wait is not known. With more than a few there is no verdict."""
    fetched_by: str
    """What fetches the batches of a watched run instead of the training thread: "a thread", or "no
    loader"."""
    loaders: list[LoaderWaits]
    """The loaders of a watched run whose steps ask several for a batch."""
    epoch_steps: float
    """Steps of an epoch of a watched run, by the length of its loader and the batches that a step has."""
    batches_of_an_iterator: float
    """Batches that an iterator of a watched run's loader gives, where several were begun; of several loaders the one
    that is waited for longest."""
    iterators_at_once: bool
    """Whether several iterators of a loader were open at once in a watched run, as of `zip(loader,
    loader)`: with persistent workers they would be one."""
    unclear_loaders_steps: int
    """Steps of a watched run after which another loader was iterated over with gradients on, each
    time: it is not clear whether to train or to validate. With more than a few there is no
    verdict."""
    side_stream_steps: int
    """Steady steps of a watched run for which another CUDA stream worked while that of training was
    idle. With more than a few there is no verdict."""
    command: str
    """Command of a watched script, without its secrets."""
    directory: str
    """The folder in which that command was started; a proof of a fix is of the same script there."""
    started_by: str
    """User of the dashboard who started it."""
    imported: Any
    """Host and run_id where an imported run was recorded."""


# Unknown keys are kept: a run that another version recorded keeps what only that version knows.
for _open in (WatchedLoader, LoaderWaits, Environment, Facts):
    _open.__pydantic_config__ = CONFIG | {"extra": "allow"}  # type: ignore[union-attr]


@dataclass(frozen=True, kw_only=True)
class Recording:
    """Everything that is known of a run."""

    schema_version: int = columns.SCHEMA_VERSION
    """Version of the fields and their meaning."""
    run_id: int
    """Number of the run in the store that it was read from."""
    name: str
    """Name of the run."""
    status: columns.Status
    """Its state now."""
    created_utc: str
    """When it was submitted, ISO 8601 with a Z."""
    t_origin_s: float | None = None
    """When the job left the queue, on its machine's monotonic clock.

    Moments in JSON count from here."""
    training_since_s: float | None = None
    """When its training began; null where it did not."""
    config: RunConfig
    """Its settings."""
    simulated: bool = False
    """Whether the device was simulated."""
    environment: Annotated[dict[str, Any], KnownKeys(Environment)] = field(default_factory=dict)
    """The machine and the software."""
    facts: Annotated[dict[str, Any], KnownKeys(Facts)] = field(default_factory=dict)
    """What was measured once: preparing, staging, transforms."""
    verdict: Verdict | None = None
    """Whether loading held the device up; null where it has no steps, or has not ended."""
    summary: columns.RunSummary | None = None
    """Its figures; null where it was never summed up."""
    idle_cost: IdleCost | None = None
    """What its idle time cost; null where there is no verdict to rest it on, and where runs are only listed."""
    phases: tuple[columns.Phase, ...] = ()
    """What it did other than steps."""
    notices: tuple[str, ...] = ()
    """What to know when reading the figures, one line each."""
    error: str | None = None
    """Why it failed, in one line; null where it did not."""
    note: str = ""
    """The user's note."""
    tags: tuple[str, ...] = ()
    """The user's tags, sorted."""
    group_key: str = ""
    """Runs with the same key belong together; empty for a run in no group."""
    role: str = ""
    """The run's role in its group."""
    steps: Annotated[Columns, ColumnsOf(columns.StepRecord)] | None = field(
        default=None, repr=False, compare=False
    )
    """Its steps in order, by column; null where they are not asked for."""
    telemetry: Annotated[Columns, ColumnsOf(columns.TelemetrySample)] | None = field(
        default=None, repr=False, compare=False
    )
    """Its telemetry samples in order, by column; null where they are not asked for."""

    def __post_init__(self) -> None:
        # It follows from the config, whatever was given: a recording cannot say that it was not
        # simulated.
        object.__setattr__(self, "simulated", self.config.simulated)

    @property
    def started_by(self) -> str:
        """Returns the dashboard's user who started it; "" where there is no login."""
        return str(self.facts.get(columns.STARTED_BY) or "")
