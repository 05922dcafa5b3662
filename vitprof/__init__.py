"""vitprof: is my GPU starved by data loading, by which part, and what would a fix gain?

In your own training script: `for batch in vitprof.watch(loader)`. See docs/watching.md. Recorded runs:
`vitprof.runs()`, `vitprof.run(1)`. See docs/python.md.
"""

__version__ = "0.1.0"

TYPE_CHECKING = False
"""Type checkers treat it as true. `typing` is not imported for it, so that importing vitprof imports nothing else."""
if TYPE_CHECKING:
    from vitprof.notebook import run as run
    from vitprof.notebook import runs as runs
    from vitprof.watch.api import step as step
    from vitprof.watch.api import watch as watch
    from vitprof.watch.callbacks.lightning import LightningCallback as LightningCallback
    from vitprof.watch.callbacks.transformers import TrainerCallback as TrainerCallback

_MODULES = {
    "run": "vitprof.notebook",
    "runs": "vitprof.notebook",
    "step": "vitprof.watch.api",
    "LightningCallback": "vitprof.watch.callbacks.lightning",
    "TrainerCallback": "vitprof.watch.callbacks.transformers",
}
"""Public name -> the module that it is imported from on first access."""


def __getattr__(name: str) -> object:
    if name != "watch" and name not in _MODULES:
        raise AttributeError(f"module 'vitprof' has no attribute {name!r}")
    import importlib

    if name == "watch":
        return importlib.import_module("vitprof.watch")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), "watch", *_MODULES])
