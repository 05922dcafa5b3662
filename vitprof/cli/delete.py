"""`delete`: deletes a run."""

from __future__ import annotations

import contextlib
from typing import Annotated

from vitprof.cli.common.terminal import run_id
from vitprof.store import RunStore


def delete(run: Annotated[int, run_id("id, as `runs` lists it")]) -> None:
    """Delete a run with its steps and telemetry."""
    from vitprof.jobs.finalise import settle_interrupted

    with contextlib.closing(RunStore()) as store:
        settle_interrupted(store)
        store.delete(run)
