"""What a strategy needs of a machine, and how long a run will take, estimated before it runs."""

import json
import math
from dataclasses import dataclass

from vitprof import formats, home
from vitprof.config import RunConfig, accelerators, catalog
from vitprof.config.parts import (
    JPEG_BYTES,
    LOADERS,
    PNG_BYTES,
    STORAGES,
    Combination,
    blocks,
    prepared_as,
)


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
    return pixel_bytes(info) if info.kind == "idx" else (info.n_train + info.n_test) * JPEG_BYTES


def storage_bytes(storage: str, info: catalog.DatasetInfo) -> int:
    """Returns about how many bytes of disk `storage` takes once it is made; 0 if it reads the data set's own files."""
    stored_as = prepared_as(storage, info.kind)
    if stored_as is None:
        return 0
    n = info.n_train + info.n_test
    pixels = info.image_size**2 * info.channels
    part = STORAGES[stored_as]
    if part.form == "encoded":
        return n * (blocks(PNG_BYTES) if info.kind == "idx" else JPEG_BYTES)
    return n * part.sample_bytes(pixels)


def made(storage: str, info: catalog.DatasetInfo) -> PreparedStorage | None:
    """Returns size and preparation time of `storage` by its manifest; None if it has not been made."""
    stored_as = prepared_as(storage, info.kind)
    if stored_as is None:
        return None
    path = home.home() / "prepared" / info.directory / stored_as / "manifest.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        return PreparedStorage(int(manifest["size_bytes"]), float(manifest["prepare_s"]))
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
    ):
        # missing or not readable: it will be made again
        return None


def footprint(
    parts: Combination, info: catalog.DatasetInfo, cache_mb: float | None = None
) -> Footprint:
    """Returns what loading `info` through `parts` needs, with a cache of `cache_mb` MB if that is given."""
    there = made(parts.storage, info)
    prepared = there.size_bytes if there else storage_bytes(parts.storage, info)
    read = prepared or source_bytes(info)
    pixels = pixel_bytes(info)
    cache = min(cache_mb * 1e6, read) if cache_mb else 0
    ram_disk = read if parts.location == "ram-disk" else 0
    return Footprint(
        source_bytes=source_bytes(info),
        prepared_as=prepared_as(parts.storage, info.kind),
        prepared_bytes=prepared,
        made=there,
        ram_bytes=pixels * STORAGES[parts.storage].ram_bytes + ram_disk + round(cache),
        ram_disk_bytes=ram_disk,
        staged_bytes=read if parts.location == "staged" else 0,
        device_bytes=pixels if parts.transfer == "resident" else 0,
    )


STARTUP_S = 2.0
"""Seconds that starting a job takes, about: its process, the model, the first batch from a fast drive."""
MAKING_S: dict[str, float] = {"idx": 33e-6, "jpeg": 3.6e-3}
"""Kind of data set -> seconds to make one image: medians on two cores."""
OWN_S = 0.2e-3
"""Seconds to bring a user's own image into its place: a link, or a file unpacked."""
STAGING_READERS = 512
"""Most files that staging copies at once (`vitprof.engine.locations.copying`) where latencies overlap."""


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


