"""How to add a step column that shows in CSV and in a chart, as docs/layout.md says: done in a copy of the package."""

import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.engine_fixtures import digits_home, full_home  # noqa: F401

UNFINISHED = shutil.ignore_patterns("*.pyc.*")
"""Byte code comes along but for what is being written meanwhile."""
CHANGES = {
    "vitprof/recording/columns.py": [
        (
            "\n\n@dataclass(frozen=True)\nclass TelemetrySample",
            '    toy_s: float = measured("half of data_wait_s")\n\n\n@dataclass(frozen=True)\nclass TelemetrySample',
        )
    ],
    "vitprof/measure/step_columns.py": [
        ('        "rank": np.zeros', '        "toy_s": wait_s / 2,\n        "rank": np.zeros')
    ],
    "vitprof/charts/live.py": [
        (
            '_part("compute", style.COMPUTE),\n',
            '_part("compute", style.COMPUTE),\n        _part("toy", style.LOSS),\n',
        ),
        (
            '("data_wait_s", "h2d_s", "compute_s")',
            '("data_wait_s", "h2d_s", "compute_s", "toy_s")',
        ),
    ],
}
"""File -> what is replaced in it. Nothing else names the column: not the wire, the store, the exports or the pages."""
SCRIPT = """
import os, sys
from vitprof import cli
def run(*args):
    sys.argv = ["vitprof", *args]
    try:
        cli.main()
    except SystemExit as ended:
        assert not ended.code, args
run("run", "--strategy", "memory", "--dataset", "digits", "--device", "simulated:1,1", "--steps", "20", "--no-evaluate",
    "--isolation", "thread")
run("export", "1", "--steps", "--output", "steps.csv")
from vitprof.charts.live import BATCHES
from vitprof.store import RunStore
from vitprof.ui.resources import RunSeries
store = RunStore()
series = RunSeries(store, 1)
series.refresh()
steps = series.steps()
points = BATCHES.build(steps, 0.0, 0, len(steps["step"]), 1)
assert len(points) == len(BATCHES.traces) == 4
print(*(float(y) for y in points[3].y), flush=True)
store.close()
os._exit(0)
"""
"""All in one process: each that is started imports for seconds, and PyTorch takes another one to be taken down."""


@pytest.mark.measured
def test_a_step_column_takes_three_files(tmp_path: Path, full_home: Path) -> None:  # noqa: F811
    assert len(CHANGES) <= 3
    shutil.copytree(ROOT / "vitprof", tmp_path / "vitprof", ignore=UNFINISHED)
    for name, changes in CHANGES.items():
        text = (tmp_path / name).read_text()
        for old, new in changes:
            assert text.count(old) == 1, f"{name}: {old}"
            text = text.replace(old, new)
        (tmp_path / name).write_text(text)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", SCRIPT]
    ended = subprocess.run(
        command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    rows = list(csv.DictReader((tmp_path / "steps.csv").read_text().splitlines()))
    assert len(rows) == 20
    assert [2 * float(r["toy_s"]) for r in rows] == pytest.approx(
        [float(r["data_wait_s"]) for r in rows], abs=2e-9
    )
    drawn = [float(y) for y in ended.stdout.splitlines()[-1].split()]
    assert drawn == pytest.approx([1e3 * float(row["toy_s"]) for row in rows])
