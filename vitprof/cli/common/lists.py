"""Parsers of options that take several values, separated by commas, and of times."""

from __future__ import annotations

from vitprof.cli.common.terminal import reader
from vitprof.config import RunConfig
from vitprof.config.strategies import STRATEGIES
from vitprof.errors import ConfigError

SECONDS = {"": 1, "s": 1, "min": 60, "h": 3600}


def texts(name: str, given: str, allowed: str = "give values separated by commas") -> tuple[str, ...]:
    """Returns the values of option `name`, at least one. Raises `ConfigError` with `allowed` if there is none."""
    found = tuple(part.strip() for part in given.split(",") if part.strip())
    if not found:
        raise ConfigError(name, given, allowed)
    return found


def whole(name: str, given: str) -> tuple[int, ...]:
    """Returns the whole numbers of option `name`, at least one. Raises `ConfigError` for anything else."""
    read = reader(name, int, "give whole numbers separated by commas")
    return tuple(read(part) for part in texts(name, given))


def read_seconds(text: str) -> float:
    """Returns the seconds of a text such as 90, 90s, 10min or 2h. Raises `ValueError` for any other."""
    number = text.strip().rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = text.strip()[len(number) :].strip()
    if unit not in SECONDS:
        raise ValueError(f"{unit} is no unit of time")
    return float(number) * SECONDS[unit]


def strategies_that_run(config: RunConfig) -> tuple[str, ...]:
    """Returns the names of the strategies that can load the config's data set here: what "all" means."""
    from vitprof.config.availability import look_around, why_unavailable
    from vitprof.config.catalog import dataset_info

    machine, info = look_around(), dataset_info(config.dataset, config.n_images)
    return tuple(s.name for s in STRATEGIES.values() if not why_unavailable(s, info, machine))
