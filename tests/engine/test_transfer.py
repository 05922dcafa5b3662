"""Each transfer: the same bytes arrive, and no buffer is used again while a batch may still be read."""

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.clock import Clock
from tests.engine.loaders.loader_helpers import config_of
from tests.engine.loaders.loader_helpers import opened as loader_of
from tests.engine.transfer_helpers import (
    batch,
    cpu,
    cuda,
    gpu,
    normalised,
    on_gpu,
    pixels,
    to_input,
)
from tests.engine_fixtures import SMALL
from vitprof.config import RunConfig
from vitprof.config.accelerators import Accelerator, accelerator
from vitprof.config.parts import TRANSFERS
from vitprof.config.resolve import resolve
from vitprof.engine.loaders import open_loader
from vitprof.engine.loaders.contract import Batch
from vitprof.engine.storage.arrays import MemoryStorage
from vitprof.engine.transfer import (
    Delayed,
    Packed,
    PinnedCopy,
    Ring,
    open_transfer,
    staged,
    to_pinned,
)
from vitprof.errors import DeviceError
from vitprof.measure.devices import CpuDevice, Device, Pinning
from vitprof.measure.devices.cuda import CudaDevice
from vitprof.measure.devices.simulated import SimulatedDevice
from vitprof.measure.stopwatch import Wait


def same(images: torch.Tensor) -> torch.Tensor:
    """Normalises nothing."""
    return images


@pytest.mark.parametrize("name", TRANSFERS)
def test_on_the_cpu_a_batch_arrives_as_it_was_and_only_the_prefetch_stream_normalises(
    name: str,
) -> None:
    transfer = open_transfer(name, cpu(), same)
    assert (transfer.buffer is not None) == (name == "pinned")
    for n in (20, 3):
        moved = transfer(batch(n))
        assert torch.equal(moved.images, pixels(n))
        assert moved.labels.tolist() == list(range(n))
        assert moved.copy_start <= moved.copy_end <= moved.ready
    assert transfer.stage is None
    assert bool(opened(name)[1].stage) == (name in ("pinned", "stream"))
    transfer = open_transfer(name, cpu(), to_input(cpu()))
    assert transfer.normalises == (name == "stream")
    moved = transfer(batch())
    assert torch.equal(moved.images, normalised() if name == "stream" else pixels())
    # as with every other transfer: there is no copy, and the batch is ready before it is normalised
    assert moved.copy_start == moved.copy_end == moved.ready


@pytest.mark.usefixtures("small_home")
@pytest.mark.parametrize(
    ("loader", "depth"), [("batches", 0), ("ahead", 1), ("ahead", 3), ("threads", 2)]
)
def test_a_loader_reuses_buffers_but_never_one_that_is_still_read(loader: str, depth: int) -> None:
    storage, transfer = "files" if loader == "threads" else "memory", PinnedCopy(cpu())
    config = config_of(
        loader=loader,
        transfer="pinned",
        batch_size=32,
        storage=storage,
        prefetch_factor=depth or None,
    )
    addresses, labels = set(), []
    previous: tuple[torch.Tensor, torch.Tensor] | None = None
    with loader_of(config, buffer=transfer.buffer) as made:
        for epoch in range(3):
            for got in made.epoch(epoch):
                if previous is not None:  # trained on until now, while the loader made others
                    assert torch.equal(*previous)
                moved = transfer(got)
                previous = moved.images, moved.images.clone()
                addresses.add(moved.images.data_ptr())
                labels += moved.labels.tolist()
    assert len(labels) == 3 * SMALL.n_train
    # one with the loop, one before it, those ahead of it, and one in the making; and those of the smaller last batch,
    # one of which may wait for the end of the next epoch
    assert len(addresses) <= depth + 3 + 2


