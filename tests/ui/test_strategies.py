"""The page "Strategies": the table, the details, the filters, and the way to Profile."""

import dataclasses
import json
import math
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from tests import ROOT
from tests.config.configs import legal_combinations
from tests.ui.dashboard import add_run, app, click, read, said
from vitprof.config import availability
from vitprof.config.availability import Machine
from vitprof.config.parts import Combination
from vitprof.config.strategies import STRATEGIES
from vitprof.datasets.catalog import DATASETS
from vitprof.store import RunStore
from vitprof.ui import resources, strategies
from vitprof.ui.strategies import REFERENCE, diagram, stages

PHOTOS_ONLY = ("dali", "litdata")
BARE = Machine(gpus=(), ram_bytes=1 << 40, disk_bytes=1 << 40, tmpfs=(Path("/dev/shm"), 1 << 40))


@pytest.fixture(autouse=True)
def _a_machine_without_a_gpu(monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    monkeypatch.setattr(resources.availability, "look_around", lambda: BARE)
    monkeypatch.setattr(availability, "installed", lambda package: True)


def page(shown: str = "per-sample", **query: str) -> AppTest:
    return app("strategies", {"shown": shown}, **({"more": "true"} | query))


def listed(at: AppTest) -> list[str]:
    return list(at.dataframe[0].value["Strategy"])


def figure(at: AppTest, strategy: str, column: str) -> Any:
    return at.dataframe[0].value.set_index("Strategy").loc[strategy, column]


def test_the_columns_fit_a_window_of_1366_px_unless_more_are_asked_for(store: RunStore) -> None:
    add_run(store)
    few, all_of_them = (list(page(more=more).dataframe[0].value) for more in ("false", "true"))
    assert few[:3] == ["Strategy", "What", "Runs here"]
    assert set(all_of_them) - set(few) == {"Disk (MiB)", "RAM (MiB)"}
    assert sum(column.width or math.inf for column in strategies.FIRST) <= 984


def test_every_strategy_in_the_table_and_by_itself(store: RunStore, tmp_path: Path) -> None:
    directory = tmp_path / "prepared" / "digits" / "hdf5"
    directory.mkdir(parents=True)
    (directory / "manifest.json").write_text(
        json.dumps({"size_bytes": 60 * 2**20, "prepare_s": 2.5})
    )
    for where in ("simulated:h100 memory", "cpu memory", "cpu hdf5", "cpu pt"):
        device, name = where.split()
        run_id = add_run(
            store, wait_s=0.01 if where == "cpu memory" else 0, strategy=name, device=device
        )
        store.update_run(
            run_id, verdict={"kind": "inconclusive" if name == "pt" else "input-bound"}
        )
    at = page()
    assert "*Reached*: their fastest runs here, on cpu." in said(at)
    assert [figure(at, name, "Reached (samples/s)") for name in ("memory", "hdf5")] == [
        8530,
        25_600,
    ]
    assert [figure(at, name, "Reference (samples/s)") for name in ("memory", "pt")] == [
        99_100,
        6290,
    ]
    assert str(figure(at, "pt", "Reached (samples/s)")) in ("nan", "None")
    assert listed(at) == list(STRATEGIES)
    for plan in STRATEGIES.values():
        words = said(at.selectbox(key="shown").set_value(plan.name).run())
        assert all(part in words for part in (plan.what, plan.when, plan.costs, plan.origin))
        pictures = [html for html in at.html if "vitprof-diagram" in html.value]
        assert len(pictures) == (plan.name not in PHOTOS_ONLY)
        assert ("hdf5 is prepared (60.0 MiB, took 2.50 s)" in words) == (plan.name == "hdf5")
    assert figure(at, "hdf5", "Disk (MiB)") == 60
    assert figure(at, "memory", "RAM (MiB)") == pytest.approx(52.3, abs=0.1)
    assert (figure(at, "prefetch", "Runs here"), figure(at, "dali", "Runs here")) == (
        "limited",
        "no",
    )


def test_the_reference_is_the_table_of_the_docs() -> None:
    text = (ROOT / "docs" / "results.md").read_text().partition("\n## Threads")[0]
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| `")]
    named = {name: (row[2], row[5]) for row in rows for name in row[1].split("`")[1::2]}
    given = {
        name: tuple(f"{value:,.0f}".replace("nan", "-") for value in row)
        for name, row in REFERENCE.items()
    }
    assert {
        name: tuple(cell.split(" (")[0].strip() for cell in row) for name, row in named.items()
    } == given


def test_what_cannot_run_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        resources.availability, "look_around", lambda: dataclasses.replace(BARE, tmpfs=None)
    )
    at = page("ram-disk")
    assert (
        f"**{len(STRATEGIES) - 1 - len(PHOTOS_ONLY)} of {len(STRATEGIES)}** strategies can load **digits**"
        in said(at)
    )
    assert [read(w.value) for w in at.warning] == [
        "Does not run here: there is no tmpfs here that can be written to; mount one, or choose location disk"
    ]
    assert at.button(key="use-ram-disk").disabled
    (photos_only,) = at.selectbox(key="shown").set_value("dali").run().warning
    assert (
        read(photos_only.value)
        == "Does not run here: it cannot load digits; choose the data set photos"
    )
    assert not at.selectbox(key="shown").set_value("memory").run().warning
    assert not at.button(key="use-memory").disabled


