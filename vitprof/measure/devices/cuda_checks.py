"""Checks of a GPU that need PyTorch: whether it sees one, whether a kernel runs, and what is wrong if not."""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch

from vitprof.config import RunConfig
from vitprof.config.gpu_findings import Finding, bf16_emulated, changing_variables, pytorch_fails, unusable
from vitprof.errors import one_line
from vitprof.measure.devices.others import other_accelerator
from vitprof.measure.devices.out_of_memory import is_out_of_memory
from vitprof.telemetry import Nvml, driver_version, shown_here, visible

HIDDEN = ("", "-1")
"""Values of CUDA_VISIBLE_DEVICES that hide all GPUs on purpose."""
NOTHING_THERE = ("no NVIDIA driver", "No CUDA GPUs are available", "not compiled with CUDA")
"""Parts of PyTorch's error messages where there is no GPU, or where it was built without CUDA."""


def why_no_cuda() -> Finding | None:
    """Returns why PyTorch has no NVIDIA GPU, if the machine seems to have one or has another accelerator.

    None if it has neither, or if the GPUs are hidden on purpose.
    """
    if other := other_accelerator():
        wrong = f"it has {other}, which vitprof does not support yet"
        return Finding("note", f"PyTorch {torch.__version__}", wrong, "choose device cpu, or a simulated GPU")
    if os.environ.get("CUDA_VISIBLE_DEVICES") in HIDDEN:
        return None
    error = _cuda_error()
    driver, listed = nvml_lists()
    shown = shown_here()
    # A failing CUDA driver shows none; the GPUs that it showed before, or that NVML lists, exist nonetheless
    names = [gpu.name for gpu in shown] or visible.kept() or listed
    if not names:
        return None if any(words in error for words in NOTHING_THERE) else pytorch_fails(torch.__version__, "", error)
    known = shown[0].cuda_driver if shown else None
    return unusable(names[0], driver, known) or pytorch_fails(torch.__version__, names[0], error)


def nvml_lists() -> tuple[str, list[str]]:
    """Returns the driver's version and the names of the GPUs that NVML lists, hidden ones included."""
    with Nvml() as nvml:
        return driver_version(nvml.call), [gpu.name for gpu in nvml.gpus()]


def _cuda_error() -> str:
    """Returns PyTorch's message on why CUDA does not start, in one line."""
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:  # AssertionError: a build without CUDA
        return one_line(error)
    return "it finds no device"


def first_kernel(device: torch.device) -> Finding | None:
    """Runs one small kernel. Returns what is wrong if it fails, None if it works.

    An out-of-memory error is raised again: it says nothing about kernels.
    """
    try:
        torch.zeros(1, device=device).add_(1).item()
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        wrong = f"a first kernel failed ({one_line(error)})"
        return Finding("bad", torch.cuda.get_device_name(device), wrong, "restart the machine, or choose device cpu")
    return None


def limits(device: torch.device, config: RunConfig) -> Iterator[Finding]:
    """Yields what makes a run of `config` on the CUDA `device` differ from what was meant."""
    if config.precision == "bf16":
        card, capability = torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
        if (emulated := bf16_emulated(card, capability)) is not None:
            yield emulated
    yield from changing_variables(os.environ)
