"""Resolves the config that a person gave: fills in defaults, refuses what cannot work, and makes a name
for the run.
"""

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from vitprof import formats
from vitprof.config import KNOBS, PARTS, RunConfig, accelerators, injection, own_script, strategies
from vitprof.config.models import model_preset
from vitprof.config.parts import DECODERS, LOADERS, STORAGES, Combination, why_not
from vitprof.config.rank_configs import check_ranks
from vitprof.datasets.catalog import DATASETS, DatasetInfo, dataset_info
from vitprof.errors import ConfigError
from vitprof.names import tamed_name
from vitprof.recording.columns import Stage


def resolve(config: RunConfig) -> RunConfig:
    """Returns `config`, checked against its data set, model and strategy, with the defaults that depend on
    them.

    Its parts and every knob that they take have a value; every other knob is None. Raises `ConfigError`.
    """
    if own_script.is_own_script(config):
        why = "the run was a user's own script; start that again with vitprof watch"
        raise ConfigError("strategy", own_script.OWN_SCRIPT, why)
    info = dataset_info(config.dataset, config.n_images)
    model = model_preset(config.model)
    plan = strategies.strategy(config.strategy)
    if config.batch_size > info.n_train:
        few = f"the training set of {info.name} has {info.n_train} samples"
        raise ConfigError("batch_size", config.batch_size, few)
    image_size = config.image_size or model.image_size
    if image_size % model.patch_size:
        why = f"{model.name} cuts images into {model.patch_size} px patches; give a multiple"
        raise ConfigError("image_size", image_size, why)
    if config.compile_mode is not None and not config.compile:
        raise ConfigError("compile_mode", config.compile_mode, "it goes with compile, which is off")
    parts = plan.combination(info, {kind: getattr(config, kind) for kind in PARTS})
    _check_parts(plan, info, parts)
    in_memory = not STORAGES[parts.storage].on_disk or parts.location == "ram-disk"
    if in_memory and config.page_cache != "as-is":
        why = "the samples are in memory while training; choose as-is"
        raise ConfigError("page_cache", config.page_cache, why)
    check_ranks(config, info, parts.loader)
    augment = _augmentation(config, parts, info)
    if config.inject is not None:
        _check_wait(config, config.inject, _stages_to_wait_in(parts, info, augment))
    return replace(
        config,
        n_images=info.n_train if info.any_size else None,
        image_size=image_size,
        lr=config.lr if config.lr is not None else model.lr,
        **asdict(parts),
        **_knobs(config, plan, parts, info),
        augment=augment,
        device=accelerators.device_for(config.device, model.name, image_size, config.precision),
    )


def _check_parts(plan: strategies.Strategy, info: DatasetInfo, parts: Combination) -> None:
    """Raises `ConfigError` where `parts` cannot load a data set."""
    wrong = why_not(info, parts)
    if wrong is None:
        return
    # no part was replaced: it is the strategy that does not fit
    if parts == plan.combination(info):
        others = [d.name for d in DATASETS.values() if why_not(d, plan.combination(d)) is None]
        why = f"it cannot load {info.name}; choose --dataset {' or '.join(others)}"
        raise ConfigError("strategy", plan.name, why)
    raise wrong


def _check_wait(config: RunConfig, inject: str, possible: list[Stage]) -> None:
    """Raises `ConfigError` where no wait can be added to the stage that `inject` names."""
    stage, _ = injection(inject)
    if config.replay == "device":
        why = "batches are replayed on the device: none is loaded or copied"
        raise ConfigError("inject", inject, why)
    if config.replay and stage != "transfer":
        why = f"batches are replayed on the {config.replay}: only their transfer is left"
        raise ConfigError("inject", inject, why)
    if stage not in possible:
        why = f"this job has no such stage; it has {', '.join(possible)}"
        raise ConfigError("inject", inject, why)


def _stages_to_wait_in(parts: Combination, info: DatasetInfo, augment: str) -> list[Stage]:
    """Returns the stages of making and moving a batch that a wait can be added to."""
    storage = STORAGES[parts.storage]
    # decodes and collates where vitprof cannot add a wait
    if LOADERS[parts.loader].decodes:
        return ["read"]
    stages: list[Stage] = ["read"]
    if storage.form == "encoded" or storage.transforms:
        stages.append("decode")
    # crop and flip of encoded photos are part of their decoding
    augments_pixels = augment == "cpu" and (storage.form == "pixels" or info.kind == "idx")
    if storage.transforms or augments_pixels:
        stages.append("transform")
    stages.append("collate")
    if parts.transfer in ("blocking", "pinned"):
        stages.append("transfer")
    return stages


