"""Finds out whether a strategy can run on this machine, and if not, why and what to do.

Changes nothing, and needs no PyTorch.
"""

import importlib.util
import math
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from vitprof import home
from vitprof.config import RunConfig, accelerators, estimates
from vitprof.config.gpu_findings import dali_wheel, unusable
from vitprof.config.parts import (
    DECODERS,
    DEPRECATED_DECODERS,
    LOADERS,
    Combination,
    prepared_as,
    why_not,
)
from vitprof.config.strategies import Strategy, strategy
from vitprof.datasets.catalog import DATASETS, DatasetInfo, dataset_info
from vitprof.formats import size
from vitprof.telemetry.nvml import Nvml, driver_version, free_bytes
from vitprof.telemetry.tmpfs import find_tmpfs
from vitprof.telemetry.visible import VisibleGpu, visible_gpus

Verdict = Literal["ok", "note", "bad"]

MODULES: dict[str, str] = {"nvidia-dali-cuda130": "nvidia.dali", "opencv-python-headless": "cv2"}
"""Package -> the module that shows whether it is installed, where the names differ. NVIDIA's wheels for other versions
of CUDA have the same modules."""
DECODING: tuple[str, ...] = ("simplejpeg", "opencv-python-headless")
"""Packages that decoding and cropping need, whichever decoder is chosen."""
NVIDIA_PLATFORM = "linux"
"""The only platform of those that vitprof runs on with wheels of the loaders that decode on the GPU."""


@dataclass(frozen=True)
class Machine:
    """The properties of the machine that decide what can run on it."""

    gpus: tuple[VisibleGpu, ...]
    """GPUs that CUDA shows, in its order; empty without a GPU."""
    ram_bytes: int
    """RAM that is available to programs."""
    disk_bytes: int
    """Free disk space where vitprof keeps its files."""
    tmpfs: tuple[Path, int] | None
    """The RAM disk and its free bytes; None if there is none that can be written to."""
    gpu_free_bytes: tuple[float, ...] = ()
    """Free device memory of each of `gpus`; NaN where it cannot be read."""
    driver: str = ""
    """Version of the driver of `gpus`; "" if it cannot be read."""
    gpus_usable: bool = True
    """Whether the installed PyTorch can use `gpus`, as far as that is known."""


@dataclass(frozen=True)
class Availability:
    """Whether something can run here."""

    verdict: Verdict
    """ok: it runs as it should; note: it runs, with a limit; bad: it would fail."""
    reason: str


OK = Availability("ok", "")


def look_around() -> Machine:
    """Returns the properties of this machine as they are now."""
    where = home.home().absolute()
    existing = next(path for path in (where, *where.parents) if path.exists())
    ram_disk = find_tmpfs()
    gpus = tuple(visible_gpus())
    with Nvml() as nvml:
        free = tuple(free_bytes(nvml.call, gpu.uuid) for gpu in gpus)
        driver = driver_version(nvml.call)
    return Machine(
        gpus=gpus,
        gpu_free_bytes=free,
        gpus_usable=not gpus or unusable(gpus[0].name, driver, gpus[0].cuda_driver) is None,
        driver=driver,
        ram_bytes=psutil.virtual_memory().available,
        disk_bytes=shutil.disk_usage(existing).free,
        tmpfs=None if ram_disk is None else (ram_disk.path, ram_disk.free_bytes),
    )


def why_unavailable(plan: Strategy, info: DatasetInfo, machine: Machine | None = None) -> str:
    """Returns why the strategy `plan` cannot load the data set `info` here, in one line; "" if it can."""
    seen = availability(plan, info, machine=machine)
    return seen.reason if seen.verdict == "bad" else ""


def availability(
    plan: Strategy,
    info: DatasetInfo,
    settings: Mapping[str, Any] | None = None,
    *,
    machine: Machine | None = None,
) -> Availability:
    """Returns whether the strategy `plan` can load the data set `info` here, or on `machine`.

    `settings`: fields of `RunConfig` in place of the strategy's own.
    """
    machine = machine or look_around()
    settings = settings or {}
    parts = plan.combination(info, settings)
    wrong = why_not(info, parts)
    if wrong is not None:
        others = [d.name for d in DATASETS.values() if why_not(d, plan.combination(d)) is None]
        # no part was replaced: it is the strategy that does not fit
        if parts == plan.combination(info) and others:
            choose = f"choose the data set {' or '.join(others)}"
            return Availability("bad", f"it cannot load {info.name}; {choose}")
        return Availability("bad", f"{wrong.field} {wrong.value}: {wrong.allowed}")
    # the first is the most basic one
    for reason in _obstacles(parts, info, machine):
        return Availability("bad", reason)
    notes = "; ".join(_limits(parts, info, settings, machine))
    return Availability("note", notes) if notes else OK


