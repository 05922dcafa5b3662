"""Built-in runs and cases of the self-test on the null device. Each function is the life of a fork."""

import contextlib
import functools
import io
import itertools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from tests.engine_fixtures import Recorded, small_digits
from tests.nullcuda.busy import Busy
from vitprof.config import RunConfig
from vitprof.engine.train import train
from vitprof.errors import one_line
from vitprof.selftest.gpu import device_cases, job_cases
from vitprof.selftest.gpu.driver import device_facts, open_bench, run_case
from vitprof.selftest.report import plain

SETTINGS: dict[str, Any] = {
    "device": "cuda:0",
    "strategy": "memory",
    "batch_size": 32,
    "threads": 1,
    "evaluate": False,
}
WARMUP = 5
_KEPT: list[Exception] = []


def _train(settings: dict[str, Any], card: int, since: int) -> dict[str, Any]:
    events, busy = Recorded(), Busy()
    noted: list[tuple[float, float]] = []

    def note() -> bool:
        noted.append((time.perf_counter(), busy.seconds(card)))
        return False

    train(RunConfig(**(SETTINGS | settings)), events, note)
    (since_s, busy_since_s), (until_s, busy_until_s) = noted[since], noted[-1]
    steps = events.steps
    kept = (steps["t_start_s"] >= since_s) & (steps["t_start_s"] < until_s)
    return {
        "steps": {name: values[kept].tolist() for name, values in steps.items()},
        "n": len(kept),
        "kernel_s": steps["kernel_s"][np.isfinite(steps["kernel_s"])].tolist(),
        "busy_s": busy_until_s - busy_since_s,
        "wall_s": until_s - since_s,
        "idle_s": [  # from one step to the next
            (t - since_s) - (busy_s - busy_since_s)
            for (since_s, busy_since_s), (t, busy_s) in itertools.pairwise(noted[since:])
        ],
        "facts": events.environments[0] | events.values,
    }


def runs(
    *,
    home: str,
    settings: list[dict[str, Any]],
    card: int = 0,
    since: int = WARMUP,
    asleep_s: float = 0.0,
) -> str:
    """Trains one after another. Returns steps from `since` on, and the wall clock and a card's work meanwhile.
    `asleep_s`: how long the thread sleeps before each part of the model."""
    torch.cuda.init()  # makes the memory that processes share
    torch.zeros(1, device=settings[0].get("device", "cuda:0"))
    if asleep_s:
        register_module_forward_pre_hook(lambda *_: time.sleep(asleep_s))
    with small_digits(Path(home)):
        return json.dumps([_train(each, card, since) for each in settings])


def error(*, home: str, settings: dict[str, Any], fill_at: int = 0) -> str:
    """Returns the line that a run fails with. From step `fill_at` on something else holds the rest of the memory."""
    kept: list[torch.Tensor] = []
    steps = 0

    def fill() -> bool:
        nonlocal steps
        steps += 1
        if steps == fill_at:
            torch.cuda.empty_cache()
            kept.append(
                torch.empty(
                    torch.cuda.mem_get_info()[0] - (1 << 20), dtype=torch.uint8, device="cuda"
                )
            )
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


def tests_of_a_gpu(*, words: list[str]) -> str:
    """Returns the exit status of pytest, and what it printed."""
    for name in [name for name in os.environ if name.startswith("PYTEST_XDIST")]:
        del os.environ[name]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        status = pytest.main(words)
    return f"{int(status)}\n{printed.getvalue()}"


def _worked_s(factor: float, work: Callable[[], None]) -> float:
    busy = Busy()
    before_s = busy.seconds()
    work()
    return factor * (busy.seconds() - before_s)


def cases(*, home: str, wanted: list[tuple[str, dict[str, Any]]]) -> str:
    """Runs cases of the self-test with these constants. Returns their outcomes, facts, and a wait of 3 ms: what to pass
    for it, and how long it lasts. `profiler`: what another tool says, as a share of the device's own work."""
    bench, outcomes = open_bench("cuda:0", Path(home)), []
    spin_s = bench.spin(0.003)
    spun = [spin_s, median(bench.timed(lambda: bench.device.gate(spin_s)) for _ in range(9))]
    with small_digits(Path(home)):
        for name, constants in wanted:
            with pytest.MonkeyPatch.context() as patch:
                for constant, value in constants.items():
                    if constant == "profiler":
                        patch.setattr(bench, "kernels_s", functools.partial(_worked_s, value))
                    elif constant == "waits":
                        waits = tuple(case for case in job_cases.IDLE_CASES if case.name in value)
                        patch.setattr(job_cases, "IDLE_CASES", waits)
                    else:
                        patch.setattr(
                            device_cases,
                            constant,
                            tuple(value) if isinstance(value, list) else value,
                        )
                outcomes.append(run_case(name, bench).to_dict())
    return json.dumps(plain({"outcomes": outcomes, "facts": device_facts(bench), "spun": spun}))
