"""From a config to batches: the data set made, the storage prepared, brought to its place, opened,
cached, loaded.

What happens to a sample, in order: `data` makes it, `storage` keeps and reads it, `locations` say
where, `decoders` and `transforms` change it, `loaders` make batches, `transfer` brings them to the
device. This is where those are put together.
"""

import itertools
import math
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from vitprof.config import RunConfig, estimates, parts
from vitprof.datasets import on_disk
from vitprof.datasets.catalog import DatasetInfo, dataset_info
from vitprof.datasets.files import Stop
from vitprof.datasets.own import layout
from vitprof.engine.loaders import open_loader
from vitprof.engine.loaders.contract import Batch, Loader
from vitprof.engine.locations import drive, open_location, pagecache
from vitprof.engine.storage import arrays, contract, open_storage, prepare
from vitprof.engine.trainer import AUTOCAST
from vitprof.engine.transfer import Resident, Transfer, open_transfer, staged
from vitprof.engine.transforms import ToInput, as_it_is
from vitprof.errors import JobStopped, SampleError
from vitprof.measure.devices import Clock, Device
from vitprof.measure.stopwatch import requested_wait
from vitprof.measure.wire import Events


@dataclass
class Split:
    """One split: its loader and its way to the device."""

    n: int
    loader: Loader
    transfer: Transfer
    to_input: Callable[[torch.Tensor], torch.Tensor]
    """Turns a batch on the device into the model's input; for transfers that do not do it
    themselves."""

    def epoch(self, epoch: int) -> Generator[Batch, None, None]:
        """Returns the batches of one epoch, each in the memory that its copy starts from."""
        batches = self.loader.epoch(epoch)
        stage = self.transfer.stage
        if stage is None:
            return batches
        return staged(batches, stage)


@dataclass
class Pipeline:
    """Everything between the disk and the model, open."""

    train: Split
    test: Split | None
    facts: dict[str, Any]
    """Figures about storage, location and cache, for the run's record."""
    root: Path
    """The directory that samples are read from; `benchmarks/` reads them from there with less
    around it."""
    original: Path
    """That directory, or the one that it is a copy of."""

    def original_paths(self, text: str) -> str:
        """Returns a message with original files in place of those of a copy, which is gone by the time
        the message is read.
        """
        return text.replace(str(self.root), str(self.original))


@contextmanager
def open_pipeline(
    config: RunConfig, device: Device, events: Events, stop: Stop, clock: Clock, *, evaluate: bool
) -> Iterator[Pipeline]:
    """Opens the pipeline of the resolved `config` for the block.

    Raises `VitprofError`, `JobStopped` among them.
    """
    info = dataset_info(config.dataset, config.n_images)
    progress = partial(events.stage, "preparing")
    staging = partial(events.stage, "staging")
    begun = clock()
    prepared = _prepared(config, info, events, stop)
    _emit_wait(config, events)
    events.phase("prepare", begun, clock())
    with ExitStack() as open_things:
        staged = clock()
        location = open_location(
            config, prepared.directory, progress=staging, stop=stop, clock=clock
        )
        located = open_things.enter_context(location)
        if config.location != "disk":
            events.phase("stage", staged, clock())
            events.notice(located.note)
        opening = clock()
        facts: dict[str, Any] = {
            "storage_bytes": prepared.size_bytes,
            "storage_prepare_s": prepared.prepare_s,
            "stage_s": located.copied.seconds,
            "stage_bytes": located.copied.n_bytes,
        }
        facts |= layout.facts_of(info) | _of_drive(config, info, located.location.root, clock)
        cached_frac = pagecache.set_page_cache(
            located.location.root,
            config.page_cache,
            progress,
            stop,
            skip_unreadable=config.skip_unreadable,
        )
        facts |= {
            "page_cached_frac": cached_frac,
            "cache_hit_frac": math.nan,
            "n_unreadable": prepared.n_unreadable,
        }
        splits: list[Split] = []
        for train in (True, False) if evaluate else (True,):
            # Evaluation is not measured: a slow drive would only make it take longer.
            where = located.location if train else located.unmeasured or located.location
            storage = _opened(config, info, where, train=train)
            open_things.callback(storage.close)
            if train and config.cache_mb:
                form = parts.STORAGES[config.storage or ""].form
                storage = arrays.cached(
                    storage, form, config.cache_mb, config.seed, progress=progress, stop=stop
                )
                facts["cache_hit_frac"] = storage.hit_frac
            split = _split(config, info, device, storage, train=train)
            open_things.callback(split.loader.close)
            if train and config.replay:
                split = _replayed(split, config, device, events, stop)
            splits.append(split)
        events.phase("prepare", opening, clock())
        test = splits[1] if evaluate else None
        root = located.location.root
        opened = Pipeline(splits[0], test, facts, root, prepared.directory)
        try:
            yield opened
        except SampleError as error:
            raise SampleError(opened.original_paths(str(error))) from error
        finally:
            closing = clock()
            events.stage("finishing", math.nan)
            located.let_go()
            open_things.close()
            events.phase("shutdown", closing, clock())


