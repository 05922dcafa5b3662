"""Traces that torch.profiler writes here, and the same script when it is watched, each beside its own clock."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.cli.json_objects import told
from tests.command_line import Call
from tests.traces.profiled_script import TOLD
from vitprof.store import RunStore
from vitprof.traces.reading import read_trace

pytestmark = pytest.mark.measured
SCRIPT = "tests.traces.profiled_script"
POINTS = 0.03
"""The most that the share of the time idle for data may differ from that by the script's own clock, in the same run:
the profiler slows the loop itself, and one run differs from the next."""
STEPS = 90


@pytest.fixture(autouse=True)
def _from_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))


@pytest.mark.parametrize(
    ("wait_ms", "work_ms", "workers", "where", "kind"),
    [
        (8, 8, 0, "first", "input-bound"),
        (8, 8, 0, "never", "input-bound"),
        (1, 12, 0, "last", "moderately input-bound"),
        (1, 40, 1, "last", "not input-bound"),
    ],
)
def test_a_trace_says_what_watching_says(
    call: Call,
    mine: RunStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wait_ms: int,
    work_ms: int,
    workers: int,
    where: str,
    kind: str,
) -> None:
    words = [str(wait_ms / 1e3), str(work_ms / 1e3), str(workers), str(STEPS), where]
    command = [sys.executable, "-m", SCRIPT, *words]
    path = tmp_path / "trace.json.gz"
    share = tmp_path / "share"
    monkeypatch.setenv(TOLD, str(share))
    subprocess.run([*command, str(path)], check=True, cwd=ROOT, capture_output=True)
    own_of_trace = float(share.read_text())
    told("read", call("read", str(path), "--json")[1])
    assert call("watch", "--quiet", "--", *command)[0] == 0
    own_of_watched = float(share.read_text())
    watched, traced = mine.runs()
    assert watched.verdict is not None
    assert traced.verdict is not None
    assert traced.verdict.kind == kind, traced.verdict.sentence
    assert traced.verdict.idle_frac == pytest.approx(own_of_trace, abs=POINTS)
    assert watched.verdict.idle_frac == pytest.approx(own_of_watched, abs=POINTS)
    assert traced.summary is not None
    assert traced.summary.n_steps == STEPS
    assert traced.environment["watched"].get("num_workers") == (None if workers else 0)


def test_the_steps_of_a_schedule_are_past_the_warm_up(tmp_path: Path) -> None:
    """`schedule(wait=2, warmup=4, active=25)`: its first step has the number 6."""
    path = tmp_path / "trace.json"
    script = f"""
import torch
from tests.traces import profiled_script
from torch.profiler import ProfilerActivity, profile, schedule
cycle = schedule(wait=2, warmup=4, active=25, repeat=1)
with profile(
    activities=[ProfilerActivity.CPU],
    schedule=cycle,
    on_trace_ready=lambda prof: prof.export_chrome_trace({str(path)!r}),
) as prof:
    profiled_script.train(0.002, 0.002, 0, 35, "last", prof)
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT, capture_output=True)
    found = read_trace(path)
    source = found.facts["trace"]
    assert (source["first_iteration"], source["warmup_steps"]) == (6, 1)
    assert len(found.steps["step"]) == 25
