"""Checks what vitprof needs from a machine, one thing at a time."""

import contextlib
import os
import platform
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from vitprof import __version__, cores, formats
from vitprof.config import availability, gpu_findings, parts
from vitprof.errors import VitprofError, one_line
from vitprof.home import ensure_dir, home
from vitprof.program import install_command, install_core
from vitprof.store import RunQuery, RunStore
from vitprof.telemetry import nvml, tmpfs, visible

PACKAGES: dict[str, tuple[tuple[str, ...], ...]] = {
    "core": (("numpy",), ("sqlalchemy",), ("nvidia-ml-py",)),
    "dashboard": tuple(
        (name,) for name in ("torch", "torchvision", "streamlit", "plotly", "h5py", "lmdb")
    ),
    "images": (
        ("simplejpeg",),
        (
            "opencv-python-headless",
            "opencv-python",
            "opencv-contrib-python-headless",
            "opencv-contrib-python",
        ),
    ),
}
"""The packages that vitprof needs, by the extra of pyproject.toml that installs them. Packages in one tuple bring the
same module: any one of them will do."""
WITHOUT: dict[str, str] = {
    "dashboard": "the dashboard or some jobs of vitprof's own cannot run; watching and checking runs can",
    "images": "image files, such as those of photos, cannot be decoded",
}
"""What does not work where a package of an optional extra is missing."""
CORE_ALONE = ", as the core alone is installed; watching and checking runs needs none here"
"""Nothing is wrong where neither the dashboard nor PyTorch is there: that is what docs/installing.md has."""
LOW_SHM_BYTES = 1 << 30
"""Two workers with two batches of 256 images at 224 px in float32 take 0.6 GiB of shared memory."""
LOW_DISK_BYTES = 2 << 30
"""Space in which the data sets that are made here may not fit."""
SHM = Path("/dev/shm")
NO_FIGURES = (
    "GPU-util, GPU memory, power and temperature are not available; jobs can still use a GPU that PyTorch finds "
    "(in a container, set NVIDIA_DRIVER_CAPABILITIES=compute,utility)"
)
PINNED_BYTES = 64 << 20
"""Bytes that are pinned for a moment, to see whether that works: a few batches of photos."""


@dataclass(frozen=True)
class MachineCheck:
    """One thing that was checked."""

    name: str
    """What was checked, such as shared memory."""
    found: str
    """What it is here, in words."""
    verdict: Literal["ok", "note", "bad"]
    """ok: as it should be; note: works, with a limit; bad: something will fail."""
    meaning: str
    """What it means and what to do; empty where there is nothing to say."""


def examine() -> Iterator[MachineCheck]:
    """Yields all checks, in the order they matter."""
    gpus = visible.visible_gpus()
    with contextlib.closing(nvml.Nvml()) as library:
        listed = library.gpus()
        driver = nvml.driver_version(library.call)
        reason = library.reason
    yield MachineCheck("vitprof", f"{__version__}, Python {platform.python_version()}", "ok", "")
    yield _packages()
    yield _dali(gpus, driver)
    torch, wrong = _torch()
    yield torch
    yield _nvml(listed, reason)
    # CUDA's driver and PyTorch may report the same problem.
    for finding in dict.fromkeys([*gpu_findings.findings(gpus, os.environ, driver=driver), *wrong]):
        yield MachineCheck(finding.where, finding.wrong, finding.verdict, finding.todo)
    usable = cores.job_cores()
    all_cores = os.cpu_count() or 1
    few = "advice and defaults go by these" if usable < all_cores else ""
    yield MachineCheck("cores", cores.cores_in_words(usable, all_cores), "ok", few)
    yield _shared_memory()
    yield _ram_disk()
    yield from _home()


def _version(names: tuple[str, ...]) -> str | None:
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return f"{name} {metadata.version(name)}"
    return None


def _packages() -> MachineCheck:
    versions: list[str] = []
    missing: list[str] = []
    # the extras of the missing packages
    lacking: list[str] = []
    for extra, wanted in PACKAGES.items():
        for names in wanted:
            version = _version(names)
            if version is not None:
                versions.append(version)
                continue
            missing.append(names[0])
            if extra not in lacking:
                lacking.append(extra)
    present = ", ".join(versions)
    if not missing:
        return MachineCheck("packages", present, "ok", "")
    named = ", ".join(missing)
    if "core" in lacking:
        return MachineCheck("packages", f"missing: {named}", "bad", install_core())
    todo = "; ".join(f"{WITHOUT[extra]}: {install_command(extra)}" for extra in lacking)
    return MachineCheck("packages", f"{present}; missing: {named}", "note", todo)


