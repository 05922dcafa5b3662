"""The Profile page without a run: a run that shows what this is about, and the machine."""

import dataclasses
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import typer

from tests import ROOT
from tests.ui.dashboard import address, app, click, read
from vitprof import cli, demo, formats
from vitprof.config import RunConfig
from vitprof.config.accelerators import accelerator
from vitprof.config.own_script import own_config
from vitprof.config.resolve import resolve
from vitprof.demo.slow_dataset import STEPS
from vitprof.errors import JobError
from vitprof.program import CALLED_AS
from vitprof.store import RunStore, StoredRun
from vitprof.telemetry.visible import VisibleGpu
from vitprof.ui import resources
from vitprof.ui.profile import welcome
from vitprof.ui.profile.runs import running_run
from vitprof.ui.profile.welcome import STARVED, STARVED_GPU


@pytest.fixture
def submitted(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> list[RunConfig]:
    """What was submitted; nothing of it runs."""
    asked: list[RunConfig] = []

    def submit(self: Any, config: RunConfig, **_: Any) -> int:
        asked.append(config)
        return store.create_run(resolve(config))

    monkeypatch.setattr(type(resources.manager()), "submit", submit)
    return asked


def test_one_click_shows_a_starved_gpu_or_runs_what_is_in_the_sidebar(
    submitted: list[RunConfig],
) -> None:
    at = app()
    click(at, "see-starved")
    assert submitted == [STARVED]
    assert read(at.title[0].value).startswith("per-sample, batch 128")
    assert at.selectbox(key="set-device").value == "simulated:h100"
    assert at.number_input(key="set-seconds").value == 8
    loading_s = (
        50e-6 * STARVED.batch_size
    )  # torchvision's ToTensor and Normalize of one digit, on a fast core
    assert accelerator(STARVED.device).compute_s(STARVED.batch_size) < loading_s
    assert ((STARVED.seconds or 99) <= 10, STARVED.evaluate) == (True, False)
    at = app(strategy="memory", batch_size="96")
    click(at, "page-run-button")
    assert [(c.strategy, c.batch_size, c.seconds) for c in submitted[1:]] == [("memory", 96, 20)]


@pytest.mark.parametrize(("cuda", "wanted"), [((13, 2), STARVED_GPU), ((11, 4), STARVED)])
def test_the_demonstration_runs_on_a_gpu_that_can_be_used(
    submitted: list[RunConfig],
    monkeypatch: pytest.MonkeyPatch,
    cuda: tuple[int, int],
    wanted: RunConfig,
) -> None:
    found = VisibleGpu(0, "NVIDIA RTX A6000", "GPU-1", 48 * 2**30, cuda_driver=cuda)
    monkeypatch.setattr(resources, "gpus", lambda: [found])
    click(app(), "see-starved")
    assert submitted == [wanted]


def test_its_lines_are_taken_as_commands(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(CALLED_AS, "uvx vitprof")
    at = app()
    assert [h.value for h in at.header] == [
        "Demonstration",
        "My script",
        "My data",
        "This machine now",
    ]
    lines = [code.value.replace(" \\\n  ", " ") for code in at.code]
    documented = (ROOT / "docs" / "own-data.md").read_text().splitlines()
    added = next(f"uvx {line.strip()}" for line in documented if "datasets add pets" in line)
    assert lines == ["uvx vitprof watch -- python train.py", added]
    assert any("`uvx vitprof demo`" in text.value for text in at.markdown)
    monkeypatch.chdir(tmp_path)
    for line in lines:
        word, *arguments = line.split()[2:]
        typer.main.get_command(cli.app).commands[word].make_context(word, arguments)  # type: ignore[attr-defined]


def test_a_run_that_begins_in_a_console_is_shown(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = store.create_run(own_config("python train.py"))

    def look() -> StoredRun | None:
        store.update_run(run_id, status="running", stage="training")  # after the page was drawn
        return running_run()

    monkeypatch.setattr(welcome, "running_run", look)
    at = app()
    assert read(at.title[0].value) == "python train.py"
    assert address(at)["run"] == str(run_id), "a reload shows it again"


@pytest.mark.measured
def test_the_example_is_watched_as_ones_own(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorter = tmp_path / demo.SCRIPT.name
    shorter.write_text(
        demo.SCRIPT.read_text(encoding="utf-8").replace(f"STEPS = {STEPS}\n", "STEPS = 60\n"),
        encoding="utf-8",
    )
    monkeypatch.setattr(demo, "SCRIPT", shorter)
    at = app()
    click(at, "watch-example")
    jobs, [run_id] = resources.manager(), [run.id for run in store.runs()]
    assert jobs.wait(run_id, 120)
    run = store.run(run_id)
    assert (run.status, run.error, address(at)["run"]) == ("done", "", str(run_id))
    assert (run.summary.n_steps, run.facts["command"]) == (60, f"python {demo.SCRIPT}")


def test_the_picture_is_of_the_recorded_runs() -> None:
    for lane in demo.lanes():
        assert (np.diff(np.ravel(lane.busy_ms), prepend=-1, append=demo.LANES_MS + 1) > 0).all()
        assert np.diff(lane.busy_ms).sum() / demo.LANES_MS == pytest.approx(
            1 - lane.idle_frac, abs=0.05
        )
        drawn = welcome.picture([lane])
        assert (drawn.count("<u "), f"idle {formats.percent(lane.idle_frac)}" in drawn) == (
            len(lane.busy_ms),
            True,
        )


def test_a_run_that_cannot_be_started_is_one_line(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = app()
    refuse = Mock(side_effect=JobError("vitprof is shutting down; no job was started"))
    monkeypatch.setattr(type(resources.manager()), "submit", refuse)
    click(at, "see-starved")
    assert ["shutting down" in e.value for e in at.error] == [True]
    at.run()
    assert not at.error


def test_the_own_machine_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    found = VisibleGpu(0, "NVIDIA RTX A6000", "GPU-1", 48 * 2**30)
    old = dataclasses.replace(found, cuda_driver=(11, 4))
    for gpus, words in (
        ([], "No GPU here: jobs train on the CPU."),
        ([found], "**NVIDIA RTX A6000 (48.0 GiB)** is ready to be profiled."),
        ([found, found], "Runs use the first one unless you choose another **Device**."),
        (
            [old],
            "**NVIDIA RTX A6000 (48.0 GiB)** cannot be used yet, and runs use the CPU. NVIDIA driver 470",
        ),
    ):
        monkeypatch.setattr(resources, "gpus", lambda gpus=gpus: gpus)
        monkeypatch.setattr(
            resources, "driver", lambda gpus=gpus: "470.82" if gpus == [old] else ""
        )
        shown = read(welcome.machine_in_words())
        assert (words in shown, "ready to be profiled" in shown) == (True, gpus == [found])
