"""The GPUs that CUDA shows a process, in CUDA's order, as its driver (libcuda) reports them.

NVML lists every GPU by its place on the PCI bus. CUDA counts the fastest first (CUDA_DEVICE_ORDER), only those that
CUDA_VISIBLE_DEVICES lets through, and slices of a GPU in MIG mode. Both use the same UUIDs. A process that has called
CUDA's driver keeps seeing what it saw then, so `visible_gpus` uses a separate, short process; this file is its program,
so it imports nothing from vitprof. A job's process is restricted to one GPU, by its UUID: a library that does not name
one takes the first.
"""

import ctypes
import functools
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

LIBRARY = "libcuda.so.1"
ANSWER_S = 60.0
"""How long (s) the driver may take: usually about 0.1 s, several seconds where it must first wake many GPUs."""
NAME_BYTES = 256
DECIDE = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
"""Variables that decide which GPUs CUDA shows, and in which order."""
MAJOR, MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR (CUDA driver API, CUdevice_attribute)."""


@dataclass(frozen=True)
class VisibleGpu:
    """A GPU, or a slice of one, that CUDA shows."""

    index: int
    """Its number in CUDA and PyTorch: N of `cuda:N`."""
    name: str
    uuid: str
    """`GPU-...`, for a slice `MIG-...`; "" where the driver does not report it."""
    memory_bytes: float
    cuda_driver: tuple[int, int] | None = None
    """Newest version of CUDA that the driver supports, such as (13, 0); None where it does not report it."""
    capability: tuple[int, int] | None = None
    """CUDA compute capability, such as (9, 0); None where the driver does not report it."""


def visible_gpus() -> list[VisibleGpu]:
    """Returns the GPUs that CUDA would show a process started now; none where there is no driver. Never raises."""
    return list(asked(*(os.environ.get(name) for name in DECIDE)))


@functools.lru_cache
def asked(*_: str | None) -> tuple[VisibleGpu, ...]:
    """Returns the GPUs that the driver reports to a new process. The arguments only select the cached answer."""
    try:
        program = [sys.executable, "-I", "-S", __file__]
        nothing = subprocess.DEVNULL
        done = subprocess.run(
            program, stdin=nothing, capture_output=True, timeout=ANSWER_S, check=True
        )
        # JSON makes lists of the pairs of numbers
        listed: list[dict[str, Any]] = [
            {name: tuple(v) if isinstance(v, list) else v for name, v in gpu.items()}
            for gpu in json.loads(done.stdout)
        ]
        return tuple(VisibleGpu(**gpu) for gpu in listed)
    except (OSError, subprocess.SubprocessError, ValueError):
        return ()


def shown_here() -> list[VisibleGpu]:
    """Returns the GPUs that CUDA shows this process, and thereby fixes its view. Never raises; makes no context."""
    try:
        return list(_ask(ctypes.CDLL(LIBRARY)))
    except (OSError, AttributeError, _DriverError):  # no library, one that lacks a function, no GPU
        return []


class _DriverError(Exception):
    """Raised where a function of the driver fails."""


def _ask(driver: Any) -> Iterator[VisibleGpu]:
    def call(function: str, *args: Any) -> None:
        if getattr(driver, function)(*args):
            raise _DriverError(function)

    call("cuInit", 0)
    count = ctypes.c_int()
    device = ctypes.c_int()
    memory = ctypes.c_size_t()
    cuda = _number(driver, "cuDriverGetVersion")  # the manual: 1000 * major + 10 * minor
    call("cuDeviceGetCount", ctypes.byref(count))
    for index in range(count.value):
        name = ctypes.create_string_buffer(NAME_BYTES)
        call("cuDeviceGet", ctypes.byref(device), index)
        call("cuDeviceGetName", name, NAME_BYTES, device)
        call("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
        title = name.value.decode(errors="replace")
        major, minor = (
            _number(driver, "cuDeviceGetAttribute", which, device) for which in (MAJOR, MINOR)
        )
        newest = divmod(cuda // 10, 100) if cuda else None
        capability = None if major is None or minor is None else (major, minor)
        yield VisibleGpu(
            index, title, _uuid(driver, device, title), float(memory.value), newest, capability
        )


def _number(driver: Any, function: str, *args: Any) -> int | None:
    value = ctypes.c_int()
    known = hasattr(driver, function) and getattr(driver, function)(ctypes.byref(value), *args) == 0
    return value.value if known else None


def _uuid(driver: Any, device: ctypes.c_int, title: str) -> str:
    """Returns the UUID with the prefix that CUDA_VISIBLE_DEVICES needs. Of a slice in MIG mode the function's second
    version returns the slice's, the first one the GPU's (CUDA driver API); drivers before 11.4 have only the first.
    """
    uuids = []
    for function in ("cuDeviceGetUuid", "cuDeviceGetUuid_v2"):
        value = (ctypes.c_ubyte * 16)()
        if (
            hasattr(driver, function)
            and getattr(driver, function)(ctypes.byref(value), device) == 0
        ):
            uuids.append(uuid.UUID(bytes=bytes(value)))
    if not uuids:
        return ""
    return f"{'MIG' if uuids[0] != uuids[-1] or ' MIG ' in title else 'GPU'}-{uuids[-1]}"


MASK = "CUDA_VISIBLE_DEVICES"
SHOWN_AS = "VITPROF_SHOWN_AS"
"""Environment variable beside the mask: the device that this process sees as `cuda:0` since `show_only`."""


def show_only(device: str) -> None:
    """Hides all GPUs but the one that `device` names ("auto", "cuda:N") from this process, until it ends.

    N counts the GPUs that CUDA shows now. Call this before CUDA starts in this process. Raises `DeviceError` where
    there is no such GPU; without a driver that answers it does nothing, and PyTorch reports what is wrong.
    """
    from vitprof.errors import DeviceError  # not above: this file is a program too

    if device != "auto" and not device.startswith("cuda:"):
        return
    gpus = visible_gpus()
    number = 0 if device == "auto" else int(device.removeprefix("cuda:"))
    if gpus and number >= len(gpus):
        visible = os.environ.get(MASK)
        masked = "" if visible is None else f" ({MASK}={visible} hides the others)"
        raise DeviceError(
            f"device {device}: there is no such GPU; choose {choices(gpus)}, or cpu{masked}"
        )
    if len(gpus) > 1 and gpus[number].uuid:
        os.environ[MASK] = gpus[number].uuid
        os.environ[SHOWN_AS] = f"cuda:{number}"


def kept() -> list[str]:
    """Returns the UUID of the one GPU that `show_only` left visible; an empty list where it hid nothing."""
    return [os.environ[MASK]] if SHOWN_AS in os.environ else []


def number_here(device: str) -> int:
    """Returns PyTorch's number, in this process, of the GPU `device` ("cuda:N")."""
    return 0 if device == os.environ.get(SHOWN_AS) else int(device.removeprefix("cuda:"))


def choices(gpus: Sequence[VisibleGpu]) -> str:
    """Returns the GPUs to choose from, in words: "cuda:0 (NVIDIA H100) or cuda:1 (NVIDIA L4)"."""
    return " or ".join(f"cuda:{gpu.index} ({gpu.name})" for gpu in gpus)


if __name__ == "__main__":
    print(json.dumps([asdict(gpu) for gpu in shown_here()]))  # noqa: T201
