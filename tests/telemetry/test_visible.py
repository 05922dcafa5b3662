"""What CUDA shows a process, through the stand-in for its driver; and the one GPU that a job's process is left with."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.telemetry.drivers import FIRST, SECOND, SLICE
from vitprof.errors import DeviceError
from vitprof.telemetry import visible
from vitprof.telemetry.visible import (
    MASK,
    SHOWN_AS,
    VisibleGpu,
    number_here,
    reported_gpus,
    show_only,
    visible_gpus,
)


@pytest.fixture(autouse=True)
def _no_mask(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (MASK, SHOWN_AS, "CUDA_DEVICE_ORDER"):
        monkeypatch.setenv(name, "")  # so that what a test sets is taken back
        monkeypatch.delenv(name)
    reported_gpus.cache_clear()
    yield
    reported_gpus.cache_clear()


@pytest.fixture
def driver(cuda_driver: Path | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if cuda_driver is None:
        pytest.skip("no C compiler for the stand-in")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(cuda_driver))
    monkeypatch.setenv("CUDA_STUB_LOG", str(tmp_path / "log"))
    return tmp_path / "log"


@pytest.mark.parametrize(
    ("variables", "shown"),
    [
        ({}, [SECOND, FIRST]),  # the faster one first: not NVML's order
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, [FIRST, SECOND]),
        ({MASK: "1"}, [FIRST]),
        ({MASK: "GPU-aaaa"}, [SECOND]),
        ({MASK: ""}, []),
        ({"CUDA_STUB_MIG": "1", MASK: SLICE}, [SLICE]),
    ],
)
def test_what_cuda_shows_in_its_order(
    driver: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], shown: list[str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CUDA_STUB_VERSION", "12020")
    found = visible_gpus()
    assert [gpu.uuid for gpu in found] == shown
    assert [gpu.index for gpu in found] == list(range(len(shown)))
    if shown[:1] == [SECOND]:
        assert found[0] == VisibleGpu(
            0, "Stub GPU 1", SECOND, 16 * 2.0**30, cuda_driver=(12, 2), capability=(9, 0)
        )
    assert f" {os.getpid()} " not in driver.read_text(), (
        "asking settles what a process sees, so others are asked"
    )


def test_without_a_driver_nothing_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libcuda.so.1").write_bytes(b"not a library")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert visible_gpus() == []


CARDS = [VisibleGpu(0, "NVIDIA H100", SECOND, 80e9), VisibleGpu(1, "NVIDIA L4", FIRST, 24e9)]


@pytest.mark.parametrize(
    ("device", "cards", "mask", "here"),
    [
        ("auto", CARDS, SECOND, "cuda:0"),
        ("cuda:1", CARDS, FIRST, "cuda:1"),
        ("cuda:0", CARDS[:1], None, "cuda:0"),  # no other one is shown: the user's own mask stays
        ("cuda:2", [], None, None),  # nobody tells: PyTorch will
        (
            "cuda:1",
            [VisibleGpu(n, "?", "", 1e9) for n in range(2)],
            None,
            None,
        ),  # a driver that has no UUIDs
        ("cpu", CARDS, None, None),
        ("simulated:1,5", CARDS, None, None),
    ],
)
def test_a_job_is_left_with_its_own_gpu(
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    cards: list[VisibleGpu],
    mask: str | None,
    here: str | None,
) -> None:
    monkeypatch.setattr(visible, "visible_gpus", lambda: cards)
    show_only(device)
    assert os.environ.get(MASK) == mask
    assert visible.kept() == ([mask] if mask else [])
    if here:
        assert number_here(here) == 0
    else:
        assert number_here("cuda:2") == 2


def test_a_gpu_that_is_not_shown_is_refused_with_those_that_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(visible, "visible_gpus", lambda: CARDS)
    monkeypatch.setenv(MASK, "0,1")
    choice = r"choose cuda:0 \(NVIDIA H100\) or cuda:1 \(NVIDIA L4\), or cpu \(CUDA_VISIBLE_DEVICES=0,1 hides"
    with pytest.raises(
        DeviceError, match=f"^device cuda:2: there is no such GPU; {choice} the others\\)$"
    ):
        show_only("cuda:2")
    assert os.environ[MASK] == "0,1"
