"""NVIDIA nvImageCodec where it is missing or cannot start, and its path on a GPU. What it delivers: test_encoded.py."""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch

from tests.engine.loaders.loader_helpers import as_images, collected, info_of, opened, other, photos_config, storage_of
from tests.engine_fixtures import N_PHOTOS
from vitprof.config.availability import installed
from vitprof.config.parts import LOADERS
from vitprof.engine.batch import Batch
from vitprof.engine.decode import Crop
from vitprof.engine.loaders import batch_decoding, nvimgcodec_decoder, open_loader
from vitprof.engine.loaders.batch_assembly import open_maker
from vitprof.engine.loaders.nvimgcodec_decoder import BatchDecoder
from vitprof.engine.loaders.order import epoch_order
from vitprof.engine.transfer import open_transfer
from vitprof.engine.transfer.normalise import ToInput
from vitprof.errors import ConfigError, DataError, SampleError
from vitprof.measure.devices.cuda import CudaDevice

(PACKAGE,) = LOADERS["nvimgcodec"].packages
HERE = pytest.mark.skipif(not installed(PACKAGE), reason=f"{PACKAGE} is not installed")


@pytest.fixture(autouse=True)
def _home(photos_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITPROF_HOME", str(photos_home))


def test_where_it_is_missing_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvidia.nvimgcodec", None)
    config = photos_config(loader="nvimgcodec")
    storage = storage_of(config)
    with pytest.raises(
        ConfigError, match=r"pip install 'nvidia-nvimgcodec-cu13\[nvjpeg\]', or choose threads"
    ) as caught:
        open_loader(storage, info_of(config), config, train=True)
    assert (caught.value.field, caught.value.value) == ("loader", "nvimgcodec")
    assert "\n" not in str(caught.value)
    assert PACKAGE in nvimgcodec_decoder.PIP


@HERE
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_device_that_it_cannot_use_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=0))
    with pytest.raises(DataError, match=r"^nvImageCodec cannot start on cuda:99 \(.+\); choose loader threads$"):
        BatchDecoder(224, 1, torch.device("cuda:99"))