def duration(
    config: RunConfig, info: catalog.DatasetInfo, *, made: bool, prepared: bool = True
) -> Duration:
    """Returns the estimated time of a run of the resolved `config`; `made`, `prepared`: data set and storage exist."""
    n_images = info.n_train + info.n_test
    storage = prepared_as(config.storage or "", info.kind)
    storing_s = (
        0.0
        if prepared or storage is None
        else STORAGES[storage].prepare_s.get(info.kind, 0.0) * n_images
    )
    making_s = OWN_S if info.own_bytes else MAKING_S[info.kind]
    once = {"made": 0.0 if made else making_s * n_images, f"stored as {storage}": storing_s}
    first_s = STARTUP_S + math.fsum(once.values())
    first = " and ".join(what for what, seconds in once.items() if seconds > STARTUP_S)
    whys = [f"{info.name} is {first} first"] if first else []
    if config.location == "staged":
        copying_s, cause = _copying(config, info)
        first_s += copying_s
        whys.append(f"the copy {cause}")
    samples = _samples(config, info)
    loading_s = batch_s = 0.0
    if config.location == "slow-drive":
        batch_s, sample_s, each = _reading(config, info)
        first_s += batch_s
        if math.isnan(samples):
            whys += [f"the first batch needs {each} {config.batch_size:,} files"] if each else []
        else:
            loading_s = samples * sample_s
            whys += [f"{each} {samples:,.0f} files{_at_a_time(_readers(config))}"] if each else []
    if config.seconds is not None:
        # the run ends after the first step that ends past its time, which begins before the first batch is read
        evaluates = config.evaluate and not config.loader_only and not config.simulated
        whys += ["the evaluation comes on top"] if evaluates else []
        return Duration(
            first_s + max(config.seconds - batch_s, 0.0), evaluates, first_s, "; ".join(whys)
        )
    device_s = 0.0
    if config.simulated and not config.loader_only:
        device_s = (
            samples
            / config.batch_size
            * accelerators.accelerator(config.device).span_s(config.batch_size)
        )
    training_s = max(loading_s, device_s)
    known = loading_s > device_s
    return Duration(
        first_s + training_s if training_s else math.nan, not known, first_s, "; ".join(whys)
    )


def _samples(config: RunConfig, info: catalog.DatasetInfo) -> float:
    if config.steps is not None:
        return config.steps * config.batch_size
    return math.nan if config.epochs is None else config.epochs * (info.n_train // config.ranks)


def sample_bytes(config: RunConfig, info: catalog.DatasetInfo) -> float:
    """Returns the bytes of a file that a sample is read from."""
    storage = config.storage or ""
    return (storage_bytes(storage, info) or source_bytes(info)) / (info.n_train + info.n_test)


def _readers(config: RunConfig) -> int:
    return (
        max(config.workers or 1, 1)
        if LOADERS[config.loader or ""].made_by in ("threads", "processes")
        else 1
    )


def _reading(config: RunConfig, info: catalog.DatasetInfo) -> tuple[float, float, str]:
    """Returns seconds until the first batch is read, seconds for each sample, and words if every sample is a file."""
    drive = catalog.slow_drive(config)
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
    drive = catalog.slow_drive(config)
    n = info.n_train
    total = sample_bytes(config, info) * n
    line_s = total / (drive.mb_s * 1e6)
    by_line = line_s, f"of {formats.number(total / 1e6, 'MB')} at {drive.mb_s:g} MB/s"
    if STORAGES[config.storage or ""].access != "file for each sample":
        return by_line
    readers = (
        1 if drive.serial else int(min(STAGING_READERS, 2 + drive.files_on_the_way(total / n)))
    )
    opening_s = n * drive.latency_ms / 1e3
    words = f"takes {drive.latency_ms:g} ms for each of {n:,} files{_at_a_time(readers)}"
    if drive.serial:
        return opening_s + line_s, words
    return by_line if line_s > opening_s / readers else (opening_s / readers, words)


def _at_a_time(readers: int) -> str:
    return f", {readers} at a time" if readers > 1 else ""


def about(seconds: float) -> str:
    """Returns a duration rounded for an estimate: 24 s, 44 min, 2.5 h."""
    if seconds < 95:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 95 * 60 else f"{seconds / 3600:.1f} h"


def duration_sentence(found: Duration) -> str:
    """Returns the estimate, such as "About 88 min: 207 ms for each of 25,600 files."; "" if nothing is known."""
    if math.isnan(found.seconds):
        return (
            f"The first step comes after about {about(found.first_step_s)}: {found.why}."
            if found.why
            else ""
        )
    why = f": {found.why}" if found.why else ""
    return f"{'At least' if found.least else 'About'} {about(found.seconds)}{why}."