def _knobs(
    config: RunConfig, plan: strategies.Strategy, parts: Combination, info: DatasetInfo
) -> dict[str, Any]:
    """Returns the value of every knob; None where parts and strategy do not take it."""
    accepted = plan.knobs(parts, info)
    of_parts = parts.knobs()
    knobs: dict[str, Any] = dict.fromkeys(KNOBS)
    for knob in KNOBS:
        requested = getattr(config, knob)
        if knob in accepted:
            knobs[knob] = accepted[knob] if requested is None else requested
        elif requested is not None and requested != plan.fixed.get(knob):
            takes = ", ".join(accepted) or "no such setting"
            why = f"strategy {plan.name} does not take it (it takes {takes})"
            raise ConfigError(knob, requested, why)
        elif knob in of_parts:
            knobs[knob] = plan.fixed.get(knob)
    if knobs["workers"] == 0:
        if parts.loader != "dataloader":
            why = f"loader {parts.loader} works with threads; give at least 1"
            raise ConfigError("workers", 0, why)
        # PyTorch refuses these without workers
        knobs |= {"prefetch_factor": None, "persistent_workers": False, "start_method": None}
    if knobs["decoder"] not in (None, *DECODERS[info.kind]):
        why = f"it cannot decode PNG; choose {', '.join(DECODERS['idx'])}"
        raise ConfigError("decoder", knobs["decoder"], why)
    return knobs


def _augmentation(config: RunConfig, parts: Combination, info: DatasetInfo) -> str:
    """Returns where augmentation happens: by default only photos are augmented.

    Raises `ConfigError` if it is to be on the CPU for samples that are not processed there.
    """
    storage = STORAGES[parts.storage]
    on_cpu = (storage.transforms or storage.form != "samples") and parts.transfer != "resident"
    if config.augment is None:
        if info.kind == "idx":
            return "off"
        return "cpu" if on_cpu and storage.form != "pixels" else "device"
    if config.augment == "cpu" and not on_cpu:
        why = "these samples are not touched on the CPU; choose off or device"
        raise ConfigError("augment", "cpu", why)
    return config.augment


def run_name(config: RunConfig) -> str:
    """Returns the name that `config` gives, or one made from its settings."""
    if config.name:
        if config.slow_drive and "throttled" not in config.name:
            return tamed_name(f"{config.name} (throttled)")
        return config.name
    words = [*_words_on_loading(config), *_words_on_training(config)]
    return tamed_name(", ".join(words))


def _words_on_loading(config: RunConfig) -> Iterator[str]:
    """Yields strategy and batch size, and what differs from the strategy's own way of loading."""
    info = dataset_info(config.dataset, config.n_images)
    plan = strategies.strategy(config.strategy)
    own = plan.combination(info)
    yield config.strategy
    if config.dataset != "digits":
        yield config.dataset
    if config.n_images not in (None, dataset_info(config.dataset).n_train):
        yield f"{config.n_images:,} images"
    for kind in PARTS:
        part = getattr(config, kind)
        if part not in (None, getattr(own, kind)):
            yield f"{kind} {part}"
    yield f"batch {config.batch_size}"
    if config.workers:
        loader = config.loader or plan.loader
        yield formats.count(config.workers, LOADERS[loader].worker)
    if config.cache_mb:
        yield f"cache {config.cache_mb:g} MB"
    if config.slow_drive:
        yield f"throttled as {config.slow_drive}"
        if config.slow_mb_s is not None:
            yield f"{config.slow_mb_s:g} MB/s"
        if config.slow_latency_ms is not None:
            yield f"{config.slow_latency_ms:g} ms a file"
    if config.augment not in ("off", None) and info.kind == "idx":
        yield f"augmented on {config.augment}"
    if config.page_cache != "as-is":
        yield f"{config.page_cache} page cache"


def _words_on_training(config: RunConfig) -> Iterator[str]:
    """Yields what differs from usual training."""
    if config.model != "tiny":
        yield config.model
    if config.precision != "fp32":
        yield config.precision
    if config.compile:
        yield f"compiled ({config.compile_mode})" if config.compile_mode else "compiled"
    if config.fused_optimizer:
        yield "fused Adam"
    if config.loader_only:
        yield "loader only"
    if config.replay:
        yield f"replayed on the {config.replay}"
    if config.inject:
        yield f"{config.inject} ms injected"
    if config.ranks > 1:
        yield f"{config.ranks} ranks"
    if config.simulated:
        yield f"on {accelerators.as_requested(config.device)}"
