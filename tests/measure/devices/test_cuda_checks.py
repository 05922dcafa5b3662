"""What a job says of a GPU that PyTorch cannot use, or not as it is meant. There is no GPU: PyTorch and NVML say so."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tests.engine_fixtures import small_home, trained  # noqa: F401
from vitprof.config import RunConfig, gpu_findings
from vitprof.config.gpu_findings import TorchBuild, Version
from vitprof.errors import DeviceError
from vitprof.measure.devices import cuda, open_device
from vitprof.measure.devices.cuda import is_out_of_memory
from vitprof.telemetry.visible import VisibleGpu

CARD = VisibleGpu(0, "Tesla T4", "GPU-1", 15 * 2.0**30, cuda_driver=(12, 2), capability=(7, 5))
TOO_OLD = (
    "The NVIDIA driver on your system is too old (found version 12020). Please update your GPU driver by downloading "
    "and installing a new version"
)
WRONG = (
    "NVIDIA driver 535.104.05: it knows CUDA up to 12.2, and PyTorch {} is built for CUDA 13.2 and cannot use the GPU "
    "with it; install driver 580 or later, or a PyTorch built for CUDA 12 (https://pytorch.org/get-started)"
)


class Driver:
    """The stand-in: what PyTorch and NVML say of the driver and its cards."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self.shows(())
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setattr(gpu_findings, "torch_build", lambda: TorchBuild(torch.__version__, (13, 2)))

    def shows(self, gpus: Sequence[VisibleGpu], number: str = "", listed: Sequence[str] = ()) -> None:
        """What CUDA's driver shows; its version, and the names of the cards, as NVML tells them."""
        self._patch.setattr(cuda, "shown_here", lambda: list(gpus))
        self._patch.setattr(cuda, "nvml_lists", lambda: (number, list(listed)))

    def refuses(self, error: str) -> None:
        def init() -> None:
            raise RuntimeError(error)

        self._patch.setattr(torch.cuda, "is_available", lambda: False)
        self._patch.setattr(torch.cuda, "init", init)

    def has(self, name: str, capability: Version, kernel_error: str | None) -> None:
        """One card that PyTorch sees, and what it says when a kernel is launched."""
        real = torch.zeros

        def zeros(*args: object, device: object = None, **kwargs: object) -> torch.Tensor:
            if device is not None and torch.device(device).type == "cuda" and kernel_error is not None:  # type: ignore[arg-type]
                raise RuntimeError(kernel_error)
            return real(*args, **kwargs)  # type: ignore[no-any-return, call-overload]

        answers = {
            "is_available": True,
            "device_count": 1,
            "set_device": None,
            "get_device_name": name,
            "get_device_capability": capability,
        }
        for function, answer in answers.items():
            self._patch.setattr(torch.cuda, function, lambda *_, answer=answer: answer)
        self._patch.setattr(torch, "zeros", zeros)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(monkeypatch)


@pytest.mark.parametrize(
    ("gpus", "wrong"),
    [
        ((CARD,), WRONG.format(torch.__version__)),
        ((), f"PyTorch {torch.__version__}: CUDA does not start (RuntimeError: {TOO_OLD}"),  # a container without NVML
    ],
)
def test_a_driver_that_is_too_old(driver: Driver, gpus: Sequence[VisibleGpu], wrong: str) -> None:
    driver.refuses(TOO_OLD)
    driver.shows(gpus, "535.104.05" if gpus else "")
    with pytest.raises(DeviceError) as caught:
        open_device("cuda:0", time.perf_counter)
    assert str(caught.value).startswith(f"device cuda:0: {wrong}")
    told: list[str] = []
    assert open_device("auto", time.perf_counter, told.append).name == "cpu"
    (line,) = told
    assert line.startswith(f"the job runs on the CPU: {wrong}")


@pytest.mark.parametrize(
    ("shown", "listed"),
    [
        ([VisibleGpu(0, "H100", "GPU-1", 8e10, cuda_driver=(13, 0))], ["an L4, which a mask hides", "H100"]),
        ([], ["H100"]),  # CUDA's driver fails, NVML works
    ],
)
def test_a_gpu_that_pytorch_does_not_see(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, shown: Sequence[VisibleGpu], listed: Sequence[str]
) -> None:
    driver.refuses("No CUDA GPUs are available")
    driver.shows(shown, "580.65", listed)
    found: Any = cuda.why_no_cuda()
    assert found.line.startswith(f"PyTorch {torch.__version__}: it sees no GPU, and the driver lists H100 (")
    assert "No CUDA GPUs are available" in found.line
    monkeypatch.setattr(gpu_findings, "torch_build", lambda: TorchBuild("2.15.0+cpu", None))
    without: Any = cuda.why_no_cuda()
    assert without.line.startswith("PyTorch 2.15.0+cpu: it is built without CUDA and cannot use H100; ")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert cuda.why_no_cuda() is None  # hidden on purpose


def test_no_gpu_at_all_is_nothing_to_speak_of_but_a_cuda_that_fails_is(driver: Driver) -> None:
    for ordinary in ("Found no NVIDIA driver on your system.", "No CUDA GPUs are available"):
        driver.refuses(ordinary)
        assert cuda.why_no_cuda() is None
    driver.refuses("Unexpected error from cudaGetDeviceCount(). Error 804: forward compatibility was attempted")
    found: Any = cuda.why_no_cuda()
    assert found.line.startswith(
        f"PyTorch {torch.__version__}: CUDA does not start (RuntimeError: Unexpected error from"
    )


def test_a_card_on_which_no_kernel_runs(driver: Driver) -> None:
    driver.has("GTX 1080", (6, 1), "CUDA error: no kernel image is available for execution on the device\nCompile with")
    with pytest.raises(DeviceError) as caught:
        open_device("cuda:0", time.perf_counter)
    wrong = "GTX 1080: a first kernel failed (RuntimeError: CUDA error: no kernel image is available"
    assert str(caught.value).startswith(f"device cuda:0: {wrong}")
    told: list[str] = []
    assert open_device("auto", time.perf_counter, told.append).name == "cpu"
    assert told == [f"the job runs on the CPU: {caught.value}"]


def test_a_full_card_says_nothing_about_kernels(driver: Driver) -> None:
    driver.has("H100", (9, 0), "CUDA error: out of memory")
    with pytest.raises(RuntimeError) as caught:
        cuda.first_kernel(torch.device("cuda", 0))
    assert is_out_of_memory(caught.value)


def test_limits_of_a_run(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.has("Tesla T4", (7, 5), None)
    gpu = torch.device("cuda", 0)
    assert [*cuda.limits(gpu, RunConfig(precision="fp16", loader="dali"))] == []
    assert [found.where for found in cuda.limits(gpu, RunConfig(precision="bf16"))] == ["Tesla T4"]
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    assert [found.where for found in cuda.limits(gpu, RunConfig())] == ["CUDA_LAUNCH_BLOCKING=1"]


@pytest.mark.usefixtures("small_home")
def test_a_job_that_meant_the_gpu_says_why_it_trained_on_the_cpu(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.refuses(TOO_OLD)
    driver.shows([CARD], "535.104.05")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    run = trained(device="auto", strategy="memory", steps=2, evaluate=False)
    assert run.completed
    assert run.notices == [f"the job runs on the CPU: {WRONG.format(torch.__version__)}"]
    assert run.environments[0]["device"] == "cpu"
    assert "OMP_NUM_THREADS=2" in run.environments[0]["variables"].split()
