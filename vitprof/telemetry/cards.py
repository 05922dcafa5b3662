"""The GPUs of a machine and their MIG slices, as NVML lists them: their constant properties."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pynvml

Call = Callable[..., Any]
"""Calls a function of pynvml by its name, with its arguments; returns None where it has no answer (`Nvml.call`)."""


@dataclass(frozen=True)
class GpuInfo:
    """The constant properties of a GPU, or of a slice of one in MIG mode."""

    index: int
    """NVML's number of the GPU: its order on the PCI bus. CUDA's order may differ. For a slice, its GPU's number."""
    name: str
    uuid: str
    """`GPU-...`, for a slice `MIG-...`; the one name that means the same to NVML, CUDA and torch."""
    memory_bytes: float
    driver: str
    power_limit_w: float = math.nan
    """The GPU's power limit, as set now; NaN where it cannot be read. For a slice, its GPU's limit."""
    slice_of: str = ""
    """UUID of the GPU that this is a slice of; empty for a GPU."""


def cards(call: Call) -> Iterator[GpuInfo]:
    """Yields the GPUs in NVML's order, each followed by its slices; leaves out those that do not answer."""
    driver = driver_version(call)
    for index in range(call("nvmlDeviceGetCount") or 0):
        handle = call("nvmlDeviceGetHandleByIndex", index)
        gpu = None if handle is None else _info(call, index, handle, driver)
        if gpu is None:
            continue
        yield gpu
        for part in _slices(call, handle):
            info = _info(call, index, part, driver)
            if info is not None:
                yield replace(info, slice_of=gpu.uuid, power_limit_w=gpu.power_limit_w)


def _slices(call: Call, handle: Any) -> Iterator[Any]:
    mode = call("nvmlDeviceGetMigMode", handle)  # the current mode, and that after the next reset
    if mode is not None and mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE:
        for place in range(call("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            part = call("nvmlDeviceGetMigDeviceHandleByIndex", handle, place)
            if part is not None:
                yield part


def _info(call: Call, index: int, handle: Any, driver: str) -> GpuInfo | None:
    uuid = call("nvmlDeviceGetUUID", handle)
    if uuid is None:
        return None
    memory = memory_of(call, handle)
    total = math.nan if memory is None else float(memory.total)
    name = call("nvmlDeviceGetName", handle) or "NVIDIA GPU"
    milliwatts = call("nvmlDeviceGetEnforcedPowerLimit", handle)
    return GpuInfo(index, name, uuid, total, driver, math.nan if milliwatts is None else milliwatts / 1e3)


def driver_version(call: Call) -> str:
    """Returns the version of the driver, such as 580.65.06; empty where it cannot be read."""
    return call("nvmlSystemGetDriverVersion") or ""


def free_bytes(call: Call, uuid: str) -> float:
    """Returns the free device memory of a GPU or a slice, in bytes; NaN where it cannot be read."""
    handle = call("nvmlDeviceGetHandleByUUID", uuid)
    memory = None if handle is None else memory_of(call, handle)
    return math.nan if memory is None else float(memory.free)


def memory_of(call: Call, handle: Any) -> Any:
    """Returns NVML's figures for the device memory (version 1 from drivers before 510); None where it has none."""
    version_2 = getattr(pynvml, "nvmlMemory_v2", None)  # the old package pynvml lacks it
    memory = None if version_2 is None else call("nvmlDeviceGetMemoryInfo", handle, version_2)
    return call("nvmlDeviceGetMemoryInfo", handle) if memory is None else memory