def _dali(gpus: Sequence[visible.VisibleGpu], driver: str) -> MachineCheck:
    """Checks the package that one loader needs."""
    version = _version(tuple(gpu_findings.DALI))
    pip = f"pip install {gpu_findings.dali_wheel(gpus, driver)}"
    if version is None:
        return MachineCheck("DALI", "not installed", "note", f"strategy dali needs it: {pip}")
    if not availability.installed(parts.LOADERS["dali"].packages[0]):
        return MachineCheck(
            "DALI", f"{version}, without its module", "note", f"install it again: {pip}"
        )
    return MachineCheck("DALI", version, "ok", "")


def _torch() -> tuple[MachineCheck, list[gpu_findings.Finding]]:
    """Checks whether there is a PyTorch that can use the GPU; also returns what is wrong with it."""
    try:
        import torch
    except (ImportError, OSError) as error:
        no_jobs = "no job of vitprof's own can run"
        absent = isinstance(error, ModuleNotFoundError) and error.name == "torch"
        if absent and not availability.installed("streamlit"):
            return MachineCheck("PyTorch", "not installed", "note", f"{no_jobs}{CORE_ALONE}"), []
        return MachineCheck("PyTorch", one_line(error), "bad", f"{no_jobs}; install PyTorch"), []
    from vitprof.measure.devices import Pinning
    from vitprof.measure.devices.cuda_findings import cuda_here, first_kernel, why_no_cuda

    if not cuda_here():
        wrong = why_no_cuda()
        version = f"{torch.__version__}, no CUDA device"
        check = MachineCheck("PyTorch", version, "note", "jobs run on the CPU")
        return check, [] if wrong is None else [wrong]
    cards = map(torch.cuda.get_device_name, range(torch.cuda.device_count()))
    version = f"{torch.__version__}, {', '.join(cards)}"
    # on the first one only: elsewhere a context would take memory from those who train there
    try:
        failed = first_kernel(torch.device("cuda", 0))
    except RuntimeError as error:
        full = f"the GPU's memory is full ({one_line(error)}): end what uses it"
        return MachineCheck("PyTorch", version, "note", full), []
    if failed is not None:
        # a wheel without code for this card can be imported, and fails at the first kernel
        check = MachineCheck("PyTorch", version, "bad", "jobs cannot use the GPU, see below")
        return check, [failed]
    pinning = Pinning(wanted=True)
    pinning.empty((PINNED_BYTES,), torch.uint8)
    refusal = [] if pinning.refusal is None else [pinning.refusal]
    return MachineCheck("PyTorch", version, "ok", "jobs can use the GPU"), refusal


def _nvml(gpus: Sequence[nvml.GpuInfo], reason: str) -> MachineCheck:
    if reason:
        return MachineCheck("NVML", reason, "note", NO_FIGURES)
    cards = ", ".join(f"{gpu.name} ({formats.size(gpu.memory_bytes)})" for gpu in gpus)
    return MachineCheck("NVML", cards, "ok", "")


def _shared_memory() -> MachineCheck:
    if not SHM.is_dir():
        return MachineCheck("shared memory", f"no {SHM}", "note", "this system keeps it elsewhere")
    meaning = "DataLoader workers can die of a bus error with large batches"
    return _room("shared memory", SHM, LOW_SHM_BYTES, meaning)


def _room(name: str, place: Path, least: int, meaning: str) -> MachineCheck:
    """Returns the check of the bytes that are free in `place`; `meaning`: what less than `least` means."""
    free = shutil.disk_usage(place).free
    room = f"{formats.size(free)} free in {place}"
    if free < least:
        return MachineCheck(name, room, "note", meaning)
    return MachineCheck(name, room, "ok", "")


def _ram_disk() -> MachineCheck:
    disk = tmpfs.find_tmpfs()
    if disk is None:
        without = "no tmpfs that can be written to"
        return MachineCheck("RAM disk", without, "note", "strategy ram-disk cannot run")
    room = f"room for {formats.size(disk.free_bytes)} in {disk.path}"
    return MachineCheck("RAM disk", room, "ok", "")


def _home() -> Iterator[MachineCheck]:
    where = home()
    try:
        ensure_dir(where)
    except VitprofError as error:
        yield MachineCheck("disk", str(where), "bad", one_line(error))
    else:
        meaning = "data sets may not fit; set VITPROF_HOME to a larger disk"
        yield _room("disk", where, LOW_DISK_BYTES, meaning)
    try:
        with contextlib.closing(RunStore()) as store:
            n = store.count_runs(RunQuery(helpers=True))
            n_unreadable = n - len(store.runs())
            stored = f"{formats.count(n, 'run')} in {store.url}"
            if n_unreadable:
                meaning = (
                    f"{n_unreadable} of another version cannot be read here; open them with that "
                    "one, or delete them"
                )
                yield MachineCheck("database", stored, "note", meaning)
            else:
                yield MachineCheck("database", stored, "ok", "")
    except VitprofError as error:
        yield MachineCheck("database", "cannot be used", "bad", one_line(error))
