"""The config of a run that is a user's own training script: what is known of it, in the words of all other runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from vitprof.config.run_config import CHOICES, RunConfig
from vitprof.errors import ConfigError
from vitprof.names import tamed_name

OWN_SCRIPT = "own-script"
"""Stands for the strategy and the model of such a run, neither of which vitprof chose."""
UNKNOWN_DATA = "own-data"
KNOBS = {
    "batch_size": "batch_size",
    "num_workers": "workers",
    "prefetch_factor": "prefetch_factor",
    "pin_memory": "pin_memory",
    "persistent_workers": "persistent_workers",
}
"""Arguments of a DataLoader -> the settings of a run that mean the same."""


def is_own_script(config: RunConfig) -> bool:
    """Returns whether the run is a user's own script, of which nothing can be set from here."""
    return config.strategy == OWN_SCRIPT


def own_config(name: str, **more: Any) -> RunConfig:
    """Returns the config of a script of which nothing is known yet but its name, with `more` of its fields."""
    return RunConfig(
        name=tamed_name(name),
        strategy=OWN_SCRIPT,
        model=OWN_SCRIPT,
        dataset=UNKNOWN_DATA,
        loader="dataloader",
        batch_size=1,
        evaluate=False,
        **more,
    )


def with_loader(config: RunConfig, environment: Mapping[str, Any]) -> RunConfig:
    """Returns `config` with what the script's process told of its device and its train loader ("watched").

    What does not fit into a setting's bounds stays as it is: the run is not what vitprof would have started.
    """
    told = environment.get("watched") or {}
    changes: dict[str, Any] = {setting: told.get(argument) for argument, setting in KNOBS.items()}
    if told.get("start_method") in CHOICES["start_method"]:
        changes["start_method"] = told["start_method"]
    changes["dataset"] = told.get("dataset")
    changes["device"] = environment.get("device")
    for field, value in changes.items():
        if value is None:
            continue
        try:
            config = dataclasses.replace(config, **{field: value})
        except ConfigError:
            continue
    return config
