"""Whose turn it is: a machine runs one job at a time, unless they use different devices and all agreed to share.

Two jobs at once take CPU and disk from each other, so neither measures what it would do alone. The store decides, so
that jobs of two programs with one store take turns too: a run waits for every run on its machine that was submitted
before it and that it cannot run beside. Then it waits for running jobs that this store knows nothing of
(`vitprof.jobs.machine_lock`): those of another home, store or user.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from vitprof.config.accelerators import is_simulated
from vitprof.jobs.machine_lock import Holder, holders, store_mark
from vitprof.store import LiveRun, RunStore
from vitprof.store.owner import is_alive
from vitprof.telemetry.visible import visible_gpus

ONE_AT_A_TIME = "jobs run one at a time so that they do not take each other's CPU and disk"
ONE_A_DEVICE = "a device takes one job at a time"
ALONE = "it was started to run alone (share_machine off)"


@dataclass(frozen=True)
class Ahead:
    """A job that a run waits for."""

    name: str
    """The run in words: "run 3", "run 3 of another store"."""
    device: str
    shares: bool
    owner: str
    """Program, process, and since when; "" where it is this program."""


def queue_of(name: str) -> str:
    """Returns the queue for a device: "auto" waits for the first GPU that CUDA shows, else for the CPU.

    A simulated device shares the queue of the CPU: two jobs at once would slow down each other's loading.

    Which device "auto" becomes is decided by PyTorch in the job: it may not be able to use a GPU that the driver shows.
    """
    if is_simulated(name):
        return "cpu"
    if name != "auto":
        return name
    return "cuda:0" if visible_gpus() else "cpu"


def ahead_in_store(store: RunStore, run_id: int) -> list[LiveRun]:
    """Returns the runs of its store that a run waits for, running ones first. Raises `StoreError`."""
    return _ahead(store.live_runs(), run_id)


def ahead_of(store: RunStore, run_id: int) -> list[Ahead]:
    """Returns all jobs that a queued run waits for: those of its store, running ones first, then running others.

    Raises `StoreError`.
    """
    live = store.live_runs()
    mine = next((run for run in live if run.id == run_id), None)
    if mine is None:
        return []
    mark, device, everywhere = store_mark(store.url), queue_of(mine.device), holders()
    of_run = {holder.run: holder for holder in everywhere if holder.store == mark}
    here = _ahead(live, run_id)
    others = (h for h in everywhere if h.store != mark and not h.fits(mine.share_machine, device))
    return [
        *(Ahead(f"run {run.id}", device_of(run), run.share_machine, _owner(run, of_run.get(run.id))) for run in here),
        *(Ahead(name_of(holder), holder.device, holder.shares, holder.who) for holder in others),
    ]


def running_beside(store: RunStore, run_id: int) -> list[LiveRun]:
    """Returns the other runs that are running on the machine of a run. Raises `StoreError`."""
    live = store.live_runs()
    mine = next((run for run in live if run.id == run_id), None)
    if mine is None:
        return []
    return [run for run in live if run.id != run_id and run.status == "running" and _is_there(run, mine)]


def why_waiting(ahead: Sequence[Ahead], *, shares: bool) -> str:
    """Returns a line on what a run waits for (`ahead_of`) and why; `shares`: whether it would run beside others."""
    first = ahead[0]
    more = f" and {len(ahead) - 1} more" if len(ahead) > 1 else ""
    reason = ONE_AT_A_TIME
    if shares:
        reason = ONE_A_DEVICE if first.shares else ALONE
    owner = f" ({first.owner})" if first.owner else ""
    return f"waiting for {first.name} on {first.device}{owner}{more}; {reason}"


def device_of(run: LiveRun) -> str:
    """Returns the device of a run; for "auto" the device whose queue it is in."""
    return queue_of(run.device) if run.device == "auto" else run.device


def name_of(holder: Holder) -> str:
    """Returns a run of another store in words."""
    return f"run {holder.run} of another store" if holder.run else "a job"


def _ahead(live: Sequence[LiveRun], run_id: int) -> list[LiveRun]:
    mine = next((run for run in live if run.id == run_id), None)
    if mine is None:
        return []
    ahead = [run for run in live if run.id < run_id and not _fit_together(run, mine) and _is_there(run, mine)]
    return sorted(ahead, key=lambda run: (run.status != "running", run.id))


def _owner(run: LiveRun, holder: Holder | None) -> str:
    if run.owner_pid == os.getpid():
        return ""
    return f"process {run.owner_pid}" if holder is None else holder.who


def _fit_together(a: LiveRun, b: LiveRun) -> bool:
    """Returns whether two runs may run at the same time: both agreed to, and they need different devices."""
    return a.share_machine and b.share_machine and queue_of(a.device) != queue_of(b.device)


def _is_there(run: LiveRun, mine: LiveRun) -> bool:
    """Returns whether a run is on the same machine as `mine`, and its program still runs."""
    if run.owner_host != mine.owner_host:
        return False
    same_program = (run.owner_pid, run.owner_started) == (mine.owner_pid, mine.owner_started)
    return same_program or is_alive(run.owner_host, run.owner_pid, run.owner_started)
