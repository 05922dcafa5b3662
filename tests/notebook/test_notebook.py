"""`vitprof.runs` and `vitprof.run`: which runs, what they tell, their charts; and the examples of docs/python.md."""

import csv
import dataclasses
import inspect
import io
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from sqlalchemy import update

import vitprof
from tests import ROOT
from tests.export.written import written
from tests.stored_series import append_telemetry
from tests.ui.dashboard import add_run
from vitprof.errors import ConfigError, StoreError, VitprofError
from vitprof.export.tables import STEPS_HEADER, run_object, write_steps_csv
from vitprof.notebook import Run
from vitprof.notebook.figures import FIGURES
from vitprof.program import install_command
from vitprof.recording.columns import TELEMETRY_COLUMNS
from vitprof.store import RunStore
from vitprof.store.database import runs


def ids(*args: Any, **filters: Any) -> list[int]:
    return [run.id for run in vitprof.runs(*args, **filters)]


def test_the_newest_first_and_filtered_as_the_command_does(stored: RunStore) -> None:
    helper = add_run(stored, n=0, group_key="headroom:1", role="A", status="failed")
    assert (ids(), ids(helpers=True)) == ([2, 1], [helper, 2, 1])
    assert vitprof.run(np.int64(2)).tags == ("kept",)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="run_id: '2' is not possible; give a whole number"):
        vitprof.run("2")  # type: ignore[arg-type]
    assert (
        ids(ascending=True, limit=1)
        == ids("#1")
        == ids(verdict="input-bound")
        == ids(device="cpu")
        == [1]
    )
    assert (
        ids("memory")
        == ids(tag="kept")
        == ids(strategy=["memory", "lmdb"])
        == ids(sort="samples_per_s", limit=1)
    )
    assert (ids(tag="kept"), ids(status=("done", "failed"), dataset="digits")) == ([2], [2, 1])
    assert ids(status="failed") == []


def test_an_empty_store_has_no_runs() -> None:
    assert vitprof.runs() == []
    with pytest.raises(StoreError, match=r"^there is no run 1; "):
        vitprof.run(1)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"status": "finished"},
            "status: 'finished' is not possible; choose one of queued, running, done",
        ),
        ({"sort": "size"}, "sort: 'size' is not possible; choose one of id, name, "),
        ({"limit": 0}, "limit: 0 is not possible; give a whole number of at least 1"),
        ({"limit": 2.5}, "limit: 2.5 is not possible; give a whole number"),
    ],
    ids=str,
)
def test_a_bad_value_is_said(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(said)}"):
        vitprof.runs(**given)


def test_a_run_of_another_version_is_left_out(stored: RunStore) -> None:
    with stored.transaction() as db:
        db.execute(update(runs).where(runs.c.id == 2).values(config={"warp": 9}))
    assert ids() == [1]
    with pytest.raises(StoreError, match="run 2 was written by another version"):
        vitprof.run(2)


