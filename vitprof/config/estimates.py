"""What a strategy needs of a machine, and how long a run will take, estimated before it runs.

Times are arithmetic: latency x files, bytes / bandwidth, and the budget. The loader's speed on this
machine is not known beforehand, so a budget in steps or epochs gives a lower bound at most.
"""

import json
import math
from dataclasses import dataclass

from vitprof import formats, home
from vitprof.config import RunConfig, accelerators, bounds, drives
from vitprof.config.parts import (
    JPEG_BYTES,
    LOADERS,
    PNG_BYTES,
    STORAGES,
    Combination,
    blocks,
    prepared_as,
)
from vitprof.datasets import catalog


@dataclass(frozen=True)
class PreparedStorage:
    """A storage that was prepared earlier."""

    size_bytes: int
    prepare_s: float


@dataclass(frozen=True)
class Footprint:
    """What running one combination of parts on one data set needs, in bytes."""

    source_bytes: int
    """Disk for the data set's own files, which every strategy needs."""
    made_bytes: int
    """Those of them that vitprof makes; of a user's own images it may make links alone."""
    prepared_as: str | None
    """The storage that is made from them first; None if they are read as they are."""
    prepared_bytes: int
    """Disk for that storage: measured if it exists already, else estimated."""
    made: PreparedStorage | None
    """That storage, if it exists already."""
    ram_bytes: int
    """RAM for data that is kept in memory: the set, its copy on a RAM disk, a cache. Without workers and batches."""
    ram_disk_bytes: int
    """The part of `ram_bytes` that is in a tmpfs."""
    staged_bytes: int
    """Disk for the copy that location "staged" makes for each run."""
    device_bytes: int
    """Device memory for the set if it is resident."""

    @property
    def disk_bytes(self) -> int:
        return self.prepared_bytes + self.staged_bytes


def pixel_bytes(info: catalog.DatasetInfo) -> int:
    """Returns the bytes of all images, training and test, as uint8."""
    return (info.n_train + info.n_test) * info.image_size**2 * info.channels


def source_bytes(info: catalog.DatasetInfo) -> int:
    """Returns about how many bytes the data set's own files have."""
    if info.own_bytes:
        return info.own_bytes
    if info.kind == "idx":
        return pixel_bytes(info)
    return (info.n_train + info.n_test) * JPEG_BYTES


def storage_bytes(storage: str, info: catalog.DatasetInfo) -> int:
    """Returns about how many bytes of disk `storage` takes once it is made; 0 if it reads the data set's
    own files.
    """
    stored_as = prepared_as(storage, info.kind)
    if stored_as is None:
        return 0
    n = info.n_train + info.n_test
    part = STORAGES[stored_as]
    if part.form != "encoded":
        pixels = info.image_size**2 * info.channels
        return n * part.sample_bytes(pixels)
    if info.kind == "idx":
        return n * blocks(PNG_BYTES)
    return n * JPEG_BYTES


def made(storage: str, info: catalog.DatasetInfo) -> PreparedStorage | None:
    """Returns size and preparation time of `storage`; None if it has not been made.

    They are from the manifest that `vitprof.engine.storage.prepare` writes, which may be out of date.
    """
    stored_as = prepared_as(storage, info.kind)
    if stored_as is None:
        return None
    path = home.home() / "prepared" / info.directory / stored_as / "manifest.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        return PreparedStorage(int(manifest["size_bytes"]), float(manifest["prepare_s"]))
    except (OSError, ValueError, KeyError, TypeError):
        # missing or not readable: it will be made again
        return None


def footprint(
    parts: Combination, info: catalog.DatasetInfo, cache_mb: float | None = None
) -> Footprint:
    """Returns what loading `info` through `parts` needs, with a cache of `cache_mb` MB if that is given."""
    existing = made(parts.storage, info)
    prepared_bytes = storage_bytes(parts.storage, info)
    if existing is not None:
        prepared_bytes = existing.size_bytes
    read_bytes = prepared_bytes or source_bytes(info)
    pixels = pixel_bytes(info)
    ram_bytes = pixels * STORAGES[parts.storage].ram_bytes
    if cache_mb:
        ram_bytes += round(min(cache_mb * 1e6, read_bytes))
    ram_disk_bytes = read_bytes if parts.location == "ram-disk" else 0
    return Footprint(
        source_bytes=source_bytes(info),
        made_bytes=info.own_made_bytes if info.own_bytes else source_bytes(info),
        prepared_as=prepared_as(parts.storage, info.kind),
        prepared_bytes=prepared_bytes,
        made=existing,
        ram_bytes=ram_bytes + ram_disk_bytes,
        ram_disk_bytes=ram_disk_bytes,
        staged_bytes=read_bytes if parts.location == "staged" else 0,
        device_bytes=pixels if parts.transfer == "resident" else 0,
    )


