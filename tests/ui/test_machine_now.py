"""What this machine is made of and does now, as pages show it."""

import dataclasses
import math
from types import SimpleNamespace

import pytest

from tests.ui.dashboard import drawn_by, read
from vitprof import cores
from vitprof.config import gpu_findings
from vitprof.config.gpu_findings import TorchBuild
from vitprof.telemetry.machine import GpuNow, GpuProcess, MachineNow
from vitprof.telemetry.nvml import GpuInfo
from vitprof.telemetry.visible import VisibleGpu
from vitprof.ui import machine_now, resources

GPU = GpuNow(
    info=GpuInfo(0, "NVIDIA H100", "GPU-1", 80 * 2**30, "580.1", 700.0),
    util_pct=37.0,
    memory_bytes=20 * 2**30,
    power_w=310.4,
    temp_c=51.0,
    processes=tuple(
        GpuProcess(100 + n, "python" if n else "", n * 2.0**30 if n else math.nan) for n in range(7)
    ),
    lost="",
)
NOW = MachineNow((GPU,), 16, 12.5, 2.25, 2.0**33, 2.0**35, 0.0, 2.0**20, 2.0**38, 2.0**40)
NOTHING = MachineNow((), 1, *(math.nan,) * 8)


def script() -> None:
    from vitprof.ui.machine_now import draw_machine

    draw_machine()


def bars(seen: MachineNow, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The bars: what they say, and how full they are."""
    monkeypatch.setattr(resources, "machine_watch", lambda: SimpleNamespace(read=lambda: seen))
    at = drawn_by(script)
    drawn = {read(bar.proto.text): bar.proto.value for bar in at.get("progress")}
    texts = [*at.caption, *at.warning]
    return drawn | {read(text.value): -1 for text in texts}


def test_what_can_be_read_of_the_machine_is_in_a_bar_each(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bars(NOW, monkeypatch) == {
        "GPU 0: NVIDIA H100, busy 37%, 310 of 700 W, 51 °C": 37,
        "Its memory: 20.0 GiB of 80.0 GiB": 25,
        "On it: python (106) 6.00 GiB, python (105) 5.00 GiB, python (104) 4.00 GiB, python (103) 3.00 GiB, "
        "python (102) 2.00 GiB and 2 more": -1,
        "CPU: 12% of 16 cores, load 2.2": 12,
        "Memory: 8.00 GiB of 32.0 GiB": 25,
        "Disk: reads 0 B/s, writes 1.00 MiB/s, 768 GiB free": 25,
    }
    found = bars(NOTHING, monkeypatch)
    assert found == {"CPU: 1 core, measuring": 0, "Memory: n/a of n/a": 0, "Disk: n/a": 0}
    blind = dataclasses.replace(GPU, power_w=math.nan, temp_c=math.nan, processes=())
    found = bars(dataclasses.replace(NOW, gpus=(blind,)), monkeypatch)
    assert "GPU 0: NVIDIA H100, busy 37%, power n/a, temperature n/a" in found
    gone = dataclasses.replace(GPU, lost="GPU is lost")
    found = bars(dataclasses.replace(NOW, gpus=(gone,)), monkeypatch)
    assert "GPU 0: NVIDIA H100 does not answer: GPU is lost." in found


@pytest.fixture
def known_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "machine_watch", lambda: SimpleNamespace(read=lambda: NOW))
    monkeypatch.setattr(cores, "node_name", lambda: "box-1")
    monkeypatch.setattr(cores, "processor_name", lambda: "AMD EPYC")
    monkeypatch.setattr(cores, "job_cores", lambda: 4)
    monkeypatch.setattr("os.cpu_count", lambda: 16)


@pytest.mark.usefixtures("known_machine")
def test_what_the_machine_is_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_findings, "torch_build", lambda: TorchBuild("2.15.0+cu132", (13, 2)))
    monkeypatch.setattr(resources, "driver", lambda: "")
    monkeypatch.setattr(resources, "gpus", list)
    assert machine_now.facts_in_words() == {
        "Name": "box-1",
        "Processor": "AMD EPYC, 4 of 16 cores are yours",
        "Memory": "32.0 GiB",
        "GPU": "none, jobs train on the CPU",
        "PyTorch": "2.15.0+cu132, built for CUDA 13.2",
    }
    card = VisibleGpu(0, "NVIDIA H100", "GPU-1", 80 * 2**30, cuda_driver=(13, 0))
    monkeypatch.setattr(resources, "gpus", lambda: [card])
    monkeypatch.setattr(resources, "driver", lambda: "580.65.06")
    known = machine_now.facts_in_words()
    assert known["GPU"] == "NVIDIA H100 (80.0 GiB)"
    assert known["NVIDIA driver"] == "580.65.06, for CUDA up to 13.0"


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (None, "not installed"),
        (TorchBuild("2.15.0+cpu", None), "2.15.0+cpu, built without CUDA"),
        (TorchBuild("2.15.0+rocm7", None, rocm=True), "2.15.0+rocm7, built for AMD's GPUs"),
    ],
)
def test_what_pytorch_was_built_for(build: TorchBuild | None, words: str) -> None:
    assert machine_now.torch_in_words(build) == words
