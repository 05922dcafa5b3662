"""MLflow: the run that `mlflow.start_run` or autologging began. Runs of its client alone are not known to be active."""

import sys
import time
from collections.abc import Mapping
from typing import Any


def active(thread: int) -> dict[str, Any] | None:
    fluent = sys.modules.get("mlflow.tracking.fluent")
    if fluent is None:
        return None
    stack = fluent._active_run_stack  # `active_run()` knows only those of the thread that asks
    of_threads = (
        stack.get_all_thread_values()
        if hasattr(stack, "get_all_thread_values")
        else {thread: stack}
    )
    runs = of_threads.get(thread) or next(filter(None, of_threads.values()), None)
    if not runs:
        return None
    uri = sys.modules["mlflow"].get_tracking_uri()
    return {
        "run_id": runs[-1].info.run_id,
        "uri": uri,
        "local": uri.startswith(("sqlite:", "file:", "/", ".")),
    }


def log(run: Mapping[str, Any], figures: Mapping[str, float], step: int) -> None:
    _add(run, figures, {}, step)


def conclude(
    run: Mapping[str, Any], figures: Mapping[str, float], words: Mapping[str, str]
) -> None:
    _add(run, {f"vitprof/whole_run/{name}": value for name, value in figures.items()}, words, 0)


def _add(
    run: Mapping[str, Any], figures: Mapping[str, float], words: Mapping[str, str], step: int
) -> None:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, RunTag

    now_ms = int(time.time() * 1e3)
    metrics = [Metric(name, value, now_ms, step) for name, value in figures.items()]
    tags = [RunTag(f"vitprof.{name}", text) for name, text in words.items()]
    MlflowClient(run["uri"]).log_batch(run["run_id"], metrics=metrics, tags=tags)
