"""Many hosts that record into one database: how long their writes take, what they cost, and whether all arrives.

    python -m benchmarks.shared_store --db postgresql://USER:PASSWORD@HOST/DATABASE [--hosts 100] [--seconds 600]

Each host is a run with a store of its own, written through the outbox that a watched script's program uses: 5 steps and
5 telemetry samples every half second. The hosts share a few processes here, and their connections go over the loopback.
CPU of the server is that of all processes of its name (`--server`) on this machine.
"""

import argparse
import json
import multiprocessing as mp
import threading
import time
from typing import Any

import numpy as np
import psutil

from vitprof.config import RunConfig
from vitprof.config.resolve import resolve
from vitprof.jobs.outbox import Outbox
from vitprof.recording.columns import STEP_COLUMNS, TELEMETRY_COLUMNS
from vitprof.store import RunStore

EVERY_S, ROWS, PROCESSES = 0.5, 5, 4
MINUTES = slice(120), slice(-120, None)
"""The writes of the first minute and of the last."""


class TimedStore(RunStore):
    """A store that notes how long each of its writes took (s)."""

    took: list[float]

    def record(self, *args: Any, **more: Any) -> None:
        begun = time.perf_counter()
        super().record(*args, **more)
        self.took.append(time.perf_counter() - begun)


def steps(first: int) -> dict[str, Any]:
    n = np.arange(first, first + ROWS, dtype=np.float64)
    known: dict[str, Any] = {
        "step": n,
        "epoch": 0.0,
        "warmup": 0.0,
        "rank": 0.0,
        "t_start_s": n / 10,
        "step_s": 0.1,
    }
    noise = np.random.default_rng(first).lognormal(-3, 0.3, (len(STEP_COLUMNS), ROWS))
    return {name: np.full(ROWS, known.get(name, noise[i])) for i, name in enumerate(STEP_COLUMNS)}


def host(url: str, number: int, until_s: float, found: dict[int, Any]) -> None:
    store = TimedStore(url)
    store.took = []
    run = store.add_run(resolve(RunConfig(name=f"host {number}")))
    outbox, first = Outbox(store, run), 0
    time.sleep(EVERY_S * number % EVERY_S)
    while time.monotonic() < until_s:
        outbox.add(
            [steps(first)], np.random.rand(ROWS, len(TELEMETRY_COLUMNS)), message=f"step {first}"
        )
        first += ROWS
        time.sleep(EVERY_S)
    whole = outbox.wait(60.0)
    arrived = store.n_steps(run.id) == first
    found[number] = {"took": store.took, "whole": whole and arrived, "rows": first}
    store.update_run(run.id, status="done")
    store.close()


def hosts(url: str, numbers: range, until_s: float, out: Any) -> None:
    found: dict[int, Any] = {}
    threads = [
        threading.Thread(target=host, args=(url, number, until_s, found)) for number in numbers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    out.put((found, sum(psutil.Process().cpu_times()[:2])))


def cpu_of(name: str) -> float:
    """Returns the CPU seconds of the processes of this name, and of those of them that have ended."""
    of = [
        p.info["cpu_times"]
        for p in psutil.process_iter(["name", "cpu_times"])
        if p.info["name"] == name
    ]
    return sum(sum(times[:4]) for times in of if times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--db", required=True)
    parser.add_argument("--hosts", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--server", default="postgres")
    given = parser.parse_args()
    RunStore(given.db).close()
    context = mp.get_context("spawn")
    out, before, until_s = context.Queue(), cpu_of(given.server), time.monotonic() + given.seconds
    parts = [range(k, given.hosts, PROCESSES) for k in range(PROCESSES)]
    processes = [
        context.Process(target=hosts, args=(given.db, part, until_s, out)) for part in parts
    ]
    for process in processes:
        process.start()
    answers = [out.get() for _ in processes]
    for process in processes:
        process.join()
    found = {number: each for part, _ in answers for number, each in part.items()}
    took = np.concatenate([each["took"] for each in found.values()])
    first, last = (
        np.concatenate([each["took"][part] for each in found.values()]) for part in MINUTES
    )
    figures = {
        "hosts": len(found),
        "arrived whole": sum(each["whole"] for each in found.values()),
        "steps": sum(each["rows"] for each in found.values()),
        "writes": len(took),
        "writes per s": round(len(took) / given.seconds, 1),
        "ms (median, 99%, longest)": [
            round(float(v) * 1e3, 1) for v in np.percentile(took, (50, 99, 100))
        ],
        "ms, first and last minute": [
            round(float(np.median(part)) * 1e3, 1) for part in (first, last)
        ],
        "cores of the hosts": round(sum(cpu for _, cpu in answers) / given.seconds, 2),
        "cores of the server": round((cpu_of(given.server) - before) / given.seconds, 2),
    }
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
