"""The training frameworks that vitprof knows by the name of their package, and what each is known for."""

from collections.abc import Container, Iterable
from dataclasses import dataclass

LITTLE_S = 0.3e-3
"""What a loop of the script's own does (s) between a batch and the model: moves the batch, sets gradients to zero."""
OF_FRAMEWORKS_S = 2e-3
"""What frameworks do there besides (s): callbacks, progress bars, the batch's preparation."""


@dataclass(frozen=True, slots=True)
class Framework:
    """A training framework."""

    package: str
    little_s: float = OF_FRAMEWORKS_S
    """The time (s) between a batch and the model that is its own work, not the script's preparation of batches."""
    has_loader: bool = False
    """Whether it makes the DataLoader, or has a place of its own for it: advice is given in its words."""


FRAMEWORKS = (
    # Accelerate wraps the script's own loader in one of its own; HF Trainer, which does make the loader, uses it,
    # and would be named after it.
    Framework("accelerate"),
    Framework("fastai", has_loader=True),
    Framework("ignite"),  # gets the script's loader, as Keras does
    Framework("keras"),
    Framework("lightning", has_loader=True),
    Framework("pytorch_lightning", has_loader=True),
    Framework("skorch", has_loader=True),
    Framework("transformers", has_loader=True),
    Framework("ultralytics", has_loader=True),
)


def little_s(imported: Container[str]) -> float:
    """Returns the time (s) between a batch and the model that is not the script's preparation of batches, where these
    modules are imported.
    """
    allowed = (each.little_s for each in FRAMEWORKS if each.package in imported)
    return max(allowed, default=LITTLE_S)


def with_loader(modules: Iterable[str]) -> str:
    """Returns the first package of these modules that has the DataLoader; "" where none has."""
    known = {each.package for each in FRAMEWORKS if each.has_loader}
    packages = (name.partition(".")[0] for name in modules)
    return next((package for package in packages if package in known), "")
