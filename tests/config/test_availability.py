"""Whether a strategy can run on machines that have, or lack, one thing each."""

import dataclasses
import shlex
from pathlib import Path

import pytest

from vitprof.config import availability as module
from vitprof.config.availability import Machine, availability, look_around, why_unavailable
from vitprof.config.estimates import pixel_bytes
from vitprof.config.strategies import STRATEGIES
from vitprof.datasets.catalog import DATASETS, dataset_info
from vitprof.telemetry.visible import VisibleGpu

DIGITS, PHOTOS = DATASETS["digits"], DATASETS["photos"]
GPU = VisibleGpu(0, "H200", "GPU-1", 141 * 2.0**30)
PLENTY = Machine(
    gpus=(GPU,), ram_bytes=1 << 40, disk_bytes=1 << 40, tmpfs=(Path("/dev/shm"), 1 << 40)
)
BARE = dataclasses.replace(PLENTY, gpus=())


@pytest.fixture(autouse=True)
def _all_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if everything were installed: tests here must not depend on which extras are."""
    monkeypatch.setattr(module, "installed", lambda package: True)
    monkeypatch.setattr(module.sys, "platform", "linux")


def without(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    monkeypatch.setattr(module, "installed", lambda package: package not in packages)


@pytest.mark.parametrize("name", STRATEGIES)
def test_where_there_is_plenty_of_everything_all_run_as_they_should(name: str) -> None:
    assert availability(STRATEGIES[name], PHOTOS, machine=PLENTY) == module.OK
    assert why_unavailable(STRATEGIES[name], PHOTOS, PLENTY) == ""


def test_parts_that_do_not_fit_are_named_and_a_deprecated_decoder_is_a_note() -> None:
    assert why_unavailable(STRATEGIES["dali"], DIGITS, PLENTY) == (
        "it cannot load digits; choose the data set photos"
    )
    seen = availability(STRATEGIES["hdf5"], DIGITS, {"loader": "threads"}, machine=PLENTY)
    assert (seen.verdict, seen.reason.partition(";")[0]) == (
        "bad",
        "loader threads: it cannot read storage hdf5",
    )
    seen = availability(STRATEGIES["threads"], PHOTOS, {"decoder": "torchvision"}, machine=PLENTY)
    assert seen.verdict == "note"
    assert seen.reason == "decoder torchvision is deprecated since 0.29; choose simplejpeg"


@pytest.mark.parametrize(
    ("strategy", "package"),
    [
        ("dali", "nvidia-dali-cuda130"),
        ("hdf5", "h5py"),
        ("threads", "simplejpeg"),
        ("preprocessed", "simplejpeg"),
    ],
)
def test_a_missing_package_is_named_with_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, strategy: str, package: str
) -> None:
    without(monkeypatch, package)
    reason = why_unavailable(STRATEGIES[strategy], PHOTOS, PLENTY)
    assert reason == f"the package {package} is missing: pip install {shlex.quote(package)}"
    assert why_unavailable(STRATEGIES["memory"], DIGITS, PLENTY) == ""


@pytest.mark.parametrize("name", ["device", "prefetch", "dali"])
def test_what_wants_a_gpu_runs_without_one_and_says_what_becomes_of_it(name: str) -> None:
    for seen in (
        availability(STRATEGIES[name], PHOTOS, machine=BARE),
        availability(STRATEGIES[name], PHOTOS, {"device": "cpu"}, machine=PLENTY),
        availability(
            STRATEGIES[name], PHOTOS, machine=dataclasses.replace(PLENTY, gpus_usable=False)
        ),
    ):
        assert seen.verdict == "note"
        assert seen.reason.startswith("without a GPU")
    assert why_unavailable(STRATEGIES[name], PHOTOS, BARE) == ""


def test_a_set_larger_than_the_gpu_or_what_is_free_of_it_is_a_note() -> None:
    def said(machine: Machine, device: str = "auto") -> tuple[str, str]:
        seen = availability(STRATEGIES["device"], DIGITS, {"device": device}, machine=machine)
        return seen.verdict, seen.reason

    small, unknown = (
        dataclasses.replace(GPU, memory_bytes=n_bytes) for n_bytes in (2.0**20, float("nan"))
    )
    takes = "the set takes 52.3 MiB of device memory and"
    assert said(dataclasses.replace(PLENTY, gpus=(small,))) == (
        "note",
        f"{takes} H200 has 1.00 MiB",
    )
    two = dataclasses.replace(PLENTY, gpus=(GPU, GPU), gpu_free_bytes=(2.0**20, 2.0**40))
    now = f"{takes} 1.00 MiB of H200 are free now; end what else uses it, or choose transfer pinned"
    assert said(two, "auto") == said(two, "cuda:0") == ("note", now)
    assert said(two, "cuda:1") == said(two, "cuda:7") == ("ok", "")
    assert said(dataclasses.replace(PLENTY, gpus=(unknown,))) == ("ok", "")
    assert said(dataclasses.replace(PLENTY, gpu_free_bytes=(float("nan"),))) == ("ok", "")


def test_dali_needs_linux_and_its_wheel_follows_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    older = dataclasses.replace(
        PLENTY, gpus=(dataclasses.replace(GPU, cuda_driver=(12, 2)),), driver="535.104"
    )
    without(monkeypatch, "nvidia-dali-cuda130")
    reason = why_unavailable(STRATEGIES["dali"], PHOTOS, older)
    assert reason == "the package nvidia-dali-cuda120 is missing: pip install nvidia-dali-cuda120"
    monkeypatch.setattr(module.sys, "platform", "darwin")
    assert (
        why_unavailable(STRATEGIES["dali"], PHOTOS, PLENTY)
        == "NVIDIA DALI needs Linux, and this is darwin"
    )


def test_too_little_ram_disk_or_ram_disk() -> None:
    missing = dataclasses.replace(PLENTY, tmpfs=None)
    assert "no tmpfs" in why_unavailable(STRATEGIES["ram-disk"], PHOTOS, missing)
    small = dataclasses.replace(PLENTY, tmpfs=(Path("/dev/shm"), 64 << 20))
    reason = why_unavailable(STRATEGIES["ram-disk"], PHOTOS, small)
    assert reason == "the RAM disk /dev/shm has 64.0 MiB left and 1.08 GiB are needed"
    assert why_unavailable(STRATEGIES["ram-disk"], dataset_info("photos", 100), small) == ""
    room = dataclasses.replace(PLENTY, ram_bytes=pixel_bytes(PHOTOS) + 1)
    assert why_unavailable(STRATEGIES["memory"], PHOTOS, room) == ""
    assert "it takes 6.17 GiB of RAM" in why_unavailable(STRATEGIES["tensordataset"], PHOTOS, room)
    full = dataclasses.replace(PLENTY, disk_bytes=1 << 20)
    reason = why_unavailable(STRATEGIES["hdf5"], PHOTOS, full)
    assert reason.startswith("it writes 1.54 GiB and 1.00 MiB are free in ")
    assert reason.endswith("set VITPROF_HOME to a larger disk")
    assert "it writes" in why_unavailable(STRATEGIES["staged"], PHOTOS, full)
    assert why_unavailable(STRATEGIES["threads"], PHOTOS, full) == ""


def test_this_machine_is_looked_at_without_importing(
    vitprof_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = look_around()
    assert (machine.ram_bytes > 0, machine.disk_bytes > 0, vitprof_home.exists()) == (
        True,
        True,
        False,
    )
    monkeypatch.undo()
    assert module.installed("h5py")
    assert module.installed("opencv-python-headless")
    assert not module.installed("no-such-package")
    monkeypatch.setitem(module.MODULES, "half-there", "no_such_parent.child")
    assert not module.installed("half-there")
