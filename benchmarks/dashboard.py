"""The cost of the dashboard: a job that it runs against the same job by command line, and the server for each refresh.

    python -m benchmarks.dashboard job [--isolation thread] [--rounds 5]
    python -m benchmarks.dashboard refresh [--steps 100000]
    python -m benchmarks.dashboard tabs [--tabs 4] [--against 0] [--apart] [--rounds 5]

`job` runs the same config in turn by `python -m vitprof run` and by pressing Run in a dashboard with a live page open,
torch on one thread, and prints the ratios of median and of mean step time for each round.
`refresh` shows a page of a run of that many steps which gains ten a second, and prints the server's CPU time and the
bytes sent for each refresh. Its steps are made up; only the cost of showing them is measured.
`tabs` runs a job on a simulated device with few pages open and with several, in turn, and prints its speed.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.session import Session
from tests.stored_series import append_steps, append_telemetry
from vitprof.config import RunConfig
from vitprof.recording.columns import STEP_COLUMNS, TELEMETRY_COLUMNS
from vitprof.store import RunStore

REPOSITORY = Path(__file__).resolve().parents[1]
WATCHED = {
    "strategy": "per-sample",
    "batch_size": 128,
    "steps": 1000,
    "threads": 1,
    "device": "simulated:1,0",
}
"""A job bound by its loader, so that anything that takes CPU from it slows it down."""
WATCHED_WARMUP = 20
"""Steps, of which the first last longer."""
JOB: dict[str, Any] = {
    "strategy": "memory",
    "batch_size": 64,
    "steps": 250,
    "threads": 1,
    "warmup_steps": 20,
}


@contextmanager
def dashboard(env: dict[str, str]) -> Iterator[tuple[str, psutil.Process]]:
    """Starts a real `streamlit run app.py` on a free port; yields its URL and its process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "streamlit", "run", "app.py", "--server.port", str(port)]
    server = subprocess.Popen(
        [*command, "--server.headless", "true"], cwd=REPOSITORY, env=env, stdout=subprocess.DEVNULL
    )
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"{url}/_stcore/health", timeout=1).close()
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        yield url, psutil.Process(server.pid)
    finally:
        server.terminate()
        server.wait(30)


def by_command_line(env: dict[str, str], config: dict[str, Any]) -> dict[str, float]:
    """Runs a job by command line and returns its summary."""
    options = [
        part
        for name, value in config.items()
        for part in (f"--{name.replace('_', '-')}", str(value))
    ]
    command = [sys.executable, "-m", "vitprof", "run", *options, "--no-evaluate", "--json"]
    result = subprocess.run(command, cwd=REPOSITORY, env=env, check=True, capture_output=True)
    summary: dict[str, float] = json.loads(result.stdout)["summary"]
    return summary


def by_dashboard(store: RunStore, url: str, config: dict[str, Any]) -> dict[str, float]:
    """Runs a job in the dashboard, with its page open, and returns its summary."""
    query = "&".join(f"{name}={value}" for name, value in (config | {"evaluate": "false"}).items())
    known = {run.id for run in store.runs()}
    with Session(url, query) as page:
        page.press("Run")
        while (
            not (new := [run for run in store.runs(limit=1) if run.id not in known]) or new[0].live
        ):
            time.sleep(1.0)
        if new[0].status != "done" or new[0].summary is None:
            raise SystemExit(f"the dashboard's run failed: {new[0].error}")
        print(f"    page refreshed {page.refreshes} times during the run", file=sys.stderr)
        return vars(new[0].summary)


def mean_ms(summary: dict[str, float]) -> float:
    return 1e3 * JOB["batch_size"] / summary["samples_per_s"]


def compare_job(isolation: str, rounds: int) -> None:
    """Prints the ratios of step times, dashboard to command line."""
    with tempfile.TemporaryDirectory() as home:
        env = {**os.environ, "VITPROF_HOME": home}
        os.environ["VITPROF_HOME"] = home
        config = {**JOB, "isolation": isolation}
        by_command_line(env, config | {"steps": 10, "warmup_steps": 0})  # makes the data set
        medians, means = [], []
        with dashboard(env) as (url, _):
            store = RunStore()
            for index in range(rounds):
                pair = [by_command_line(env, {**JOB}), by_dashboard(store, url, config)]
                medians.append(pair[1]["step_ms_median"] / pair[0]["step_ms_median"])
                means.append(mean_ms(pair[1]) / mean_ms(pair[0]))
                print(
                    f"round {index + 1}: command line {pair[0]['step_ms_median']:.2f} ms, "
                    f"dashboard {pair[1]['step_ms_median']:.2f} ms, median x{medians[-1]:.3f}, mean x{means[-1]:.3f}",
                    flush=True,
                )
            store.close()
        for name, ratios in (("median", medians), ("mean", means)):
            print(
                f"{name} step time, dashboard ({isolation}) / command line: x{np.median(ratios):.3f} "
                f"(n = {rounds} rounds, {min(ratios):.3f} to {max(ratios):.3f})"
            )