class Gpu:
    """Stands in for what only a GPU has: a stream, events that pass when told to, and a decoder on `cuda:0`.

    The decoder is nvImageCodec's own, told to use the CPU.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from nvidia import nvimgcodec as real

        self.passed = 0
        self.recorded: list[int] = []
        self.asked: list[dict[str, Any]] = []
        self.streams: list[int] = []
        self.closed = self.synchronised = False
        self.broken = False
        gpu, stream = self, SimpleNamespace(cuda_stream=4711, synchronize=self._synchronise)

        class Event:
            def record(self, on: object) -> None:
                assert on is stream
                self.number = len(gpu.recorded)
                gpu.recorded.append(self.number)

            def query(self) -> bool:
                return self.number < gpu.passed

        class Decoder:
            def __init__(self, **asked: Any) -> None:
                gpu.asked.append(asked)
                on_host = {"device_id": real.NVIMGCODEC_DEVICE_CPU_ONLY, "backends": [real.Backend(real.CPU_ONLY)]}
                self.decoder = real.Decoder(**asked | on_host)

            def decode(self, regions: list[Any], *, params: Any, cuda_stream: int) -> list[Any]:
                gpu.streams.append(cuda_stream)
                images = self.decoder.decode(regions, params=params)
                return [None] * len(images) if gpu.broken else images

            def __exit__(self, *_: object) -> None:
                gpu.closed = True

        library = SimpleNamespace(**{name: getattr(real, name) for name in dir(real)} | {"Decoder": Decoder})
        monkeypatch.setitem(sys.modules, "nvidia.nvimgcodec", library)
        monkeypatch.setattr(nvimgcodec_decoder, "from_dlpack", lambda image: torch.from_numpy(np.asarray(image)))
        monkeypatch.setattr(batch_decoding, "decoding_device", lambda name: torch.device("cuda:0"))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
        monkeypatch.setattr(torch.cuda, "Event", Event)

    def _synchronise(self) -> None:
        self.synchronised, self.passed = True, len(self.recorded)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    pytest.importorskip("nvidia.nvimgcodec", reason=f"{PACKAGE} is not installed")
    return Gpu(monkeypatch)


def batches_of(n: int, *, epoch: int = 0) -> list[Batch]:
    config = photos_config(loader="nvimgcodec", augment="cpu", batch_size=8)
    with opened(config, storage=storage_of(config)) as loader:
        return list(itertools.islice(loader.epoch(epoch), n))


def test_on_a_gpu_it_decodes_there_in_the_stream_that_trains(gpu: Gpu) -> None:
    got = batches_of(3)
    (asked,) = gpu.asked
    assert asked["device_id"] == 0
    kinds = [backend.backend_kind.name for backend in asked["backends"]]
    assert kinds == ["HW_GPU_ONLY", "GPU_ONLY", "HYBRID_CPU_GPU"]  # it would go over to the CPU without a word
    assert gpu.streams == [4711] * 4  # and a try at the start
    assert gpu.closed
    assert gpu.synchronised
    for batch in got:
        assert batch.images.dtype == torch.uint8
        assert batch.made is not None
        assert batch.made.decode_s > 0  # the host's part


@HERE
def test_resized_on_either_they_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    on_cpu = as_images(batches_of(2))
    Gpu(monkeypatch)
    assert abs(as_images(batches_of(2)) - on_cpu).max() <= 1  # there float, and rounded at the end


def test_decoded_images_are_kept_until_the_gpu_has_resized_them(gpu: Gpu) -> None:
    decoder = BatchDecoder(224, 1, torch.device("cuda:0"))
    whole = simplejpeg.encode_jpeg(np.zeros((300, 400, 3), np.uint8))
    samples = [decoder.sample(whole, Crop(0, 0, 300, 400))] * 2
    for kept in (1, 2, 3):
        decoder.decode(samples)
        assert len(decoder._in_use) == kept
    assert all(len(images) == 2 for _, images in decoder._in_use)
    gpu.passed = 2
    decoder.decode(samples)
    assert [event.number for event, _ in decoder._in_use] == [2, 3]
    decoder.close()
    assert gpu.synchronised


def test_a_gpu_without_nvjpeg_says_what_to_install(gpu: Gpu) -> None:
    gpu.broken = True
    with pytest.raises(
        DataError, match=r"^nvImageCodec cannot decode JPEG on cuda:0; pip install 'nvidia-.*\[nvjpeg\]'"
    ):
        BatchDecoder(224, 1, torch.device("cuda:0"))


@pytest.mark.parametrize("skip", [False, True])
def test_what_the_gpu_cannot_decode_is_named(gpu: Gpu, skip: bool) -> None:
    config = photos_config(loader="nvimgcodec", batch_size=4, skip_unreadable=skip)
    storage = storage_of(config)
    with opened(config, storage=storage) as loader:
        gpu.broken = True
        batches = loader.epoch(0)
        first, second = epoch_order(N_PHOTOS, 42, 0)[:2].tolist()
        if skip:
            batch = next(batches)
            assert (len(batch.images), len(batch.labels), len(batch.unreadable)) == (0, 0, 4)
            assert batch.unreadable[1].startswith(f"{storage.name_of(second)} cannot be decoded")
        else:
            with pytest.raises(
                SampleError, match="cannot be decoded \\(nvImageCodec cannot decode it\\); repair"
            ) as caught:
                next(batches)
            assert str(caught.value).startswith(storage.name_of(first))


@HERE
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: torch sees none here")
@pytest.mark.parametrize("transfer", ["blocking", "pinned", "stream"])
def test_on_a_gpu_images_are_made_there(transfer: str) -> None:
    config = photos_config(loader="nvimgcodec", device="cuda:0", augment="cpu", transfer=transfer)
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
            assert abs(as_images(got) - wanted).mean(axis=(1, 2, 3)).max() < 4  # nvJPEG's own arithmetic
