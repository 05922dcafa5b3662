"""The recipe of docs/layout.md for a form, done in a copy of the tree with a toy: one file and one line."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests import ROOT

REGISTRY = "vitprof/forms/__init__.py"
BEFORE = '    "pt": Form('
LINE = '    "toy": Form("Toy file", "numpy", job=True),\n'
TOY = '''"""Samples as text, a line for each value."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitprof.forms.contract import Names

FILE = "samples.txt"


class Writer:
    """Writes a line for each value."""

    def __init__(self, folder: Path, names: Names) -> None:
        self._file = (folder / FILE).open("w", encoding="ascii")

    def add(self, values: Sequence[bytes]) -> None:
        for data in values:
            self._file.write(f"{data.hex()}\\n")

    def finish(self) -> None:
        """Does nothing: the file is complete once it is closed."""

    def close(self) -> None:
        self._file.close()


class Reader:
    """Reads all lines at once."""

    def __init__(self, folder: Path, names: Names) -> None:
        self._lines = (folder / FILE).read_text(encoding="ascii").splitlines()
        self._n_values = len(names)

    def __len__(self) -> int:
        return len(self._lines) // self._n_values

    def read(self, number: int) -> Sequence[Any]:
        first = number * self._n_values
        return [bytes.fromhex(line) for line in self._lines[first : first + self._n_values]]

    def close(self) -> None:
        self._lines = []
'''
USED = '''"""Each user of a form, with the toy."""

import io
from contextlib import closing
from pathlib import Path

import numpy as np
from PIL import Image
from torchvision.datasets import ImageFolder

from tests.engine_fixtures import shared_home, trained
from tests.export.code.test_scripts import loaded, seen_in_epoch, wanted, with_small_photos
from vitprof.config import RunConfig
from vitprof.export.code import script
from vitprof.export.code.forms import form_script
from vitprof.forms import module_of, stored
from vitprof.forms.script.conversion import stored_in_forms
from vitprof.datasets.own.look import look
from vitprof.datasets.own.readers import open_spec
from vitprof.watch.fetch_times import name_of
from vitprof.watch.stored_samples import StoredSamples

N = 12


def folder_of(tmp_path: Path) -> Path:
    for at in range(N):
        path = tmp_path / "images" / f"class-{at % 2}" / f"{at:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(at).integers(0, 255, (48, 40, 3), np.uint8)
        Image.fromarray(pixels).save(path)
    return tmp_path / "images"


def test_a_built_in_job(shared_home: Path) -> None:
    done = trained(
        strategy="workers",
        dataset="photos",
        n_images=20,
        storage="toy",
        workers=0,
        batch_size=10,
        steps=2,
        model="ti/16",
        evaluate=False,
    )
    assert done.completed
    assert next(shared_home.glob("prepared/photos-20/toy/train/samples.txt"))


def test_a_plan_to_convert(tmp_path: Path) -> None:
    dataset = ImageFolder(str(folder_of(tmp_path)))
    plan = tmp_path / "plan"
    plan.mkdir()
    request = {"directory": str(plan), "forms": ["toy"], "samples": N, "side": None}
    made = stored_in_forms(dataset, request, name_of)["forms"]["toy"]
    assert (made["why"], made["payload"]) == ("", "Cut")
    given = {"form": "toy", "folder": str(plan / "toy"), "n": N, "samples": N}
    instead = StoredSamples(dataset, given | {"number": made["number"], "same": made["same"]})
    for at in range(N):
        assert instead[at][0].tobytes() == dataset[at][0].tobytes()
        assert instead[at][1] == dataset[at][1]


def test_a_data_set_of_the_users_own(tmp_path: Path) -> None:
    dataset = ImageFolder(str(folder_of(tmp_path)))
    toy = module_of("toy")
    stored.convert(dataset, tmp_path / "stored", toy.Writer, toy.Reader, part=5)
    spec = f"toy:{tmp_path / 'stored'}"
    seen = look("mine", spec)
    assert (seen.opened, seen.own.n_train + seen.own.n_test, seen.own.classes) == (N, N, 2)
    with closing(open_spec(spec)) as found:
        for sample in found.samples:
            image = Image.open(io.BytesIO(found.read(sample.key)))
            assert image.tobytes() == dataset[sample.key][0].tobytes()
            assert sample.label == dataset[sample.key][1]


def test_code_without_vitprof(tmp_path: Path) -> None:
    made = form_script("toy", "whole")
    assert "hex" in made
    config = RunConfig(
        strategy="workers", dataset="photos", storage="toy", model="ti/16", batch_size=5, augment="off"
    )
    text = with_small_photos(script(config))
    assert "fromhex" in text
    assert "vitprof" not in text.split('"""')[2]
    module = loaded(text.replace("WORKERS = 2", "WORKERS = 0"), tmp_path / "script.py")
    import torch

    loader, n_classes = module.make_loader(folder_of(tmp_path), torch.device("cpu"))
    assert n_classes == 2
    assert sum(len(labels) for _, labels in loader) == N
    assert (tmp_path / "images.toy" / "samples.txt").is_file()
'''
UNFINISHED = shutil.ignore_patterns("*.pyc.*")
"""Byte code comes along but for what is being written meanwhile."""
PYTEST = """
import os, sys, pytest
status = pytest.main(sys.argv[1:])
sys.stdout.flush()
os._exit(status)
"""
"""Leaves with pytest's status, also below a process of xdist, where the exit handler of conftest would make it 0."""


def test_a_form_is_added_in_one_file_and_one_line(tmp_path: Path) -> None:
    """A built-in job, a plan to convert, a data set of the user's own and exported code then have it."""
    tree = tmp_path / "tree"
    shutil.copytree(ROOT / "vitprof", tree / "vitprof", ignore=UNFINISHED)
    ignored = shutil.ignore_patterns("browser", "*.pyc.*")
    shutil.copytree(ROOT / "tests", tree / "tests", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tree)
    text = (tree / REGISTRY).read_text(encoding="utf-8")
    assert text.count(BEFORE) == 1
    (tree / REGISTRY).write_text(text.replace(BEFORE, LINE + BEFORE), encoding="utf-8")
    (tree / "vitprof/forms/toy.py").write_text(TOY, encoding="utf-8")
    (tree / "tests/forms/test_toy.py").write_text(USED, encoding="utf-8")
    own = f"--basetemp={tmp_path / 'temporary'}"
    command = [
        sys.executable,
        "-c",
        PYTEST,
        own,
        "-p",
        "no:cacheprovider",
        "tests/forms/test_toy.py",
    ]
    env = os.environ | {"PYTHONPATH": str(tree)}
    ended = subprocess.run(command, check=False, capture_output=True, text=True, env=env, cwd=tree)
    assert ended.returncode == 0, ended.stdout[-3000:]
    assert "4 passed" in ended.stdout
