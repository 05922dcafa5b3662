"""What PyTorch says of a CUDA device: why it has none, whether a kernel runs, and what memory is short."""

import time
import weakref
from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from tests.engine_fixtures import small_home, trained, vitprof_threads  # noqa: F401
from vitprof.config import RunConfig, gpu_findings
from vitprof.config.gpu_findings import TorchBuild, Version
from vitprof.engine.trainer import TorchTrainer
from vitprof.errors import DeviceError
from vitprof.measure.devices import cuda_findings, open_device
from vitprof.measure.devices.cuda_findings import DeviceMemory, is_out_of_memory, out_of_memory
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
        monkeypatch.setattr(
            gpu_findings, "torch_build", lambda: TorchBuild(torch.__version__, (13, 2))
        )

    def shows(
        self, gpus: Sequence[VisibleGpu], number: str = "", listed: Sequence[str] = ()
    ) -> None:
        """What CUDA's driver shows; its version, and the names of the cards, as NVML tells them."""
        self._patch.setattr(cuda_findings, "shown_here", lambda: list(gpus))
        self._patch.setattr(cuda_findings, "nvml_lists", lambda: (number, list(listed)))

    def refuses(self, error: str) -> None:
        self._patch.setattr(torch.cuda, "is_available", lambda: False)
        self._patch.setattr(torch.cuda, "init", Mock(side_effect=RuntimeError(error)))

    def has(self, name: str, capability: Version, kernel_error: str | None) -> None:
        """One card that PyTorch sees, and what it says when a kernel is launched."""
        real = torch.zeros

        def zeros(*args: object, device: object = None, **kwargs: object) -> torch.Tensor:
            if (
                device is not None
                and torch.device(device).type == "cuda"
                and kernel_error is not None
            ):  # type: ignore[arg-type]
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


def refused(wrong: str) -> None:
    """That is why cuda:0 cannot be opened, and why auto is the CPU."""
    with pytest.raises(DeviceError) as caught:
        open_device("cuda:0", time.perf_counter)
    assert str(caught.value).startswith(f"device cuda:0: {wrong}")
    told: list[str] = []
    assert open_device("auto", time.perf_counter, told.append).name == "cpu"
    (line,) = told
    assert line.startswith("the job runs on the CPU: ")
    assert wrong in line


@pytest.mark.parametrize(
    ("gpus", "wrong"),
    [
        ((CARD,), WRONG.format(torch.__version__)),
        (
            (),
            f"PyTorch {torch.__version__}: CUDA does not start (RuntimeError: {TOO_OLD}",
        ),  # a container without NVML
    ],
)
def test_a_driver_that_is_too_old(driver: Driver, gpus: Sequence[VisibleGpu], wrong: str) -> None:
    driver.refuses(TOO_OLD)
    driver.shows(gpus, "535.104.05" if gpus else "")
    refused(wrong)


