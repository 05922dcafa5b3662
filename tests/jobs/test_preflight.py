"""What doctor says about this machine, and about machines that lack something."""

import collections
import contextlib
import dataclasses
import sys
from importlib import metadata
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from vitprof.config import RunConfig, gpu_findings
from vitprof.config.gpu_findings import DALI, Finding, TorchBuild
from vitprof.jobs import preflight
from vitprof.jobs.preflight import MachineCheck, examine
from vitprof.measure.devices import cuda_findings
from vitprof.store import RunStore
from vitprof.telemetry.nvml import NO_GPU_MESSAGE, GpuInfo
from vitprof.telemetry.tmpfs import Tmpfs
from vitprof.telemetry.visible import VisibleGpu

Usage = collections.namedtuple("Usage", "total used free")


def found(what: str) -> MachineCheck:
    """The one check of this name, on a line of its own like all others."""
    return looked_at()[what]


def looked_at(*findings: str) -> dict[str, MachineCheck]:
    """All checks by name, with these about the GPU's software."""
    checks = {check.name: check for check in examine()}
    after = ("cores", "shared memory", "RAM disk", "disk", "database")
    assert list(checks) == ["vitprof", "packages", "DALI", "PyTorch", "NVML", *findings, *after]
    for check in checks.values():
        assert check.verdict in ("ok", "note", "bad")
        assert check.found
        assert check.verdict == "ok" or check.meaning
        assert "\n" not in check.found + check.meaning
    return checks


def test_a_machine_on_which_vitprof_works_has_nothing_bad(vitprof_home: Path) -> None:
    assert not [check for check in examine() if check.verdict == "bad"]
    with contextlib.closing(RunStore()) as store:
        store.create_run(RunConfig())
        assert found("database").found == f"1 run in {store.url}"
    assert str(vitprof_home) in found("disk").found


def test_jobs_run_on_the_cpu_without_a_gpu_and_with_one_of_another_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpu = MachineCheck(
        "PyTorch", f"{torch.__version__}, no CUDA device", "note", "jobs run on the CPU"
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert found("PyTorch") == cpu
    monkeypatch.setattr(torch.version, "hip", "6.2")  # PyTorch for AMD's GPUs calls them cuda
    for name, answer in (
        ("is_available", True),
        ("device_count", 1),
        ("get_device_name", "Radeon"),
    ):
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    which = f"PyTorch {torch.__version__}"
    checks = looked_at(which)
    assert (checks["PyTorch"], checks[which].verdict) == (cpu, "note")
    assert (
        checks[which].found
        == "it has an AMD GPU (Radeon, ROCm 6.2), which vitprof's own jobs do not use yet"
    )


def fake_nvml(*cards: GpuInfo, driver: str = "") -> Mock:
    """What `Nvml()` gives on a machine with these cards."""
    nvml = Mock(available=bool(cards), reason="" if cards else NO_GPU_MESSAGE)
    nvml.gpus.return_value, nvml.call.return_value = list(cards), driver
    return nvml


def test_nvml_is_named_with_its_gpus_or_the_reason_why_not_and_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        cuda_findings, "nvml_lists", lambda: ("", [])
    )  # or PyTorch would be said to miss that GPU
    none, one = fake_nvml(), fake_nvml(GpuInfo(0, "H200", "GPU-1", 141 * 2.0**30, "580"))
    monkeypatch.setattr(preflight.nvml, "Nvml", lambda: none)
    check = found("NVML")
    assert (check.verdict, check.found) == ("note", NO_GPU_MESSAGE)
    assert "not available" in check.meaning
    monkeypatch.setattr(preflight.nvml, "Nvml", lambda: one)
    check = found("NVML")
    assert (check.verdict, check.found) == ("ok", "H200 (141 GiB)")
    assert none.close.call_count == one.close.call_count == 1


T4 = VisibleGpu(0, "Tesla T4", "GPU-1", 15 * 2.0**30, cuda_driver=(12, 2), capability=(7, 5))


