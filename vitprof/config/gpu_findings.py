"""What is wrong with a GPU's software, or limits it: one rule for each, and one line that all who show it share.

Pages, `doctor` and the notices of runs say the same. Rules take what was found out elsewhere: by NVML beside a job, by
PyTorch in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Version = tuple[int, int]
"""Major and minor number."""

LEAST_DRIVERS: dict[int, int] = {13: 580, 12: 525, 11: 450}
"""Major version of CUDA to that of the oldest driver that runs what was built for it (NVIDIA's CUDA release notes,
table "CUDA Toolkit and Minimum Required Driver Version for CUDA Minor Version Compatibility")."""
GET_PYTORCH = "https://pytorch.org/get-started"
NATIVE_BF16: Version = (8, 0)
"""Compute capability from which on there are tensor cores for bfloat16 (CUDA C++ Programming Guide, table of
arithmetic); `torch.cuda.is_bf16_supported(including_emulation=False)` asks the same."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or a limit."""

    verdict: Literal["note", "bad"]
    """note: jobs run, with a limit; bad: jobs cannot use the GPU."""
    where: str
    """The part it is about: a driver, a package, a GPU, a variable."""
    wrong: str
    """What is wrong with it."""
    todo: str
    """What to do about it."""

    @property
    def line(self) -> str:
        """Returns all of it in one line."""
        return f"{self.where}: {self.wrong}; {self.todo}"


def version(text: str) -> Version | None:
    """Returns the first two numbers of a version, such as (13, 2) of "13.2.1"; None where it does not begin so."""
    found = re.match(r"(\d+)\.(\d+)", text)
    return None if found is None else (int(found[1]), int(found[2]))


def dotted(numbers: Version) -> str:
    """Returns a version as people write it: 13.2."""
    return f"{numbers[0]}.{numbers[1]}"


def newest_cuda(driver: str, cuda_driver: Version | None) -> int | None:
    """Returns the newest major version of CUDA that a driver runs: as it says itself, else by its number; None if
    neither is known.
    """
    if cuda_driver is not None:
        return cuda_driver[0]
    number = version(driver)
    return None if number is None else max((c for c, least in LEAST_DRIVERS.items() if number[0] >= least), default=0)


def driver_too_old(torch: str, torch_cuda: Version, driver: str, cuda_driver: Version | None) -> Finding | None:
    """Returns that the driver cannot run a PyTorch built for `torch_cuda`: its CUDA has a lower major version.

    Minor versions need not agree (CUDA Compatibility, "Minor Version Compatibility").
    """
    runs = newest_cuda(driver, cuda_driver)
    if runs is None or runs >= torch_cuda[0]:
        return None
    knows = dotted(cuda_driver) if cuda_driver else str(runs) if runs else "no CUDA that PyTorch still supports"
    known = f"it knows CUDA up to {knows}" if runs else f"it knows {knows}"
    least = LEAST_DRIVERS.get(torch_cuda[0])
    newer = f"driver {least} or later" if least else "newest driver"
    older = f", or a PyTorch built for CUDA {runs} ({GET_PYTORCH})" if runs else ""
    return Finding(
        "bad",
        f"NVIDIA driver {driver}".strip(),
        f"{known}, and PyTorch {torch} is built for CUDA {dotted(torch_cuda)} and cannot use the GPU with it",
        f"install {newer}{older}",
    )


def built_without_cuda(torch: str, card: str) -> Finding:
    """Returns that this PyTorch has no CUDA in it, where there is a GPU that it could use."""
    return Finding(
        "bad",
        f"PyTorch {torch}",
        f"it is built without CUDA and cannot use {card}",
        f"install one with ({GET_PYTORCH})",
    )


def not_supported(torch: str, accelerator: str) -> Finding:
    """Returns that PyTorch could compute on something that is no NVIDIA GPU, here `accelerator` in words."""
    return Finding(
        "note",
        f"PyTorch {torch}",
        f"it has {accelerator}, which vitprof does not support yet",
        "choose device cpu, or a simulated GPU",
    )


def not_seen(torch: str, card: str, error: str) -> Finding:
    """Returns that PyTorch sees no GPU where the driver lists one; `error` is PyTorch's word on it."""
    return Finding(
        "bad",
        f"PyTorch {torch}",
        f"it sees no GPU, and the driver lists {card} ({error})",
        "check CUDA_VISIBLE_DEVICES and, in a container, that it was started with the GPU",
    )


def cuda_fails(torch: str, error: str) -> Finding:
    """Returns that CUDA does not start, where nobody lists a GPU; `error` is PyTorch's word on it."""
    return Finding(
        "bad",
        f"PyTorch {torch}",
        f"CUDA does not start ({error})",
        "restart the machine if its driver was updated; in a container, check that it was started with the GPU",
    )


def no_kernels(torch: str, card: str, capability: Version, archs: Sequence[str]) -> Finding | None:
    """Returns that PyTorch was built with no kernels for this card; None where it was, or where that is not known.

    `archs` as `torch.cuda.get_arch_list()` gives them. Machine code (sm_) runs on its own major version from its minor
    version on, PTX (compute_) on everything later (CUDA C++ Programming Guide, "Binary" and "PTX Compatibility"); code
    for a family or one architecture (a trailing letter) on no later one.
    """
    if not archs or any(_runs(arch, capability) for arch in archs):
        return None
    return Finding(
        "bad",
        card,
        f"PyTorch {torch} has no kernels for its compute capability {dotted(capability)}, only for {', '.join(archs)}",
        f"install a PyTorch built for it ({GET_PYTORCH}), or choose device cpu",
    )


