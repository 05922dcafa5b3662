"""Watches training loops as people write them on this machine's GPU, and compares with torch.profiler's kernels.

    python -m benchmarks.watch_matrix FILE [--seconds S] [--only SCRIPT...]

Each of `tests.nullcuda.scripts` runs starved (20 ms for a batch, 2 ms of work), busy (12 ms of work), and once without
vitprof for its losses. The union of kernels by torch.profiler is the oracle of what the GPU did; the null device knows
it by itself. FILE is written after each row, so that an early end keeps what was measured.
"""

import argparse
import functools
import importlib.util
import json
import math
import operator
import time
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.watch.watching import Host
from vitprof.analysis.arrays import Series
from vitprof.analysis.verdict.verdict import judge
from vitprof.config.own_script import own_config
from vitprof.errors import VitprofError
from vitprof.recording.columns import TELEMETRY_COLUMNS
from vitprof.recording.verdict import Verdict

SCRIPTS, HERE = "tests.nullcuda.scripts", "benchmarks.watch_matrix"
POINTS = 0.02
"""The most that a share of the time may be off."""
STARVED: dict[str, Any] = {"wait_s": 0.02, "work_s": 0.002}
BUSY: dict[str, Any] = {"wait_s": 0.0, "work_s": 0.012}
CASES = {"starved": STARVED, "busy": BUSY}
FRAMEWORKS: dict[str, dict[str, Any]] = {
    "plain": {},
    "plain, the loss is read": {"item": True},
    "quickstart": {},
    "two_loaders": {},
    "two_loaders, a backward pass for each": {"apart": True},
    "two_loaders, the slow one last": {"late": True},
    "by_accelerate": {},
    "by_accelerate, watched first": {"watched_first": True},
    "by_transformers": {},
    "by_transformers, with the callback": {"callback": True},
    "by_lightning": {},
    "by_lightning, with the callback": {"callback": True},
    "by_timm": {},
}
ALL = FRAMEWORKS | {"launch_bound": {}}
NULL = "the null device"
SAME, OTHER = "the same losses", "other losses than without vitprof"
UNSTEADY = "losses that change without vitprof, too"
TRUE = ("exposed_wait_s", "compute_s")
"""What the null device knows by itself, of what vitprof says of a run."""
NO_ORACLE = "missing: torch.profiler sees no kernels here (CUPTI)"


class Run(NamedTuple):
    """A watched run, from a quarter of its batches on, and what the device says of the same time."""

    steps: Series
    all_steps: Series
    busy_frac: float
    """By the oracle; NaN without one. What vitprof calls compute may also hold waits for launches, never less."""
    waited_frac: float
    """The share of the time in which batches were made, by the script."""
    truth: dict[str, float]
    """What the null device says of exposed waits and of compute, as shares; empty elsewhere."""
    facts: dict[str, Any]
    own: dict[str, Any]
    """What the script returned."""

    def frac(self, name: str) -> float:
        return float(self.steps[name].sum() / self.steps["step_s"].sum())

    def verdict(self) -> Verdict:
        telemetry = dict.fromkeys(TELEMETRY_COLUMNS, np.zeros(0))
        return judge(own_config("script", workers=0), self.all_steps, [], telemetry, self.facts)


def run(host: Host, function: str, **how: Any) -> Run:
    """Runs a script, watched. Raises `RuntimeError` with the last line of its errors where it fails."""
    name = how.get("script", function)
    watched = not (how.get("callback") or how.get("watched_first"))
    done = host.run(function, watched=watched, **how)
    if done.status or not done.returned or not done.columns:
        raise RuntimeError(
            f"{name}: {(done.complaint.strip().splitlines() or ['no steps came'])[-1]}"
        )
    own, steps = json.loads(done.returned), done.steps
    kept = (steps["t_start_s"] >= own["since_s"]) & (steps["t_start_s"] < own["until_s"])
    span_s = own["until_s"] - own["since_s"]
    return Run(
        {name: values[kept] for name, values in steps.items()},
        steps,
        own["busy_s"] / span_s,
        own["waited_s"] / span_s,
        {name: own[name] / span_s for name in TRUE if name in own},
        functools.reduce(operator.or_, done.note("facts"), done.note("environment")[0]),
        own,
    )


def wrong(case: str, seen: Run, points: float | None = None) -> list[str]:
    """Returns what vitprof says otherwise than the oracle and the script, starved or busy; without an oracle, what it
    says otherwise than the script. `points`: by how much compute may differ from the null device's own;
    None where neither that nor the exposed wait, by `POINTS`, is compared.
    """
    compute, exposed, busy = seen.frac("compute_s"), seen.frac("exposed_wait_s"), seen.busy_frac
    known = 0.0 if math.isnan(busy) else busy
    failures = []
    if seen.facts["device"] != "cuda:0":
        failures.append(f"the device is called {seen.facts['device']}")
    allowed = {} if points is None else {"exposed_wait_s": POINTS, "compute_s": points}
    for name, truth in seen.truth.items() if allowed else ():
        if abs(seen.frac(name) - truth) > allowed[name]:
            failures.append(f"{name} {seen.frac(name):.1%}, but {truth:.1%} by the device itself")
    if compute < known - POINTS:
        failures.append(f"compute {compute:.1%}, but the GPU was busy {busy:.1%}")
    if exposed > 1 - known + POINTS:
        failures.append(f"exposed wait {exposed:.1%}, but at most {1 - known:.1%}")
    if case == "starved":
        work = 0.1 if math.isnan(busy) else busy  # 2 ms of 22: nearly a tenth
        least = min(seen.waited_frac, 1 - known) - work
        if exposed <= least - POINTS:
            failures.append(f"exposed wait {exposed:.1%}, but at least {least:.1%}")
        verdict = seen.verdict()
        if verdict.kind != "input-bound":
            failures.append(f"not input-bound: {verdict.sentence}")
    return failures


