"""Runs that were recorded, put into a store as if they had just ended, or went on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vitprof import demo
from vitprof.analysis.arrays import Series
from vitprof.export import bundle
from vitprof.recording.columns import ENDED_STATUSES
from vitprof.store import RunQuery, RunStore
from vitprof.store.chunks import chunks_of
from vitprof.store.database import now_utc

STARVED = "Image by image, as most tutorials do"
FED = "Whole batches, made one ahead"
FAILED = "A worker was killed"
NAMES = (
    STARVED,
    FED,
    FAILED,
    "A tiny model on a fast GPU",
    "python train.py photos",
)
COMMAND = "python train.py --epochs 3"


@dataclass
class Running:
    """A run that goes on: its steps are those of one that was recorded, a part at a time."""

    store: RunStore
    id: int
    steps: Series
    n_stored: int = 0

    def go_on(self, n_steps: int) -> None:
        """Stores the next steps."""
        until = self.n_stored + n_steps
        part = {name: values[self.n_stored : until] for name, values in self.steps.items()}
        self.store.record(self.id, chunks_of("steps", part))
        self.n_stored = until

    def end(self, of: int) -> None:
        """Ends it as the run `of` did, whose steps it has."""
        recorded = self.store.run(of)
        verdict = None if recorded.verdict is None else recorded.verdict.to_dict()
        self.store.update_run(
            self.id, status="done", stage="", summary=recorded.summary, verdict=verdict
        )


def ended(store: RunStore) -> dict[str, int]:
    """Imports the recorded runs of the demonstration that are no trials; returns their numbers by name."""
    with demo.RUNS.open("rb") as file:
        bundle.import_bundle(store, file)
    query = RunQuery(filters={"status": ENDED_STATUSES})
    listed = {row.name: row.id for row in store.list_runs(query, limit=100)}
    store.erase(*(listed.pop(name) for name in [*listed] if name not in NAMES))
    for run_id in listed.values():
        store.update_run(run_id, created_utc=now_utc())
    return listed


def running(store: RunStore, of: int, **columns: Any) -> Running:
    """Adds a run of this process that goes on, of the job that the recorded run `of` had."""
    recorded = store.run(of)
    run_id = store.create_run(recorded.config)
    known: Mapping[str, Any] = {
        "status": "running",
        "stage": "training",
        "environment": recorded.environment | {"hostname": "node7", "pid": 4711},
        "facts": {"command": COMMAND},
        "owner_user": "anna",
    }
    store.update_run(run_id, **{**known, **columns})
    return Running(store, run_id, store.steps(of))
