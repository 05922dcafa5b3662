"""One GPU for a job's process, by its UUID: no other card can be meant, and none gets a context of it.

Numbers do not do that: NVML's order, CUDA_DEVICE_ORDER and masks give them other meanings, and a library that forgets
to say which GPU it means takes the first. Where the process sees one GPU, that is the right one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from vitprof.errors import DeviceError
from vitprof.telemetry.visible import VisibleGpu, visible_gpus

MASK = "CUDA_VISIBLE_DEVICES"
SHOWN_AS = "VITPROF_SHOWN_AS"
"""Variable beside the mask: the device that this process sees as `cuda:0` since `show_only`."""


def show_only(device: str) -> None:
    """Hides all GPUs but the one that `device` names ("auto", "cuda:N") from this process, for good.

    N counts what CUDA shows now: CUDA_VISIBLE_DEVICES as the user set it decides. To be called before CUDA starts in
    this process; afterwards it would change nothing. Raises `DeviceError` where there is no such GPU. Whether PyTorch
    can use it, PyTorch says: without a driver that answers nothing is hidden and nothing raised.
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
    """Returns the UUID of the one GPU that `show_only` left in sight; none where it hid nothing."""
    return [os.environ[MASK]] if SHOWN_AS in os.environ else []


def number_here(device: str) -> int:
    """Returns the number that the GPU `device` ("cuda:N") has in this process, for PyTorch."""
    return 0 if device == os.environ.get(SHOWN_AS) else int(device.removeprefix("cuda:"))


def choices(gpus: Sequence[VisibleGpu]) -> str:
    """Returns the GPUs as one may choose them: "cuda:0 (NVIDIA H100) or cuda:1 (NVIDIA L4)"."""
    return " or ".join(f"cuda:{gpu.index} ({gpu.name})" for gpu in gpus)


def _masked() -> str:
    visible = os.environ.get(MASK)
    return "" if visible is None else f" ({MASK}={visible} hides the others)"
