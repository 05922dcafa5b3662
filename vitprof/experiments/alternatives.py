"""Other ways to run the job of a profiled run: with another strategy, or with that strategy's loading alone."""

from __future__ import annotations

import dataclasses

from vitprof.config import KNOBS, PARTS, RunConfig
from vitprof.config.availability import Machine, look_around, why_unavailable
from vitprof.config.catalog import dataset_info
from vitprof.config.resolve import resolve
from vitprof.config.strategies import STRATEGIES
from vitprof.errors import ConfigError
from vitprof.store import StoredRun

MICRO_S = 2.0
"""Seconds of a loader-only run: 40 batches of 50 ms."""
USUAL = ("per-sample", "workers", "threads", "preprocessed", "memory", "memory-ahead", "device")
"""Strategies to predict unless others are given: each loads in a different way, and needs no copy of the data set."""


def usual_strategies(run: StoredRun, machine: Machine | None = None) -> list[str]:
    """Returns the strategies of `USUAL` that can run here, without the run's own."""
    machine = machine or look_around()
    info = dataset_info(run.config.dataset, run.config.n_images)
    on_cpu = device_of(run) == "cpu"  # where "device" is the same as "memory"
    return [
        name
        for name in USUAL
        if name != run.config.strategy
        and not (name == "device" and on_cpu)
        and not why_unavailable(STRATEGIES[name], info, machine)
    ]


def alternative(run: StoredRun, strategy: str) -> RunConfig:
    """Returns the job of `run` with another strategy and that one's own settings, resolved. Raises `ConfigError`."""
    values = run.config.to_dict() | dict.fromkeys((*PARTS, *KNOBS))
    values |= {"strategy": strategy, "name": "", "device": device_of(run), "replay": None}
    # Keeps the run's augmentation, page cache and injected wait as far as the strategy can do them.
    asked = run.config.augment
    elsewhere: tuple[str | None, ...] = (asked,) if asked in ("off", None) else (asked, "device", "cpu")
    failed: ConfigError | None = None
    for page_cache in dict.fromkeys((run.config.page_cache, "as-is")):
        for inject in dict.fromkeys((run.config.inject, None)):
            for augment in elsewhere:
                try:
                    asked_for = {"page_cache": page_cache, "inject": inject, "augment": augment}
                    return resolve(RunConfig.from_dict(values | asked_for))
                except ConfigError as error:
                    failed = error
    assert failed is not None
    raise failed


def micro_config(config: RunConfig, seconds: float = MICRO_S) -> RunConfig:
    """Returns the loader-only run that goes with the job `config`."""
    return dataclasses.replace(
        config, epochs=None, steps=None, seconds=seconds, loader_only=True, evaluate=False, name=""
    )


def device_of(run: StoredRun) -> str:
    """Returns the device that the run trained on, also where its config says "auto"."""
    return str(run.environment.get("device") or run.config.device)
