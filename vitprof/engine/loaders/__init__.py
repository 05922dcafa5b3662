"""Loaders: they make batches, each in its own threads or processes.

`open_loader` starts the one that is named.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from vitprof.config import RunConfig, parts, plugins, strategies
from vitprof.datasets.catalog import DatasetInfo
from vitprof.engine.loaders import batch_assembly, batches, dataloader
from vitprof.engine.loaders.contract import Buffer, Loader, Schedule
from vitprof.measure.devices import Mark


def open_loader(
    storage: Any,
    info: DatasetInfo,
    config: RunConfig,
    *,
    train: bool,
    buffer: Buffer | None = None,
    mark: Callable[[], Mark] | None = None,
) -> Loader:
    """Starts the loader that the resolved `config` names over one split, in `storage`.

    `buffer` gives the memory for batches made in this process; without it each batch gets new
    memory. `mark` is that of the training device, for loaders that make batches on it
    (`Batch.decoded`); None if their time is not measured.
    """
    other = plugins.opener(strategies.PLUGGED, "loaders", config.loader)
    if other:
        return other(storage, info, config, train=train, buffer=buffer, mark=mark)  # type: ignore[no-any-return]
    if config.loader == "dali":
        # Imported here: it needs packages that only image files need.
        from vitprof.engine.loaders import dali

        return dali.DaliLoader(storage, info, config, train, mark)
    schedule = Schedule(storage, config, train=train)
    form = parts.STORAGES[config.storage or ""].form
    if config.loader == "dataloader":
        # Samples one by one are float32, others uint8.
        bytes_each = 4 if form == "samples" else 1
        sample_bytes = info.channels * info.image_size**2 * bytes_each
        dataloader.ensure_shared_memory(config, sample_bytes)
    if form == "samples":
        dataset, collate = dataloader.open_samples(storage, config, train=train)
        if config.loader == "generator":
            return batches.BatchReader(schedule, batches.of_samples(dataset, collate))
        return dataloader.over_samples(schedule, dataset, collate, config)
    make = batch_assembly.open_maker(storage, info, config, train=train)
    if config.loader == "dataloader":
        return dataloader.over_batches(schedule, make, config)
    if config.loader == "generator":
        rest = batch_assembly.open_maker(storage, info, replace(config, inject=None), train=train)
        return batches.BatchReader(schedule, batches.one_by_one(make, rest))
    if config.loader == "threads":
        assert isinstance(make, batch_assembly.EncodedMaker)
        return batches.ThreadsLoader(schedule, make, config, buffer)
    reader = batches.BatchReader(schedule, batches.in_buffers(make, buffer))
    if config.loader == "ahead":
        return batches.AheadReader(schedule, reader, config)
    return reader
