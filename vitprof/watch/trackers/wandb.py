"""Weights & Biases: `wandb.run`. Live figures come with the script's next own row: its steps stay as they are."""

import sys
from collections.abc import Mapping
from typing import Any


def active(thread: int) -> dict[str, Any] | None:
    run = getattr(sys.modules.get("wandb"), "run", None)
    if run is None or run.disabled:
        return None
    return {"run_id": run.id, "path": run.path, "offline": bool(run.offline), "local": True}


def log(run: Mapping[str, Any], figures: Mapping[str, float], step: int) -> None:
    current = sys.modules["wandb"].run
    if (
        current is not None and current.id == run["run_id"]
    ):  # nothing can be added to one that has ended
        current.log(dict(figures), commit=False)


def conclude(
    run: Mapping[str, Any], figures: Mapping[str, float], words: Mapping[str, str]
) -> None:
    """A run that was offline has ended with its process: a second part of it would replace the first on the server."""
    if run["offline"]:
        sys.exit("nothing can be added to an offline run once its script has ended")
    import wandb

    summary: Any = wandb.Api().run(run["path"]).summary
    summary.update({f"vitprof/whole_run/{name}": value for name, value in figures.items()})
    summary.update({f"vitprof/{name}": text for name, text in words.items()})