def test_all_that_keeps_strategies_from_running_is_below_the_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cell of the table cut the reasons off."""
    monkeypatch.setattr(availability, "installed", lambda package: package != "spdl")
    at = page()
    lines = next(text.value for text in at.markdown if text.value.startswith("- **")).splitlines()
    assert len(lines) == len(set(lines))
    named = [name for line in lines for name in line.split("**")[1].split(", ")]
    answers = at.dataframe[0].value.set_index("Strategy")["Runs here"]
    assert sorted(named) == sorted(answers.index[answers != "yes"])
    (missing,) = [read(line) for line in lines if line.startswith("- **spdl**")]
    assert missing.endswith("(no): The package spdl is missing: pip install spdl.")
    assert "(no)" in lines[0], "what does not run comes first"


def test_figures_are_the_chosen_data_sets_which_use_in_profile_takes_along_and_starts_nothing() -> (
    None
):
    before = figure(page(dataset="photos"), "memory", "RAM (MiB)")
    at = page("threads", strategy="hdf5", location="slow-drive", workers="5", n_images="700")
    assert at.selectbox(key="data").value == "digits"
    at.selectbox(key="data").set_value("photos").run()
    assert figure(at, "memory", "RAM (MiB)") == pytest.approx(
        before * 700 / DATASETS["photos"].n_train, rel=0.01
    )
    click(at, "use-threads")
    assert at.selectbox(key="set-strategy").value == "threads"
    assert (at.selectbox(key="set-dataset").value, at.number_input(key="set-n_images").value) == (
        "photos",
        700,
    )
    assert (at.selectbox(key="set-location").value, at.number_input(key="set-workers").value) == (
        "",
        2,
    )
    assert resources.store().runs() == []


ALL = {parts: None for name in ("digits", "photos") for parts in legal_combinations(DATASETS[name])}


def runners(parts: Combination, workers: int | None = None) -> list[str]:
    return [stage.runner for stage in stages(parts, {"workers": workers})]


def test_every_legal_combination_is_drawn_with_all_it_says_in_words() -> None:
    for parts in ALL:
        drawn = stages(parts, {"workers": 2})
        assert [stage.kind for stage in drawn] == [
            "storage",
            "location",
            "loader",
            "transfer",
            "device",
        ]
        page = ET.fromstring(diagram(parts, {"workers": 2}))
        assert page.get("role") == "img"
        assert all(
            f"{stage.title} ({stage.runner})" in page.get("aria-label", "") for stage in drawn
        )
        boxes = [[part.text for part in box] for box in page[0]]
        assert boxes == [[stage.kind, stage.title, stage.runner] for stage in drawn]


def test_stages_run_where_they_say() -> None:
    for parts, workers, runner in (
        ("idx dataloader blocking", 0, "training loop"),
        ("idx dataloader blocking", 1, "1 worker process"),
        ("files dataloader pinned", 4, "4 worker processes"),
        ("files threads pinned", 3, "3 threads next to the loop"),
        ("memmap ahead pinned", None, "1 thread next to the loop"),
        ("files generator blocking", None, "training loop"),
        ("memory batches resident", None, "device"),
    ):
        storage, loader, transfer = parts.split()
        assert runners(Combination(storage, "disk", loader, transfer), workers)[2] == runner
    for place, runner in {"disk": "local disk", "ram-disk": "tmpfs: files in RAM"}.items():
        assert runners(Combination("files", place, "threads", "pinned"))[1] == runner
    assert runners(Combination("memory", "disk", "batches", "blocking"))[:2] == ["RAM", "RAM"]
