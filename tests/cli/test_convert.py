"""`convert`: the samples of a script of somebody's own, in other forms."""

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests import ROOT
from tests.command_line import Call, one_line

SCRIPT = """
import sys, torch
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

torch.manual_seed(0)
crop = transforms.Compose([transforms.RandomResizedCrop(24), transforms.ToTensor()])
samples = datasets.ImageFolder(sys.argv[1], crop)
weight = torch.nn.Parameter(torch.zeros(()))
optimizer = torch.optim.SGD([weight], 0.1)
for epoch in range(6):
    for x, _ in DataLoader(samples, batch_size=8, shuffle=True):
        (x.mean() * weight).backward()
        optimizer.step()
"""


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A script that trains on a folder of images, in a folder of its own, which is the working directory."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    rng = np.random.default_rng(0)
    for index in range(40):
        path = tmp_path / "images" / f"class-{index % 2}" / f"{index:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (64, 80, 3), dtype=np.uint8)).save(path)
    (tmp_path / "script").mkdir()
    (tmp_path / "script" / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path / "script")
    return ["--", sys.executable, "train.py", str(tmp_path / "images")]


@pytest.mark.measured
def test_a_plan_runs_the_script_on_each_form_and_all_samples_are_stored_in_one(
    call: Call, command: list[str], tmp_path: Path, vitprof_home: Path
) -> None:
    plan = (
        "convert",
        "--plan",
        "--forms",
        "lmdb",
        "--steps",
        "25",
        "--repeats",
        "1",
        "--no-until-decided",
        "--code",
        "best.py",
    )
    status, out, err = call(*plan, "--yes", *command)
    assert status == 0, err
    assert "40 of 40 samples, stored before RandomResizedCrop" in err
    rows = {
        name: next(line for line in out.splitlines() if name in line)
        for name in ("unchanged", "lmdb")
    }
    assert "lmdb (image files)" in rows["lmdb"]
    assert rows["lmdb"].count("the same") == 2  # pixels and losses
    assert not list((vitprof_home / "converted").iterdir())
    status, out, err = call("convert", "--to", "lmdb", "--out", str(tmp_path / "all"), *command)
    assert status == 0, err
    assert "40 samples, stored before RandomResizedCrop" in out
    spec = importlib.util.spec_from_file_location("made", tmp_path / "all" / "dataset.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(made := importlib.util.module_from_spec(spec))
    read, label = made.Samples(tmp_path / "all", made.Reader)[39]
    assert (read.tobytes(), label) == (Image.open(tmp_path / "images/class-1/39.jpg").tobytes(), 1)


AMONG_FILES = "ValueError: /a/new is in the folder of its files; choose another one"
TOO_SMALL = "ValueError: its images are not larger than 64 pixels"


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (
            {"error": AMONG_FILES},
            f"vitprof: the dataset cannot be stored: {AMONG_FILES}\n",
        ),
        (
            {
                "cut": "",
                "n": 0,
                "samples": 40,
                "files": {},
                "forms": {"jpeg": {"why": TOO_SMALL}},
                "start_s": 0.0,
                "loader": {},
            },
            f"vitprof: jpeg: {TOO_SMALL}\n",
        ),
    ],
    ids=["no samples", "not in this form"],
)
def test_what_cannot_be_stored_is_one_line(
    call: Call, tmp_path: Path, found: dict[str, Any], line: str
) -> None:
    """The command is what writes down what became of the samples; tests/watch/test_conversion.py has the reasons."""
    (tmp_path / "found.json").write_text(json.dumps(found))
    script = ("--", "sh", "-c", f"cp {tmp_path}/found.json $VITPROF_WATCH_DATA")
    options = ("--to", "jpeg", "--jpeg-side", "64", "--out", str(tmp_path / "b"))
    status, out, err = call("convert", *options, *script)
    first, said = err.splitlines(keepends=True)
    assert (status, out, said) == (1, "", line)
    assert first.endswith("what it writes until then, such as logs, caches and downloads, stays\n")


@pytest.mark.parametrize(
    ("earlier", "words"),
    [
        (0, "checked: their number, and samples that were read back."),
        (40, "all of them were stored before: a spread of these is as the Dataset has it now."),
        (30, "30 of them were stored before: a spread of these is as the Dataset has it now."),
    ],
)
def test_what_was_checked_is_said(call: Call, tmp_path: Path, earlier: int, words: str) -> None:
    form = {"cut": "whole", "bytes": 4096, "earlier": earlier}
    found = {"cut": "whole", "n": 40, "samples": 40, "files": {}, "start_s": 0.0, "loader": {}}
    (tmp_path / "found.json").write_text(json.dumps(found | {"forms": {"memmap": form}}))
    script = f"mkdir {tmp_path}/b; cp {tmp_path}/found.json $VITPROF_WATCH_DATA"
    options = ("--to", "memmap", "--out", str(tmp_path / "b"))
    status, out, err = call("convert", *options, "--", "sh", "-c", script)
    assert status == 0
    assert err.count("\n") == 1
    assert err.endswith("caches and downloads, stays\n")
    assert words in out


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ((), "--plan: give --plan to compare forms, or --to FORM --out FOLDER to convert"),
        (
            ("--plan", "--to", "lmdb"),
            "--plan: give --plan to compare forms, or --to FORM --out FOLDER to convert",
        ),
        (
            ("--to", "tar"),
            "--to tar: choose one of memmap, hdf5, pt, jpeg, lmdb, webdataset, parquet, arrow, lance, ",
        ),
        (("--to", "lmdb"), "--out: say where the samples go: --to lmdb --out FOLDER"),
        (("--plan", "--forms", "lmdb,tar"), "--forms tar: choose one of"),
        (("--plan", "--samples", "3"), "--samples 3: give a whole number from 20 to 1,000,000"),
        (
            ("--plan", "--code", "lmdb.py"),
            "--code lmdb.py: it would be imported in place of the package lmdb; rename it",
        ),
        (
            ("--to", "lmdb", "--out", "."),
            "it is not empty; choose a new folder, or one with an earlier attempt",
        ),
    ],
)
def test_a_wrong_option_is_one_line(
    call: Call, command: list[str], options: tuple[str, ...], line: str
) -> None:
    assert line in one_line(call, "convert", *options, *command)
