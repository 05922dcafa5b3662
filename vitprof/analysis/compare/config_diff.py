"""What differs between the settings of runs, and which of their values are defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vitprof.config import CONFIG_COLUMNS, GROUPS, KNOBS, PARTS, RunConfig
from vitprof.config.parts import Combination
from vitprof.config.resolve import resolve
from vitprof.errors import ConfigError, VitprofError

DEFAULTS: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(RunConfig)}
GROUPED: tuple[str, ...] = tuple(name for names in GROUPS.values() for name in names if name != "name")
ORDER: tuple[str, ...] = tuple(dict.fromkeys((*GROUPED, *CONFIG_COLUMNS)))
"""All settings but the run's name, in the order of `GROUPS`."""


@dataclass(frozen=True)
class Cell:
    """A setting of one run."""

    value: Any
    """As the run used it; None if it is not set, or no part of the strategy takes it."""
    default: bool
    """Whether leaving it out gives the same value: the strategy's, the model's or vitprof's own. False for None."""
    differs: bool
    """Whether it is another value than the baseline's; False if one of the two does not take the setting."""


@dataclass(frozen=True)
class Difference:
    """A setting that is not the same in all runs."""

    field: str
    """Its name in `RunConfig`."""
    cells: tuple[Cell, ...]
    """One for each run, in the order given."""


def config_differences(configs: Sequence[RunConfig], baseline: int = 0) -> tuple[Difference, ...]:
    """Returns the settings in which resolved `configs` differ, in the order of `ORDER`; empty for fewer than two runs.

    A setting that only some of them take is left out if those all have it at the same default: it says no more than
    their strategies or data sets do.
    """
    found = []
    for name in ORDER:
        values = [getattr(config, name) for config in configs]
        if all(value == values[0] for value in values):
            continue
        takes = [_takes(config, name) for config in configs]
        cells = [
            Cell(value, _is_default(config, name), value != values[baseline] and taken and takes[baseline])
            for config, value, taken in zip(configs, values, takes, strict=True)
        ]
        told = [cell for cell, taken in zip(cells, takes, strict=True) if taken]
        if all(takes) or any(not cell.default or cell.value != told[0].value for cell in told):
            found.append(Difference(name, tuple(cells)))
    return tuple(found)


def _takes(config: RunConfig, name: str) -> bool:
    """Returns whether the setting has a meaning in the run. It may still be None, as the bandwidth of a slow drive."""
    if getattr(config, name) is not None or name not in (*KNOBS, "n_images"):
        return True
    try:
        knobs = Combination(**{kind: getattr(config, kind) for kind in PARTS}).knobs()
    except ConfigError:  # a part that this version does not know
        return False
    return name in knobs and knobs[name] is None


def _is_default(config: RunConfig, name: str) -> bool:
    value = getattr(config, name)
    if value is None:
        return False
    try:
        return bool(getattr(resolve(dataclasses.replace(config, **{name: DEFAULTS[name]})), name) == value)
    except VitprofError:  # it cannot be left out, or this version no longer knows the strategy
        return False
