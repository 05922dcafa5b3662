"""What to try next: settings of vitprof that are legal, not in use yet, and aimed at the cause."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vitprof import errors, formats
from vitprof.analysis.verdict.advice_rules import Situation, advice_of_rules, own_script_advice
from vitprof.config import KNOBS, PARTS, RunConfig, catalog, estimates, own_script, parts, strategies
from vitprof.config.resolve import resolve
from vitprof.recording.verdict import Advice

MAX_ADVICE = 3
RAM_FRAC = 0.5
"""Share of the machine's memory that a data set may take: the rest is for model, workers and the page cache."""
RESIDENT = "resident"
"""The transfer of strategy device: nothing is copied while training, so there is no transfer to keep or to choose."""
DEVICE_FRAC = 0.5
"""Share of the device's memory that a resident data set may take: the rest is for model and activations."""


@dataclass(frozen=True)
class Alternative:
    """Another way to run the same job, with its throughput."""

    settings: Mapping[str, Any]
    """Fields of `RunConfig` to change in the run's own config (`apply`)."""
    samples_per_s: float
    low: float
    high: float
    measured: bool


def apply(config: RunConfig, settings: Mapping[str, Any]) -> RunConfig:
    """Returns `config` with `settings` changed, and the same training: random augmentation moves to the device if
    samples are finished beforehand, a transfer that was chosen stays unless nothing is copied, an injected wait without
    a stage goes. Raises `ConfigError`.
    """
    changes: dict[str, Any] = {"name": ""}
    info = catalog.dataset_info(config.dataset, config.n_images)
    if "strategy" in settings:
        changes |= dict.fromkeys((*PARTS, *KNOBS))
        combination = strategies.strategy(str(settings["strategy"])).combination(info)
        chosen = _chosen_transfer(config)
        if chosen and "transfer" not in settings and combination.transfer != RESIDENT:
            combination = replace(combination, transfer=chosen)
            changes["transfer"] = chosen
    else:
        combination = parts.Combination(**{kind: settings.get(kind, getattr(config, kind)) for kind in PARTS})
        changes |= dict.fromkeys(set(KNOBS) - set(combination.knobs()))
    storage = parts.STORAGES[combination.storage]
    by_sample = storage.form == "encoded" or storage.transforms
    if "strategy" in settings and config.augment == "cpu" and not by_sample:
        changes["augment"] = "device"
    if not storage.on_disk or combination.location == "ram-disk":
        changes["page_cache"] = "as-is"
    return _without_idle_injection(replace(config, **(changes | dict(settings))))


def _chosen_transfer(config: RunConfig) -> str | None:
    info = catalog.dataset_info(config.dataset, config.n_images)
    own = strategies.strategy(config.strategy).combination(info).transfer
    return config.transfer if config.transfer not in (own, RESIDENT) else None


def _without_idle_injection(config: RunConfig) -> RunConfig:
    try:
        resolve(config)
    except errors.ConfigError as error:
        if error.field == "inject":
            return replace(config, inject=None)
    return config


def advise(
    situation: Situation,
    *,
    alternatives: Sequence[Alternative] = (),
    possible: Callable[[RunConfig], bool] | None = None,
) -> tuple[Advice, ...]:
    """Returns at most three things to try, the best first: `alternatives` surely above the run's throughput, the
    fastest first, then rules that lead to no job known to be slower. A measured figure counts before a predicted one.
    `possible` says whether a config can run here; without it nothing is advised that needs a package. Settings can be
    resolved, are new, and fit into memory as far as is known.
    """
    if own_script.is_own_script(situation.config):
        return tuple(own_script_advice(situation))[:MAX_ADVICE]
    known: dict[tuple[Any, ...], Alternative] = {}
    for alternative in sorted(alternatives, key=lambda a: a.measured):  # measured ones replace predicted ones
        if (resolved := _resolved(situation.config, alternative.settings)) is not None:
            known[_key(resolved)] = alternative
    faster = sorted(
        (a for a in known.values() if a.low > situation.samples_per_s), key=lambda a: a.samples_per_s, reverse=True
    )
    candidates = [*(_advice_on(a, situation) for a in faster), *advice_of_rules(situation)]
    chosen: list[Advice] = []
    seen = {_key(situation.config)}
    for advice in candidates:
        if not advice.settings:
            if advice.words not in [a.words for a in chosen]:
                chosen.append(advice)
            continue
        config = _resolved(situation.config, advice.settings)
        if config is None or _key(config) in seen or not _fits(config, situation):
            continue
        if possible is not None and not possible(config):
            continue
        if possible is None and parts.LOADERS[config.loader or ""].packages:
            continue
        if math.isnan(advice.samples_per_s) and _key(config) in known:
            continue  # tried or predicted, and not faster
        seen.add(_key(config))
        chosen.append(advice)
    return tuple(chosen[:MAX_ADVICE])


def _advice_on(alternative: Alternative, situation: Situation) -> Advice:
    times = alternative.samples_per_s / situation.samples_per_s
    how = "measured" if alternative.measured else "predicted, not run"
    interval = f"{formats.number(alternative.low)}-{formats.number(alternative.high)}"
    figure = f"{formats.number(alternative.samples_per_s, 'samples/s')} ({interval}, {how})"
    names = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in alternative.settings.items())
    reason = f"{formats.number(times)}x as fast as this run's {formats.number(situation.samples_per_s, 'samples/s')}"
    return Advice(words=f"{names}: {figure}", reason=reason, **vars(alternative))


def _resolved(config: RunConfig, settings: Mapping[str, Any]) -> RunConfig | None:
    try:
        return resolve(apply(config, settings))
    except errors.ConfigError:
        return None


def _key(config: RunConfig) -> tuple[Any, ...]:
    others = ("augment", "batch_size", "precision", "compile", "compile_mode", "fused_optimizer", "page_cache")
    names = (*PARTS, *KNOBS, *others)
    return tuple(getattr(config, name) for name in names)


def _fits(config: RunConfig, situation: Situation) -> bool:
    info = catalog.dataset_info(config.dataset, config.n_images)
    needs, there = (
        estimates.footprint(parts.Combination(*(getattr(c, kind) for kind in PARTS)), info, c.cache_mb)
        for c in (config, situation.config)
    )
    if needs == there:
        return True
    ram, device = situation.facts.get("memory_bytes"), situation.facts.get("gpu_memory_bytes")
    free = situation.facts.get("gpu_memory_free_bytes")  # other programs may have the rest
    device = device if free is None else free
    if ram and needs.ram_bytes > RAM_FRAC * float(ram):
        return False
    if not needs.device_bytes or situation.on_cpu:
        return True
    return bool(device) and needs.device_bytes <= DEVICE_FRAC * float(device or 0)
