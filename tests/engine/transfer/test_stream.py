"""The prefetch stream: normalised batches, whole and in order, however far the device lags behind."""

from __future__ import annotations

import pytest
import torch

from tests.engine.transfer.transfer_helpers import CPU, DIGITS, batch, cpu, cuda, gpu, normalised, pixels, to_input
from vitprof.engine.loaders.contract import Batch
from vitprof.engine.transfer.copy import PrefetchStream
from vitprof.engine.transfer.normalise import ToInput


def test_on_the_cpu_it_normalises_which_counts_as_compute() -> None:
    device = cpu()
    moved = PrefetchStream(device, to_input(device))(batch())
    assert torch.equal(moved.images, normalised())
    assert moved.labels.tolist() == list(range(20))
    # as with every other transfer: there is no copy, and the batch is ready before it is normalised
    assert moved.copy_start == moved.copy_end == moved.ready


def test_half_precision_is_made_here() -> None:
    device = cpu()
    half = ToInput(DIGITS, "uint8", 28, CPU, dtype=torch.bfloat16)
    moved = PrefetchStream(device, half)(batch())
    assert moved.images.dtype == torch.bfloat16
    assert torch.equal(moved.images, normalised().bfloat16())


class TestCuda:
    """With a real GPU."""

    pytestmark = gpu

    @pytest.mark.parametrize("memory", ["plain", "pinned", "ring", "device"])
    def test_a_batch_arrives_normalised(self, memory: str) -> None:
        device = cuda()
        transfer = PrefetchStream(device, to_input(device))
        images = pixels()
        if memory == "pinned":
            images = images.pin_memory()
        elif memory == "device":
            images = images.cuda()
        elif memory == "ring":
            assert transfer.buffer is not None
            images = transfer.buffer((20, 28, 28, 1)).copy_(images.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        moved = transfer(Batch(images, torch.arange(20)))
        assert moved.images.device == moved.labels.device == device.torch_device
        assert torch.allclose(moved.images.cpu(), normalised(), atol=1e-6)
        assert moved.labels.tolist() == list(range(20))
        torch.cuda.synchronize()
        assert device.seconds(moved.copy_start) <= device.seconds(moved.copy_end) <= device.seconds(moved.ready)

    def test_batches_stay_whole_while_the_device_lags_behind(self) -> None:
        """The training stream reads each batch late, long after the host has let it go."""
        device = cuda()
        transfer = PrefetchStream(device, lambda images: images.float())
        assert transfer.buffer is not None
        sums = []
        for i in range(40):
            images = transfer.buffer((64, 8, 8, 1)).fill_(i)
            moved = transfer(Batch(images.permute(0, 3, 1, 2), torch.full((64,), i)))
            torch.cuda._sleep(int(2e6))
            sums.append((moved.images.mean(), moved.labels.float().mean()))
            del moved
        torch.cuda.synchronize()
        assert [(float(images), float(labels)) for images, labels in sums] == [(i, i) for i in range(40)]

    def test_the_copy_does_not_wait_for_the_step_before(self) -> None:
        """That overlap is what the stream is for: it is over while the training stream is still busy."""
        device = cuda()
        transfer = PrefetchStream(device, to_input(device))
        transfer(batch())
        torch.cuda.synchronize()
        busy = torch.cuda.Event()
        torch.cuda._sleep(int(2e9))
        busy.record()
        moved = transfer(batch())
        moved.copy_end.synchronize()
        assert not busy.query()
        torch.cuda.synchronize()
