"""Exports runs from the store to a bundle."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vitprof.export import write_bytes
from vitprof.export.bundle.archive import EXPORT_FEWER, MAX_JSON_BYTES, MAX_RUNS, MAX_UNPACKED_BYTES, member_names, pack
from vitprof.export.bundle.run_values import to_values
from vitprof.export.bundle.series import to_bytes
from vitprof.export.bundle.values import BundleError, need, to_json
from vitprof.recording.columns import STEP_COLUMNS, TELEMETRY_COLUMNS
from vitprof.store import RunStore, StoredRun
from vitprof.store.groups import RunGroup


def bundle_bytes(store: RunStore, run_ids: Sequence[int]) -> bytes:
    """Returns the bundle of these runs and of the anchors that their headroom was measured with.

    Raises `BundleError` for a run that has not ended and for more than a bundle may hold, `StoreError` for a run that
    does not exist.
    """
    found: dict[int, StoredRun] = {}
    wanted = dict.fromkeys(run_ids)
    need(len(wanted) <= MAX_RUNS, f"{len(wanted):,} runs are too many; a file may hold {MAX_RUNS:,}; {EXPORT_FEWER}")
    for run_id in wanted:
        found[run_id] = store.run(run_id)
        if found[run_id].live:
            raise BundleError(f"run {run_id} is still going on; wait for it to end, or stop it, and then export it")
    if not found:
        raise BundleError("there is nothing to export; give at least one run")
    for run_id in list(found):
        anchors = store.runs(group_key=RunGroup("headroom", run_id).key)
        found |= {run.id: run for run in anchors if not run.live and run.id not in found}
    members: dict[str, bytes] = {}
    for number, run_id in enumerate(sorted(found), 1):
        members |= _members(store, found[run_id], number)
        if sum(map(len, members.values())) > MAX_UNPACKED_BYTES:
            break  # `pack` says so; there is no need to read the rest
    return pack(members, len(found))


def _members(store: RunStore, run: StoredRun, number: int) -> dict[str, bytes]:
    steps, telemetry = store.steps(run.id), store.telemetry(run.id)
    series = {
        "n_steps": len(steps["step"]),
        "step_columns": list(STEP_COLUMNS),
        "n_telemetry": len(telemetry["seq"]),
        "telemetry_columns": list(TELEMETRY_COLUMNS),
    }
    described = to_json(to_values(run, store.tags(run.id), series))
    if len(described) > MAX_JSON_BYTES:
        raise BundleError(f"run {run.id} has more notes, notices and phases than a file may hold; leave it out")
    contents = (described, to_bytes(steps, STEP_COLUMNS), to_bytes(telemetry, TELEMETRY_COLUMNS))
    return dict(zip(member_names(number), contents, strict=True))


def write_bundle(store: RunStore, run_ids: Sequence[int], path: Path) -> None:
    """Writes `bundle_bytes` to a file, whole or not at all. Raises `VitprofError`."""
    write_bytes(path, bundle_bytes(store, run_ids))
