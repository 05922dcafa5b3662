"""Models that are not vitprof's: torchvision's and timm's by name, and what a function of the
user's returns.
"""

import difflib
import inspect
import os
from typing import Any

import torch
from torch import Tensor, nn

from vitprof.datasets.own.specs import CODE_ALLOWED, function_of
from vitprof.errors import ConfigError, missing_package, one_line

PROBE = 2
"""Images of the batch that a model is checked with; batch normalisation needs more than one."""


def open_foreign(name: str, *, image_size: int, channels: int, classes: int) -> nn.Module:
    """Returns the model called `name` with random weights, checked with one batch of zeros.

    (2, channels, image_size, image_size) float32 must give (2, classes). Raises `ConfigError`.
    """
    library, _, of_library = name.partition(":")
    try:
        if library == "torchvision":
            model = _of_torchvision(of_library, channels, classes)
        elif library == "timm":
            model = _of_timm(of_library, channels, classes)
        else:
            model = _of_function(name, channels, classes)
    except ImportError as error:
        raise ConfigError("model", name, missing_package(error)) from error
    _check(name, model, (PROBE, channels, image_size, image_size), classes)
    return model


def _unknown(name: str, known: list[str]) -> ConfigError:
    library, _, wanted = name.partition(":")
    close = ", ".join(difflib.get_close_matches(wanted, known, n=3)) or ", ".join(known[:3])
    return ConfigError(
        "model", name, f"{library} has no such model; it has {close} and {len(known) - 3:,} more"
    )


class _Grey(nn.Module):
    """A model of colour images, given grey ones."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Any:
        return self.model(images.expand(-1, 3, -1, -1))


def _of_torchvision(wanted: str, channels: int, classes: int) -> nn.Module:
    from torchvision import models

    known = models.list_models(module=models)
    if wanted not in known:
        raise _unknown(f"torchvision:{wanted}", known)
    model: nn.Module = models.get_model(wanted, weights=None, num_classes=classes)
    return _Grey(model) if channels == 1 else model


def _of_timm(wanted: str, channels: int, classes: int) -> nn.Module:
    import timm

    known = timm.list_models()
    if wanted.partition(".")[0] not in known:
        raise _unknown(f"timm:{wanted}", known)
    model: nn.Module = timm.create_model(
        wanted, pretrained=False, num_classes=classes, in_chans=channels
    )
    return model


def _of_function(name: str, channels: int, classes: int) -> nn.Module:
    if os.environ.get(CODE_ALLOWED) != "1":
        where = f"run it from the command line, or set {CODE_ALLOWED}=1 for the dashboard"
        raise ConfigError("model", name, f"functions of yours do not run from a page: {where}")
    try:
        function = function_of(name, "model")
        takes = inspect.signature(function).parameters
        offered = {"num_classes": classes, "channels": channels}
        model = function(**{key: value for key, value in offered.items() if key in takes})
    except (ConfigError, ImportError):
        raise
    except Exception as error:
        # It is a user's code: it may raise anything.
        raise ConfigError("model", name, f"its code failed: {one_line(error)}") from error
    if not isinstance(model, nn.Module):
        raise ConfigError(
            "model", name, f"it returns {type(model).__name__}, not a torch.nn.Module"
        )
    if channels == 1 and "channels" not in takes:
        return _Grey(model)
    return model


def _check(name: str, model: nn.Module, shape: tuple[int, ...], classes: int) -> None:
    """Raises `ConfigError` for a model that does not take these images, or gives no scores of the
    classes.
    """
    before = {key: buffer.clone() for key, buffer in model.named_buffers()}
    size = f"images of {shape[1]} x {shape[2]} x {shape[3]}"
    try:
        # Dropout draws random numbers: without a fork, the run's own would be others.
        with torch.no_grad(), torch.random.fork_rng():
            scores = model(torch.zeros(shape))
    except Exception as error:
        # Layers raise whatever they stumble over.
        raise ConfigError("model", name, f"it does not take {size}: {one_line(error)}") from error
    if not isinstance(scores, Tensor) or scores.shape != (shape[0], classes):
        result = str(tuple(scores.shape)) if isinstance(scores, Tensor) else type(scores).__name__
        raise ConfigError(
            "model", name, f"of {shape[0]} {size} it makes {result}, not {(shape[0], classes)}"
        )
    # Running means have seen the zeros.
    for key, buffer in model.named_buffers():
        buffer.copy_(before[key])