def _runs(arch: str, capability: Version) -> bool:
    found = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", arch)
    if found is None:
        return False
    kind, major, minor, only = found[1], int(found[2]), int(found[3]), found[4]
    if only == "a":
        return capability == (major, minor)
    if kind == "compute" and not only:
        return capability >= (major, minor)
    return capability[0] == major and capability[1] >= minor


def kernel_failed(card: str, error: str) -> Finding:
    """Returns that a first small kernel did not run, for whatever other reason."""
    return Finding("bad", card, f"a first kernel failed ({error})", "restart the machine, or choose device cpu")


def bf16_emulated(card: str, capability: Version) -> Finding | None:
    """Returns that the card computes bf16 in the shape of float32, where it does."""
    if capability >= NATIVE_BF16:
        return None
    return Finding(
        "note",
        card,
        f"it has no units for bf16 (compute capability {dotted(capability)}, they come with {dotted(NATIVE_BF16)}): "
        "precision bf16 is emulated, often slower than fp32",
        "choose precision fp16",
    )


def old_pynvml(installed: str) -> Finding:
    """Returns that the old package pynvml hides nvidia-ml-py; `installed` is its version."""
    return Finding(
        "note",
        f"package pynvml {installed}".strip(),
        "it hides nvidia-ml-py, so that figures of the GPU can be missing",
        "pip uninstall pynvml, then pip install --force-reinstall nvidia-ml-py",
    )


def pinning_refused(error: str) -> Finding:
    """Returns that the system gave no page-locked memory, and what is done instead."""
    return Finding(
        "note",
        "pinned memory",
        f"the system refused it ({error}); batches are copied out of pageable memory: slower, never beside compute",
        "allow more locked memory (ulimit -l unlimited; docker run --ulimit memlock=-1), or free RAM",
    )


CHANGING: dict[tuple[str, str], str] = {
    ("CUDA_LAUNCH_BLOCKING", "1"): "each launch waits for its kernel, so nothing overlaps and the device seems idle",
    ("CUDA_DEVICE_MAX_CONNECTIONS", "1"): "copies and kernels share one queue, so a prefetching copy waits for compute",
    ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1"): "each tensor is allocated anew, and freeing it waits for the device",
    ("NVIDIA_TF32_OVERRIDE", "0"): "TF32 is off whatever precision is chosen",
    ("NVIDIA_TF32_OVERRIDE", "1"): "products of fp32 are computed in TF32",
    ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1"): "products of fp32 are computed in TF32",
    ("TORCHDYNAMO_DISABLE", "1"): "torch.compile does nothing",
    ("TORCH_COMPILE_DISABLE", "1"): "torch.compile does nothing",
}
"""Variables with values that change what a run on a GPU measures, and how (CUDA C++ Programming Guide, "CUDA
Environment Variables"; PyTorch's pages "CUDA Environment Variables" and "Numerical accuracy")."""
RECORDED: tuple[str, ...] = (
    *sorted({name for name, _ in CHANGING}),
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_DISABLE_PTX_JIT",
    "CUDA_FORCE_PTX_JIT",
    "CUDA_MODULE_LOADING",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
    "LD_PRELOAD",
    "MALLOC_ARENA_MAX",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OMP_PROC_BIND",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
)
"""Variables that a run is recorded with, where they are set. Which GPU was chosen is recorded as the device."""


def recorded_variables(environ: Mapping[str, str]) -> str:
    """Returns the variables that can change results and are set, as NAME=VALUE with blanks between; "" without any."""
    return " ".join(f"{name}={environ[name]}" for name in RECORDED if environ.get(name))


def changing_variables(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yields the variables that are set so that a run on a GPU measures something else than usual training."""
    for (name, value), wrong in CHANGING.items():
        if environ.get(name) == value:
            yield Finding("note", f"{name}={value}", wrong, "unset it unless that is what you want to measure")


DALI: dict[str, int] = {"nvidia-dali-cuda130": 13, "nvidia-dali-cuda120": 12, "nvidia-dali-cuda110": 11}
"""DALI's wheels, the newest first, and the major version of CUDA that each is built for (DALI's installation page)."""


def dali_package(driver: str = "", cuda_driver: Version | None = None) -> str:
    """Returns the name of DALI's newest wheel that this driver runs; the newest of all where no driver is known."""
    runs = newest_cuda(driver, cuda_driver)
    return next((name for name, cuda in DALI.items() if runs is None or cuda <= runs), next(iter(DALI)))


def dali_too_new(installed: str, driver: str, cuda_driver: Version | None) -> Finding | None:
    """Returns that the wheel of DALI that is `installed` needs a newer CUDA than the driver runs."""
    runs, fits = newest_cuda(driver, cuda_driver), dali_package(driver, cuda_driver)
    which = f"NVIDIA driver {driver}".strip()
    if runs is None or DALI[installed] <= runs:
        return None
    return Finding(
        "note",
        f"package {installed}",
        f"it is built for CUDA {DALI[installed]}, and {which} knows CUDA up to {runs}: DALI cannot decode on the GPU",
        f"pip uninstall {installed}, then pip install {fits}",
    )
