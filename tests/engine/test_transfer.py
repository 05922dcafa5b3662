"""Each transfer: the same bytes arrive, and no buffer is used again while a batch may still be read."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from tests.engine.transfer_helpers import CPU, DIGITS, batch, cpu, cuda, gpu, normalised, pixels, to_input
from tests.engine_fixtures import SMALL, never
from vitprof.config import RunConfig
from vitprof.config.accelerators import accelerator
from vitprof.config.parts import TRANSFERS
from vitprof.config.resolve import resolve
from vitprof.engine.data import datasets
from vitprof.engine.loaders import open_loader
from vitprof.engine.loaders.contract import Batch, epoch_order
from vitprof.engine.storage import open_storage
from vitprof.engine.storage.arrays import MemoryStorage
from vitprof.engine.storage.contract import Place
from vitprof.engine.storage.prepare import prepare_storage
from vitprof.engine.transfer import Delayed, PinnedCopy, PrefetchStream, open_transfer
from vitprof.engine.transforms import ToInput
from vitprof.errors import DeviceError
from vitprof.measure.devices import CpuDevice, Device
from vitprof.measure.devices.simulated import SimulatedDevice
from vitprof.measure.stopwatch import Wait


@pytest.mark.parametrize("name", TRANSFERS)
def test_on_the_cpu_a_batch_arrives_as_it_was(name: str) -> None:
    device = cpu()
    transfer = open_transfer(name, device, lambda images: images)
    for n in (20, 3):
        moved = transfer(batch(n))
        assert torch.equal(moved.images, pixels(n))
        assert moved.labels.tolist() == list(range(n))
        assert moved.copy_start <= moved.copy_end <= moved.ready


@pytest.mark.parametrize("name", TRANSFERS)
def test_only_the_prefetch_stream_normalises(name: str) -> None:
    device = cpu()
    transfer = open_transfer(name, device, to_input(device))
    assert transfer.normalises == (name == "stream")
    moved = transfer(batch())
    assert moved.images.dtype == (torch.float32 if name == "stream" else torch.uint8)


@pytest.mark.parametrize("name", TRANSFERS)
def test_only_pinned_copies_ask_for_memory_on_the_cpu(name: str) -> None:
    assert (open_transfer(name, cpu(), lambda images: images).buffer is not None) == (name == "pinned")


@pytest.mark.usefixtures("small_home")
@pytest.mark.parametrize(("loader", "depth"), [("batches", 0), ("ahead", 1), ("ahead", 3), ("threads", 2)])
def test_a_loader_reuses_buffers_but_never_one_that_is_still_read(loader: str, depth: int) -> None:
    values: dict[str, Any] = {"strategy": "workers", "loader": loader, "transfer": "pinned", "batch_size": 32}
    values |= {"storage": "files" if loader == "threads" else "memory", "device": "cpu"}
    config = resolve(RunConfig(**values, prefetch_factor=depth or None))
    storage = open_split(config)
    transfer = PinnedCopy(cpu())
    made = open_loader(storage, SMALL, config, train=True, buffer=transfer.buffer)
    addresses, labels = set(), []
    previous: tuple[torch.Tensor, torch.Tensor] | None = None
    try:
        for epoch in range(3):
            for got in made.epoch(epoch):
                if previous is not None:  # trained on until now, while the loader made others
                    assert torch.equal(*previous)
                moved = transfer(got)
                previous = moved.images, moved.images.clone()
                addresses.add(moved.images.data_ptr())
                labels += moved.labels.tolist()
    finally:
        made.close()
    assert len(labels) == 3 * SMALL.n_train
    # one with the loop, one before it, those ahead of it, and one in the making; and those of the smaller last batch,
    # one of which may wait for the end of the next epoch
    assert len(addresses) <= depth + 3 + 2


def open_split(config: RunConfig) -> Any:
    root = datasets.prepare("digits")
    made = prepare_storage(config.storage or "", SMALL, root, progress=lambda *_: None, stop=never)
    return open_storage(config.storage or "", SMALL, Place(made.directory), train=True)


def test_batches_of_others_pass_a_pinned_copy_on_the_cpu() -> None:
    """What a worker process made lies in no buffer of the ring."""
    transfer = PinnedCopy(cpu())
    assert transfer.buffer is not None
    own = transfer.buffer((20, 28, 28, 1))
    own.copy_(pixels().permute(0, 2, 3, 1))
    first = transfer(Batch(own.permute(0, 3, 1, 2), torch.arange(20)))
    foreign = transfer(batch())
    assert torch.equal(foreign.images, pixels())
    assert transfer.buffer((20, 28, 28, 1)).data_ptr() == first.images.data_ptr()  # free since the second came


class TestCopyOnCuda:
    """With a real GPU."""

    pytestmark = gpu

    @pytest.mark.parametrize("name", ["blocking", "pinned"])
    @pytest.mark.parametrize("memory", ["plain", "pinned", "ring", "device"])
    def test_the_same_bytes_arrive(self, name: str, memory: str) -> None:
        device = cuda()
        transfer = open_transfer(name, device, to_input(device))
        images = pixels()
        if memory == "pinned":
            images = images.pin_memory()
        elif memory == "device":
            images = images.cuda()
        elif memory == "ring":
            if transfer.buffer is None:
                pytest.skip("a blocking copy has no ring")
            images = transfer.buffer((20, 28, 28, 1)).copy_(images.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        for _ in range(3):
            moved = transfer(Batch(images, torch.arange(20)))
            torch.cuda.synchronize()
            assert moved.images.device == moved.labels.device == device.torch_device
            assert torch.equal(moved.images.cpu(), pixels())
            assert moved.labels.tolist() == list(range(20))
            assert device.seconds(moved.copy_end) >= device.seconds(moved.copy_start)
            if memory == "ring":
                break  # it was given back

    def test_what_is_queued_is_not_overwritten(self) -> None:
        """The host fills the next buffers while a busy device has not read the first ones."""
        device = cuda()
        transfer = PinnedCopy(device)
        assert transfer.buffer is not None
        torch.cuda._sleep(int(2e8))
        arrived = []
        for i in range(50):
            images = transfer.buffer((64, 8, 8, 1)).fill_(i)
            arrived.append(transfer(Batch(images.permute(0, 3, 1, 2), torch.tensor([i]))))
        torch.cuda.synchronize()
        assert all((m.images == i).all() and m.labels.item() == i for i, m in enumerate(arrived))
        addresses = {transfer.buffer((64, 8, 8, 1)).data_ptr() for _ in range(3)}
        assert len(addresses) == 3

    def test_a_pinned_batch_is_safe_after_it_is_let_go(self) -> None:
        """The loop drops each batch of a DataLoader while its copy may still be on its way."""
        transfer = PinnedCopy(cuda())
        torch.cuda._sleep(int(2e8))
        arrived = []
        for i in range(50):
            images = torch.full((64, 1, 8, 8), i, dtype=torch.uint8).pin_memory()
            arrived.append(transfer(Batch(images, torch.tensor([i]).pin_memory())))
        torch.cuda.synchronize()
        assert all((m.images == i).all() and m.labels.item() == i for i, m in enumerate(arrived))


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


class TestStreamOnCuda:
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


CONFIG = RunConfig(strategy="device", batch_size=8, device="cpu")


def storage(n: int = 20) -> MemoryStorage:
    return MemoryStorage(pixels(n).permute(0, 2, 3, 1).contiguous(), torch.arange(n))


def test_only_resident_moves_the_storage() -> None:
    device = CpuDevice(lambda: 0.0)
    device.torch_device = torch.device("meta")
    for name in TRANSFERS:
        kept = storage()
        placed = open_transfer(name, device, lambda images: images).place(kept)
        assert (placed is kept) == (name != "resident")
        assert placed.device.type == ("meta" if name == "resident" else "cpu")


def test_a_batch_is_there_already() -> None:
    made = batch()
    moved = open_transfer("resident", cpu(), lambda images: images)(made)
    assert moved.images is made.images
    assert moved.labels is made.labels
    assert moved.copy_start is moved.copy_end is moved.ready


class Later(CpuDevice):
    """A device that works later than it is told to; its marks are numbers in the order in which they were set."""

    immediate = False

    def __init__(self) -> None:
        super().__init__(lambda: 0.0)
        self.marks = 0
        self.mark: Any = self._next

    def _next(self) -> int:
        self.marks += 1
        return self.marks


def test_a_gather_on_the_device_stands_between_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    device, at = Later(), []
    read = MemoryStorage.read

    def reads(self: MemoryStorage, indices: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        at.append(device.marks)
        return read(self, indices, out)

    monkeypatch.setattr(MemoryStorage, "read", reads)
    transfer = open_transfer("resident", device, lambda images: images)
    loader = open_loader(transfer.place(storage()), SMALL, resolve(CONFIG), train=True, buffer=transfer.buffer)
    for made in loader.epoch(0):
        moved = transfer(made)
        assert moved.copy_start == moved.copy_end == at[-1]  # set right before the gather
        assert (moved.prepared, moved.ready) == (at[-1] + 1, at[-1] + 2)
        assert torch.equal(moved.images, pixels()[moved.labels])
    assert len(at) == 3
    again = transfer(batch())  # replayed: nothing was gathered
    assert again.prepared is None
    assert again.copy_start == again.ready


def test_a_set_that_does_not_fit_into_what_is_free_is_refused_before_it_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = storage()
    monkeypatch.setattr(CpuDevice, "free_memory_bytes", lambda self: kept.images.nbytes - 1.0)
    with pytest.raises(DeviceError, match=r"^transfer resident: a split of 20 images takes 15.3 KiB .* are free; "):
        open_transfer("resident", cpu(), lambda images: images).place(kept)
    monkeypatch.setattr(CpuDevice, "free_memory_bytes", lambda self: float(kept.images.nbytes))
    assert open_transfer("resident", cpu(), lambda images: images).place(kept).device.type == "cpu"


class TestResidentOnCuda:
    """With a real GPU."""

    pytestmark = gpu

    def test_batches_are_made_on_the_device(self) -> None:
        device = cuda()
        transfer = open_transfer("resident", device, lambda images: images)
        loader = open_loader(transfer.place(storage()), SMALL, resolve(CONFIG), train=True, buffer=transfer.buffer)
        for epoch in (0, 1):
            moved = [transfer(made) for made in loader.epoch(epoch)]
            order = epoch_order(20, 42, epoch)
            assert {m.images.device for m in moved} == {m.labels.device for m in moved} == {device.torch_device}
            assert torch.equal(torch.cat([m.labels for m in moved]).cpu(), order)
            assert torch.equal(torch.cat([m.images for m in moved]).cpu(), pixels()[order])
        loader.close()


LATE = Wait("transfer", 0.005)


def simulated() -> SimulatedDevice:
    return SimulatedDevice("simulated:1,0", accelerator("simulated:1,0"), time.perf_counter)


@pytest.mark.parametrize("name", ["blocking", "pinned"])
@pytest.mark.parametrize("device", [cpu(), simulated()], ids=["cpu", "simulated"])
def test_the_wait_is_part_of_the_copy(name: str, device: Device) -> None:
    transfer = open_transfer(name, device, lambda images: images, LATE)
    for n in (20, 3):
        before = time.perf_counter()
        moved = transfer(batch(n))
        assert torch.equal(moved.images, pixels(n))
        assert moved.labels.tolist() == list(range(n))
        assert moved.copy_start >= before
        assert moved.ready >= moved.copy_end >= moved.copy_start + LATE.seconds


@pytest.mark.parametrize("name", ["blocking", "pinned"])
def test_it_is_otherwise_the_transfer_that_it_delays(name: str) -> None:
    plain, late = (open_transfer(name, cpu(), lambda images: images, wait) for wait in (None, LATE))
    assert isinstance(late, Delayed)
    assert (late.buffer is None) == (plain.buffer is None)
    assert late.normalises == plain.normalises
    storage = object()
    assert late.place(storage) is storage


def test_waits_in_other_parts_are_none_of_its() -> None:
    assert not isinstance(open_transfer("blocking", cpu(), lambda images: images, Wait("read", 1.0)), Delayed)


@pytest.mark.parametrize("name", ["blocking", "pinned"])
class TestCuda:
    """With a real GPU."""

    pytestmark = gpu

    def test_the_wait_is_part_of_the_copy(self, name: str) -> None:
        device = cuda()
        transfer = open_transfer(name, device, lambda images: images, LATE)
        for _ in range(5):
            moved = transfer(batch())
            torch.cuda.synchronize()
            assert device.seconds(moved.copy_end) - device.seconds(moved.copy_start) >= 0.9 * LATE.seconds
            assert torch.equal(moved.images.cpu(), pixels())
            device.release(*{id(mark): mark for mark in moved[2:]}.values())
