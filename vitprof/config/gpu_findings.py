"""What is wrong with a GPU's software, or limits it, as lines that pages, `doctor` and runs show.

Only what a user would not learn otherwise, or too late. Nothing here imports PyTorch.
"""

import functools
import importlib.util
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vitprof.telemetry.visible import VisibleGpu

Version = tuple[int, int]

LEAST_DRIVERS: dict[int, int] = {13: 580, 12: 525, 11: 450}
"""Major version of CUDA -> major version of the oldest driver that runs programs built for it (NVIDIA's
CUDA release notes, table "CUDA Toolkit and Minimum Required Driver Version for CUDA Minor Version
Compatibility")."""
GET_PYTORCH = "https://pytorch.org/get-started"
NATIVE_BF16: Version = (8, 0)
"""First compute capability with tensor cores for bfloat16 (CUDA C++ Programming Guide, table of arithmetic).
`torch.cuda.is_bf16_supported(including_emulation=False)` uses the same limit."""
DALI: dict[str, int] = {
    "nvidia-dali-cuda130": 13,
    "nvidia-dali-cuda120": 12,
    "nvidia-dali-cuda110": 11,
}
"""Name of DALI's wheel -> major version of CUDA that it is built for, newest first (DALI's installation page)."""


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, or a limit."""

    verdict: Literal["note", "bad"]
    """note: jobs run, with a limit; bad: jobs cannot use the GPU."""
    where: str
    """What it is about: a driver, a package, a GPU or an environment variable."""
    wrong: str
    todo: str

    @property
    def line(self) -> str:
        return f"{self.where}: {self.wrong}; {self.todo}"


@dataclass(frozen=True)
class TorchBuild:
    """What is known about a PyTorch before it is loaded."""

    version: str
    """Its own version, such as 2.15.0+cu132."""
    cuda: Version | None
    """Version of CUDA that it was built for, such as (13, 2); None for a build without CUDA."""
    rocm: bool = False
    """Whether it is a build for AMD's GPUs."""


