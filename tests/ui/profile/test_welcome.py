"""The Profile page without a run: a run that shows what this is about, and the machine."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import streamlit as st
import typer

from tests import ROOT
from tests.ui.dashboard import app, read, said
from vitprof import cli
from vitprof.config import RunConfig
from vitprof.config.accelerators import accelerator
from vitprof.config.own_script import own_config
from vitprof.config.resolve import resolve
from vitprof.errors import JobError
from vitprof.program import CALLED_AS
from vitprof.store import RunStore, StoredRun
from vitprof.telemetry import VisibleGpu
from vitprof.ui import resources
from vitprof.ui.profile import welcome
from vitprof.ui.profile.runs import running_run
from vitprof.ui.profile.welcome import STARVED


@pytest.fixture
def submitted(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> list[RunConfig]:
    """What was submitted; nothing of it runs."""
    asked: list[RunConfig] = []

    def submit(self: Any, config: RunConfig, **_: Any) -> int:
        asked.append(config)
        return store.create_run(resolve(config))

    monkeypatch.setattr(type(resources.manager()), "submit", submit)
    return asked


def test_one_click_shows_a_starved_gpu_and_leaves_its_settings_in_the_sidebar(submitted: list[RunConfig]) -> None:
    at = app()
    at.button(key="see-starved").click().run()
    assert not at.exception
    assert submitted == [STARVED]
    assert at.title[0].value.replace("\\", "").startswith("per-sample, batch 128")
    assert at.selectbox(key="set-device").value == "simulated:h100"
    assert at.number_input(key="set-seconds").value == 8


def test_it_is_starved_and_short() -> None:
    loading_s = 50e-6 * STARVED.batch_size  # torchvision's ToTensor and Normalize of one digit, on a fast core
    assert accelerator(STARVED.device).compute_s(STARVED.batch_size) < loading_s
    assert (STARVED.seconds or 99) <= 10
    assert not STARVED.evaluate


@pytest.mark.slow
def test_the_page_offers_run_with_the_settings_of_the_sidebar(submitted: list[RunConfig]) -> None:
    at = app(strategy="memory", batch_size="96")
    at.button(key="page-run-button").click().run()
    assert [(c.strategy, c.batch_size, c.seconds) for c in submitted] == [("memory", 96, 20)]
    assert app(batch_size="70000").button(key="page-run-button").disabled


def test_its_doors_have_lines_to_type_that_the_command_line_takes(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(CALLED_AS, "uvx vitprof")
    at = app()
    assert [h.value for h in at.header] == ["Demonstration", "My script", "My data", "This machine now"]
    lines = [code.value for code in at.code]
    assert lines[:2] == ["uvx vitprof demo", "uvx vitprof watch -- python train.py"]
    documented = (ROOT / "docs" / "own-data.md").read_text().splitlines()
    assert lines[2:] == [f"uvx {line.strip()}" for line in documented if "train_photos.py" in line][:2]
    monkeypatch.chdir(tmp_path)
    for line in lines:
        word, *arguments = line.split()[2:]
        typer.main.get_command(cli.app).commands[word].make_context(word, arguments)  # type: ignore[attr-defined]


def test_a_run_that_begins_in_a_console_is_shown(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = store.create_run(own_config("python train.py"))

    def look() -> StoredRun | None:
        store.update_run(run_id, status="running", stage="training")  # after the page was drawn
        return running_run()

    monkeypatch.setattr(welcome, "running_run", look)
    assert read(app().title[0].value) == "python train.py"


def test_a_run_that_cannot_be_started_is_one_line(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> int:
        raise JobError("vitprof is shutting down; no job was started")

    at = app()
    monkeypatch.setattr(type(resources.manager()), "submit", refuse)
    at.button(key="see-starved").click().run()
    assert not at.exception
    assert ["shutting down" in e.value for e in at.error] == [True]
    at.run()
    assert not at.error


def test_the_own_machine_in_words(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "visible_gpus", list)
    here = "No GPU here: jobs train on the CPU. Pick a simulated GPU under **Device** to see how one would wait."
    assert here in said(app())
    st.cache_resource.clear()
    found = VisibleGpu(0, "NVIDIA RTX A6000", "GPU-1", 48 * 2**30)
    monkeypatch.setattr(resources, "visible_gpus", lambda: [found])
    assert "**NVIDIA RTX A6000 (48.0 GiB)** is ready to be profiled." in said(app())
    st.cache_resource.clear()
    found = dataclasses.replace(found, cuda_driver=(11, 4))
    monkeypatch.setattr(resources, "driver", lambda: "470.82")
    words = said(app())
    assert "**NVIDIA RTX A6000 (48.0 GiB)** cannot be used yet, and runs use the CPU. NVIDIA driver 470" in words
    assert "ready to be profiled" not in words
