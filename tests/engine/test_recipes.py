"""Recipes of docs/layout.md, done in a copy of the tree with a toy each; they may touch so many files and no more."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT

UNFINISHED = shutil.ignore_patterns("*.pyc.*")
"""Byte code comes along but for what is being written meanwhile."""
NEW_STORAGE = {
    "vitprof/config/parts.py": (
        '    StoragePart("memmap",',
        """    StoragePart("toy", "Toy file"),
""",
    ),
    "vitprof/engine/storage/__init__.py": (
        '    "memory": StorageCode(',
        """    "toy": StorageCode("toy", "ToyStorage", "FORMAT"),
""",
    ),
    "vitprof/config/strategies.py": (
        '    Strategy(\n        name="lmdb",',
        """    Strategy(
        name="toy",
        title="Toy file",
        what="What it does. In two sentences.",
        when="Only in this test, never for real data.",
        costs="One file of the size of all pixels.",
        origin="The recipe of docs/layout.md",
        storage="toy",
        loader="ahead",
        transfer="pinned",
    ),
""",
    ),
}
"""File -> a line in it, and what is put before that."""
TOY = '''"""All pixels of a split in one file."""

from vitprof.engine.storage.arrays import FORMAT, MemmapStorage


class ToyStorage(MemmapStorage):
    """As short as can be; what there is to write is in the other storages."""
'''
PYTEST = """
import os, sys, pytest
status = pytest.main(sys.argv[1:])
sys.stdout.flush()
os._exit(status)
"""
"""Leaves with pytest's status, also below a process of xdist, where the exit handler of conftest would make it 0."""
RUN = """from tests.engine_fixtures import trained

def test_trained(shared_home):
    assert trained(strategy="toy", steps=3, evaluate=False).completed
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the package and of its tests."""
    shutil.copytree(ROOT / "vitprof", tmp_path / "vitprof", ignore=UNFINISHED)
    shutil.copytree(
        ROOT / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("browser", "*.pyc.*")
    )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


@pytest.mark.measured
def test_a_storage_is_added_in_four_files(tree: Path) -> None:
    """It then passes the contract with every loader, and can be chosen as a strategy."""
    for name, (before, new) in NEW_STORAGE.items():
        text = (tree / name).read_text(encoding="utf-8")
        assert text.count(before) == 1, name
        (tree / name).write_text(text.replace(before, new + before), encoding="utf-8")
    (tree / "vitprof/engine/storage/toy.py").write_text(TOY, encoding="utf-8")
    assert len(NEW_STORAGE) + 1 <= 5
    (tree / "tests/engine/test_toy.py").write_text(RUN, encoding="utf-8")
    own = f"--basetemp={tree / 'temporary'}"  # where it takes others' permissions away, not from what tests share
    command = [
        sys.executable,
        "-c",
        PYTEST,
        "-v",
        own,
        "-p",
        "no:cacheprovider",
        "-k",
        "digits-toy or trained",
    ]
    env = os.environ | {"PYTHONPATH": str(tree)}
    tests = ["tests/engine/test_contract.py", "tests/engine/test_toy.py"]
    ended = subprocess.run(
        [*command, *tests], check=False, capture_output=True, text=True, env=env, cwd=tree
    )
    assert ended.returncode == 0, ended.stdout[-3000:]
    assert re.search("digits-toy-[a-z-]+-ahead", ended.stdout)
