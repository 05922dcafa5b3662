"""Whose turn it is: jobs run one at a time on a machine, but for those on different devices that all agreed to share.

Two jobs at once take each other's CPU and disk, and what is measured of either is not what it does alone. The store
decides, so that the jobs of two programs on one store take turns too: a run waits for every run of its machine that
was submitted before it and that it cannot run beside.
"""

from __future__ import annotations

from collections.abc import Sequence

from vitprof.config.accelerators import is_simulated
from vitprof.store import LiveRun, RunStore
from vitprof.store.owner import is_alive
from vitprof.telemetry import visible_gpus

ONE_AT_A_TIME = "jobs run one at a time so that they do not take each other's CPU and disk"
ONE_A_DEVICE = "a device takes one job at a time"
ALONE = "it was started to run alone (share_machine off)"


def queue_of(name: str) -> str:
    """Returns the queue for a device: "auto" waits for the first GPU that CUDA shows, else for the CPU.

    A simulated device has that of the CPU: two jobs at once would take each other's time to load data.

    Which device "auto" is, PyTorch decides in the job: it may not be able to use a GPU that the driver shows.
    """
    if is_simulated(name):
        return "cpu"
    if name != "auto":
        return name
    return "cuda:0" if visible_gpus() else "cpu"


def ahead_of(store: RunStore, run_id: int) -> list[LiveRun]:
    """Returns the runs that a queued run waits for, the one that is running first. Raises `StoreError`."""
    live = store.live_runs()
    mine = next((run for run in live if run.id == run_id), None)
    if mine is None:
        return []
    ahead = [run for run in live if run.id < run_id and not _fit_together(run, mine) and _is_there(run, mine)]
    return sorted(ahead, key=lambda run: (run.status != "running", run.id))


def running_beside(store: RunStore, run_id: int) -> list[LiveRun]:
    """Returns the other runs that are running on the machine of a run. Raises `StoreError`."""
    live = store.live_runs()
    mine = next((run for run in live if run.id == run_id), None)
    if mine is None:
        return []
    return [run for run in live if run.id != run_id and run.status == "running" and _is_there(run, mine)]


def why_waiting(ahead: Sequence[LiveRun], *, shares: bool) -> str:
    """Returns what a run waits for (`ahead_of`) and why; `shares`: whether it would run beside others."""
    first = ahead[0]
    more = f" and {len(ahead) - 1} more" if len(ahead) > 1 else ""
    reason = ONE_AT_A_TIME
    if shares:
        reason = ONE_A_DEVICE if first.share_machine else ALONE
    return f"waiting for run {first.id} on {device_of(first)}{more}; {reason}"


def device_of(run: LiveRun) -> str:
    """Returns the device of a run in a word: the one that "auto" waits for, where that was asked for."""
    return queue_of(run.device) if run.device == "auto" else run.device


def _fit_together(a: LiveRun, b: LiveRun) -> bool:
    """Returns whether two runs may run at the same time: both agreed to, and they need different devices."""
    return a.share_machine and b.share_machine and queue_of(a.device) != queue_of(b.device)


def _is_there(run: LiveRun, mine: LiveRun) -> bool:
    """Returns whether a run is of the same machine as `mine`, and its program has not ended without a word."""
    if run.owner_host != mine.owner_host:
        return False
    same_program = (run.owner_pid, run.owner_started) == (mine.owner_pid, mine.owner_started)
    return same_program or is_alive(run.owner_host, run.owner_pid, run.owner_started)
