"""A device without memory left: one line that says what was asked for and what to try, and nothing is kept."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch

from tests.engine_fixtures import Recorded, never, small_home, vitprof_threads  # noqa: F401
from vitprof.config import RunConfig
from vitprof.engine.train import train
from vitprof.engine.trainer import TorchTrainer
from vitprof.errors import DeviceError
from vitprof.measure.devices import cuda
from vitprof.measure.devices.cuda import DeviceMemory, is_out_of_memory, out_of_memory

GIB = 1 << 30
SAID = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.50 GiB is free."
)
MEMORY = DeviceMemory("H100", total=80 * GIB, free=GIB, allocated=60 * GIB, reserved=62 * GIB)


@pytest.mark.parametrize(
    ("error", "is_it"),
    [
        (torch.OutOfMemoryError(SAID), True),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("[/opt/dali] CUDA runtime API error cudaErrorMemoryAllocation (2):\nout of memory"), True),
        (RuntimeError("CUDA error: no kernel image is available for execution on the device"), False),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"), False),
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
    config = RunConfig(batch_size=1, transfer="resident", replay="device", precision="fp16", compile=True)
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
    monkeypatch.setattr(cuda, "device_memory", lambda: MEMORY)
    config = RunConfig(strategy="memory", batch_size=32, steps=5, device="cpu", threads=1)
    with pytest.raises(DeviceError, match=r"^CUDA out of memory on H100: .* 2.00 GiB more; .*batch size 16") as caught:
        train(config, Recorded(), never)
    assert caught.value.__context__ is None  # it would keep the job's frames, and with them its tensors
    assert len(kept) == 2
    assert [reference() for reference in kept] == [None, None]
    assert not vitprof_threads()


@pytest.mark.usefixtures("small_home")
def test_another_error_stays_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(TorchTrainer, "step", fails)
    with pytest.raises(RuntimeError, match=r"^a bug$"):
        train(RunConfig(strategy="memory", batch_size=32, steps=5, device="cpu", threads=1), Recorded(), never)