@pytest.mark.parametrize(
    ("shown", "listed", "kept"),
    [
        (
            [VisibleGpu(0, "H100", "GPU-1", 8e10, cuda_driver=(13, 0))],
            ["an L4, which a mask hides", "H100"],
            [],
        ),
        ([], ["H100"], []),  # CUDA's driver fails, NVML works
        ([], [], ["H100"]),  # it showed a GPU before, of which it gave the UUID
    ],
)
def test_a_gpu_that_pytorch_does_not_see(
    driver: Driver,
    monkeypatch: pytest.MonkeyPatch,
    shown: Sequence[VisibleGpu],
    listed: list[str],
    kept: list[str],
) -> None:
    driver.refuses("No CUDA GPUs are available")
    driver.shows(shown, "580.65", listed)
    monkeypatch.setattr(cuda_findings.visible, "kept", lambda: kept)
    found: Any = cuda_findings.why_no_cuda()
    assert found.line.startswith(
        f"PyTorch {torch.__version__}: it sees no GPU, and the driver lists H100 ("
    )
    assert "No CUDA GPUs are available" in found.line
    monkeypatch.setattr(gpu_findings, "torch_build", lambda: TorchBuild("2.15.0+cpu", None))
    without: Any = cuda_findings.why_no_cuda()
    assert without.line.startswith(
        "PyTorch 2.15.0+cpu: it is built without CUDA and cannot use H100; "
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert cuda_findings.why_no_cuda() is None  # hidden on purpose


def test_no_gpu_at_all_is_nothing_to_speak_of_but_a_cuda_that_fails_is(driver: Driver) -> None:
    for ordinary in ("Found no NVIDIA driver on your system.", "No CUDA GPUs are available"):
        driver.refuses(ordinary)
        assert cuda_findings.why_no_cuda() is None
    driver.refuses(
        "Unexpected error from cudaGetDeviceCount(). Error 804: forward compatibility was attempted"
    )
    found: Any = cuda_findings.why_no_cuda()
    assert "CUDA does not start (RuntimeError: Unexpected error from" in found.line


def test_a_card_on_which_no_kernel_runs(driver: Driver) -> None:
    driver.has(
        "GTX 1080",
        (6, 1),
        "CUDA error: no kernel image is available for execution on the device\nCompile with",
    )
    refused(
        "GTX 1080: a first kernel failed (RuntimeError: CUDA error: no kernel image is available"
    )


def test_a_full_card_says_nothing_about_kernels(driver: Driver) -> None:
    driver.has("H100", (9, 0), "CUDA error: out of memory")
    with pytest.raises(RuntimeError) as caught:
        cuda_findings.first_kernel(torch.device("cuda", 0))
    assert is_out_of_memory(caught.value)


def test_limits_of_a_run(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.has("Tesla T4", (7, 5), None)
    gpu = torch.device("cuda", 0)
    assert [*cuda_findings.limits(gpu, RunConfig(precision="fp16", loader="dali"))] == []
    assert [found.where for found in cuda_findings.limits(gpu, RunConfig(precision="bf16"))] == [
        "Tesla T4"
    ]
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    assert [found.where for found in cuda_findings.limits(gpu, RunConfig())] == [
        "CUDA_LAUNCH_BLOCKING=1"
    ]


@pytest.mark.usefixtures("small_home")
def test_a_job_that_meant_the_gpu_says_why_it_is_on_the_cpu(
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


GIB = 1 << 30
SAID = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. "
    "GPU 0 has a total capacity of 79.10 GiB of which 1.50 GiB is free."
)
MEMORY = DeviceMemory("H100", total=80 * GIB, free=GIB, allocated=60 * GIB, reserved=62 * GIB)


@pytest.mark.parametrize(
    ("error", "is_it"),
    [
        (torch.OutOfMemoryError(SAID), True),
        (
            RuntimeError(
                "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"
            ),
            True,
        ),
        (
            RuntimeError(
                "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
            ),
            True,
        ),
        (
            RuntimeError(
                "[/opt/dali] CUDA runtime API error cudaErrorMemoryAllocation (2):\nout of memory"
            ),
            True,
        ),
        (
            RuntimeError("CUDA error: no kernel image is available for execution on the device"),
            False,
        ),
        (
            RuntimeError(
                "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"
            ),
            False,
        ),
        (ValueError("CUDA out of memory"), False),
    ],
)
def test_what_counts_as_it(error: Exception, is_it: bool) -> None:
    assert is_out_of_memory(error) is is_it


def test_the_line_names_each_figure_and_what_to_try_first() -> None:
    assert out_of_memory(SAID, RunConfig(batch_size=512), MEMORY) == (
        "CUDA out of memory on H100: it asked for 2.00 GiB more; of 80.0 GiB PyTorch allocated 60.0 GiB at most "
        "and holds 62.0 GiB reserved, 1.00 GiB are free, and other processes (with CUDA itself) hold 17.0 GiB; "
        "try batch size 256, or precision bf16, or a smaller model, or stop other programs that use this GPU"
    )
    config = RunConfig(
        batch_size=1, transfer="resident", replay="device", precision="fp16", compile=True
    )
    assert out_of_memory("CUDA error: out of memory", config, None) == (
        "CUDA out of memory; try transfer pinned (resident keeps the whole set on the device), or replay host, or a "
        "smaller model"
    )


@pytest.mark.usefixtures("small_home")
def test_a_job_ends_with_that_line_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[weakref.ref[Any]] = []

    def exhausted(self: TorchTrainer, *_: object) -> None:
        weights = torch.zeros(1000)
        kept.extend((weakref.ref(self), weakref.ref(weights)))
        raise torch.OutOfMemoryError(SAID)

    monkeypatch.setattr(TorchTrainer, "step", exhausted)
    monkeypatch.setattr(cuda_findings, "device_memory", lambda: MEMORY)
    with pytest.raises(
        DeviceError, match=r"^CUDA out of memory on H100: .* 2.00 GiB more; .*batch size 16"
    ) as caught:
        trained(strategy="memory", steps=5)
    assert (
        caught.value.__context__ is None
    )  # it would keep the job's frames, and with them its tensors
    assert len(kept) == 2
    assert [reference() for reference in kept] == [None, None]
    assert not vitprof_threads()


@pytest.mark.usefixtures("small_home")
def test_another_error_stays_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TorchTrainer, "step", Mock(side_effect=RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match=r"^a bug$"):
        trained(strategy="memory", steps=5)
