"""NVIDIA DALI where it is missing, where it cannot start, and on a GPU. What it delivers: test_encoded.py."""

import itertools
import signal
import sys
import time

import pytest
import torch

from tests.engine.loaders.loader_helpers import (
    as_images,
    collected,
    info_of,
    opened,
    other,
    photos_config,
    storage_of,
)
from tests.engine.transfer_helpers import on_gpu
from tests.engine_fixtures import N_PHOTOS, error_in_one_line, survives
from vitprof.engine.loaders import dali, open_loader
from vitprof.engine.loaders.batch_assembly import open_maker
from vitprof.engine.loaders.contract import epoch_order
from vitprof.engine.transfer import open_transfer
from vitprof.engine.transforms import ToInput
from vitprof.errors import ConfigError, DataError
from vitprof.measure.devices.cuda import CudaDevice

pytestmark = pytest.mark.usefixtures("photos")


def test_without_dali_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    config = photos_config(loader="dali")
    storage = storage_of(config)
    with error_in_one_line(ConfigError, match="pip install nvidia-dali-cuda130") as caught:
        open_loader(storage, info_of(config), config, train=True)
    assert (caught.value.field, caught.value.value) == ("loader", "dali")


def test_a_device_that_dali_cannot_use_is_named() -> None:
    pytest.importorskip("nvidia.dali", reason="nvidia-dali is not installed")
    with error_in_one_line(
        DataError, match=r"^DALI cannot start on cuda:99 \(.+\); choose loader threads$"
    ):
        dali.open_pipeline(224, 4, 1, 2, torch.device("cuda:99"))


def test_the_reason_is_the_line_that_says_what_is_wrong() -> None:
    text = "Critical error in pipeline:\nError in CPU operator `x`,\n\nencountered:\n\nFailed to decode sample #0 \n"
    text += "Current pipeline object is no longer valid."
    assert dali.reason(RuntimeError(text)) == "Failed to decode sample #0"
    assert dali.reason(RuntimeError()) == "RuntimeError"


def test_a_pipeline_that_somebody_keeps_can_be_deleted_in_a_forked_process() -> None:
    """What DALI raised keeps it; a worker process of a DataLoader then waited for threads that it does not have."""
    pytest.importorskip("nvidia.dali", reason="nvidia-dali is not installed")
    config = photos_config(loader="dali", batch_size=8)
    with opened(config, storage=storage_of(config)) as loader:
        kept = [loader._pipeline]
        assert len(collected(itertools.islice(loader.epoch(0), 2))) == 2

    def delete() -> None:
        signal.alarm(20)
        kept.clear()

    survives(delete)


@on_gpu
@pytest.mark.parametrize("transfer", ["blocking", "pinned", "stream"])
def test_on_a_gpu_images_are_made_there(transfer: str) -> None:
    pytest.importorskip("nvidia.dali", reason="nvidia-dali is not installed")
    config = photos_config(loader="dali", device="cuda:0", augment="cpu", transfer=transfer)
    storage, info = storage_of(config), info_of(config)
    make = open_maker(storage, info, other(config, decoder="pil"), train=True)
    device = CudaDevice("cuda:0", time.perf_counter)
    to_input = ToInput(info, "uint8", 224, device.torch_device)
    moves = open_transfer(transfer, device, to_input)
    mean, std = (torch.tensor(v, device="cuda:0").view(1, 3, 1, 1) for v in (info.mean, info.std))
    with opened(config, storage=storage) as loader:
        for epoch in (0, 1):
            order = epoch_order(N_PHOTOS, 42, epoch)
            got = []
            for batch in loader.epoch(epoch):
                assert batch.images.device == device.torch_device
                moved = moves(batch)
                assert moved.labels.device == device.torch_device
                inputs = moved.images if moves.normalises else to_input(moved.images)
                images = ((inputs * std + mean) * 255).round()
                got.append(batch._replace(images=images.cpu(), labels=moved.labels.cpu()))
            assert torch.equal(torch.cat([batch.labels for batch in got]), storage.labels[order])
            wanted = as_images(collected(iter([make(epoch, order)])))
            assert (
                abs(as_images(got) - wanted).mean(axis=(1, 2, 3)).max() < 4
            )  # nvJPEG's own chroma upsampling
