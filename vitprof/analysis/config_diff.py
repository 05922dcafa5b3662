"""What differs between the settings of runs, and which of the values nobody had to set."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vitprof.config import CONFIG_COLUMNS, GROUPS, RunConfig
from vitprof.errors import VitprofError
from vitprof.resolve import resolve

DEFAULTS: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(RunConfig)}
GROUPED: tuple[str, ...] = tuple(name for names in GROUPS.values() for name in names if name != "name")
ORDER: tuple[str, ...] = tuple(dict.fromkeys((*GROUPED, *CONFIG_COLUMNS)))
"""All settings but the run's name, as a person looks for them."""


@dataclass(frozen=True)
class Cell:
    """A setting of one run."""

    value: Any
    """As the run used it; None where it is not set, or no part of the strategy takes it."""
    default: bool
    """Leaving it out gives the same value: the strategy's, the model's or vitprof's own. False for None."""
    differs: bool
    """Not the baseline's value."""


@dataclass(frozen=True)
class Difference:
    """A setting that is not the same in all runs."""

    field: str
    """Its name in `RunConfig`."""
    cells: tuple[Cell, ...]
    """One for each run, in the order given."""


def config_differences(configs: Sequence[RunConfig], baseline: int = 0) -> tuple[Difference, ...]:
    """The settings in which resolved `configs` differ, in the order of `ORDER`; empty for fewer than two runs."""
    found = []
    for name in ORDER:
        values = [getattr(config, name) for config in configs]
        if all(value == values[0] for value in values):
            continue
        cells = (
            Cell(value, _is_default(config, name), value != values[baseline])
            for config, value in zip(configs, values, strict=True)
        )
        found.append(Difference(name, tuple(cells)))
    return tuple(found)


def _is_default(config: RunConfig, name: str) -> bool:
    value = getattr(config, name)
    if value is None:
        return False
    try:
        return bool(getattr(resolve(dataclasses.replace(config, **{name: DEFAULTS[name]})), name) == value)
    except VitprofError:  # it cannot be left out, or this version knows the strategy no more
        return False