def test_nothing_heavy_comes_along_and_nothing_stays(stored: RunStore, tmp_path: Path) -> None:
    """In a process of its own: no package that a list of runs does not need, no open store, no thread.

    With a temporary folder of its own: pyarrow reads what another program has left for its store there.
    """
    script = """
import os, sys, threading
import vitprof
found = vitprof.runs()
print(found[0], found[1]._repr_html_(), found[0].summary.samples_per_s)
print(*sorted({"torch", "streamlit", "pandas", "plotly", "pyarrow"} & set(sys.modules)))
files = [os.path.realpath(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")]
print(*[name for name in files if "sqlite" in name])
print(threading.active_count())
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, env=env
    )
    said, heavy, opened, threads = ended.stdout.splitlines()
    assert said.startswith(
        "<vitprof run 2 'memory, batch 128, on simulated:5,0', done, simulated: Not input-bound. "
    )
    assert (heavy, opened, threads) == ("", "", "1")


@pytest.mark.parametrize(
    ("package", "what"),
    [
        ("pandas", lambda run: run.steps),
        ("plotly.graph_objects", lambda run: run.figure("gaps")),
        ("sqlalchemy", lambda run: vitprof.runs()),
    ],
    ids=["pandas", "plotly", "sqlalchemy"],
)
def test_a_missing_package_is_one_line(
    stored: RunStore, monkeypatch: pytest.MonkeyPatch, package: str, what: Any
) -> None:
    run = vitprof.run(1)
    again = ("vitprof.notebook.figures", "vitprof.charts", "vitprof.store")
    imported = {name: module for name, module in sys.modules.items() if name.startswith(again)}
    for name, module in imported.items():  # before it went missing; afterwards all is as it was
        parent, _, child = name.rpartition(".")
        monkeypatch.setattr(imported.get(parent) or sys.modules[parent], child, module)
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)  # type: ignore[arg-type]
    said = (
        f"the package {package.partition('.')[0]} is not installed: {install_command('dashboard')}"
    )
    with pytest.raises(VitprofError, match=re.escape(said)):
        what(run)


def test_what_it_tells_also_of_one_that_never_began(stored: RunStore) -> None:
    stored.edit(1, name="<b>mine</b>", note="seen")
    run, told = vitprof.run(1), stored.run(1)
    assert (run.id, run.name, run.status, run.created_utc) == (
        1,
        "<b>mine</b>",
        "done",
        told.created_utc,
    )
    assert (run.config, run.note, run.tags, run.error) == (told.config, "seen", (), "")
    assert repr(run.summary) == repr(told.summary)  # which has NaN in it
    assert (run.verdict_kind, run.verdict) == ("input-bound", told.verdict.sentence)
    assert run.summary.samples_per_s == pytest.approx(12_800)
    assert (run.simulated, vitprof.run(2).simulated) == (False, True)
    assert run.to_dict() == json.loads(json.dumps(run_object(told)))
    assert repr(run) == f"<vitprof run 1 '<b>mine</b>', done: {run.verdict}>"
    shown = run._repr_html_()
    assert "run 1: &lt;b&gt;mine&lt;/b&gt; (done)" in shown
    assert "<b>mine" not in shown
    for words in ("12,800 samples/s (95%: ", "device idle", "50%", run.verdict.split(",")[0]):
        assert words in shown
    run = vitprof.run(add_run(stored, n=0, status="failed"))
    stored.update_run(run.id, error="no disk")
    assert (run.summary, run.verdict, run.verdict_kind) == (None, "", "")
    assert run.error == "", "as it was when it was read"
    run = vitprof.run(run.id)
    assert run.error == "no disk"
    assert ("no disk" in run._repr_html_(), "n/a" in run._repr_html_()) == (True, False)
    assert (len(run.steps), tuple(run.steps.columns)) == (0, STEPS_HEADER)
    for name in FIGURES:
        with pytest.raises(
            VitprofError, match=f"there is no such chart of run {run.id}: it has no steps"
        ):
            run.figure(name)


def test_steps_are_those_of_the_csv_file_and_telemetry_has_its_columns(stored: RunStore) -> None:
    """Column by column and to the last digit."""
    steps = vitprof.run(1).steps
    header, *rows = csv.reader(
        io.StringIO(written(write_steps_csv, stored, [stored.run(1)]).decode(), newline="")
    )
    assert header == list(STEPS_HEADER) == list(steps.columns)
    for name, cells in zip(header, zip(*rows, strict=True), strict=True):
        if name in ("name", "simulated"):
            assert set(cells) == {
                str(value).lower() if name == "simulated" else value for value in set(steps[name])
            }
        else:
            given = np.array([float(cell) if cell else math.nan for cell in cells])
            np.testing.assert_array_equal(steps[name].to_numpy(dtype=float), given, err_msg=name)
    assert not steps.simulated.any()
    assert (steps.step.dtype, steps.data_wait_s.dtype, steps.t_start_s[0]) == (
        np.int64,
        np.float64,
        0.0,
    )
    telemetry = vitprof.run(2).telemetry
    assert list(telemetry.columns) == ["run_id", "name", "seq", *TELEMETRY_COLUMNS, "simulated"]
    assert (telemetry.t_s[0], telemetry.job_cpu_pct[0], telemetry.seq.dtype) == (
        0.0,
        90.0,
        np.int64,
    )
    assert telemetry.simulated.all()


def test_charts_by_name(stored: RunStore) -> None:
    told = {"transforms": {"Crop": {"s_per_sample": 0.001, "calls": 9}}}
    stored.update_run(1, facts=told, name="<i>one</i>")
    for role in "ABC":
        anchor = add_run(
            stored, wait_s=0.001 * "ABC".index(role), group_key="headroom:1", role=role
        )
        assert stored.run(anchor).role == role
    append_telemetry(
        stored, 1, 1, [[50.0 if name == "gpu_util_pct" else 101.0 for name in TELEMETRY_COLUMNS]]
    )
    run = vitprof.run(1)
    for name in FIGURES:
        figure = run.figure(name)
        assert isinstance(figure, go.Figure)
        assert figure.data, name
        assert figure.layout.title.text.endswith("run 1: &lt;i&gt;one&lt;/i&gt;</sup>")
        assert figure.layout.height > 100
    assert [t.name for t in run.figure("gaps").data if len(t.x)] == ["data wait"] * 2 + [
        "compute",
    ]
    assert run.figure("gaps").data[1].x[0] == 0.0, "seconds since the run began"
    assert "(simulated)" in vitprof.run(2).figure("device-time").layout.title.text


def test_a_step_can_be_looked_at_and_charts_that_cannot_be_are_said(stored: RunStore) -> None:
    run = vitprof.run(1)
    shown = {
        int(n) for trace in run.figure("timeline", step=33).data for n in np.ravel(trace.customdata)
    }
    assert (33 in shown, 0 in shown) == (True, False)
    assert run.figure("batch", step=33).data
    with pytest.raises(VitprofError, match="it has no step 40; its steps are 0 to 39"):
        run.figure("batch", step=40)
    with pytest.raises(
        ValueError,
        match="figure 'gaps' is of the whole run; a step can be given with timeline, batch",
    ):
        run.figure("gaps", step=3)
    with pytest.raises(
        ValueError,
        match="there is no figure 'gap'; choose one of gaps, batches, loss, gpu, cpu, dev",
    ):
        vitprof.run(1).figure("gap")
    run = vitprof.run(add_run(stored, loader_only=True))
    for name, why in (
        ("gaps", "it trained nothing, so no device could wait"),
        ("transforms", "it has no times of transforms"),
        ("gpu", "none of its figures is known"),
        ("headroom", f"its headroom is not measured; run: python -m vitprof headroom {run.id}"),
    ):
        with pytest.raises(VitprofError, match=why):
            run.figure(name)
    assert run.figure("batches").data


TEXT = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")


def test_examples(
    stored: RunStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    examples = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(examples) > 5
    for example in examples:
        exec(compile(example, "docs/python.md", "exec"), names)
    said = capsys.readouterr().out
    assert "2 memory, batch 128, on simulated:5,0 done Not input-bound" in said
    assert re.search(r"^data_wait_s +5\.0", said, re.MULTILINE), "ms of run 1"
    assert re.search(r"^1 +0\.005$", said, re.MULTILINE), "each run's median"
    assert "plotly" in (tmp_path / "gaps.html").read_text()


def test_all_is_named() -> None:
    names = {*vars(Run), *(field.name for field in dataclasses.fields(Run))}
    shown = {name for name in names if not name.startswith("_")}
    assert [name for name in shown if f"`{name}" not in TEXT] == []
    assert re.findall(r"^\| `([\w-]+)` \| ", TEXT.partition("## Charts")[2], re.MULTILINE) == list(
        FIGURES
    )
    assert [
        name for name in inspect.signature(vitprof.runs).parameters if f"`{name}" not in TEXT
    ] == []