def _prepared(config: RunConfig, info: DatasetInfo, events: Events, stop: Stop) -> prepare.Prepared:
    """Returns the storage of the config, made now if it is not there; says what is left out of it."""
    progress = partial(events.stage, "preparing")
    skip = config.skip_unreadable
    root = on_disk.prepare(
        config.dataset, config.n_images, progress=progress, stop=stop, skip_unreadable=skip
    )
    prepared = prepare.prepare_storage(
        config.storage or "", info, root, progress=progress, stop=stop, skip_unreadable=skip
    )
    if prepared.n_unreadable:
        first = layout.users_paths(
            "; ".join(line.partition(";")[0] for line in prepared.unreadable)
        )
        events.notice(
            f"unreadable samples left out of {config.storage}: {prepared.n_unreadable:,}; the first: {first}"
        )
    return prepared


def _opened(
    config: RunConfig, info: DatasetInfo, location: contract.Location, *, train: bool
) -> Any:
    """Returns the storage of a split, open; with augmentation on the CPU, where that is the storage's."""
    name = config.storage or ""
    augment: dict[str, bool] = {}
    if parts.STORAGES[name].transforms:
        augment["augment"] = train and config.augment == "cpu"
    return open_storage(name, info, location, train=train, **augment)


def _of_drive(config: RunConfig, info: DatasetInfo, root: Path, clock: Clock) -> dict[str, float]:
    """Returns what the roofline needs to know of the drive that samples are read from; nothing in
    RAM.
    """
    if config.location != "disk" or parts.STORAGES[config.storage or ""].access == "memory":
        return {}
    read = drive.read_rate(root, skip_unreadable=config.skip_unreadable, clock=clock)
    return {"drive_bytes_per_s": read, "sample_file_bytes": estimates.sample_bytes(config, info)}


def _emit_wait(config: RunConfig, events: Events) -> None:
    wait = requested_wait(config)
    if wait is None or config.replay == "device":
        return
    if config.replay == "host" and wait.stage != "transfer":
        # Replayed batches waited only once, before training.
        return
    length = f"{wait.seconds * 1e3:g} ms"
    events.notice(f"a wait of {length} is put into the {wait.stage} of each batch on purpose")


def _split(
    config: RunConfig, info: DatasetInfo, device: Device, storage: Any, *, train: bool
) -> Split:
    """Opens the loader over one split and its transfer."""
    pixels: contract.Pixels = getattr(storage, "pixels", "uint8")
    dtype = torch.float32
    if config.transfer == "stream":
        # It normalises in its own stream, straight to what autocast computes in.
        dtype = AUTOCAST.get(config.precision, dtype)
    to_input: Callable[[torch.Tensor], torch.Tensor] = as_it_is
    if not device.simulated:
        side = config.image_size or info.image_size
        seed = config.seed if train and config.augment == "device" else None
        to_input = ToInput(info, pixels, side, device.torch_device, augment_seed=seed, dtype=dtype)
    transfer = open_transfer(
        config.transfer or "", device, to_input, requested_wait(config, train=train)
    )
    buffer = transfer.buffer
    if train and config.replay:
        # Batches kept for replay would hold on to the ring's buffers.
        buffer = None
    if config.loader == "batches" and device.immediate:
        # malloc returns the same memory each time anyway; the ring's bookkeeping costs 2 us of 13.
        buffer = None
    if config.pin_memory and device.torch_device.type == "cuda":
        config = _pinned_if_allowed(config, info, device)
    mark = None
    # An evaluation's marks are never read, and the CPU's say nothing that its clock does not.
    if train and not device.immediate:
        mark = device.mark
    loader = open_loader(
        transfer.place(storage), info, config, train=train, buffer=buffer, mark=mark
    )
    return Split(len(storage), loader, transfer, to_input)


