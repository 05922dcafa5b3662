"""The config of a run that is a user's own training script: what is known of it, in the fields of any other run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from vitprof.config.run_config import CHOICES, RunConfig
from vitprof.errors import ConfigError
from vitprof.names import tamed_name

OWN_SCRIPT = "own-script"
"""Strategy and model of such a run, neither of which vitprof chose."""
UNKNOWN_DATA = "own-data"
KNOBS = {
    "batch_size": "batch_size",
    "num_workers": "workers",
    "prefetch_factor": "prefetch_factor",
    "pin_memory": "pin_memory",
    "persistent_workers": "persistent_workers",
}
"""Argument of a DataLoader -> the setting of a run that means the same."""


def is_own_script(config: RunConfig) -> bool:
    """Returns whether the run is a user's own script, none of whose settings vitprof chose."""
    return config.strategy == OWN_SCRIPT


def own_config(name: str, **more: Any) -> RunConfig:
    """Returns the config of a script of which only the name is known yet; `more` sets other fields."""
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
    """Returns `config` with the device and the train loader ("watched") that the script's process reported.

    A value outside a setting's bounds is left out: a script may use values that vitprof would not.
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
