"""Records event logs of two ranks that train together, for the tests of the core:

    python -m tests.watch.core.record_ranks [CAUSE...]

One of them is slower by 14 ms a step or so, by a cause that names the logs. Nobody else should use the machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests import ROOT, nullcuda
from tests.jobs.test_ranks import BUFFERS

LOGS = Path(__file__).parent / "rank_logs"
EPOCHS = 2
CASES = {
    "compute": ("compute", 1, False),
    "between": ("between steps", 0, False),
    "input": ("input", 0, False),
    "gathers": ("gathers", 0, False),
    "compute-on-gpus": ("compute", 1, True),
    "between-on-gpus": ("between steps", 0, True),
}
"""The cause in `BUFFERS`, the rank that is slow by it, and whether each has a GPU, by the name of the logs."""


def one_rank(rank: int, name: str, meeting: str) -> None:
    """Trains as one rank, and writes its log."""
    from tests.watch.core.record import hooked, written

    recorder = hooked()
    cause, slow, _ = CASES[name]
    sys.argv = ["train.py", cause, str(slow), meeting]
    script, _, _ = BUFFERS.replace("range(3)", f"range({EPOCHS})").partition("# Forked")
    namespace: dict[str, Any] = {}
    exec(script, namespace)
    namespace["main"](rank)
    if recorder.marks is not None:
        recorder.marks.finish()
    if recorder.failed is not None:
        raise recorder.failed
    written(LOGS / f"{name}-{rank}.jsonl", *recorder.buffer.take())


def both_ranks(name: str) -> None:
    import torch

    with tempfile.TemporaryDirectory() as folder:
        how = (name, f"{folder}/meeting")
        torch.multiprocessing.start_processes(one_rank, how, nprocs=2, start_method="spawn")


def main() -> None:
    LOGS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[1:] or CASES:
            env = {**os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2"}
            if CASES[name][2]:
                env |= nullcuda.environment(Path(folder) / "shm", devices=2)
            code = f"from tests.watch.core.record_ranks import both_ranks; both_ranks({name!r})"
            subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, check=True)
            sys.stdout.write(f"{name}\n")


if __name__ == "__main__":
    main()
