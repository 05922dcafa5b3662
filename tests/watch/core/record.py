"""Records the event logs that the core's tests replay, each with what its script measured itself:

    python -m tests.watch.core.record [NAME...]

A log is made anew where an event or its values change. Nobody else should use the machine: the
truth of a log is the script's own clock, and both are kept as they are. Each script runs in a process
of its own, forked from this one.

Without names all are recorded, but for those in `loop_cases.TAKEN_WRONGLY`.

Foreign scripts need `../shared/foreign` beside the checkout, frameworks their packages: what is missing
is said, and left as it is.
"""

from __future__ import annotations

import concurrent.futures
import importlib
import json
import multiprocessing.pool
import multiprocessing.queues
import os
import queue
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch.utils.data.dataloader

from tests.forking import exit_status_of, fork_doing
from tests.watch import foreign, loops, scripts
from tests.watch.core.loop_cases import LOOPS, TAKEN_WRONGLY, WAITS_NOT_SEEN
from vitprof.watch.core.log import event_of
from vitprof.watch.event_log import EventLogWriter
from vitprof.watch.events import Buffer, Description, Row
from vitprof.watch.fetch_times import unpacked
from vitprof.watch.patches import (
    CURRENT,
    Recorder,
    autograd,
    collectives,
    dataloader,
    making,
    marks,
    optimizer,
    waits,
)
from vitprof.watch.patching import OPTIMIZER

LOGS = Path(__file__).parent / "logs"
OF_FRAMEWORKS_S = 300e-6
"""What a framework does around `next()`, within its own timers."""
FILLED_BY_THREADS = (queue, multiprocessing.pool, multiprocessing.queues, concurrent.futures)
"""Imported: hooks replace methods of what is."""


Case = Callable[[Recorder], dict[str, Any]]
"""Runs a script; returns its truth."""
RECIPES = (
    "by hand",
    "accumulating",
    "own iterator",
    "fake loader",
    "attacked validation",
    "by fastai",
    "by keras",
    "by skorch",
    "by ignite",
    "by monai",
    "by torch_geometric",
    "by webdataset",
    "by litdata",
    "by streaming",
    "by ultralytics",
    "by hydra",
)
"""Functions of `tests.watch.recipes`, but for those that watch themselves."""


def cases() -> dict[str, Case]:
    """Returns the scripts by the name of their shape."""
    return _of_scripts() | _of_frameworks() | _of_recipes() | _of_foreign() | _of_loops(LOOPS)


def _of_scripts() -> dict[str, Case]:
    found: dict[str, Case] = {}

    def add(name: str, function: str, truth: Callable[[Any], dict[str, Any]], **more: Any) -> None:
        found[name] = lambda _: truth(getattr(scripts, function)(**more))

    def steps(n: int, **more: Any) -> Callable[[Any], dict[str, Any]]:
        return lambda _: {"steps": n, **more}

    add("plain", "by_own_clock", _own_clock, epochs=2)
    for workers in (0, 2):
        add(f"workers-{workers}", "train", steps(16, epochs=2, evaluations=2), workers=workers)
    for order in ("sq", "qs", "sqs"):
        add(f"zipped-{order}", "several_loaders", _zipped, order=order)
    add("zipped-backward-for-each", "several_loaders", _zipped, order="sq", apart=True)
    add("zipped-second-quiet", "several_loaders", _zipped, order="qs", quiet=True)
    add("zipped-checked", "several_loaders", _zipped, order="qs", check=True)
    for name, more in {
        "epoch": {},
        "epoch-accumulated": {"accumulate": 2},
        "within": {"every": 8},
        "within-accumulated": {"every": 8, "accumulate": 2},
        "epoch-anew": {"anew": True},
        "within-anew": {"every": 4, "anew": True},
    }.items():
        add(f"checked-{name}", "differentiates_in_checks", _checked, **more)
    for how, (n, unknown) in {
        "epochs": (96, 64),
        "break": (48, 32),
        "checks": (96, 64),
        "inner": (33, 0),
    }.items():
        add(f"goes-on-{how}", "goes_on_without_loader", steps(n, unknown_waits=unknown), how=how)
    for how in ("queue", "polled", "renewed", "future", "queue without loader", "no_grad"):
        add(f"elsewhere-{how.replace(' ', '-')}", "batches_from_elsewhere", _elsewhere, how=how)
    add("stepped-in-a-thread", "batches_from_elsewhere", _elsewhere, how="stepped in a thread")
    for how in ("deque", "function, with checks"):
        shape = how.replace(", ", "-").replace(" ", "-")
        unseen = steps(60, unknown_waits=60)
        add(f"unseen-{shape}", "batches_from_elsewhere", unseen, how=how)
    add("left-early", "leaves", steps(6), how="end", steps=6)
    add("two-threads", "in_two_threads", steps(32, others=1))
    add("anew-each-batch", "iterates_anew_for_each_batch", steps(16))
    add("nested", "nested", steps(8), workers=0)
    add("nobody-trains", "evaluate", steps(0))
    return found


def _of_frameworks() -> dict[str, Case]:
    """Returns scripts with loops of frameworks, which fetch ahead, in a way of their own."""

    def case(function: str, n: int, **more: Any) -> Case:
        def run(_: Recorder) -> dict[str, Any]:
            module = importlib.import_module("tests.watch.frameworks")
            told = json.loads(getattr(module, function)(workers=0, **more))
            truth: dict[str, Any] = {"steps": n, "epochs": 2}
            # the first batch of a loader without a length is fetched before its timers begin
            if told["waits_s"] and more.get("sized", True):
                truth |= {"wait_s": sum(told["waits_s"]), "around_next_s": OF_FRAMEWORKS_S}
            return truth

        return run

    return {
        "lightning": case("by_lightning", 16),
        "lightning-no-length": case("by_lightning", 16, sized=False),
        "transformers": case("by_transformers", 8),
        "accelerate": case("by_accelerate", 16),
        "timm": case("by_timm", 16),
        "torchdata-stateful": case("by_torchdata", 16),
    }


