"""The registry of strategies: named combinations of storage, location, loader and transfer.

A strategy is data. It names its parts; `vitprof.train` puts them together. Nothing here imports torch, so the
dashboard can list strategies and check a config before a job exists.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vitprof.catalog import dataset_info, model_preset
from vitprof.errors import ConfigError
from vitprof.records import KNOBS, RunConfig


@dataclass(frozen=True)
class Strategy:
    """How samples get from where they are kept to the device."""

    name: str
    title: str
    storage: str
    """A name in `vitprof.storage`: how samples are kept and read."""
    location: str
    """Where the storage lies."""
    loader: str
    """A name in `vitprof.loaders`: who makes batches."""
    transfer: str
    """A name in `vitprof.transfer`: how a batch reaches the device."""
    what: str
    """What it does, in a sentence or two."""
    when: str
    """When it helps and what it costs."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """The knobs it takes (names in `KNOBS`), with their defaults."""


STRATEGIES: dict[str, Strategy] = {
    s.name: s
    for s in (
        Strategy(
            name="per-sample",
            title="Sample by sample",
            storage="idx",
            location="disk",
            loader="dataloader",
            transfer="blocking",
            what="torchvision's Dataset with ToTensor and Normalize, a DataLoader without workers: each sample is "
            "converted and transformed on its own, in the training loop.",
            when="The baseline that tutorials start with. The device waits while every batch is put together.",
        ),
        Strategy(
            name="workers",
            title="DataLoader workers",
            storage="idx",
            location="disk",
            loader="dataloader",
            transfer="pinned",
            what="The same Dataset and transforms, made into batches by worker processes ahead of time, in page-locked "
            "memory where there is a GPU.",
            when="Hides loading behind compute as long as the workers together are faster than the device. "
            "Costs CPU cores, memory for each worker and a slower first batch.",
            defaults={"workers": 2, "prefetch_factor": 2, "pin_memory": True, "persistent_workers": True},
        ),
        Strategy(
            name="tensordataset",
            title="TensorDataset",
            storage="memory-float",
            location="memory",
            loader="dataloader",
            transfer="blocking",
            what="The whole set as one float tensor in a TensorDataset, with a DataLoader without workers: no "
            "decoding, but samples are still indexed and collated one by one.",
            when="The usual form of 'whole set in memory'. Needs 4 bytes of RAM for each pixel.",
        ),
        Strategy(
            name="memory",
            title="In memory, whole batches",
            storage="memory",
            location="memory",
            loader="batches",
            transfer="blocking",
            what="The whole set as one uint8 tensor in RAM; each batch is one index_select, normalised on the device.",
            when="The fastest loading from RAM for a set that fits: one byte for each pixel, no work for each sample.",
        ),
        Strategy(
            name="device",
            title="Resident on the device",
            storage="memory",
            location="device",
            loader="batches",
            transfer="resident",
            what="The whole set as one uint8 tensor in the device's memory; batches are selected there.",
            when="No transfer at all. For sets that fit beside model and activations. On the CPU the same as 'memory'.",
        ),
    )
}


def strategy(name: str) -> Strategy:
    """The strategy called `name`. Raises `ConfigError` that lists the names there are."""
    try:
        return STRATEGIES[name]
    except KeyError:
        raise ConfigError("strategy", name, f"choose one of {', '.join(STRATEGIES)}") from None


def resolve(config: RunConfig) -> RunConfig:
    """Check `config` against its data set, model and strategy and fill in the defaults that depend on them.

    Every knob the strategy takes has a value afterwards, every other one is None. Raises `ConfigError`.
    """
    data, model, plan = dataset_info(config.dataset), model_preset(config.model), strategy(config.strategy)
    if config.batch_size > data.n_train:
        raise ConfigError(
            "batch_size", config.batch_size, f"the training set of {data.name} has {data.n_train} samples"
        )
    image_size = config.image_size or model.image_size
    if image_size % model.patch_size:
        raise ConfigError(
            "image_size", image_size, f"{model.name} cuts images into {model.patch_size} px patches; give a multiple"
        )
    knobs: dict[str, Any] = {}
    for knob in KNOBS:
        given = getattr(config, knob)
        if knob in plan.defaults:
            knobs[knob] = plan.defaults[knob] if given is None else given
        elif given is not None:
            takes = ", ".join(plan.defaults) or "no such setting"
            raise ConfigError(knob, given, f"strategy {plan.name} does not take it (it takes {takes})")
    if knobs.get("workers") == 0:  # PyTorch refuses both without workers; there is nothing to prefetch or to keep
        knobs |= {"prefetch_factor": None, "persistent_workers": False}
    return dataclasses.replace(
        config, image_size=image_size, lr=config.lr if config.lr is not None else model.lr, **knobs
    )
