"""The tournament of a plan to convert samples."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from vitprof.config.own_script import UNCHANGED, settings_of
from vitprof.errors import ConfigError
from vitprof.experiments.script_data.plans import (
    clear_plans,
    convert_all,
    forget,
    plan_spec,
    plans_directory,
    stored_as,
)
from vitprof.experiments.script_data.stored_forms import Conversion, StoredForm
from vitprof.experiments.tournament.planning import create_tournament
from vitprof.store import RunStore
from vitprof.store.tournaments import set_status

LMDB = StoredForm(payload="FilesOf", number=0, seconds=(0.01, 0.01), bytes=1e6)
MADE = Conversion(
    "whole",
    500,
    10_000,
    {"a": 50},
    {"lmdb": LMDB, "arrow": StoredForm("no")},
    5.0,
    {"batch_size": 32},
)


@pytest.fixture
def folder(vitprof_home: Path) -> Path:
    folder = plans_directory() / f"plan-{os.getpid()}-x"
    (folder / "lmdb").mkdir(parents=True)
    return folder


def spec_of(folder: Path, made: Conversion = MADE, **more: Any) -> Any:
    return plan_spec(
        ["python", "a.py"], ["python", "a.py"], folder, made, steps=100, in_place=True, **more
    )


def test_the_script_is_run_on_each_form_and_as_it_is_on_the_same_samples(folder: Path) -> None:
    spec = spec_of(folder, repeats=2)
    assert (spec.repeats, spec.base.steps, spec.script.vary) == (2, 100, (("storage", ("lmdb",)),))
    script = replace(spec.script, loader={"num_workers": 0})
    as_it_is, lmdb = settings_of(script)
    assert (as_it_is.key, lmdb.key, stored_as(spec.script, lmdb)) == (
        UNCHANGED,
        "own-script/storage=lmdb",
        None,
    )
    samples = {"n": 500, "samples": 10_000, "cold": False}
    assert stored_as(script, as_it_is) == samples | {
        "form": "",
        "folder": str(folder / "as-is"),
    } | dict.fromkeys(("number", "same"))
    expected = samples | {"form": "lmdb", "folder": str(folder / "lmdb"), "number": 0, "same": 0}
    assert stored_as(script, lmdb) == expected
    assert script.conversion["forms"]["lmdb"]["prepare_s"] == 105
    gone = replace(script, conversion=script.conversion | {"folder": "/no/such"})
    with pytest.raises(
        ConfigError, match="the samples that it stored are gone: run convert --plan again"
    ):
        stored_as(gone, lmdb)


def test_what_does_not_fit_in_memory_is_read_once_in_a_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory._replace(total=1_000_000))
    with pytest.raises(
        ConfigError,
        match="samples are more than fit in memory, so none may be read twice in a trial; gi",
    ):
        spec_of(folder)
    spec = spec_of(folder, replace(MADE, n=2000))
    assert (spec.base.steps, spec.script.conversion["forms"]["lmdb"]["cold"]) == (62, True)
    (folder / "lmdb" / "data").write_bytes(b"0" * 10_000)
    forget(folder / "lmdb")
    (folder / "originals.txt").write_text(str(folder / "lmdb" / "data"))
    forget(folder / "as-is")


def test_samples_of_a_plan_stay_until_its_tournament_is_done(store: RunStore, folder: Path) -> None:
    number = create_tournament(store, spec_of(folder))
    clear_plans(store)
    assert folder.is_dir()
    other = folder.with_name("plan-1-of-another")
    other.mkdir()
    set_status(store, number, "done")
    clear_plans(store)
    assert (folder.exists(), other.exists()) == (False, True)


@pytest.mark.parametrize(
    ("there", "why"), [("a file", "a file in its place"), ("ours", "not empty")]
)
def test_samples_are_stored_in_a_folder_of_their_own(there: str, why: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    if there == "a file":
        out.touch()
    else:
        (out / "photos").mkdir(parents=True)
    with pytest.raises(ConfigError, match=why):
        convert_all(["python"], "memmap", out, None, lambda _: None, lambda _: None)