def can_run(config: RunConfig, *, machine: Machine | None = None) -> bool:
    """Returns whether a job can run here, as far as that is known without trying."""
    info = dataset_info(config.dataset, config.n_images)
    seen = availability(strategy(config.strategy), info, config.to_dict(), machine=machine)
    return seen.verdict != "bad"


def _obstacles(parts: Combination, info: DatasetInfo, machine: Machine) -> Iterator[str]:
    """Yields reasons why a run would fail, the most basic first."""
    loader = LOADERS[parts.loader]
    if loader.decodes and sys.platform != NVIDIA_PLATFORM:
        yield f"{loader.title} needs Linux, and this is {sys.platform}"
    for package in _packages(parts, info):
        if not installed(package):
            wheel = package
            if MODULES.get(package) == "nvidia.dali":
                wheel = dali_wheel(machine.gpus, machine.driver)
            yield f"the package {wheel} is missing: pip install {shlex.quote(wheel)}"
    yield from _too_small(estimates.footprint(parts, info), machine)


def _packages(parts: Combination, info: DatasetInfo) -> list[str]:
    storage, _, loader, _ = parts.parts
    wanted = ["torch", *(package for part in parts.parts for package in part.packages)]
    is_encoded = storage.form == "encoded"
    # while the storage is made, or while batches are
    decoded_before = info.kind == "jpeg" and not is_encoded and prepared_as(storage.name, info.kind)
    if decoded_before or (is_encoded and not loader.decodes):
        wanted += DECODING
    return wanted


def installed(package: str) -> bool:
    """Returns whether a package is installed. Looks for its module without importing it."""
    try:
        return importlib.util.find_spec(MODULES.get(package, package)) is not None
    except (ImportError, ValueError):
        # its parent package is missing, or it is only partly installed
        return False


def _too_small(needs: estimates.Footprint, machine: Machine) -> Iterator[str]:
    if needs.ram_disk_bytes:
        if machine.tmpfs is None:
            yield "there is no tmpfs here that can be written to; mount one, or choose location disk"
            return
        path, free = machine.tmpfs
        if needs.ram_disk_bytes > free:
            yield f"the RAM disk {path} has {size(free)} left and {size(needs.ram_disk_bytes)} are needed"
    if needs.ram_bytes > machine.ram_bytes:
        yield f"it takes {size(needs.ram_bytes)} of RAM and {size(machine.ram_bytes)} are available"
    to_write = needs.staged_bytes
    if not needs.made:
        to_write += needs.prepared_bytes
    if to_write > machine.disk_bytes:
        free_space = f"{size(machine.disk_bytes)} are free in {home.home()}"
        yield f"it writes {size(to_write)} and {free_space}; set VITPROF_HOME to a larger disk"


def _limits(
    parts: Combination, info: DatasetInfo, settings: Mapping[str, Any], machine: Machine
) -> Iterator[str]:
    """Yields what limits a run that works: no gain without a GPU, too little device memory, a deprecated
    decoder.
    """
    device = settings.get("device") or "auto"
    simulated = accelerators.is_simulated(device)
    no_gpu = not machine.gpus or not machine.gpus_usable
    on_cpu = not simulated and (device == "cpu" or no_gpu)
    if on_cpu and parts.transfer in NOTHING_TO_COPY:
        yield NOTHING_TO_COPY[parts.transfer]
    loader = LOADERS[parts.loader]
    if (on_cpu or simulated) and loader.decodes:
        yield f"without a GPU {loader.title} decodes on the CPU"
    if not (on_cpu or simulated):
        yield from _too_small_gpu(estimates.footprint(parts, info).device_bytes, device, machine)
    decoder = settings.get("decoder")
    if decoder in DEPRECATED_DECODERS:
        yield f"decoder {decoder} is {DEPRECATED_DECODERS[decoder]}; choose {DECODERS[info.kind][0]}"


def _too_small_gpu(needed: int, device: str, machine: Machine) -> Iterator[str]:
    """Yields a line if the set does not fit on the GPU, or not beside what uses its memory now."""
    number = device.removeprefix("cuda:")
    index = int(number) if number.isdecimal() else 0
    if index >= len(machine.gpus):
        return
    gpu = machine.gpus[index]
    free = math.nan
    if index < len(machine.gpu_free_bytes):
        free = machine.gpu_free_bytes[index]
    if needed > gpu.memory_bytes:
        yield f"the set takes {size(needed)} of device memory and {gpu.name} has {size(gpu.memory_bytes)}"
    elif needed > free:
        yield (
            f"the set takes {size(needed)} of device memory and {size(free)} of {gpu.name} are free now; "
            "end what else uses it, or choose transfer pinned"
        )


NOTHING_TO_COPY: dict[str, str] = {
    "stream": "without a GPU there is no copy to overlap: it normalises in the loop and gains nothing",
    "resident": "without a GPU the device's memory is RAM: the same as 'memory'",
}
"""Transfer -> its limit where the device is the CPU, so that batches are on the device already."""
