"""The model and the batch that fit a user's own images, where a command line names none."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from vitprof.cli.common import terminal
from vitprof.config import fitting
from vitprof.datasets.catalog import DATASETS
from vitprof.telemetry.visible import visible_gpus


@dataclass(frozen=True)
class Fitted:
    """What a data set of the user's gets; nothing for one of vitprof's, which the defaults fit."""

    settings: dict[str, Any] = field(default_factory=dict)
    """Fields of `RunConfig`."""
    words: str = ""
    """What they are, in a line."""

    def show(self) -> None:
        """Says what they are: on standard error, as standard output may be one JSON object."""
        if self.words:
            terminal.show(self.words, console=terminal.err)


def find_fitting(settings: Mapping[str, Any], *, named: Collection[str]) -> Fitted:
    """Returns those of `fitting.SETTINGS` that the user has not named.

    Args:
        settings: fields of `RunConfig`, at least `dataset` and `device`. Nothing is found for a
            data set that is unknown: `resolve` has the message.
        named: names of settings that the user has given. They stay.
    """
    info = DATASETS.get(settings["dataset"])
    taken = [name for name in fitting.SETTINGS if name not in named]
    if info is None or not info.own_bytes or not taken:
        return Fitted()
    device = settings["device"]
    on_cpu = device == "cpu" or (device == "auto" and not visible_gpus())
    fit = fitting.fit(info, on_cpu=on_cpu)
    words = f"{fit.words(info, taken)}, as none was named"
    return Fitted({name: getattr(fit, name) for name in taken}, words)
