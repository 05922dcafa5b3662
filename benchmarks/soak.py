"""Does everything at once for an hour, and checks what is left afterwards.

    python -m benchmarks.soak --minutes 60

A dashboard with 5 pages open, then 20; jobs that end, are stopped, lose their process, are killed; watched scripts that
come and go; Run and Stop on the page; a store that is locked now and then. At the end every record that a command has
reported must be there, and no process, thread, descriptor, shared memory, temporary file or megabyte may be left.
Prints a line each minute, then one for each check, and ends with status 1 where one failed. Needs Linux.
"""

import argparse
import contextlib
import os
import random
import re
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.dashboard import dashboard
from benchmarks.session import Session
from benchmarks.soak_actors import Soak, commands, environment, locks, pressed, visitors
from vitprof.store import RunStore

PAGES = (5, 20)
"""The number of pages open at once, in the first and in the second half."""
MOST_DESCRIPTORS = 5
"""The server must have fewer than this many more descriptors open at the end than after the first minute."""
MOST_BYTES = 50e6
"""The server's memory must have grown by less than this since then."""
DRAWN_S = 2
"""A page is drawn by then."""
VISITS = 10
"""Pages opened and closed before counting: Streamlit drops outdated sessions only when it keeps another one, and Python
collects them when there is enough garbage."""
QUIET_S = 150
"""Time (s) from the last action to the count: Streamlit keeps the session of a closed page for 120 s."""
TORCHS_OWN = {"torchinductor_root"}
"""Caches that PyTorch makes once in the temporary folder, and keeps."""


@dataclass(frozen=True)
class Held:
    """The resources of the dashboard's processes."""

    processes: tuple[str, ...]
    """Command lines of the server's children."""
    threads: int
    """The number of threads of the server itself; the other figures are the server's, too."""
    descriptors: Counter[str]
    """What is open -> how often: a file's path, else the kind, such as "socket"."""
    bytes: int
    """Resident memory."""


def held(server: psutil.Process) -> Held:
    """Returns the server's resources now."""
    children = []
    for child in server.children(recursive=True):
        try:
            children.append(" ".join(child.cmdline())[:120])
        except psutil.Error:
            continue
    return Held(
        tuple(sorted(children)), server.num_threads(), descriptors(server), server.memory_info().rss
    )


def descriptors(process: psutil.Process) -> Counter[str]:
    """Returns the targets of the open descriptors of `process`, and the number of each."""
    found: Counter[str] = Counter()
    for link in Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            found[re.sub(r":?\[.*", "", os.readlink(link))] += 1
    return found


def shared_memory() -> set[str]:
    """Returns the names of the files in /dev/shm."""
    return {path.name for path in Path("/dev/shm").iterdir()}


def missing(soak: Soak) -> list[str]:
    """Returns a line for each promise that is broken: a record that the store does not have as reported."""
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
    found += [f"run {run.id} is {run.status} forever" for run in by_name.values() if run.live]
    store.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    random.seed(given.seed)
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):  # a shell starts its background jobs so; commands inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    before = shared_memory()
    with tempfile.TemporaryDirectory() as folder:
        home, temporary = Path(folder) / "home", Path(folder) / "tmp"
        temporary.mkdir()
        env = environment(home, temporary)
        with dashboard(env) as (url, server):
            soak = Soak(env, url, home / "recordings.sqlite")
            first, last = soaked(soak, server, given.minutes)
        left = sorted(path.name for path in temporary.iterdir())
        broken = missing(soak)
    checks = {
        "what was told is in the store": "; ".join(broken),
        "nothing went wrong on the way": "; ".join(soak.faults),
        "no process is left": ""
        if set(last.processes) <= set(first.processes)
        else "; ".join(last.processes),
        "no thread is left": ""
        if last.threads <= first.threads + 1
        else f"{first.threads} -> {last.threads}",
        f"descriptors grew by under {MOST_DESCRIPTORS}": ""
        if last.descriptors.total() < first.descriptors.total() + MOST_DESCRIPTORS
        else f"more of {last.descriptors - first.descriptors}",
        f"memory grew by under {MOST_BYTES / 1e6:.0f} MB": ""
        if last.bytes < first.bytes + MOST_BYTES
        else f"{first.bytes / 1e6:.0f} -> {last.bytes / 1e6:.0f} MB",
        "no shared memory is left": ", ".join(sorted(shared_memory() - before)),
        "no temporary file is left": ", ".join(sorted(set(left) - TORCHS_OWN)),
    }
    print(
        f"first minute: {first}\nend: {last}\ndone: {soak.counts}; {len(soak.promises)} records promised"
    )
    for check, wrong in checks.items():
        print(f"{'ok  ' if not wrong else 'FAIL'} {check}{': ' if wrong else ''}{wrong}")
    return any(checks.values())


def soaked(soak: Soak, server: psutil.Process, minutes: float) -> tuple[Held, Held]:
    """Does everything for a minute and again for `minutes`; returns what the server held after each, at rest."""
    after = []
    for part_minutes in (1.0, minutes):
        soak.ended.clear()
        act(soak, server, part_minutes)
        time.sleep(QUIET_S)
        for _ in range(VISITS):
            with Session(soak.url):
                time.sleep(DRAWN_S)
        after.append(held(server))
    return after[0], after[1]


def act(soak: Soak, server: psutil.Process, minutes: float) -> None:
    """Does everything at once for `minutes`, and waits until all of it has ended."""
    begin = time.monotonic()
    end = begin + 60 * minutes

    def crowds() -> None:
        for i, n in enumerate(PAGES):
            visitors(soak, n, begin + (i + 1) * 30 * minutes)

    acting = [
        threading.Thread(target=crowds),
        *(threading.Thread(target=do, args=(soak,)) for do in (commands, pressed, locks)),
    ]
    for thread in acting:
        thread.start()
    while (now := time.monotonic()) < end:
        time.sleep(min(60, end - now))
        seen, minute = held(server), (time.monotonic() - begin) / 60
        print(
            f"{minute:.0f} min: {seen.threads} threads, {seen.descriptors.total()} descriptors, "
            f"{seen.bytes / 1e6:.0f} MB, {len(seen.processes)} processes; {soak.counts}; faults: {soak.faults}",
            file=sys.stderr,
            flush=True,
        )
    soak.ended.set()
    for thread in acting:
        thread.join()


if __name__ == "__main__":
    sys.exit(main())
