"""The training script of the watching benchmark: plain PyTorch, as a user would write it, with its own clock.

    python -m benchmarks.watched_loop TOOL RESULT.json FOLDER SCALE CASE=SPIN_S ...

A step fetches a batch from a DataLoader (a dataset with a torchvision Compose), trains a tiny model on it, and then
computes until the thread has used SPIN_S more of CPU time. Every step is timed by one reading of the clock at its end.
vitprof and bare run this script as it is; for the other tools it makes the calls that their manuals ask for.
"""

import gc
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import Compose, Lambda

from benchmarks.overhead_peers import Bare, tool_called
from benchmarks.watched_cases import BATCH, CASES, WARMUP_STEPS, Case, cpu_beside


def _doubled(sample: Tensor) -> Tensor:
    return sample * 2


class Samples(Dataset[Any]):
    """Samples that cost almost nothing to make."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._sample = torch.ones(8)
        self._transform = Compose([Lambda(_doubled)])

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self._transform(self._sample), index % 4


def run_case(case: Case, spin_s: float, steps: int, tool: Bare) -> dict[str, Any]:
    """Returns the step times (s), and the CPU seconds a step of this process, its workers and the watching programs."""
    torch.manual_seed(0)
    model, loss_of = nn.Linear(8, 4), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(
        Samples(BATCH * (WARMUP_STEPS + steps)), batch_size=BATCH, num_workers=case.workers
    )
    clock, spent = time.perf_counter, time.thread_time
    stamps: list[float] = []
    before: dict[str, float] = {}
    used: dict[str, float] = {}
    with tool.job(simulated=False):
        batches: Any = tool.batches(loader)
        for samples, labels in batches:
            with tool.step(model):
                loss = loss_of(model(samples), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                until = spent() + spin_s
                while spent() < until:
                    pass
            tool.after_step()
            if len(stamps) == WARMUP_STEPS - 1:
                before = cpu_beside()
                before["own"] = time.process_time()
            elif (
                len(stamps) == WARMUP_STEPS - 1 + steps
            ):  # in the last step, while its workers are still there
                used = {"own": time.process_time()} | cpu_beside()
            stamps.append(clock())
    took = [later - earlier for earlier, later in itertools.pairwise(stamps[WARMUP_STEPS - 1 : -1])]
    cpu = {name: (seconds - before[name]) / steps for name, seconds in used.items()}
    return {"steps_s": took, "cpu_s": cpu}


def main(arguments: list[str]) -> None:
    name, result, folder, scale, *asked = arguments
    torch.set_num_threads(1)
    tool = tool_called(name, Path(folder))
    cases = {case.name: case for case in CASES}
    found = {}
    gc.collect()  # else the one that importing torch made due (150 ms) comes in some step, whatever watches
    for text in asked:
        case_name, _, spin_s = text.partition("=")
        case = cases[case_name]
        found[case_name] = run_case(
            case, float(spin_s), max(3, round(case.steps * float(scale))), tool
        )
    Path(result).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
