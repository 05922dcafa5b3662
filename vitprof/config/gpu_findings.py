"""Rules for what is wrong with a GPU's software, or limits it. Each makes a line that pages, `doctor` and runs show.

The rules take facts that were found out elsewhere: by NVML beside a job, or by PyTorch in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Version = tuple[int, int]
"""Major and minor number."""

LEAST_DRIVERS: dict[int, int] = {13: 580, 12: 525, 11: 450}
"""Major version of CUDA -> major version of the oldest driver that runs programs built for it (NVIDIA's CUDA release
notes, table "CUDA Toolkit and Minimum Required Driver Version for CUDA Minor Version Compatibility")."""
GET_PYTORCH = "https://pytorch.org/get-started"
NATIVE_BF16: Version = (8, 0)
"""First compute capability with tensor cores for bfloat16 (CUDA C++ Programming Guide, table of arithmetic).
`torch.cuda.is_bf16_supported(including_emulation=False)` uses the same limit."""


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, or a limit."""

    verdict: Literal["note", "bad"]
    """note: jobs run, with a limit; bad: jobs cannot use the GPU."""
    where: str
    """What it is about: a driver, a package, a GPU or an environment variable."""
    wrong: str
    """What is wrong with it."""
    todo: str
    """What to do about it."""

    @property
    def line(self) -> str:
        """Returns all of it in one line."""
        return f"{self.where}: {self.wrong}; {self.todo}"


def version(text: str) -> Version | None:
    """Returns the first two numbers of a version, such as (13, 2) of "13.2.1"; None if it does not begin with two."""
    found = re.match(r"(\d+)\.(\d+)", text)
    return None if found is None else (int(found[1]), int(found[2]))


def dotted(numbers: Version) -> str:
    """Returns a version as people write it: 13.2."""
    return f"{numbers[0]}.{numbers[1]}"


def newest_cuda(driver: str, cuda_driver: Version | None) -> int | None:
    """Returns the newest major version of CUDA that a driver supports: as it reports (`cuda_driver`), else from its own
    version; None if neither is known, 0 if it is older than all known ones.
    """
    if cuda_driver is not None:
        return cuda_driver[0]
    number = version(driver)
    return None if number is None else max((c for c, least in LEAST_DRIVERS.items() if number[0] >= least), default=0)


def driver_too_old(torch: str, torch_cuda: Version, driver: str, cuda_driver: Version | None) -> Finding | None:
    """Returns a finding if the driver's CUDA has a lower major version than `torch_cuda`, that of PyTorch; else None.

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
    """Returns the finding that PyTorch was built without CUDA although there is a GPU, `card`."""
    return Finding(
        "bad",
        f"PyTorch {torch}",
        f"it is built without CUDA and cannot use {card}",
        f"install one with ({GET_PYTORCH})",
    )


def not_supported(torch: str, accelerator: str) -> Finding:
    """Returns the finding that PyTorch can use an accelerator that is no NVIDIA GPU; `accelerator` names it."""
    return Finding(
        "note",
        f"PyTorch {torch}",
        f"it has {accelerator}, which vitprof does not support yet",
        "choose device cpu, or a simulated GPU",
    )


def not_seen(torch: str, card: str, error: str) -> Finding:
    """Returns the finding that PyTorch sees no GPU although the driver lists one; `error` is PyTorch's message."""
    return Finding(
        "bad",
        f"PyTorch {torch}",
        f"it sees no GPU, and the driver lists {card} ({error})",
        "check CUDA_VISIBLE_DEVICES and, in a container, that it was started with the GPU",
    )


def cuda_fails(torch: str, error: str) -> Finding:
    """Returns the finding that CUDA does not start and no GPU is listed; `error` is PyTorch's message."""
    return Finding(
        "bad",
        f"PyTorch {torch}",
        f"CUDA does not start ({error})",
        "restart the machine if its driver was updated; in a container, check that it was started with the GPU",
    )


def no_kernels(torch: str, card: str, capability: Version, archs: Sequence[str]) -> Finding | None:
    """Returns a finding if PyTorch was built without kernels for this card; None if it has some or that is not known.

    `archs`: the result of `torch.cuda.get_arch_list()`. Machine code (sm_) runs on its own major version from its minor
    version on, PTX (compute_) on all later ones (CUDA C++ Programming Guide, "Binary" and "PTX Compatibility"); code
    for a family (suffix f) runs within its major version, code for one architecture (suffix a) on that one only.
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
    """Returns the finding that a first small kernel failed for any other reason; `error` is PyTorch's message."""
    return Finding("bad", card, f"a first kernel failed ({error})", "restart the machine, or choose device cpu")


def bf16_emulated(card: str, capability: Version) -> Finding | None:
    """Returns a finding if the card has no units for bf16, so that it is emulated; else None."""
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
    """Returns the finding that the old package pynvml hides nvidia-ml-py; `installed` is its version."""
    return Finding(
        "note",
        f"package pynvml {installed}".strip(),
        "it hides nvidia-ml-py, so that figures of the GPU can be missing",
        "pip uninstall pynvml, then pip install --force-reinstall nvidia-ml-py",
    )


def pinning_refused(error: str) -> Finding:
    """Returns the finding that the system refused page-locked memory, with what is done instead."""
    return Finding(
        "note",
        "pinned memory",
        f"the system refused it ({error}); batches are copied from pageable memory: slower, never during compute",
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
"""Environment variable and value -> how it changes what a run on a GPU measures (CUDA C++ Programming Guide, "CUDA
Environment Variables"; PyTorch's pages "CUDA Environment Variables" and "Numerical accuracy")."""
RECORDED: tuple[str, ...] = (
    *sorted({name for name, _ in CHANGING}),
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_DISABLE_PTX_JIT",
    "CUDA_FORCE_PTX_JIT",
    "CUDA_MODULE_LOADING",
    "GOMP_CPU_AFFINITY",
    "GOMP_SPINCOUNT",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "LD_PRELOAD",
    "MALLOC_ARENA_MAX",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OMP_PROC_BIND",
    "OMP_WAIT_POLICY",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
)
"""Environment variables that are recorded with a run if they are set. The chosen GPU is recorded as the device."""


def recorded_variables(environ: Mapping[str, str]) -> str:
    """Returns the variables of `RECORDED` that are set, as NAME=VALUE separated by blanks; "" if none is."""
    return " ".join(f"{name}={environ[name]}" for name in RECORDED if environ.get(name))


def changing_variables(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yields a finding for each variable that is set so that a run on a GPU differs from usual training."""
    for (name, value), wrong in CHANGING.items():
        if environ.get(name) == value:
            yield Finding("note", f"{name}={value}", wrong, "unset it unless that is what you want to measure")


DALI: dict[str, int] = {"nvidia-dali-cuda130": 13, "nvidia-dali-cuda120": 12, "nvidia-dali-cuda110": 11}
"""Name of DALI's wheel -> major version of CUDA that it is built for, newest first (DALI's installation page)."""


def dali_package(driver: str = "", cuda_driver: Version | None = None) -> str:
    """Returns the name of DALI's newest wheel that this driver supports; the newest of all if there is none or the
    driver is not known.
    """
    runs = newest_cuda(driver, cuda_driver)
    return next((name for name, cuda in DALI.items() if runs is None or cuda <= runs), next(iter(DALI)))


def dali_too_new(installed: str, driver: str, cuda_driver: Version | None) -> Finding | None:
    """Returns a finding if DALI's wheel `installed` needs a newer CUDA than the driver supports, else None."""
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
