"""A script below `vitprof watch`, with a store of its own, as benchmarks run it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests import ROOT
from vitprof.analysis.arrays import Series
from vitprof.store import RunStore, StoredRun


@dataclass(frozen=True)
class ScriptRun:
    """What a script left."""

    run: StoredRun
    steps: Series
    printed: str
    """Its standard output."""


def watch_script(arguments: Sequence[str], folder: Path, *, threads: int = 1) -> ScriptRun:
    """Runs Python with these arguments and so many threads of OpenMP, and keeps its run in a folder.

    Ends the program with the script's errors where it fails.
    """
    database = f"sqlite:///{folder}/runs.sqlite"
    own = {"PYTHONPATH": str(ROOT), "VITPROF_HOME": str(folder), "VITPROF_DB": database}
    # The models are tiny: the threads of PyTorch would wait for each other, busily.
    own["OMP_NUM_THREADS"] = str(threads)
    command = [sys.executable, "-m", "vitprof", "watch", "--quiet", "--", sys.executable]
    done = subprocess.run(
        [*command, *arguments],
        cwd=ROOT,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"the script failed:\n{done.stderr}")
    with contextlib.closing(RunStore(database)) as store:
        (run,) = store.runs()
        return ScriptRun(run, store.steps(run.id), done.stdout)