STARTUP_S = 2.0
"""Seconds that starting a job takes, about: its process, the model, the first batch from a fast drive."""
MAKING_S: dict[str, float] = {"idx": 17e-6, "jpeg": 3.6e-3}
"""Kind of data set -> seconds to make one image: of digits the time of one core, of photos the
median on two."""
OWN_S = 0.2e-3
"""Seconds to bring a user's own image into its place: a link, or a file unpacked."""
STAGING_READERS = 512
"""The most files that staging copies at the same time (`vitprof.engine.locations.copying`), from a drive
whose latencies overlap."""


@dataclass(frozen=True)
class Duration:
    """The estimated time of a run, from the click to its end."""

    seconds: float
    least: bool
    """Whether `seconds` is a lower bound."""
    first_step_s: float
    """Estimated time until the first step is done."""
    why: str
    """What takes most of the time, as part of a sentence; "" where there is nothing to explain."""
    most_s: float = math.nan
    """The most that it takes where it goes on to a number of steps, without evaluation; NaN where
    nothing bounds it."""
    n_steps: int = 0
    """Steady steps that it goes on to, however long those take; 0 for none."""


def duration(
    config: RunConfig,
    info: catalog.DatasetInfo,
    *,
    made: bool,
    prepared: bool = True,
    startup_s: float = STARTUP_S,
) -> Duration:
    """Returns the estimated time of a run with the resolved `config` on the data set `info`.

    `made`: whether the data set exists already. `prepared`: whether its storage does. `startup_s`:
    how long jobs take to start on this machine.
    """
    preparing = _preparing_s(config, info, made=made, prepared=prepared)
    first_s = startup_s + math.fsum(preparing.values())
    reasons = []
    long = {what: seconds for what, seconds in preparing.items() if seconds > STARTUP_S}
    if long:
        takes = about(math.fsum(long.values()))
        reasons.append(f"{info.name} is {' and '.join(long)} first ({takes})")
    if config.location == "staged":
        copying_s, cause = _copying(config, info)
        first_s += copying_s
        reasons.append(f"the copy {cause}")
    samples = _samples(config, info)
    loading_s = 0.0
    batch_s = 0.0
    if config.location == "slow-drive":
        batch_s, sample_s, each = _reading(config, info)
        first_s += batch_s
        if not math.isnan(samples):
            loading_s = samples * sample_s
        if each and math.isnan(samples):
            reasons.append(f"the first batch needs {each} {config.batch_size:,} files")
        elif each:
            reasons.append(f"{each} {samples:,.0f} files{_at_a_time(_readers(config))}")
    if config.seconds is not None:
        # the run ends after the first step that ends past its time, which begins before the first
        # batch is read
        seconds = first_s + max(config.seconds - batch_s, 0.0)
        evaluates = config.evaluate and not config.loader_only and not config.simulated
        if evaluates:
            reasons.append("the evaluation comes on top")
        is_least = evaluates or config.least_steps > 0
        most_s = math.nan
        if config.least_steps:
            most_s = seconds + (bounds.LONGEST_TIMES - 1) * config.seconds
        return Duration(seconds, is_least, first_s, "; ".join(reasons), most_s, config.least_steps)
    device_s = 0.0
    if config.simulated and not config.loader_only:
        span_s = accelerators.accelerator(config.device).span_s(config.batch_size)
        device_s = samples / config.batch_size * span_s
    training_s = max(loading_s, device_s)
    # the drive sets the pace; else the loader may take longer than what is known
    is_least = not loading_s > device_s
    seconds = first_s + training_s if training_s else math.nan
    return Duration(seconds, is_least, first_s, "; ".join(reasons))


