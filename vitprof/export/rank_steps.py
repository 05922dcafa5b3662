"""Steps of several ranks as one table, as bundles hold them: by step, then by rank."""

from vitprof import formats
from vitprof.errors import StoreError
from vitprof.jobs import finalise, nodes
from vitprof.recording.recording import Columns
from vitprof.store import RunStore
from vitprof.store.chunks import joined


def steps_of_all(store: RunStore, run_id: int) -> Columns:
    """Returns the steps of all ranks of a run; of one process as `RunStore.steps` does."""
    # Each rank's after the one before, and then by step.
    return joined("ranks", store.steps_of_ranks(run_id).values())


def apart(steps: Columns) -> tuple[Columns, Columns]:
    """Returns the steps of the rank that the run's figures are of, which is 0 there, and those of
    the others.
    """
    first = steps["rank"] == 0
    own = {name: values[first] for name, values in steps.items()}
    others = {name: values[~first] for name, values in steps.items()}
    return own, others


def join_imported(store: RunStore, run_ids: list[int]) -> tuple[str, set[int]]:
    """Joins imported runs of a job's nodes with those that are here.

    Returns a line about it, "" if nothing was joined, and which of the runs are in another now.
    """
    lines: list[str] = []
    for run_id in run_ids:
        try:
            run = store.run(run_id)
            whole, line = nodes.join(store, run, finalise.settle)
        except StoreError:
            # It has been joined with one before.
            continue
        if whole.id != run_id or whole != run:
            lines.append(line)
    parts = {run_id for run_id in run_ids if lines and not _is_there(store, run_id)}
    if parts:
        now = "is a part" if len(parts) == 1 else "are parts"
        lines.insert(0, f"{formats.count(len(parts), 'imported run')} {now} of another")
    return "; ".join(dict.fromkeys(lines)), parts


def _is_there(store: RunStore, run_id: int) -> bool:
    try:
        return bool(store.run(run_id))
    except StoreError:
        return False
