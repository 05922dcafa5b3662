"""The GPUs that CUDA shows a process, in CUDA's order, as its driver (libcuda) tells.

NVML lists every GPU of the machine by its place on the PCI bus. CUDA counts the fastest first (CUDA_DEVICE_ORDER), only
what CUDA_VISIBLE_DEVICES lets through, and slices of a GPU in MIG mode; so "the second" need not be the same one. What
they share is the UUID.

A process that has asked CUDA's driver keeps what it saw then for good, so `visible_gpus` asks in a short process of its
own. This file is its program, too: it imports nothing of vitprof.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
ANSWER_S = 60.0
"""How long the driver may take: some 0.1 s, several seconds where it must first wake many GPUs."""
NAME_BYTES = 256
DECIDE = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
"""Variables that decide which GPUs CUDA shows, and in which order."""
MAJOR, MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR (CUDA driver API, CUdevice_attribute)."""


@dataclass(frozen=True)
class VisibleGpu:
    """A GPU, or a slice of one, that CUDA shows."""

    index: int
    """CUDA's number of it, and PyTorch's: N of `cuda:N`."""
    name: str
    uuid: str
    """`GPU-...`, of a slice `MIG-...`; "" where the driver does not tell."""
    memory_bytes: float
    """Device memory in all."""
    cuda_driver: tuple[int, int] | None = None
    """Newest CUDA that the driver runs, such as (13, 0); None where it does not tell."""
    capability: tuple[int, int] | None = None
    """CUDA compute capability, such as (9, 0); None where the driver does not tell."""


def visible_gpus() -> list[VisibleGpu]:
    """Returns the GPUs that CUDA shows a process started now; none where there is no driver. Never raises.

    The driver is asked once for each value of the variables that decide.
    """
    return list(asked(*(os.environ.get(name) for name in DECIDE)))


@functools.lru_cache
def asked(*_: str | None) -> tuple[VisibleGpu, ...]:
    """Asks the driver in a process of its own."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ANSWER_S,
            check=True,
        )
        return tuple(_told(gpu) for gpu in json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError):
        return ()


def _told(gpu: dict[str, Any]) -> VisibleGpu:
    """Returns a GPU out of its JSON, which has lists for tuples."""
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in gpu.items()}
    return VisibleGpu(**values)


def shown_here() -> list[VisibleGpu]:
    """Returns the GPUs that CUDA shows this process, whose view is settled by that. Never raises; makes no context."""
    try:
        driver = ctypes.CDLL(LIBRARY)
        return list(_ask(driver))
    except (OSError, AttributeError, _DriverError):  # no library, one that lacks a function, no GPU
        return []


class _DriverError(Exception):
    """A function of the driver did not succeed."""


def _ask(driver: Any) -> Iterator[VisibleGpu]:
    def call(function: str, *args: Any) -> None:
        if getattr(driver, function)(*args):
            raise _DriverError(function)

    call("cuInit", 0)
    count, device, memory = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    cuda = _number(driver, "cuDriverGetVersion")  # the manual: 1000 * major + 10 * minor
    call("cuDeviceGetCount", ctypes.byref(count))
    for index in range(count.value):
        name = ctypes.create_string_buffer(NAME_BYTES)
        call("cuDeviceGet", ctypes.byref(device), index)
        call("cuDeviceGetName", name, NAME_BYTES, device)
        call("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
        title = name.value.decode(errors="replace")
        major, minor = (_number(driver, "cuDeviceGetAttribute", which, device) for which in (MAJOR, MINOR))
        yield VisibleGpu(
            index=index,
            name=title,
            uuid=_uuid(driver, device, title),
            memory_bytes=float(memory.value),
            cuda_driver=divmod(cuda // 10, 100) if cuda else None,
            capability=None if major is None or minor is None else (major, minor),
        )


def _number(driver: Any, function: str, *args: Any) -> int | None:
    """Returns the number that a function of the driver writes to its first argument; None where it does not."""
    value = ctypes.c_int()
    known = hasattr(driver, function) and getattr(driver, function)(ctypes.byref(value), *args) == 0
    return value.value if known else None


def _uuid(driver: Any, device: ctypes.c_int, title: str) -> str:
    """Returns the UUID with the prefix that CUDA_VISIBLE_DEVICES wants.

    Of a slice of a GPU in MIG mode the second version of the function gives the slice's own, the first one the GPU's
    (CUDA driver API, cuDeviceGetUuid_v2); drivers before 11.4 have the first one only.
    """
    found = []
    for function in ("cuDeviceGetUuid", "cuDeviceGetUuid_v2"):
        value = (ctypes.c_ubyte * 16)()
        if hasattr(driver, function) and getattr(driver, function)(ctypes.byref(value), device) == 0:
            found.append(uuid.UUID(bytes=bytes(value)))
    if not found:
        return ""
    return f"{'MIG' if found[0] != found[-1] or ' MIG ' in title else 'GPU'}-{found[-1]}"


if __name__ == "__main__":
    print(json.dumps([dataclasses.asdict(gpu) for gpu in shown_here()]))  # noqa: T201