def _preparing_s(
    config: RunConfig, info: catalog.DatasetInfo, *, made: bool, prepared: bool
) -> dict[str, float]:
    """Returns what becomes of a data set before the first run, in words -> the seconds that it takes."""
    n_images = info.n_train + info.n_test
    making_s = 0.0
    if not made:
        making_s = (OWN_S if info.own_bytes else MAKING_S[info.kind]) * n_images
    storing_s = 0.0
    storage = prepared_as(config.storage or "", info.kind)
    if storage is not None and not prepared:
        storing_s = STORAGES[storage].prepare_s.get(info.kind, 0.0) * n_images
    return {"made": making_s, f"stored as {storage}": storing_s}


def _samples(config: RunConfig, info: catalog.DatasetInfo) -> float:
    """Returns the number of samples in a budget of steps or epochs; NaN for one in seconds."""
    if config.steps is not None:
        return config.steps * config.batch_size
    if config.epochs is not None:
        return config.epochs * (info.n_train // config.ranks)
    return math.nan


def sample_bytes(config: RunConfig, info: catalog.DatasetInfo) -> float:
    """Returns the bytes of a file that a sample is read from."""
    storage = config.storage or ""
    return (storage_bytes(storage, info) or source_bytes(info)) / (info.n_train + info.n_test)


def _readers(config: RunConfig) -> int:
    """Returns the number of files that the loader reads at the same time."""
    if LOADERS[config.loader or ""].made_by in ("threads", "processes"):
        return max(config.workers or 1, 1)
    return 1


def _reading(config: RunConfig, info: catalog.DatasetInfo) -> tuple[float, float, str]:
    """Returns the seconds until the first batch is read, the seconds for each sample once all readers
    are busy, and words such as "207 ms for each of" if every sample is a file, else "".
    """
    drive = drives.slow_drive(config)
    n_bytes = sample_bytes(config, info)
    line_s = n_bytes / (drive.mb_s * 1e6)
    if STORAGES[config.storage or ""].access != "file for each sample":
        return config.batch_size * line_s, line_s, ""
    file_s = drive.latency_ms / 1e3 + line_s
    readers = _readers(config)
    # a worker process makes a batch on its own
    within_batch = readers if LOADERS[config.loader or ""].made_by == "threads" else 1
    each = f"{drive.latency_ms:g} ms for each of"
    if drive.serial:
        return config.batch_size * file_s * readers / within_batch, file_s, each
    return config.batch_size * file_s / within_batch, max(file_s / readers, line_s), each


def _copying(config: RunConfig, info: catalog.DatasetInfo) -> tuple[float, str]:
    """Returns the seconds that staging takes to copy the training samples, and in words what takes them."""
    drive = drives.slow_drive(config)
    n = info.n_train
    total = sample_bytes(config, info) * n
    line_s = total / (drive.mb_s * 1e6)
    by_line = line_s, f"of {formats.number(total / 1e6, 'MB')} at {drive.mb_s:g} MB/s"
    if STORAGES[config.storage or ""].access != "file for each sample":
        return by_line
    opening_s = n * drive.latency_ms / 1e3
    opening = f"takes {drive.latency_ms:g} ms for each of {n:,} files"
    if drive.serial:
        return opening_s + line_s, opening
    readers = int(min(STAGING_READERS, 2 + drive.files_on_the_way(total / n)))
    if line_s > opening_s / readers:
        return by_line
    return opening_s / readers, f"{opening}{_at_a_time(readers)}"


def _at_a_time(readers: int) -> str:
    return f", {readers} at a time" if readers > 1 else ""


def about(seconds: float) -> str:
    """Returns a duration rounded for an estimate: 24 s, 44 min, 2.5 h."""
    if seconds < 95:
        return f"{seconds:.0f} s"
    if seconds < 95 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def duration_sentence(duration: Duration) -> str:
    """Returns the estimate, such as "About 88 min: 207 ms for each of 25,600 files."; "" if nothing is known.

    How long steps take is not known before: of a run that goes on to a number of them only the
    least and the most are, "At least 22 s, up to 3 min until it has 30 steady steps."
    """
    if math.isnan(duration.seconds):
        if not duration.why:
            return ""
        return f"The first step comes after about {about(duration.first_step_s)}: {duration.why}."
    how = "At least" if duration.least else "About"
    why = f": {duration.why}" if duration.why else ""
    until = ""
    if duration.n_steps:
        steps = formats.count(duration.n_steps, "steady step")
        until = f", up to {about(duration.most_s)} until it has {steps}"
    return f"{how} {about(duration.seconds)}{until}{why}."