def traced(*, script: str, cycles_per_s: float, **how: Any) -> str:
    """Runs a script under torch.profiler, in a fork of the host. Returns what the script returns, its losses, and
    `busy_s` by the oracle.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    from tests.nullcuda import scripts
    from vitprof.selftest.gpu.device_cases import union

    scripts.CYCLES_PER_S = cycles_per_s
    torch.manual_seed(0)
    # CUDA is not started here: when it starts is the script's choice, and what the watch chooses depends on it
    epoch_s = (time.time_ns() - time.perf_counter_ns()) / 1e9
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        own = json.loads(getattr(scripts, script)(**how))
        torch.cuda.synchronize()
    results: Any = profiled.profiler
    since, until = own["since_s"] + epoch_s, own["until_s"] + epoch_s
    spans = [
        (
            max(since, event.start_ns() / 1e9),
            min(until, (event.start_ns() + event.duration_ns()) / 1e9),
        )
        for event in results.kineto_results.events()
        if str(event.device_type()).endswith("CUDA") and event.duration_ns()
    ]
    own["oracle"] = NO_ORACLE
    if spans:
        own |= {
            "oracle": "torch.profiler",
            "busy_s": union(span for span in spans if span[0] < span[1]),
        }
    elif not math.isnan(own["busy_s"]):
        own["oracle"] = NULL
    own["losses"] = torch.stack(scripts.LOSSES).tolist() if scripts.LOSSES else []
    return json.dumps(own)


def clock() -> str:
    """Returns the cycles/s of `torch.cuda._sleep`, once the GPU's clock has risen, and the GPU's name."""
    import torch

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(500_000_000)
    begin.record()
    torch.cuda._sleep(100_000_000)
    end.record()
    end.synchronize()
    return json.dumps([100_000_000 / begin.elapsed_time(end) * 1e3, torch.cuda.get_device_name()])


def rows(host: Host, cycles_per_s: float, only: Container[str]) -> Iterator[dict[str, Any]]:
    """Yields a row for each of the scripts `only` and each case: what was seen, and what is wrong."""
    for title, more in {
        name: more for name, more in ALL.items() if name.split(",")[0] in only
    }.items():
        script = title.split(",")[0]
        module = script.removeprefix("by_")
        if module != script and importlib.util.find_spec(module) is None:
            yield {"script": title, "skipped": f"{module} is not installed"}
            continue
        how = {"script": script, "cycles_per_s": cycles_per_s}
        cases = {"1 ms of kernels in 8 ms of launches": {}} if script == "launch_bound" else CASES
        losses = ""
        plainly = {name: value for name, value in more.items() if name == "item"}

        def bare(script: dict[str, Any]) -> str:
            done = host.running(HERE).run("traced", watched=False, **script)
            return repr(json.loads(done.returned)["losses"])

        for case, times in cases.items():
            row: dict[str, Any] = {"script": title, "case": case}
            try:
                seen = run(host.running(HERE), "traced", **how, **times, **more)
                row |= figures(seen)
                if case not in CASES:
                    row["wrong"] = [
                        text for text in ["the time goes into the model"] if text in row["sentence"]
                    ]
                    yield row
                    continue
                row["wrong"] = wrong(case, seen, POINTS)
                losses = losses or bare(how | plainly | {"wait_s": 0.0, "work_s": 0.0})
                if seen.own["oracle"] != NULL:  # whose losses are whatever the memory held
                    row["losses"] = SAME if losses == repr(seen.own["losses"]) else OTHER
                    if row["losses"] == OTHER and losses != bare(how | plainly | times):
                        row["losses"] = UNSTEADY
            except (RuntimeError, ValueError, LookupError, VitprofError) as error:
                row["failed"] = f"{type(error).__name__}: {error}"
            yield row


def figures(seen: Run) -> dict[str, Any]:
    names = ("exposed_wait_s", "data_wait_s", "h2d_s", "compute_s")
    return {
        "oracle": seen.own["oracle"],
        "busy_frac": seen.busy_frac,
        "waited_frac": seen.waited_frac,
        **{f"true_{name.removesuffix('_s')}_frac": share for name, share in seen.truth.items()},
        **{name.removesuffix("_s") + "_frac": seen.frac(name) for name in names},
        "n_steps": len(seen.all_steps["step"]),
        "step_ms": float(np.median(seen.steps["step_s"])) * 1e3,
        "sentence": seen.verdict().sentence,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=150.0, help="no script begins after this")
    names = list(dict.fromkeys(name.split(",")[0] for name in ALL))
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    given = parser.parse_args()
    until = time.monotonic() + given.seconds
    host = Host(SCRIPTS)
    try:
        answer = host.running(HERE).run("clock", watched=False, listen=False)
        if not answer.returned:
            raise SystemExit(f"no GPU: {answer.complaint.strip()[-500:]}")
        cycles_per_s, name = json.loads(answer.returned)
        cut = "ended early: the rows after these are missing"
        written: dict[str, Any] = {
            "device_name": name,
            "sleep_cycles_per_s": cycles_per_s,
            "rows": [],
            "cut": cut,
        }
        for row in rows(host, cycles_per_s, given.only):
            written["rows"].append(row)
            given.file.write_text(json.dumps(written, indent=1))
            print(row, flush=True)
            if time.monotonic() > until:
                break
        else:
            given.file.write_text(json.dumps(written | {"cut": ""}, indent=1))
    finally:
        host.close()


if __name__ == "__main__":
    main()