@pytest.fixture
def t4(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card whose driver is older than this PyTorch, by what it says itself; PyTorch does not see it."""
    nvml = fake_nvml(
        GpuInfo(0, T4.name, T4.uuid, T4.memory_bytes, "535.104.05"), driver="535.104.05"
    )
    monkeypatch.setattr(preflight.nvml, "Nvml", lambda: nvml)
    monkeypatch.setattr(preflight.visible, "visible_gpus", lambda: [T4])
    monkeypatch.setattr(cuda_findings, "shown_here", lambda: [T4])
    monkeypatch.setattr(cuda_findings, "nvml_lists", lambda: ("535.104.05", [T4.name]))
    monkeypatch.setattr(gpu_findings, "torch_build", lambda: TorchBuild(torch.__version__, (13, 2)))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("t4")
def test_what_is_wrong_with_a_gpus_software_is_a_row_each_and_said_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    driver = "NVIDIA driver 535.104.05"
    checks = looked_at(driver, "Tesla T4", "CUDA_LAUNCH_BLOCKING=1")
    assert (checks[driver].verdict, checks[driver].meaning.partition(",")[0]) == (
        "bad",
        "install driver 580 or later",
    )
    assert checks["Tesla T4"].meaning == "choose precision fp16"


@pytest.mark.usefixtures("t4")
@pytest.mark.parametrize("kernel", ["runs", "fails", "finds no memory"])
def test_one_kernel_is_run_and_some_memory_pinned_to_know(
    monkeypatch: pytest.MonkeyPatch, kernel: str
) -> None:
    def first_kernel(device: torch.device) -> Finding | None:
        assert device.index == 0  # somebody may train on the others
        if kernel == "finds no memory":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")
        return (
            Finding("bad", "Tesla T4", "no kernel image", "restart") if kernel == "fails" else None
        )

    monkeypatch.setattr(
        preflight.visible, "visible_gpus", lambda: [dataclasses.replace(T4, cuda_driver=(13, 0))]
    )
    monkeypatch.setattr(cuda_findings, "first_kernel", first_kernel)
    for name, answer in (
        ("is_available", True),
        ("device_count", 2),
        ("get_device_name", "Tesla T4"),
    ):
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    said, *rows = {
        "runs": (
            ("ok", "jobs can use the GPU"),
            "pinned memory",
        ),  # without a GPU PyTorch refuses to pin
        "fails": (("bad", "jobs cannot use the GPU, see below"),),
        "finds no memory": (("note", "the GPU's memory is full"),),
    }[kernel]
    check = looked_at("Tesla T4", *rows)["PyTorch"]
    assert (check.verdict, check.meaning.partition(" (")[0]) == said


def test_a_read_only_home_is_bad_and_says_what_to_do(
    read_only_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITPROF_HOME", str(read_only_dir / "home"))
    checks = looked_at()
    for check in (checks["disk"], checks["database"]):
        assert check.verdict == "bad"
        assert (
            "Permission denied; set VITPROF_HOME to a directory that can be written to"
            in check.meaning
        )


def test_an_unusable_database_is_bad_and_keeps_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VITPROF_DB", "nosuch://me:s3cret@host/db")
    checks = looked_at()
    check = checks["database"]
    assert (check.verdict, check.found) == ("bad", "cannot be used")
    assert check.meaning.startswith("VITPROF_DB: 'nosuch://me:***@host/db'")
    assert checks["disk"].verdict == "ok"


def test_little_room_and_no_dev_shm_or_ram_disk_are_notes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for free, verdict, disk in (
        (0, "note", None),
        (10 << 40, "ok", Tmpfs(Path("/run/ram"), 3 << 30)),
    ):
        monkeypatch.setattr(
            preflight.shutil, "disk_usage", lambda path, free=free: Usage(free, 0, free)
        )
        monkeypatch.setattr(preflight.tmpfs, "find_tmpfs", lambda disk=disk: disk)
        checks = looked_at()
        assert [checks[what].verdict for what in ("shared memory", "disk", "RAM disk")] == [
            verdict
        ] * 3
    assert checks["RAM disk"].found == "room for 3.00 GiB in /run/ram"
    monkeypatch.setattr(preflight, "SHM", tmp_path / "no-shm")
    assert found("shared memory").verdict == "note"


def has(monkeypatch: pytest.MonkeyPatch, packages: dict[str, str]) -> None:
    """These packages have these versions; those without one are not installed."""
    real = metadata.version

    def version(name: str) -> str:
        if packages.get(name) == "":
            raise metadata.PackageNotFoundError(name)
        return packages.get(name) or real(name)

    monkeypatch.setattr(preflight.metadata, "version", version)


def test_missing_packages_are_named_and_any_build_of_opencv_will_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packages = {"opencv-python-headless": "", "opencv-python": "4.12.0"}
    has(monkeypatch, packages)
    check = found("packages")
    assert (check.verdict, "opencv-python 4.12.0" in check.found) == ("ok", True)
    packages |= {"h5py": "", "simplejpeg": ""}
    check = found("packages")
    assert check.verdict == "note"
    assert check.found.endswith("; missing: h5py, simplejpeg")
    install = "python -m pip install -r requirements.txt"
    assert check.meaning == "; ".join(
        f"{preflight.WITHOUT[extra]}: {install}" for extra in ("dashboard", "images")
    )
    packages |= {"numpy": ""}
    del packages["simplejpeg"]
    check = found("packages")
    assert (check.verdict, check.found, check.meaning) == ("bad", "missing: numpy, h5py", install)


def test_what_one_loader_needs_is_optional_and_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name, todo = "nvidia-dali-cuda130", "pip install nvidia-dali-cuda130"
    for version, module, said in (
        ("2.4.0", True, (f"{name} 2.4.0", "ok", "")),
        (
            "2.4.0",
            False,
            (f"{name} 2.4.0, without its module", "note", f"install it again: {todo}"),
        ),
        ("", False, ("not installed", "note", f"strategy dali needs it: {todo}")),
    ):
        with monkeypatch.context() as patch:
            has(patch, dict.fromkeys(DALI, version))
            patch.setattr(preflight.availability, "installed", lambda name, module=module: module)
            assert found("DALI") == MachineCheck("DALI", *said)


def test_without_pytorch_nothing_is_wrong_with_the_core_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A plain installation, which has Streamlit, is to have it."""
    monkeypatch.setitem(sys.modules, "torch", None)
    streamlit = True
    monkeypatch.setattr(preflight.availability, "installed", lambda package: streamlit)
    assert (found("PyTorch").verdict, "install PyTorch" in found("PyTorch").meaning) == (
        "bad",
        True,
    )
    streamlit = False
    assert found("PyTorch") == MachineCheck(
        "PyTorch",
        "not installed",
        "note",
        "no job of vitprof's own can run, as the core alone is installed; watching and checking "
        "runs needs none here",
    )
