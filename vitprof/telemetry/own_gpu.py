"""Restricts a job's process to one GPU, by its UUID, so that it can use no other one and makes no context there.

Numbers are not enough: NVML's order, CUDA_DEVICE_ORDER and masks give them other meanings, and a library that does not
name a GPU takes the first. A process that sees only one GPU takes the right one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from vitprof.errors import DeviceError
from vitprof.telemetry.visible import VisibleGpu, visible_gpus

MASK = "CUDA_VISIBLE_DEVICES"
SHOWN_AS = "VITPROF_SHOWN_AS"
"""Environment variable beside the mask: the device that this process sees as `cuda:0` since `show_only`."""


def show_only(device: str) -> None:
    """Hides all GPUs but the one that `device` names ("auto", "cuda:N") from this process, until it ends.

    N counts the GPUs that CUDA shows now, after CUDA_VISIBLE_DEVICES as the user set it. Call this before CUDA starts
    in this process; later it has no effect. Raises `DeviceError` where there is no such GPU. Without a driver that
    answers it hides nothing and raises nothing: PyTorch then reports what is wrong.
    """
    if device != "auto" and not device.startswith("cuda:"):
        return
    gpus = visible_gpus()
    number = 0 if device == "auto" else int(device.removeprefix("cuda:"))
    if gpus and number >= len(gpus):
        raise DeviceError(f"device {device}: there is no such GPU; choose {choices(gpus)}, or cpu{_masked()}")
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


def _masked() -> str:
    visible = os.environ.get(MASK)
    return "" if visible is None else f" ({MASK}={visible} hides the others)"
