"""Built-in runs on the null device, through the real `train`. Each function is the life of a fork."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.engine_fixtures import Recorded, never, small_digits
from tests.nullcuda.busy import Busy
from vitprof.config import RunConfig
from vitprof.engine.train import train
from vitprof.errors import one_line

SETTINGS: dict[str, Any] = {"device": "cuda:0", "strategy": "memory", "batch_size": 32, "threads": 1, "evaluate": False}
WARMUP = 5
_KEPT: list[Exception] = []


def _train(settings: dict[str, Any], card: int, stop: Callable[[], bool] = never) -> dict[str, Any]:
    events, busy = Recorded(), Busy()
    noted: list[tuple[float, float]] = []

    def note() -> bool:
        noted.append((time.perf_counter(), busy.seconds(card)))
        return stop()

    train(RunConfig(**(SETTINGS | settings)), events, note)
    (since_s, busy_since_s), (until_s, busy_until_s) = noted[WARMUP], noted[-1]
    steps = events.steps
    kept = (steps["t_start_s"] >= since_s) & (steps["t_start_s"] < until_s)
    return {
        "steps": {name: values[kept].tolist() for name, values in steps.items()},
        "n": len(kept),
        "busy_s": busy_until_s - busy_since_s,
        "wall_s": until_s - since_s,
        "facts": events.environments[0] | events.values,
    }


def runs(*, home: str, settings: list[dict[str, Any]], card: int = 0) -> str:
    """Trains one after another. Returns steps after the warm-up, and the wall clock and a card's work meanwhile."""
    torch.cuda.init()  # makes the memory that processes share
    torch.zeros(1, device=settings[0].get("device", "cuda:0"))
    with small_digits(Path(home)):
        return json.dumps([_train(each, card) for each in settings])


def error(*, home: str, settings: dict[str, Any], fill_at: int = 0) -> str:
    """Returns the line that a run fails with. From step `fill_at` on something else holds the rest of the memory."""
    kept: list[torch.Tensor] = []
    steps = 0

    def fill() -> bool:
        nonlocal steps
        steps += 1
        if steps == fill_at:
            torch.cuda.empty_cache()
            kept.append(torch.empty(torch.cuda.mem_get_info()[0] - (1 << 20), dtype=torch.uint8, device="cuda"))
        return False

    with small_digits(Path(home)):
        try:
            train(RunConfig(**(SETTINGS | settings)), Recorded(), fill)
        except Exception as failure:
            _KEPT.append(failure)  # its tensors: PyTorch aborts where it cannot free pinned memory
            return f"{steps} {one_line(failure)}"
    return "none"


def forked(*, home: str) -> str:
    """Returns the line that a run fails with in a fork of a process that has used CUDA."""
    torch.zeros(1, device="cuda")
    line = Path(home) / f"forked.{os.getpid()}"
    pid = os.fork()
    if pid == 0:
        line.write_text(error(home=home, settings={"steps": 2}))
        os._exit(0)
    os.waitpid(pid, 0)
    return line.read_text()