def test_batches_of_others_pass_a_pinned_copy_on_the_cpu() -> None:
    """What a worker process made lies in no buffer of the ring."""
    transfer = PinnedCopy(cpu())
    assert transfer.buffer is not None
    own = transfer.buffer((20, 28, 28, 1))
    own.copy_(pixels().permute(0, 2, 3, 1))
    first = transfer(Batch(own.permute(0, 3, 1, 2), torch.arange(20)))
    foreign = transfer(batch())
    assert torch.equal(foreign.images, pixels())
    assert (
        transfer.buffer((20, 28, 28, 1)).data_ptr() == first.images.data_ptr()
    )  # free since the second came


def pixels_in(memory: str, transfer: Any) -> torch.Tensor:
    images = pixels()
    if memory == "ring":
        if transfer.buffer is None:
            pytest.skip("a blocking copy has no ring")
        return (
            transfer.buffer((20, 28, 28, 1)).copy_(images.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        )  # type: ignore[no-any-return]
    return (
        images.pin_memory()
        if memory == "pinned"
        else images.cuda()
        if memory == "device"
        else images
    )


@pytest.mark.parametrize("name", ["blocking", "pinned", "stream"])
@pytest.mark.parametrize("memory", ["plain", "pinned", "ring", "device"])
@on_gpu
def test_the_same_bytes_arrive_on_a_gpu(name: str, memory: str) -> None:
    device = cuda()
    transfer = open_transfer(name, device, to_input(device))
    images = pixels_in(memory, transfer)
    for _ in range(1 if memory == "ring" else 3):  # it is given back
        moved = transfer(Batch(images, torch.arange(20)))
        torch.cuda.synchronize()
        assert moved.images.device == moved.labels.device == device.torch_device
        expected = normalised() if name == "stream" else pixels()
        assert torch.allclose(moved.images.cpu(), expected, atol=1e-6)
        assert moved.labels.tolist() == list(range(20))
        assert (
            device.seconds(moved.copy_start)
            <= device.seconds(moved.copy_end)
            <= device.seconds(moved.ready)
        )


@pytest.mark.parametrize("own", [True, False], ids=["in-the-ring", "as-a-dataloader-pins-it"])
@on_gpu
def test_what_is_queued_is_not_overwritten(own: bool) -> None:
    """The host fills the next buffers, and drops each batch, while a busy device has not read the first ones."""
    transfer = PinnedCopy(cuda())
    assert transfer.buffer is not None
    torch.cuda._sleep(int(2e8))
    arrived = []
    for i in range(50):
        images = (
            transfer.buffer((64, 8, 8, 1))
            if own
            else torch.empty((64, 8, 8, 1), dtype=torch.uint8).pin_memory()
        )
        arrived.append(transfer(Batch(images.fill_(i).permute(0, 3, 1, 2), torch.tensor([i]))))
    torch.cuda.synchronize()
    assert all((m.images.cpu() == i).all() and m.labels.item() == i for i, m in enumerate(arrived))
    assert len({transfer.buffer((64, 8, 8, 1)).data_ptr() for _ in range(3)}) == 3


CONFIG = RunConfig(strategy="device", batch_size=8, device="cpu")


def storage(n: int = 20) -> MemoryStorage:
    return MemoryStorage(pixels(n).permute(0, 2, 3, 1).contiguous(), torch.arange(n))


def test_only_resident_moves_the_storage_and_then_a_batch_is_there_already() -> None:
    device = CpuDevice(lambda: 0.0)
    device.torch_device = torch.device("meta")
    for name in TRANSFERS:
        kept = storage()
        placed = open_transfer(name, device, same).place(kept)
        assert (placed is kept) == (name != "resident")
        assert placed.device.type == ("meta" if name == "resident" else "cpu")
    made = batch()
    moved = open_transfer("resident", cpu(), same)(made)
    assert moved.images is made.images
    assert moved.labels is made.labels
    assert moved.copy_start is moved.copy_end is moved.ready


class Asynchronous(CpuDevice):
    """A device that lags behind: marks are numbers, and `passed` is the last one it has reached."""

    immediate = False

    def __init__(self) -> None:
        super().__init__(time.perf_counter)
        self.marks, self.passed = 0, 0
        self.released: list[int] = []
        self.mark: Any = self._next

    def _next(self) -> int:
        self.marks += 1
        return self.marks

    def reached(self, mark: float) -> bool:
        return mark <= self.passed

    def release(self, *marks: float) -> None:
        self.released += [int(mark) for mark in marks]


def test_a_gather_on_the_device_stands_between_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    device, at = Asynchronous(), []
    read = MemoryStorage.read

    def reads(
        self: MemoryStorage, indices: torch.Tensor, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        at.append(device.marks)
        return read(self, indices, out)

    monkeypatch.setattr(MemoryStorage, "read", reads)
    transfer = open_transfer("resident", device, same)
    loader = open_loader(
        transfer.place(storage()), SMALL, resolve(CONFIG), train=True, buffer=transfer.buffer
    )
    for made in loader.epoch(0):
        moved = transfer(made)
        assert moved.copy_start == moved.copy_end == at[-1]  # set right before the gather
        assert (moved.prepared, moved.ready) == (at[-1] + 1, at[-1] + 2)
        assert torch.equal(moved.images, pixels()[moved.labels])
    assert len(at) == 3
    again = transfer(batch())  # replayed: nothing was gathered
    assert again.prepared is None
    assert again.copy_start == again.ready


def test_a_set_that_does_not_fit_into_what_is_free_is_refused_before_it_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = storage()
    monkeypatch.setattr(CpuDevice, "free_memory_bytes", lambda self: kept.images.nbytes - 1.0)
    with pytest.raises(
        DeviceError, match=r"^transfer resident: a split of 20 images takes 15.3 KiB .* are free; "
    ):
        open_transfer("resident", cpu(), same).place(kept)
    monkeypatch.setattr(CpuDevice, "free_memory_bytes", lambda self: float(kept.images.nbytes))
    assert open_transfer("resident", cpu(), same).place(kept).device.type == "cpu"


LATE = Wait("transfer", 0.005)


def simulated() -> SimulatedDevice:
    return SimulatedDevice("simulated:1,0", accelerator("simulated:1,0"), time.perf_counter)


@pytest.mark.parametrize("wait", [None, Wait("transfer", 0.0)])
@pytest.mark.parametrize("opened_device", [cpu, simulated, pytest.param(cuda, marks=gpu)])
def test_the_buffer_of_a_batch_that_nothing_could_be_read_of_is_used_again(
    opened_device: Callable[[], Device], wait: Wait | None
) -> None:
    """Its images are an empty part of the buffer, whose address PyTorch gives as 0."""
    device = opened_device()
    transfer = open_transfer("pinned", device, same, wait)
    assert transfer.buffer is not None
    addresses = set()
    for _ in range(3):
        images = transfer.buffer(SHAPE)
        addresses.add(images.data_ptr())
        empty = images[:0].permute(0, 3, 1, 2)
        transfer.discard(Batch(empty, torch.empty(0, dtype=torch.int64), ("broken",)))
        device.synchronize()
    assert len(addresses) == 1


@pytest.mark.parametrize("name", TRANSFERS)
def test_memory_that_is_no_buffer_can_be_discarded(name: str) -> None:
    transfer = open_transfer(name, cpu(), same)
    transfer.discard(Batch(torch.empty(0), torch.empty(0, dtype=torch.int64), ("broken",)))


@pytest.mark.parametrize("name", ["blocking", "pinned"])
@pytest.mark.parametrize("opened_device", [cpu, simulated, pytest.param(cuda, marks=gpu)])
def test_the_wait_is_part_of_the_copy(name: str, opened_device: Callable[[], Device]) -> None:
    device = opened_device()
    transfer = open_transfer(name, device, same, LATE)
    for n in (20, 3):
        moved = transfer(batch(n))
        device.synchronize()
        assert torch.equal(moved.images.cpu(), pixels(n))
        assert moved.labels.tolist() == list(range(n))
        start, end, ready = (device.seconds(mark) for mark in moved[2:5])
        assert ready >= end >= start + 0.9 * LATE.seconds
        device.release(*{id(mark): mark for mark in moved[2:] if mark is not None}.values())


@pytest.mark.parametrize("name", ["blocking", "pinned"])
def test_it_is_otherwise_the_transfer_that_it_delays(name: str) -> None:
    plain, other, late = (
        open_transfer(name, cpu(), same, wait) for wait in (None, Wait("read", 1.0), LATE)
    )
    assert isinstance(late, Delayed)
    assert not isinstance(other, Delayed)
    assert (late.buffer is None) == (plain.buffer is None)
    assert late.normalises == plain.normalises
    storage = object()
    assert late.place(storage) is storage


SHAPE = (4, 2, 2, 1)


@pytest.fixture
def device() -> Asynchronous:
    return Asynchronous()


def test_buffers_come_back_when_the_device_has_read_them_in_that_order(
    device: Asynchronous,
) -> None:
    ring = Ring(device)
    buffers = [ring.take(SHAPE) for _ in range(3)]
    assert (buffers[0].shape, buffers[0].dtype) == (torch.Size(SHAPE), torch.uint8)
    addresses = [buffer.data_ptr() for buffer in buffers]
    for buffer in buffers:
        ring.give_back(buffer, device.mark())
    assert ring.take(SHAPE).data_ptr() not in addresses
    device.passed = 2
    assert {ring.take(SHAPE).data_ptr() for _ in range(2)} == set(addresses[:2])
    assert device.released == [1, 2]
    device.passed = 100
    smaller = ring.take((1, 2, 2, 1))
    assert smaller.data_ptr() not in addresses, "batches of another size have buffers of their own"
    ring.give_back(smaller, device.passed)
    lent = {ring.take(SHAPE).data_ptr() for _ in range(10)}  # to nobody else meanwhile
    assert (len(lent), addresses[2] in lent) == (10, True)
    assert ring.take((1, 2, 2, 1)).data_ptr() == smaller.data_ptr()


def test_memory_of_others_is_left_alone(device: Asynchronous) -> None:
    ring = Ring(device)
    mine, foreign = ring.take(SHAPE), torch.zeros(SHAPE, dtype=torch.uint8)
    assert ring.buffer_of(mine)
    assert ring.buffer_of(mine.permute(0, 3, 1, 2))
    assert not ring.buffer_of(foreign)
    ring.give_back(foreign, 0)
    assert ring.take(SHAPE).data_ptr() != foreign.data_ptr()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("order", ["channels last", "channels first"])
def test_images_go_through_a_buffer_as_they_lie_in_memory(
    device: Asynchronous, dtype: torch.dtype, order: str
) -> None:
    ring = Ring(device)
    images = torch.arange(24).to(dtype).view(2, 2, 2, 3)
    if order == "channels last":
        images = images.permute(0, 3, 1, 2)
    pinned = to_pinned(ring, images)
    assert torch.equal(pinned, images)
    assert (pinned.stride(), pinned.dtype) == (images.stride(), dtype)
    assert ring.buffer_of(pinned)


class Counting(SimulatedDevice):
    """A device that is not there, and the copies that it is asked for."""

    def __init__(self) -> None:
        super().__init__(
            "simulated:test", Accelerator("test", 1e-3, 0.0, "", copy_latency_s=1e-3), Clock()
        )
        self.copied: list[int] = []

    def upload(self, tensor: torch.Tensor, *, non_blocking: bool = False) -> torch.Tensor:
        self.copied.append(tensor.nbytes)
        return super().upload(tensor.clone(), non_blocking=non_blocking)


def opened(name: str) -> tuple[Counting, Any]:
    device = Counting()
    return device, open_transfer(name, device, same)


@pytest.mark.parametrize("name", ["pinned", "stream"])
@pytest.mark.parametrize("n", [20, 3, 1])
@pytest.mark.parametrize("own", [False, True], ids=["foreign", "in-the-ring"])
def test_one_copy_takes_images_and_labels(name: str, n: int, own: bool) -> None:
    device, transfer = opened(name)
    made = batch(n)
    if own:  # what a loader of this process does; of 25, some could not be read
        buffer = transfer.buffer((25, 28, 28, 1))
        buffer[:n] = made.images.permute(0, 2, 3, 1)
        made = made._replace(images=buffer[:n].permute(0, 3, 1, 2))
    moved = transfer(transfer.stage(made))
    assert len(device.copied) == 1
    assert torch.equal(moved.images, pixels(n))
    assert moved.labels.tolist() == list(range(n))
    assert moved.labels.dtype == torch.int64
    assert moved.images.shape == (n, 1, 28, 28)
    assert moved.images.is_contiguous(memory_format=torch.channels_last) or n == 1


@pytest.mark.parametrize("name", ["pinned", "stream"])
def test_what_need_not_or_cannot_be_staged_stays_as_it_is(name: str) -> None:
    """Floats: on this device nobody's DataLoader pins, which would have put them there meanwhile."""
    device, transfer = opened(name)
    floats = Batch(pixels().float(), torch.arange(20))
    nothing = Batch(torch.empty((0, 1, 28, 28), dtype=torch.uint8), torch.arange(0))
    elsewhere = Batch(
        torch.empty((4, 1, 28, 28), dtype=torch.uint8, device="meta"), torch.arange(4)
    )
    for made in (floats, nothing, elsewhere):
        assert transfer.stage(made) is made
    moved = transfer(floats)
    assert device.copied == [floats.images.nbytes, floats.labels.nbytes]
    assert torch.equal(moved.images, floats.images)


@on_gpu
@pytest.mark.parametrize("name", ["pinned", "stream"])
@pytest.mark.parametrize("n", [20, 3])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_on_a_gpu_one_copy_out_of_pinned_memory_takes_them_whatever_their_type(
    name: str, n: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied, upload = [], CudaDevice.upload

    def counted(device: CudaDevice, tensor: torch.Tensor, **how: Any) -> torch.Tensor:
        copied.append(tensor.nbytes)
        return upload(device, tensor, **how)

    monkeypatch.setattr(CudaDevice, "upload", counted)
    transfer: Any = open_transfer(name, cuda(), same)
    made = batch(n)._replace(images=pixels(n).to(dtype))
    staged_batch = transfer.stage(made)
    assert staged_batch.images.is_pinned()
    assert staged_batch.labels.is_pinned()
    moved = transfer(staged_batch)
    assert len(copied) == 1
    assert torch.equal(moved.images.cpu(), made.images)
    assert moved.labels.tolist() == list(range(n))
    copied.clear()
    made = Batch(
        made.images.pin_memory(), made.labels.pin_memory()
    )  # as a DataLoader does: not again
    assert transfer.stage(made) is made
    assert torch.equal(transfer(made).images.cpu(), made.images)
    assert copied == [made.images.nbytes, made.labels.nbytes]


@pytest.mark.parametrize("shape", [(3, 5, 7, 3), (1, 1, 1, 1), (8, 2, 2, 2)])
def test_labels_lie_where_int64_may_lie(shape: tuple[int, ...]) -> None:
    packed = Packed.of(shape, torch.uint8, Pinning(wanted=False))
    assert packed.labels.data_ptr() % 8 == 0
    packed.images.fill_(255)
    packed.labels.copy_(torch.arange(shape[0]) - 1)
    images, labels = packed.split(packed.whole.clone(), packed.images.permute(0, 3, 1, 2))
    assert (images == 255).all()
    assert labels.tolist() == [i - 1 for i in range(shape[0])]


def test_a_buffer_is_used_again_with_the_labels_of_its_batch() -> None:
    device = Counting()
    staging = Ring(device)
    addresses = set()
    for i in range(5):
        made = staging.stage(Batch(pixels(4), torch.full((4,), i)))
        assert made.labels.tolist() == [i] * 4
        staging.upload(made)
        staging.let_go(made.images)
        device._clock.now += 1.0  # type: ignore[attr-defined]
        addresses.add(made.images.data_ptr())
    assert len(addresses) == 1


def test_closing_ends_the_epoch_that_is_staged() -> None:
    epoch = (batch(n) for n in (1, 2))
    batches = staged(epoch, lambda made: made._replace(unreadable=("x",)))
    assert next(batches).unreadable == ("x",)
    batches.close()
    assert not list(epoch), "the second one is made no more"