def compare_tabs(tabs: int, rounds: int, *, against: int, apart: bool) -> None:
    """Compares the speed of a job with `tabs` pages open and with `against`; a page that closes at once starts the job.

    `apart`: the job gets the first core, the server and the pages' clients the others, so that only what passes between
    job and server can slow it. Prints also the CPU time of server and clients, in cores.
    """
    with tempfile.TemporaryDirectory() as home:
        os.environ["VITPROF_HOME"] = home
        env = {**os.environ}
        by_command_line(env, WATCHED | {"steps": 10, "warmup_steps": 0})  # makes the data set
        speeds: dict[int, list[float]] = {against: [], tabs: []}
        first, *others = sorted(os.sched_getaffinity(0))
        if apart:
            os.sched_setaffinity(0, others)  # the server and its job start with it too
        with dashboard(env) as (url, server):
            store = RunStore()
            query = "&".join(
                f"{name}={value}" for name, value in (WATCHED | {"evaluate": "false"}).items()
            )
            for index in range(rounds):
                for count in (against, tabs) if index % 2 == 0 else (tabs, against):
                    known = {run.id for run in store.runs()}
                    with Session(url, query) as page:
                        page.press("Run")
                        while not (new := [run for run in store.runs() if run.id not in known]):
                            time.sleep(0.1)
                    while not store.run(new[0].id).environment:
                        time.sleep(0.1)
                    if apart:
                        for thread in (
                            t for job in server.children(recursive=True) for t in job.threads()
                        ):
                            os.sched_setaffinity(thread.id, [first])
                    with ExitStack() as open_pages:
                        for _ in range(count):
                            open_pages.enter_context(Session(url, f"run={new[0].id}"))
                        began, before = time.monotonic(), (_cpu_s(server), time.process_time())
                        while (run := store.run(new[0].id)).live:
                            time.sleep(0.5)
                        took = time.monotonic() - began
                    if run.status != "done" or run.summary is None:
                        raise SystemExit(f"the dashboard's run failed: {run.error}")
                    speeds[count].append(run.summary.samples_per_s / run.config.batch_size)
                    tail = np.percentile(
                        store.steps(run.id, names=["step_s"])["step_s"][WATCHED_WARMUP:], 99
                    )
                    used = (
                        (_cpu_s(server) - before[0]) / took,
                        (time.process_time() - before[1]) / took,
                    )
                    print(
                        f"round {index + 1}, {count} tabs: {speeds[count][-1]:.2f} steps/s, "
                        f"99% under {1e3 * tail:.1f} ms, server {used[0]:.2f} and clients {used[1]:.2f} cores",
                        flush=True,
                    )
            store.close()
        ratios = [some / few for some, few in zip(speeds[tabs], speeds[against], strict=True)]
        print(
            f"steps/s with {tabs} tabs / with {against}: x{np.median(ratios):.3f} "
            f"(n = {rounds} rounds, {min(ratios):.3f} to {max(ratios):.3f})"
        )


def _cpu_s(process: psutil.Process) -> float:
    """Returns the CPU time (s) of a process without its children."""
    times = process.cpu_times()
    return float(times.user + times.system)


def made_up_steps(first: int, n: int, origin: float) -> np.ndarray:
    """Returns (n, len(STEP_COLUMNS)) float64: steps of 5 ms with 1 ms of data wait and some noise."""
    rng = np.random.default_rng(first)
    columns = {name: np.full(n, np.nan) for name in STEP_COLUMNS}
    wait = 1e-3 + rng.exponential(2e-4, n)
    compute = 4e-3 + rng.exponential(2e-4, n)
    columns |= {
        "rank": np.zeros(n),
        "step": np.arange(first, first + n, dtype=float),
        "epoch": np.zeros(n),
        "t_start_s": origin + np.arange(first, first + n) * 5.5e-3,
        "data_wait_s": wait,
        "h2d_s": np.full(n, 1e-4),
        "compute_s": compute,
        "gap_s": wait + 1e-4,
        "exposed_wait_s": wait,
        "step_s": wait + compute + 1e-4,
        "samples": np.full(n, 128.0),
        "loss": 2.3 * np.exp(-np.arange(first, first + n) / 2e4) + rng.normal(0, 0.05, n),
        "warmup": np.zeros(n),
    }
    columns["compute_start_s"] = columns["t_start_s"] + wait + 1e-4
    return np.stack([columns[name] for name in STEP_COLUMNS], axis=1)