def _pinned_if_allowed(config: RunConfig, info: DatasetInfo, device: Device) -> RunConfig:
    """Returns `config`, without `pin_memory` if the system refuses to pin a batch.

    The DataLoader's pinning thread would fail on it and end the job.
    """
    # Samples one by one are float32, others uint8.
    bytes_each = 4 if parts.STORAGES[config.storage or ""].form == "samples" else 1
    sample_bytes = info.image_size**2 * info.channels * bytes_each
    device.pinning.empty((config.batch_size, sample_bytes), torch.uint8)
    if device.pinning.refusal:
        return replace(config, pin_memory=False)
    return config


def _replayed(split: Split, config: RunConfig, device: Device, events: Events, stop: Stop) -> Split:
    """Returns `split` with its first batches in place of its loader: in host memory, or on the
    device (no copy).
    """

    def on_device(tensor: torch.Tensor) -> torch.Tensor:
        return device.upload(tensor.clone())

    def in_host_memory(tensor: torch.Tensor) -> torch.Tensor:
        # A blocking copy takes batches from whatever memory they are in; the others need pinned
        # memory.
        copied = device.torch_device.type == "cuda" and tensor.device.type == "cpu"
        if copied and (tensor.is_pinned() or config.transfer != "blocking"):
            return device.pinning.pinned(tensor.clone())
        return tensor.clone()

    if config.replay == "device":
        place = on_device
        where = "on the device"
        transfer: Transfer = Resident(device)
    else:
        place = in_host_memory
        where = "in host memory"
        transfer = split.transfer
    events.stage("preparing", math.nan, "fetching the batches to replay")
    kept = keep_batches(split.loader, place, stop)
    events.notice(
        f"trained on the first {len(kept.kept)} batches again and again, kept {where}, as if data were free"
    )
    return Split(split.n, kept, transfer, split.to_input)


MOST_BATCHES = 8
"""Most batches kept: more than any transfer has in flight, so that none is copied again while still
being copied."""
MOST_BYTES = 256 * 2**20
"""Most bytes of images kept: little compared with a model's memory, on the device too.

One batch is always kept."""


class ReplayLoader:
    """A loader that gives the same batches over and over, `n` in an epoch."""

    def __init__(self, batches: tuple[Batch, ...], n: int) -> None:
        self.kept = batches
        self._n = n

    def __len__(self) -> int:
        return self._n

    def epoch(self, epoch: int) -> Generator[Batch, None, None]:
        yield from itertools.islice(itertools.cycle(self.kept), self._n)

    def close(self) -> None:
        return


def keep_batches(
    loader: Loader, place: Callable[[torch.Tensor], torch.Tensor], stop: Stop
) -> ReplayLoader:
    """Fetches the first batches of `loader`'s epoch 0 and closes it.

    Returns a loader that replays them.

    At most `MOST_BATCHES` and `MOST_BYTES` of images are kept; a smaller batch at the epoch's end
    only if it is the first. `place` copies images or labels to where they are kept: a loader may
    reuse its own memory. Raises `JobStopped` if `stop()` turns true, and what `loader` raises.
    """
    kept: list[Batch] = []
    used = 0
    # The loader's workers and threads end here and take no CPU from what is measured.
    with closing(loader):
        n = len(loader)
        with closing(loader.epoch(0)) as batches:
            for batch in batches:
                if stop():
                    raise JobStopped("stopped while batches were fetched for replay")
                if not len(batch.labels):
                    # Nothing in it could be read.
                    continue
                if kept and len(batch.labels) < len(kept[0].labels):
                    break
                kept.append(Batch(place(batch.images), place(batch.labels)))
                used += batch.images.nbytes
                if len(kept) == MOST_BATCHES or used + batch.images.nbytes > MOST_BYTES:
                    break
    return ReplayLoader(tuple(kept), n)
