"""An hour of everything at once, and what is left of it afterwards.

    python -m benchmarks.soak --minutes 60

A dashboard with 5 pages open, then 20; jobs that end, are stopped, lose their process, are killed; watched scripts that
come and go; Run and Stop on the page; a store that is locked now and then. At the end every record that somebody was
told of must be there, and no process, thread, descriptor, shared memory, temporary file or megabyte may be left. Prints
a line each minute, then one for each check, and ends with status 1 where one failed. Needs Linux.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.dashboard import dashboard
from benchmarks.soak_actors import Soak, commands, environment, locks, pressed, visitors
from vitprof.store import RunStore

PAGES = (5, 20)
"""Open at once, in the first and in the second half."""
MOST_DESCRIPTORS = 5
"""So many more of the server's may be open at the end than after the first minute."""
MOST_BYTES = 50e6
"""So much may the server have grown since then."""
QUIET_S = 150
"""From the last thing done to the counting: Streamlit keeps the session of a page that was closed for 120 s."""
TORCHS_OWN = {"torchinductor_root"}
"""Caches that PyTorch makes where temporary files are, once, and keeps."""


@dataclass(frozen=True)
class Held:
    """What the dashboard's processes hold."""

    processes: tuple[str, ...]
    """Command lines of the server's children."""
    threads: int
    """Of the server itself, like the rest."""
    descriptors: int
    bytes: int
    """Resident memory."""


def held(server: psutil.Process) -> Held:
    """Returns what the server holds now."""
    children = []
    for child in server.children(recursive=True):
        try:
            children.append(" ".join(child.cmdline())[:120])
        except psutil.Error:
            continue
    return Held(tuple(sorted(children)), server.num_threads(), server.num_fds(), server.memory_info().rss)


def shared_memory() -> set[str]:
    """Returns the names of what is in /dev/shm."""
    return {path.name for path in Path("/dev/shm").iterdir()}


def missing(soak: Soak) -> list[str]:
    """Returns a line for each promise that the store does not keep."""
    store = RunStore(f"sqlite:///{soak.database}")
    by_name = {run.name: run for run in store.runs(limit=None)}
    found = []
    for promise in soak.promises:
        run = by_name.get(promise.name)
        if run is None:
            if "" not in promise.statuses:
                found.append(f"{promise.name} is not in the store")
        elif run.status not in promise.statuses:
            found.append(f"{promise.name} is {run.status}, not {' or '.join(promise.statuses)}")
        elif (n := len(store.steps(run.id)["step"])) < promise.steps:
            found.append(f"{promise.name} has {n} steps of {promise.steps}")
    found += [f"run {run.id} is {run.status} for ever" for run in by_name.values() if run.live]
    store.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    random.seed(given.seed)
    before = shared_memory()
    with tempfile.TemporaryDirectory() as folder:
        home, temporary = Path(folder) / "home", Path(folder) / "tmp"
        temporary.mkdir()
        env = environment(home, temporary)
        with dashboard(env) as (url, server):
            soak = Soak(env, url, home / "runs.sqlite")
            first, last = soaked(soak, server, given.minutes)
        left = sorted(path.name for path in temporary.iterdir())
        broken = missing(soak)
    checks = {
        "what was told is in the store": "; ".join(broken),
        "nothing went wrong on the way": "; ".join(soak.faults),
        "no process is left": "" if set(last.processes) <= set(first.processes) else "; ".join(last.processes),
        "no thread is left": "" if last.threads <= first.threads + 1 else f"{first.threads} -> {last.threads}",
        f"descriptors grew by under {MOST_DESCRIPTORS}": ""
        if last.descriptors < first.descriptors + MOST_DESCRIPTORS
        else f"{first.descriptors} -> {last.descriptors}",
        f"memory grew by under {MOST_BYTES / 1e6:.0f} MB": ""
        if last.bytes < first.bytes + MOST_BYTES
        else f"{first.bytes / 1e6:.0f} -> {last.bytes / 1e6:.0f} MB",
        "no shared memory is left": ", ".join(sorted(shared_memory() - before)),
        "no temporary file is left": ", ".join(sorted(set(left) - TORCHS_OWN)),
    }
    print(f"first minute: {first}\nend: {last}\ndone: {soak.counts}; {len(soak.promises)} records promised")
    for check, wrong in checks.items():
        print(f"{'ok  ' if not wrong else 'FAIL'} {check}{': ' if wrong else ''}{wrong}")
    return any(checks.values())


def soaked(soak: Soak, server: psutil.Process, minutes: float) -> tuple[Held, Held]:
    """Does it all for so long: what the server held after the first minute, and when all was quiet again."""
    begin = time.monotonic()
    end = begin + 60 * minutes
    crowds = threading.Thread(
        target=lambda: [visitors(soak, n, begin + (i + 1) * 30 * minutes) for i, n in enumerate(PAGES)]
    )
    acting = [threading.Thread(target=act, args=(soak,)) for act in (commands, pressed, locks)]
    for thread in (crowds, *acting):
        thread.start()
    first = None
    while (now := time.monotonic()) < end:
        time.sleep(min(60, end - now))
        seen = held(server)
        first = first or seen
        minute = (time.monotonic() - begin) / 60
        print(
            f"{minute:.0f} min: {seen.threads} threads, {seen.descriptors} descriptors, {seen.bytes / 1e6:.0f} MB, "
            f"{len(seen.processes)} processes; {soak.counts}; faults: {len(soak.faults)}",
            file=sys.stderr,
            flush=True,
        )
    soak.ended.set()
    for thread in (crowds, *acting):
        thread.join()
    time.sleep(QUIET_S)
    assert first is not None
    return first, held(server)


if __name__ == "__main__":
    sys.exit(main())
