"""Estimates how long a run will take before it is started, from slow drives, budgets and simulated devices.

This is arithmetic, no measurement: latency x files, bytes / bandwidth, and the budget. The loader's speed on this
machine is not known beforehand, so a budget in steps or epochs gives a lower bound at most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from vitprof.config.accelerators import accelerator, is_simulated
from vitprof.config.catalog import DatasetInfo
from vitprof.config.drives import SlowDrive, slow_drive
from vitprof.config.footprint import source_bytes, storage_bytes
from vitprof.config.parts import LOADERS, STORAGES, prepared_as
from vitprof.config.run_config import RunConfig
from vitprof.formats import number

STARTUP_S = 2.0
"""Seconds that starting a job takes, about: its process, the model, the first batch from a fast drive."""
MAKING_S: dict[str, float] = {"idx": 33e-6, "jpeg": 3.6e-3}
"""Kind of data set -> seconds to make one image: medians on two cores."""
STAGING_READERS = 512
"""Most files that staging copies at the same time (`vitprof.engine.locations.copying`), from a drive whose latencies
overlap."""


@dataclass(frozen=True)
class Duration:
    """The estimated time of a run, from the click to its end."""

    seconds: float
    """Estimated time of the run; NaN where it depends on the loader's speed alone."""
    least: bool
    """Whether `seconds` is a lower bound."""
    first_step_s: float
    """Estimated time until the first step is done."""
    why: str
    """What takes most of the time, as part of a sentence; "" where there is nothing to explain."""


def duration(config: RunConfig, info: DatasetInfo, *, made: bool, prepared: bool = True) -> Duration:
    """Returns the estimated time of a run with the resolved `config` on the data set `info`.

    `made`: whether the data set exists already. `prepared`: whether its storage does.
    """
    n_images = info.n_train + info.n_test
    once = {
        "made": 0.0 if made else MAKING_S[info.kind] * n_images,
        f"stored as {prepared_as(config.storage or '', info.kind)}": 0.0 if prepared else _storing_s(config, info),
    }
    first_s = STARTUP_S + math.fsum(once.values())
    told = " and ".join(what for what, seconds in once.items() if seconds > STARTUP_S)
    whys = [f"{info.name} is {told} first"] if told else []
    if config.location == "staged":
        copying_s, said = _copying(config, info)
        first_s += copying_s
        whys.append(f"the copy {said}")
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
        evaluates = config.evaluate and not config.loader_only and not is_simulated(config.device)
        whys += ["the evaluation comes on top"] if evaluates else []
        return Duration(first_s + max(config.seconds - batch_s, 0.0), evaluates, first_s, "; ".join(whys))
    device_s = 0.0
    if is_simulated(config.device) and not config.loader_only:
        device_s = samples / config.batch_size * accelerator(config.device).span_s(config.batch_size)
    training_s = max(loading_s, device_s)
    known = loading_s > device_s
    return Duration(first_s + training_s if training_s else math.nan, not known, first_s, "; ".join(whys))


def _storing_s(config: RunConfig, info: DatasetInfo) -> float:
    """Returns about how many seconds it takes to make the storage from the data set."""
    storage = prepared_as(config.storage or "", info.kind)
    if storage is None:
        return 0.0
    return STORAGES[storage].prepare_s.get(info.kind, 0.0) * (info.n_train + info.n_test)


def _samples(config: RunConfig, info: DatasetInfo) -> float:
    """Returns the number of samples in a budget of steps or epochs; NaN for one in seconds."""
    if config.steps is not None:
        return config.steps * config.batch_size
    return math.nan if config.epochs is None else config.epochs * info.n_train


def _sample_bytes(config: RunConfig, info: DatasetInfo) -> float:
    storage = config.storage or ""
    return (storage_bytes(storage, info) or source_bytes(info)) / (info.n_train + info.n_test)


def _readers(config: RunConfig) -> int:
    """Returns the number of files that the loader reads at the same time."""
    return max(config.workers or 1, 1) if LOADERS[config.loader or ""].made_by in ("threads", "processes") else 1


def _reading(config: RunConfig, info: DatasetInfo) -> tuple[float, float, str]:
    """Returns the seconds until the first batch is read, the seconds for each sample once all readers are busy, and
    words such as "207 ms for each of" if every sample is a file, else "".
    """
    drive, n_bytes = slow_drive(config), _sample_bytes(config, info)
    line_s = n_bytes / (drive.mb_s * 1e6)
    if STORAGES[config.storage or ""].access != "file for each sample":
        return config.batch_size * line_s, line_s, ""
    file_s, readers = drive.latency_ms / 1e3 + line_s, _readers(config)
    within_batch = (
        readers if LOADERS[config.loader or ""].made_by == "threads" else 1
    )  # a worker process makes a batch on its own
    each = f"{drive.latency_ms:g} ms for each of"
    if drive.serial:
        return config.batch_size * file_s * readers / within_batch, file_s, each
    return config.batch_size * file_s / within_batch, max(file_s / readers, line_s), each


def _copying(config: RunConfig, info: DatasetInfo) -> tuple[float, str]:
    """Returns the seconds that staging takes to copy the training samples, and in words what takes them."""
    drive, n = slow_drive(config), info.n_train
    total = _sample_bytes(config, info) * n
    line_s = total / (drive.mb_s * 1e6)
    by_line = line_s, f"of {number(total / 1e6, 'MB')} at {drive.mb_s:g} MB/s"
    if STORAGES[config.storage or ""].access != "file for each sample":
        return by_line
    readers = _staging_readers(drive, total / n)
    opening_s = n * drive.latency_ms / 1e3
    words = f"takes {drive.latency_ms:g} ms for each of {n:,} files{_at_a_time(readers)}"
    if drive.serial:
        return opening_s + line_s, words
    return by_line if line_s > opening_s / readers else (opening_s / readers, words)


def _staging_readers(drive: SlowDrive, file_bytes: float) -> int:
    if drive.serial:
        return 1
    on_the_way = drive.mb_s * 1e6 * drive.latency_ms / 1e3
    return int(min(STAGING_READERS, 2 + on_the_way / max(file_bytes, 1.0)))


def _at_a_time(readers: int) -> str:
    return f", {readers} at a time" if readers > 1 else ""


def about(seconds: float) -> str:
    """Returns a duration rounded for an estimate: 24 s, 44 min, 2.5 h."""
    if seconds < 95:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 95 * 60 else f"{seconds / 3600:.1f} h"


def duration_sentence(found: Duration) -> str:
    """Returns the estimate in a sentence, such as "About 88 min: 207 ms for each of 25,600 files."; "" if nothing is
    known.
    """
    if math.isnan(found.seconds):
        return f"The first step comes after about {about(found.first_step_s)}: {found.why}." if found.why else ""
    why = f": {found.why}" if found.why else ""
    return f"{'At least' if found.least else 'About'} {about(found.seconds)}{why}."