def made_up_telemetry(first: int, n: int, origin: float) -> list[list[float]]:
    """Returns `n` telemetry samples, two a second, with noise in every column."""
    rng = np.random.default_rng(first)
    columns: dict[str, Any] = {
        name: rng.uniform(1, 100, n) * (1e8 if "bytes" in name else 1) for name in TELEMETRY_COLUMNS
    }
    columns["t_s"] = origin + np.arange(first, first + n) * 0.5
    rows: list[list[float]] = np.stack(
        [columns[name] for name in TELEMETRY_COLUMNS], axis=1
    ).tolist()
    return rows


def measure_refresh(steps: int, seconds: float) -> None:
    """Prints the server's CPU time and the bytes of a refresh, for a live run of `steps` steps."""
    with tempfile.TemporaryDirectory() as home:
        os.environ["VITPROF_HOME"] = home
        with dashboard({**os.environ}) as (url, server):
            store = RunStore()
            run_id = store.create_run(RunConfig(strategy="memory", steps=10 * steps))
            origin = time.perf_counter() - steps * 5.5e-3
            store.update_run(
                run_id, status="running", stage="training", progress=0.1, t_origin_s=origin
            )
            for first in range(0, steps, 10_000):
                rows = made_up_steps(first, min(10_000, steps - first), origin)
                append_steps(store, run_id, rows.tolist())
            samples = max(1, steps // 10)
            append_telemetry(store, run_id, 0, made_up_telemetry(0, samples, origin))
            with Session(url, f"run={run_id}") as page:
                page.finished.wait(30)
                time.sleep(3)

                def cpu_s() -> float:
                    times = server.cpu_times()
                    return float(times.user + times.system)

                costs: list[
                    float
                ] = []  # CPU for each refresh, over ten samples each: the system counts in 10 ms
                page.sizes.clear()
                end, done = time.monotonic() + seconds, steps
                while time.monotonic() < end:
                    spent, refreshed = cpu_s(), len(page.sizes)
                    for _ in range(10):
                        time.sleep(0.5)
                        append_steps(store, run_id, made_up_steps(done, 5, origin).tolist())
                        append_telemetry(
                            store, run_id, samples, made_up_telemetry(samples, 1, origin)
                        )
                        done, samples = done + 5, samples + 1
                    costs.append((cpu_s() - spent) / max(len(page.sizes) - refreshed, 1))
                sizes = np.array(page.sizes) / 1e3
            store.close()
    print(
        f"{steps:,} steps: {np.median(costs) * 1e3:.1f} ms of server CPU a refresh "
        f"({min(costs) * 1e3:.1f} to {max(costs) * 1e3:.1f} in {len(costs)} stretches), "
        f"{np.median(sizes):.1f} kB (most {sizes.max():.1f}, n = {len(sizes)})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_subparsers(dest="what", required=True)
    job = what.add_parser("job")
    job.add_argument("--isolation", choices=("process", "thread"), default="process")
    job.add_argument("--rounds", type=int, default=5)
    refresh = what.add_parser("refresh")
    refresh.add_argument("--steps", type=int, nargs="+", default=[100, 10_000, 100_000])
    refresh.add_argument("--seconds", type=float, default=20.0)
    tabs = what.add_parser("tabs")
    tabs.add_argument("--tabs", type=int, default=4)
    tabs.add_argument(
        "--against", type=int, default=0, help="pages in the runs that are compared with"
    )
    tabs.add_argument("--apart", action="store_true", help="the job on a core of its own")
    tabs.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    if given.what == "job":
        compare_job(given.isolation, given.rounds)
    elif given.what == "tabs":
        compare_tabs(given.tabs, given.rounds, against=given.against, apart=given.apart)
    else:
        for steps in given.steps:
            measure_refresh(steps, given.seconds)


if __name__ == "__main__":
    main()
