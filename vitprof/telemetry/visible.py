"""The GPUs that CUDA shows a process, in CUDA's order, as its driver (libcuda) reports them.

NVML lists every GPU of the machine by its place on the PCI bus. CUDA counts the fastest first
(CUDA_DEVICE_ORDER), only those that CUDA_VISIBLE_DEVICES lets through, and slices of a GPU in MIG
mode; so "the second" may be another one. Both use the same UUIDs.

A process that has called CUDA's driver keeps seeing what it saw then, so `visible_gpus` uses a
separate, short process. This file is also the program of that process, so it imports nothing from
vitprof.

A job's process is restricted to one GPU, by its UUID, so that it can use no other one and makes no
context there: a library that does not name a GPU takes the first.
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
"""How long (s) the driver may take: usually about 0.1 s, several seconds where it must first wake
many GPUs."""
NAME_BYTES = 256
DECIDE = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
"""Variables that decide which GPUs CUDA shows, and in which order."""
MAJOR = 75
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR (CUDA driver API, CUdevice_attribute)."""
MINOR = 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR."""


@dataclass(frozen=True)
class VisibleGpu:
    """A GPU, or a slice of one, that CUDA shows."""

    index: int
    """Its number in CUDA and PyTorch: N of `cuda:N`."""
    name: str
    uuid: str
    """`GPU-...`, for a slice `MIG-...`; "" where the driver does not report it."""
    memory_bytes: float
    """Device memory in all."""
    cuda_driver: tuple[int, int] | None = None
    """Newest version of CUDA that the driver supports, such as (13, 0); None where it does not
    report it."""
    capability: tuple[int, int] | None = None
    """CUDA compute capability, such as (9, 0); None where the driver does not report it."""


def visible_gpus() -> list[VisibleGpu]:
    """Returns the GPUs that CUDA would show a process started now; none where there is no driver.

    Never raises. The driver is asked once for each value of the variables in `DECIDE`.
    """
    return list(reported_gpus(*(os.environ.get(name) for name in DECIDE)))


@functools.lru_cache
def reported_gpus(*_: str | None) -> tuple[VisibleGpu, ...]:
    """Returns the GPUs that the driver reports to a new process.

    The arguments only select the cached answer.
    """
    try:
        program = [sys.executable, "-I", "-S", __file__]
        nothing = subprocess.DEVNULL
        done = subprocess.run(
            program, stdin=nothing, capture_output=True, timeout=ANSWER_S, check=True
        )
        return tuple(_from_json(gpu) for gpu in json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError):
        return ()


def _from_json(gpu: dict[str, Any]) -> VisibleGpu:
    # JSON makes lists of the pairs of numbers.
    facts: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in gpu.items()
    }
    return VisibleGpu(**facts)


def shown_here() -> list[VisibleGpu]:
    """Returns the GPUs that CUDA shows this process, and thereby fixes its view.

    Never raises; makes no context.
    """
    try:
        driver = ctypes.CDLL(LIBRARY)
        return list(_ask(driver))
    except (OSError, AttributeError, _DriverError):
        # There is no library, it lacks a function, or there is no GPU.
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
    cuda = _number(driver, "cuDriverGetVersion")
    # "1000 * major + 10 * minor" (CUDA driver API, cuDriverGetVersion)
    newest = divmod(cuda // 10, 100) if cuda else None
    call("cuDeviceGetCount", ctypes.byref(count))
    for index in range(count.value):
        name = ctypes.create_string_buffer(NAME_BYTES)
        call("cuDeviceGet", ctypes.byref(device), index)
        call("cuDeviceGetName", name, NAME_BYTES, device)
        call("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
        title = name.value.decode(errors="replace")
        major = _number(driver, "cuDeviceGetAttribute", MAJOR, device)
        minor = _number(driver, "cuDeviceGetAttribute", MINOR, device)
        capability = None
        if major is not None and minor is not None:
            capability = (major, minor)
        yield VisibleGpu(
            index, title, _uuid(driver, device, title), float(memory.value), newest, capability
        )


def _number(driver: Any, function: str, *args: Any) -> int | None:
    """Returns the number that a function of the driver writes to its first argument; None where it
    does not.
    """
    value = ctypes.c_int()
    if _answers(driver, function, ctypes.byref(value), *args):
        return value.value
    return None


def _answers(driver: Any, function: str, *args: Any) -> bool:
    """Calls a function; returns whether this driver has it and it succeeds (CUDA_SUCCESS is 0)."""
    return hasattr(driver, function) and getattr(driver, function)(*args) == 0


def _uuid(driver: Any, device: ctypes.c_int, title: str) -> str:
    """Returns the UUID with the prefix that CUDA_VISIBLE_DEVICES needs.

    For a slice of a GPU in MIG mode the second version of the function returns the slice's UUID,
    the first one the GPU's (CUDA driver API, cuDeviceGetUuid_v2); drivers before 11.4 have only the
    first one.
    """
    uuids = []
    for function in ("cuDeviceGetUuid", "cuDeviceGetUuid_v2"):
        value = (ctypes.c_ubyte * 16)()
        if _answers(driver, function, ctypes.byref(value), device):
            uuids.append(uuid.UUID(bytes=bytes(value)))
    if not uuids:
        return ""
    is_slice = uuids[0] != uuids[-1] or " MIG " in title
    prefix = "MIG" if is_slice else "GPU"
    return f"{prefix}-{uuids[-1]}"


MASK = "CUDA_VISIBLE_DEVICES"
SHOWN_AS = "VITPROF_SHOWN_AS"
"""Environment variable beside the mask: the device that this process sees as `cuda:0` since
`show_only`."""


def show_only(device: str) -> None:
    """Hides all GPUs but the one that `device` names ("auto", "cuda:N") from this process, until it
    ends.

    N counts the GPUs that CUDA shows now, after CUDA_VISIBLE_DEVICES as the user set it. Call this
    before CUDA starts in this process; later it has no effect. Raises `DeviceError` where there is
    no such GPU. Without a driver that answers it hides nothing and raises nothing: PyTorch then
    reports what is wrong.
    """
    # Not at the top: this file is a program, too, which must not import vitprof.
    from vitprof.errors import DeviceError

    if device != "auto" and not device.startswith("cuda:"):
        return
    gpus = visible_gpus()
    number = 0 if device == "auto" else int(device.removeprefix("cuda:"))
    if gpus and number >= len(gpus):
        masked = ""
        if MASK in os.environ:
            masked = f" ({MASK}={os.environ[MASK]} hides the others)"
        raise DeviceError(
            f"device {device}: there is no such GPU; choose {choices(gpus)}, or cpu{masked}"
        )
    if len(gpus) > 1 and gpus[number].uuid:
        os.environ[MASK] = gpus[number].uuid
        os.environ[SHOWN_AS] = f"cuda:{number}"


def kept() -> list[str]:
    """Returns the UUID of the one GPU that `show_only` left visible; an empty list where it hid
    nothing.
    """
    return [os.environ[MASK]] if SHOWN_AS in os.environ else []


def number_here(device: str) -> int:
    """Returns PyTorch's number, in this process, of the GPU `device` ("cuda:N")."""
    if device == os.environ.get(SHOWN_AS):
        return 0
    return int(device.removeprefix("cuda:"))


def choices(gpus: Sequence[VisibleGpu]) -> str:
    """Returns the GPUs to choose from, in words: "cuda:0 (NVIDIA H100) or cuda:1 (NVIDIA L4)"."""
    return " or ".join(f"cuda:{gpu.index} ({gpu.name})" for gpu in gpus)


if __name__ == "__main__":
    print(json.dumps([asdict(gpu) for gpu in shown_here()]))  # noqa: T201
