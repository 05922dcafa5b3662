"""A run as an object: what it tells, its frames, its charts; and the examples of docs/python.md."""

from __future__ import annotations

import csv
import inspect
import io
import json
import math
import re
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest

import vitprof
from tests import ROOT
from tests.export.written import written
from tests.stored_series import append_telemetry
from tests.ui.dashboard import add_run
from vitprof.errors import VitprofError
from vitprof.export.tables import STEPS_HEADER, run_object, write_steps_csv
from vitprof.notebook import listing
from vitprof.notebook.figures import FIGURES
from vitprof.notebook.one_run import Run
from vitprof.recording.columns import TELEMETRY_COLUMNS
from vitprof.store import RunStore


@pytest.mark.slow
def test_what_it_tells(stored: RunStore) -> None:
    stored.edit(1, name="<b>mine</b>", note="seen")
    run, told = vitprof.run(1), stored.run(1)
    assert (run.id, run.name, run.status, run.created_utc) == (1, "<b>mine</b>", "done", told.created_utc)
    assert (run.config, run.summary, run.note, run.tags, run.error) == (told.config, told.summary, "seen", (), "")
    assert told.verdict is not None
    assert (run.verdict_kind, run.verdict) == ("input-bound", told.verdict.sentence)
    assert run.summary is not None
    assert run.summary.samples_per_s == pytest.approx(12_800)
    assert (run.simulated, vitprof.run(2).simulated) == (False, True)
    assert run.to_dict() == json.loads(json.dumps(run_object(told)))
    assert repr(run) == f"<vitprof run 1 '<b>mine</b>', done: {run.verdict}>"
    shown = run._repr_html_()
    assert "run 1: &lt;b&gt;mine&lt;/b&gt; (done)" in shown
    assert "<b>mine" not in shown
    for words in ("12,800 samples/s (95%: ", "device idle", "50%", run.verdict.split(",")[0]):
        assert words in shown


@pytest.mark.slow
def test_one_that_never_began(stored: RunStore) -> None:
    run = vitprof.run(add_run(stored, n=0, status="failed"))
    stored.update_run(run.id, error="no disk")
    assert (run.summary, run.verdict, run.verdict_kind) == (None, "", "")
    assert run.error == "", "as it was when it was read"
    run = vitprof.run(run.id)
    assert run.error == "no disk"
    assert "no disk" in run._repr_html_()
    assert "n/a" not in run._repr_html_()
    assert (len(run.steps), tuple(run.steps.columns)) == (0, STEPS_HEADER)
    for name in FIGURES:
        with pytest.raises(VitprofError, match=f"there is no such chart of run {run.id}: it has no steps"):
            run.figure(name)


def test_steps_are_those_of_the_csv_file(stored: RunStore) -> None:
    """Column by column and to the last digit."""
    steps = vitprof.run(1).steps
    header, *rows = csv.reader(io.StringIO(written(write_steps_csv, stored, [stored.run(1)]).decode(), newline=""))
    assert header == list(STEPS_HEADER) == list(steps.columns)
    for name, cells in zip(header, zip(*rows, strict=True), strict=True):
        if name == "name":
            assert set(cells) == set(steps.name)
        elif name == "simulated":
            assert set(cells) == {"false"}
            assert not steps.simulated.any()
        else:
            given = np.array([float(cell) if cell else math.nan for cell in cells])
            np.testing.assert_array_equal(steps[name].to_numpy(dtype=float), given, err_msg=name)
    assert (steps.step.dtype, steps.data_wait_s.dtype, steps.t_start_s[0]) == (np.int64, np.float64, 0.0)


def test_telemetry_has_its_columns(stored: RunStore) -> None:
    telemetry = vitprof.run(2).telemetry
    assert list(telemetry.columns) == ["run_id", "name", "seq", *TELEMETRY_COLUMNS, "simulated"]
    assert (telemetry.t_s[0], telemetry.job_cpu_pct[0], telemetry.seq.dtype) == (0.0, 90.0, np.int64)
    assert telemetry.simulated.all()


@pytest.mark.slow
def test_charts_by_name(stored: RunStore) -> None:
    told = {"transforms": {"Crop": {"s_per_sample": 0.001, "calls": 9}}}
    stored.update_run(1, facts=told, name="<i>one</i>")
    for role in "ABC":
        anchor = add_run(stored, wait_s=0.001 * "ABC".index(role), group_key="headroom:1", role=role)
        assert stored.run(anchor).role == role
    append_telemetry(stored, 1, 1, [[50.0 if name == "gpu_util_pct" else 101.0 for name in TELEMETRY_COLUMNS]])
    run = vitprof.run(1)
    for name in FIGURES:
        figure = run.figure(name)
        assert isinstance(figure, go.Figure)
        assert figure.data, name
        assert figure.layout.title.text.endswith("run 1: &lt;i&gt;one&lt;/i&gt;</sup>")
        assert figure.layout.height > 100
    assert [trace.name for trace in run.figure("gaps").data][:2] == ["device busy", "data wait"]
    assert run.figure("gaps").data[0].x[0] == 0.0, "seconds since the run began"
    assert "(simulated)" in vitprof.run(2).figure("device-time").layout.title.text


def test_a_step_can_be_looked_at(stored: RunStore) -> None:
    run = vitprof.run(1)
    shown = {int(n) for trace in run.figure("timeline", step=33).data for n in np.ravel(trace.customdata)}
    assert 33 in shown
    assert 0 not in shown
    assert run.figure("batch", step=33).data
    with pytest.raises(VitprofError, match="it has no step 40; its steps are 0 to 39"):
        run.figure("batch", step=40)
    with pytest.raises(ValueError, match="figure 'gaps' is of the whole run; a step can be given with timeline, batch"):
        run.figure("gaps", step=3)


def test_a_name_that_is_none_lists_them(stored: RunStore) -> None:
    with pytest.raises(ValueError, match="there is no figure 'gap'; choose one of gaps, batches, loss, gpu, cpu, dev"):
        vitprof.run(1).figure("gap")


def test_what_a_run_lacks_is_said(stored: RunStore) -> None:
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


@pytest.mark.slow
def test_examples(
    stored: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
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
    shown = {name for name in vars(Run) if not name.startswith("_")} | {"tags"}
    assert [name for name in shown if f"`{name}" not in TEXT] == []
    assert re.findall(r"^\| `([\w-]+)` \| ", TEXT.partition("## Charts")[2], re.MULTILINE) == list(FIGURES)
    assert [name for name in inspect.signature(listing.runs).parameters if f"`{name}" not in TEXT] == []