@functools.cache
def torch_build() -> TorchBuild | None:
    """Returns the build that `torch/version.py` describes; None if it is missing or cannot be read."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        return read_build(Path(spec.origin).with_name("version.py").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def read_build(source: str) -> TorchBuild | None:
    """Returns the build that a version file describes; None if it names no version."""
    values = dict(
        re.findall(r"""^(\w+)(?:\s*:[^=\n]+)?\s*=\s*['"]([^'"\n]*)['"]""", source, re.MULTILINE)
    )
    if "__version__" not in values:
        return None
    return TorchBuild(values["__version__"], _version(values.get("cuda", "")), rocm="hip" in values)


def _version(text: str) -> Version | None:
    """Returns the first two numbers of a version, such as (13, 2) of "13.2.1"; None if it does not begin
    with two.
    """
    numbers = re.match(r"(\d+)\.(\d+)", text)
    return None if numbers is None else (int(numbers[1]), int(numbers[2]))


def dotted(numbers: Version) -> str:
    """Returns a version as text: 13.2 of (13, 2)."""
    return f"{numbers[0]}.{numbers[1]}"


def _newest_cuda(driver: str, cuda_driver: Version | None) -> int | None:
    """Returns the newest major version of CUDA that a driver supports, by its report or its version.

    None if neither is known, 0 if the driver is older than all known ones.
    """
    if cuda_driver is not None:
        return cuda_driver[0]
    number = _version(driver)
    if number is None:
        return None
    major = number[0]
    return max((cuda for cuda, least in LEAST_DRIVERS.items() if major >= least), default=0)


def unusable(card: str, driver: str, cuda_driver: Version | None) -> Finding | None:
    """Returns why the installed PyTorch cannot use the GPU `card`; None if it can or that is not known.

    `cuda_driver`: the newest CUDA that the driver supports. Minor versions need not agree (CUDA
    Compatibility, "Minor Version Compatibility").
    """
    build = torch_build()
    if build is None or build.rocm:
        return None
    name = f"PyTorch {build.version}"
    if build.cuda is None:
        wrong = f"it is built without CUDA and cannot use {card}"
        return Finding("bad", name, wrong, f"install one with ({GET_PYTORCH})")
    runs = _newest_cuda(driver, cuda_driver)
    if runs is None or runs >= build.cuda[0]:
        return None
    knows = "no CUDA that PyTorch still supports"
    todo = f"install driver {LEAST_DRIVERS.get(build.cuda[0], 'newest')} or later"
    if runs:
        newest = dotted(cuda_driver) if cuda_driver else runs
        knows = f"CUDA up to {newest}"
        todo += f", or a PyTorch built for CUDA {runs} ({GET_PYTORCH})"
    needs = f"{name} is built for CUDA {dotted(build.cuda)} and cannot use the GPU with it"
    where = f"NVIDIA driver {driver}".strip()
    return Finding("bad", where, f"it knows {knows}, and {needs}", todo)


def findings(
    gpus: Sequence[VisibleGpu], environ: Mapping[str, str], *, driver: str = "", precision: str = ""
) -> tuple[Finding, ...]:
    """Returns what is wrong here for runs on `gpus`, the worst first; nothing if there are no GPUs.

    `driver`: the version of their driver, "" if it is not known. `precision`: that of the run to come,
    "" for any.
    """
    if not gpus:
        return ()
    # all of them have one driver
    every = [unusable(gpus[0].name, driver, gpus[0].cuda_driver)]
    if precision in ("", "bf16"):
        cards = dict.fromkeys((gpu.name, gpu.capability) for gpu in gpus)
        for card, capability in cards:
            if capability is not None:
                every.append(bf16_emulated(card, capability))
    every += changing_variables(environ)
    return tuple(finding for finding in every if finding is not None)


def pytorch_fails(torch: str, card: str, error: str) -> Finding:
    """Returns the finding that CUDA does not start in PyTorch (`error`), and the driver lists `card`
    ("": none).
    """
    wrong = f"CUDA does not start ({error})"
    if card:
        wrong = f"it sees no GPU, and the driver lists {card} ({error})"
    todo = "check CUDA_VISIBLE_DEVICES, and that a container was started with the GPU; restart after a driver's update"
    return Finding("bad", f"PyTorch {torch}", wrong, todo)


def bf16_emulated(card: str, capability: Version) -> Finding | None:
    """Returns a finding if the card has no units for bf16, so that it is emulated; else None."""
    if capability >= NATIVE_BF16:
        return None
    wrong = (
        f"it has no units for bf16 (compute capability {dotted(capability)}, they come with {dotted(NATIVE_BF16)}): "
        "precision bf16 is emulated, often slower than fp32"
    )
    return Finding("note", card, wrong, "choose precision fp16")


def dali_wheel(gpus: Sequence[VisibleGpu], driver: str = "") -> str:
    """Returns DALI's newest wheel that the driver of `gpus` supports; the newest of all if that is not known."""
    newest = next(iter(DALI))
    if not gpus:
        return newest
    runs = _newest_cuda(driver, gpus[0].cuda_driver)
    if runs is None:
        return newest
    return next((name for name, cuda in DALI.items() if cuda <= runs), newest)


SERIAL = "each launch waits for its kernel, so nothing overlaps and the device seems idle"
ONE_QUEUE = "copies and kernels share one queue, so a prefetching copy waits for compute"
NO_CACHE = "each tensor is allocated anew, and freeing it waits for the device"
IN_TF32 = "products of fp32 are computed in TF32"
NOT_COMPILED = "torch.compile does nothing"
CHANGING: dict[tuple[str, str], str] = {
    ("CUDA_LAUNCH_BLOCKING", "1"): SERIAL,
    ("CUDA_DEVICE_MAX_CONNECTIONS", "1"): ONE_QUEUE,
    ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1"): NO_CACHE,
    ("NVIDIA_TF32_OVERRIDE", "0"): "TF32 is off whatever precision is chosen",
    ("NVIDIA_TF32_OVERRIDE", "1"): IN_TF32,
    ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1"): IN_TF32,
    ("TORCHDYNAMO_DISABLE", "1"): NOT_COMPILED,
    ("TORCH_COMPILE_DISABLE", "1"): NOT_COMPILED,
}
"""Environment variable and value -> how it changes what a run on a GPU measures (CUDA C++ Programming
Guide, "CUDA Environment Variables"; PyTorch's pages "CUDA Environment Variables" and "Numerical
accuracy")."""
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
            yield Finding(
                "note", f"{name}={value}", wrong, "unset it unless that is what you want to measure"
            )