def _of_recipes() -> dict[str, Case]:
    """Returns loops of more frameworks, and by hand. They time what comes after their first steps, but
    for the beginning of their second epoch."""

    def case(function: str) -> Case:
        def run(_: Recorder) -> dict[str, Any]:
            recipes = importlib.import_module("tests.watch.recipes")
            told = json.loads(getattr(recipes, function)())
            half = told["steps"] // 2
            return {
                "steps": told["steps"],
                "samples": recipes.BATCH,
                "wait_frac": told["wait"],
                "timed": [[recipes.SKIPPED, half], [half + 1, told["steps"]]],
            }

        return run

    return {f"recipe-{name.replace(' ', '-')}": case(name.replace(" ", "_")) for name in RECIPES}


def _of_foreign() -> dict[str, Case]:
    """Returns scripts that nobody wrote for vitprof."""
    runs = {"mnist": foreign.mnist, "imagenet": foreign.imagenet, "timm": foreign.timm}
    return {f"foreign-{name}": lambda _, run=run: run() for name, run in runs.items()}


def _of_loops(table: Mapping[str, loops.Loop]) -> dict[str, Case]:
    def case(name: str, loop: loops.Loop) -> Case:
        def run(recorder: Recorder) -> dict[str, Any]:
            clock = loops.trained(loop)
            checked = [recorder.number(batches, "loader") for batches in clock.checked]
            unknown = WAITS_NOT_SEEN.get(name, 0)
            return clock.truth() | {"checked": checked, "unknown_waits": unknown}

        return run

    return {name: case(name, loop) for name, loop in table.items()}


def _own_clock(returned: str) -> dict[str, Any]:
    took = [row[1] for row in json.loads(returned)]
    return {"steps": len(took), "epochs": 2, "step_s": took}


def _zipped(returned: list[list[float]]) -> dict[str, Any]:
    n = len(returned)
    return {"steps": 2 * n, "epochs": 2, "waits_s": [wait for _, wait in returned]}


def _checked(returned: list[float]) -> dict[str, Any]:
    return {"steps": 64, "epochs": 2, "wait_s": returned[0], "evaluated_s": returned[1]}


def _elsewhere(returned: list[list[float]]) -> dict[str, Any]:
    waits = [got - asked for asked, got in returned]
    return {"steps": len(waits) - (len(waits) > 60), "waits_s": waits[:60]}


def record(name: str, run: Case) -> None:
    """Runs a script in this process, and writes its log and its truth."""
    recorder = hooked()
    CURRENT.recorder = recorder
    truth = run(recorder)
    descriptions, rows = recorder.buffer.take()
    if recorder.failed is not None:
        raise recorder.failed
    written(LOGS / f"{name}.jsonl", descriptions, rows)
    truths = LOGS / "truths.json"
    known = json.loads(truths.read_text()) if truths.exists() else {}
    known[name] = truth
    rounded = json.loads(json.dumps(known), parse_float=lambda text: round(float(text), 6))
    lines = [f"{json.dumps(key)}: {json.dumps(rounded[key])}" for key in sorted(rounded)]
    truths.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def record_forked(name: str, run: Case) -> None:
    """Does so in a forked process: hooks, numbers and threads of one script are none of the next one's."""

    def work() -> int:
        try:
            record(name, run)
        except (ImportError, FileNotFoundError) as missing:
            sys.stderr.write(f"{missing}\n")
            return 1
        return 0

    status = exit_status_of(fork_doing(work))
    sys.stdout.write(f"{name}\n" if status == 0 else f"{name}: not recorded\n")


def written(path: Path, descriptions: Iterable[Description], rows: Iterable[Row]) -> None:
    """Writes what was recorded to a file."""
    with path.open("w", encoding="utf-8") as file:
        writer = EventLogWriter(file)
        for description in descriptions:
            writer.described(description)
        for row in rows:
            writer.event(event_of(row))


def hooked() -> Recorder:
    """Returns a recorder with all hooks installed, without the watching that there is besides."""
    recorder = Recorder(Buffer())
    loaders = torch.utils.data.dataloader
    making.time_fetching(loaders)
    making.time_composes()
    dataloader.install(recorder, loaders)
    marks.install(recorder)
    collectives.install(recorder)
    optimizer.install(recorder, sys.modules[OPTIMIZER])
    autograd.install(recorder)
    waits.install(recorder)
    base = loaders._BaseDataLoaderIter
    fetch = base.__next__
    base.__next__ = lambda self: unpacked(fetch(self))[0]  # type: ignore[method-assign]
    os.register_at_fork(after_in_child=recorder.stop)
    return recorder


def main() -> None:
    LOGS.mkdir(exist_ok=True)
    known = cases()
    wanted = sys.argv[1:] or known
    known |= _of_loops(TAKEN_WRONGLY)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise SystemExit(f"no script is called {unknown[0]}; there are {', '.join(sorted(known))}")
    for name in wanted:
        sys.stdout.flush()
        record_forked(name, known[name])


if __name__ == "__main__":
    importlib.import_module("tests.watch.core.record").main()
