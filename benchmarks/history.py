"""The cost of the History page for the server, at 10, 1,000 and 10,000 runs.

    python -m benchmarks.history [--runs 10 1000 10000] [--rounds 20]

Streamlit's AppTest runs the page in this process: the CPU time is that of its script and of all it reads, without the
web server. The runs are made up, with configs, summaries, verdicts and sparklines as long as real ones. A round shows
the first page, the last one, a search, a search without results, and a filter with a sort. The columns of the table are
CPU milliseconds for each, median (lowest to highest), and the database's part of the first page.
"""

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable

import sqlalchemy as sa
import streamlit as st
from streamlit.testing.v1 import AppTest

from benchmarks.dashboard import REPOSITORY
from vitprof.config import RunConfig
from vitprof.config.resolve import resolve
from vitprof.recording.columns import RunSummary, summary_to_dict
from vitprof.store import RunQuery, RunStore
from vitprof.store.database import run_tags, runs
from vitprof.ui import resources

KINDS = ("input-bound", "moderately input-bound", "not input-bound", "inconclusive")
STRATEGIES = ("per-sample", "memory", "workers", "hdf5")
TAGGED = 0.3
SENTENCE = (
    "Input-bound. The GPU was idle for data 42% of the time. Decoding by PIL was 80% of that. " * 8
)
"""A verdict with its advice and signatures has 2 to 4 kB as JSON."""


def fill(store: RunStore, n: int) -> None:
    """Adds `n` runs, and headroom runs for a tenth of them."""
    rng = random.Random(n)
    first = store.create_run(resolve(RunConfig(steps=200, device="cpu")))
    summary = summary_to_dict(RunSummary(n_steps=200, samples_per_s=1000.0, device_idle_frac=0.4))
    with store.transaction() as db:
        base = dict(db.execute(sa.select(runs).where(runs.c.id == first)).one()._mapping)
        base.pop("id")
        made = []
        for i in range(1, n + n // 10):
            kind, strategy = rng.choice(KINDS), rng.choice(STRATEGIES)
            speed, idle = rng.uniform(100, 30_000), rng.random()
            made.append(
                base
                | {
                    "name": f"{strategy}, batch 128, number {i}",
                    "strategy": strategy,
                    "status": "done",
                    "samples_per_s": speed,
                    "idle_frac": idle,
                    "summary": summary | {"samples_per_s": speed, "device_idle_frac": idle},
                    "verdict": {"kind": kind, "sentence": SENTENCE, "advice": [SENTENCE] * 3},
                    "verdict_kind": kind,
                    "spark": [round(rng.random(), 3) for _ in range(40)],
                    "group_key": "" if i < n else f"headroom:{rng.randint(1, n)}",
                }
            )
        for start in range(0, len(made), 1000):
            db.execute(sa.insert(runs), made[start : start + 1000])
        tagged = [
            {"run_id": i, "tag": rng.choice(("before", "after", "baseline"))}
            for i in range(1, n)
            if rng.random() < TAGGED
        ]
        if tagged:
            db.execute(sa.insert(run_tags), tagged)


def cpu_ms(do: Callable[[], object]) -> float:
    began = time.process_time()
    do()
    return (time.process_time() - began) * 1e3


def told(values: list[float]) -> str:
    return f"{statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})"


def open_page() -> AppTest:
    at = AppTest.from_file(str(REPOSITORY / "app.py"), default_timeout=120).run()
    at.switch_page("pages/history.py").run()
    if at.exception:
        raise SystemExit(f"the page failed: {at.exception[0].value}")
    return at


def measure(n: int, rounds: int) -> list[str]:
    """Returns the cells of a row of the table, for a store of `n` runs."""
    with tempfile.TemporaryDirectory() as home:
        os.environ["VITPROF_HOME"] = home
        st.cache_resource.clear()
        store = resources.store()
        fill(store, n)
        at = open_page()
        pages = -(-n // 25)
        steps: dict[str, Callable[[], object]] = {
            "first": at.run,
            "last": lambda: at.pagination(key="page").set_value(pages).run(),
            "search": lambda: at.text_input(key="q").set_value("memory number 7").run(),
            "nothing": lambda: at.text_input(key="q").set_value("zzz").run(),
            "filter": lambda: (
                at.text_input(key="q").set_value(""),
                at.selectbox(key="sort").set_value("Most idle first"),
                at.multiselect(key="verdicts").set_value(["input-bound"]).run(),
            ),
        }
        taken: dict[str, list[float]] = {name: [] for name in (*steps, "database")}
        for _ in range(rounds):
            for name, step in steps.items():
                taken[name].append(cpu_ms(step))
            at.multiselect(key="verdicts").set_value([])
            at.selectbox(key="sort").set_value("Newest first").run()
            taken["database"].append(
                cpu_ms(
                    lambda: (store.count_runs(RunQuery()), store.list_runs(RunQuery(), limit=25))
                )
            )
        resources.manager().shutdown()
        store.close()
    return [f"{n:,}", *(told(taken[name]) for name in taken)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, nargs="+", default=[10, 1_000, 10_000])
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    print(
        "| runs | first page | last page | search | nothing found | filter and sort | database, first page |"
    )
    print("|---|---|---|---|---|---|---|")
    for n in given.runs:
        print("|", " | ".join(measure(n, given.rounds)), "|", flush=True)
    print(
        f"CPU ms of the server for each drawing of the page, median (lowest to highest), n = {given.rounds}"
    )


if __name__ == "__main__":
    main()
