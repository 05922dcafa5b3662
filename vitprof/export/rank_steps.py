"""Steps of several ranks as one table, as bundles hold them: by step, then by rank."""

from collections.abc import Iterable
from dataclasses import dataclass

from vitprof import formats
from vitprof.errors import StoreError
from vitprof.jobs import finalise, nodes
from vitprof.recording.recording import Columns
from vitprof.store import RunStore
from vitprof.store.chunks import joined
from vitprof.store.nodes import PossiblePart, possible_part


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


@dataclass(frozen=True)
class JoinedRuns:
    """What became of runs of a job's nodes as they were imported."""

    line: str
    """About those that are in another run now; "" for none."""
    parts: frozenset[int] = frozenset()
    """These runs."""
    possible: tuple[PossiblePart, ...] = ()
    """Those that may be parts of another one's job: a person is asked."""


def join_imported(store: RunStore, run_ids: Iterable[int], *, unsure: bool) -> JoinedRuns:
    """Joins imported runs of a job's nodes with those that are here. `unsure`: also where no id says
    that they are of one job.
    """
    lines: list[str] = []
    possible: list[PossiblePart] = []
    run_ids = list(run_ids)
    for run_id in run_ids:
        try:
            run = store.run(run_id)
            whole, line = nodes.join(store, run, finalise.settle, unsure=unsure)
        except StoreError:
            # It has been joined with one before.
            continue
        if whole.id != run_id or whole != run:
            lines.append(line)
            continue
        part = possible_part(store, run_id)
        if part is not None and part not in possible:
            possible.append(part)
    parts = {run_id for run_id in run_ids if lines and not _is_there(store, run_id)}
    if parts:
        now = "is a part" if len(parts) == 1 else "are parts"
        lines.insert(0, f"{formats.count(len(parts), 'imported run')} {now} of another")
    return JoinedRuns("; ".join(dict.fromkeys(lines)), frozenset(parts), tuple(possible))


def _is_there(store: RunStore, run_id: int) -> bool:
    try:
        return bool(store.run(run_id))
    except StoreError:
        return False
