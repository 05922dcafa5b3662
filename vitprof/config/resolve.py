"""Resolves the config that a person gave: fills in defaults, refuses what cannot work, and makes a name for the run."""

from dataclasses import asdict, replace
from typing import Any

from vitprof.config import KNOBS, PARTS, RunConfig, accelerators, injection, own_script, strategies
from vitprof.config.catalog import DATASETS, DatasetInfo, dataset_info, model_preset
from vitprof.config.parts import DECODERS, LOADERS, STORAGES, Combination, why_not
from vitprof.config.ranks import check_ranks
from vitprof.errors import ConfigError
from vitprof.names import tamed_name
from vitprof.recording.columns import Stage


def resolve(config: RunConfig) -> RunConfig:
    """Returns `config`, checked against its data set, model and strategy, with the defaults that depend on them: its
    parts and every knob that they take have a value, every other knob is None. Raises `ConfigError`.
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
    if wrong := why_not(info, parts):
        others = [
            other.name
            for other in DATASETS.values()
            if why_not(other, plan.combination(other)) is None
        ]
        # no part was replaced: it is the strategy that does not fit
        if parts == plan.combination(info):
            why = f"it cannot load {info.name}; choose --dataset {' or '.join(others)}"
            raise ConfigError("strategy", plan.name, why)
        raise wrong
    if config.page_cache != "as-is" and (
        not STORAGES[parts.storage].on_disk or parts.location == "ram-disk"
    ):
        raise ConfigError(
            "page_cache",
            config.page_cache,
            "the samples are in memory while training; choose as-is",
        )
    check_ranks(config, info, parts.loader)
    augment = _augmentation(config, parts, info)
    if config.inject is not None:
        stage = injection(config.inject)[0]
        possible = _stages_to_wait_in(parts, info, augment)
        if config.replay == "device" or (config.replay and stage != "transfer"):
            left = (
                "none is loaded or copied"
                if config.replay == "device"
                else "only their transfer is left"
            )
            raise ConfigError(
                "inject", config.inject, f"batches are replayed on the {config.replay}: {left}"
            )
        if stage not in possible:
            raise ConfigError(
                "inject", config.inject, f"this job has no such stage; it has {', '.join(possible)}"
            )
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


def _stages_to_wait_in(parts: Combination, info: DatasetInfo, augment: str) -> list[Stage]:
    """Returns the stages of making and moving a batch that a wait can be added to."""
    storage = STORAGES[parts.storage]
    # decodes and collates where vitprof cannot add a wait
    if LOADERS[parts.loader].decodes:
        return ["read"]
    possible: dict[Stage, bool] = {
        "read": True,
        "decode": storage.form == "encoded" or storage.transforms,
        # crop and flip of encoded photos are part of their decoding
        "transform": storage.transforms
        or (augment == "cpu" and (storage.form == "pixels" or info.kind == "idx")),
        "collate": True,
        "transfer": parts.transfer in ("blocking", "pinned"),
    }
    return [stage for stage, here in possible.items() if here]


def _knobs(
    config: RunConfig, plan: strategies.Strategy, parts: Combination, info: DatasetInfo
) -> dict[str, Any]:
    taken = plan.knobs(parts, info)
    knobs: dict[str, Any] = {}
    for knob in KNOBS:
        given = getattr(config, knob)
        if knob in taken:
            knobs[knob] = taken[knob] if given is None else given
        elif given is not None and given != plan.fixed.get(knob):
            takes = ", ".join(taken) or "no such setting"
            raise ConfigError(
                knob, given, f"strategy {plan.name} does not take it (it takes {takes})"
            )
        else:
            knobs[knob] = plan.fixed.get(knob) if knob in parts.knobs() else None
    if knobs["workers"] == 0 and parts.loader != "dataloader":
        raise ConfigError(
            "workers", 0, f"loader {parts.loader} works with threads; give at least 1"
        )
    if knobs["workers"] == 0:  # PyTorch refuses these without workers
        knobs |= {"prefetch_factor": None, "persistent_workers": False, "start_method": None}
    if knobs["decoder"] not in (None, *DECODERS[info.kind]):
        raise ConfigError(
            "decoder",
            knobs["decoder"],
            f"it cannot decode PNG; choose {', '.join(DECODERS['idx'])}",
        )
    return knobs


def _augmentation(config: RunConfig, parts: Combination, info: DatasetInfo) -> str:
    """Returns where augmentation happens: by default only photos are augmented."""
    storage = STORAGES[parts.storage]
    on_cpu = (storage.transforms or storage.form != "samples") and parts.transfer != "resident"
    if config.augment is None:
        if info.kind == "idx":
            return "off"
        return "cpu" if on_cpu and storage.form != "pixels" else "device"
    if config.augment == "cpu" and not on_cpu:
        raise ConfigError(
            "augment", "cpu", "these samples are not touched on the CPU; choose off or device"
        )
    return config.augment


def run_name(config: RunConfig) -> str:
    """Returns the name that `config` gives, or one made from its settings."""
    if config.name:
        throttled = config.slow_drive and "throttled" not in config.name
        return tamed_name(f"{config.name} (throttled)") if throttled else config.name
    info = dataset_info(config.dataset, config.n_images)
    plan = strategies.strategy(config.strategy)
    own = plan.combination(info)
    given = {kind: getattr(config, kind) for kind in PARTS}
    replaced = [
        f"{kind} {name}" for kind, name in given.items() if name not in (None, getattr(own, kind))
    ]
    loader = config.loader or plan.loader
    threads = "thread" if LOADERS[loader].made_by == "threads" else "worker"
    words = [
        config.strategy,
        config.dataset if config.dataset != "digits" else "",
        f"{config.n_images:,} images"
        if config.n_images not in (None, dataset_info(config.dataset).n_train)
        else "",
        *replaced,
        f"batch {config.batch_size}",
        f"{config.workers} {threads}{'s' if config.workers > 1 else ''}" if config.workers else "",
        f"cache {config.cache_mb:g} MB" if config.cache_mb else "",
        _throttled(config),
        f"augmented on {config.augment}"
        if config.augment not in ("off", None) and info.kind == "idx"
        else "",
        f"{config.page_cache} page cache" if config.page_cache != "as-is" else "",
        config.model if config.model != "tiny" else "",
        config.precision if config.precision != "fp32" else "",
        f"compiled{f' ({config.compile_mode})' if config.compile_mode else ''}"
        if config.compile
        else "",
        "fused Adam" if config.fused_optimizer else "",
        "loader only" if config.loader_only else "",
        f"replayed on the {config.replay}" if config.replay else "",
        f"{config.inject} ms injected" if config.inject else "",
        f"{config.ranks} ranks" if config.ranks > 1 else "",
        f"on {accelerators.as_asked(config.device)}" if config.simulated else "",
    ]
    return tamed_name(", ".join(filter(None, words)))


def _throttled(config: RunConfig) -> str:
    if not config.slow_drive:
        return ""
    rate = "" if config.slow_mb_s is None else f", {config.slow_mb_s:g} MB/s"
    latency = "" if config.slow_latency_ms is None else f", {config.slow_latency_ms:g} ms a file"
    return f"throttled as {config.slow_drive}{rate}{latency}"
