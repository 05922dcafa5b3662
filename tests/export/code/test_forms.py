"""A form in which samples are stored, as a script without vitprof."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vitprof.export.code.forms import form_script
from vitprof.forms import FORMS, is_installed

USED = """
class Squares:
    def __len__(self):
        return 10
    def __getitem__(self, index):
        return index ** 2, str(index)

for _ in range(2):  # the second time it compares
    convert(Squares(), "stored", Writer, Reader, part=4)
assert [Samples("stored", Reader)[i] for i in range(10)] == [Squares()[i] for i in range(10)]
assert Samples("stored", Reader, str)[9] == ("81", "9")
print("read")
"""


def test_scripts_are_whole_and_linted(tmp_path: Path) -> None:
    for name in FORMS:
        text = form_script(name, "before RandomResizedCrop")
        assert "vitprof" not in text.split('"""')[2]
        assert text.split('"""')[1].count("samples are stored before RandomResizedCrop") == 1
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    lint = ["check", "--select", "E,F,W,I,C4", "--line-length", "120"]
    layout = ["format", "--check", "--line-length", "100"]
    for command in (lint, layout):
        words = [sys.executable, "-m", "ruff", *command, "--isolated", "--no-cache"]
        checked = subprocess.run(
            [*words, str(tmp_path)], check=False, capture_output=True, text=True
        )
        assert checked.returncode == 0, checked.stdout[-2000:]


@pytest.mark.parametrize("form", ["memmap", "hdf5", "webdataset"])
def test_a_script_stores_and_reads_without_vitprof(form: str, tmp_path: Path) -> None:
    if not is_installed(form):
        pytest.skip(f"{FORMS[form].package} is not installed")
    (tmp_path / "made.py").write_text(form_script(form, "whole") + USED, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    made = [sys.executable, "-P", "made.py"]
    ended = subprocess.run(
        made, check=False, capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert ended.stdout == "read\n", ended.stderr[-2000:]
