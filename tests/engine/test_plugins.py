"""A storage of another package: it can be chosen as a strategy, and passes the contract."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.engine.test_recipes import PYTEST

PLUGIN = ROOT / "tests" / "plugin"
ITS_OWN = "toy and (digits-toy or photos-toy or memmap)"
"""Its storage with each loader and location; its loader and its transfer over one of vitprof's storages: both are
vitprof's own by other names, so those over others find no more."""


def with_plugin(*words: str, folder: Path = PLUGIN, home: Path) -> subprocess.CompletedProcess[str]:
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)]),
        "VITPROF_HOME": str(home),
    }
    command = [sys.executable, *words]
    return subprocess.run(command, check=False, capture_output=True, text=True, env=env, cwd=ROOT)


@pytest.mark.measured
def test_it_passes_the_contract_and_trains(tmp_path: Path) -> None:
    own = f"--basetemp={tmp_path / 'temporary'}"
    words = ["-v", own, "-p", "no:cacheprovider", "-k", ITS_OWN, "tests/engine/test_contract.py"]
    ended = with_plugin("-c", PYTEST, *words, home=tmp_path)
    assert ended.returncode == 0, ended.stdout[-3000:]
    for part in (
        "digits-toy-[a-z-]+-ahead",
        "digits-memmap-[a-z-]+-toy-loader-",
        "photos-memmap-[a-z-]+-toy-loader-",
        "digits-memmap-[a-z-]+-toy-transfer",
    ):
        assert re.search(part, ended.stdout), part
    listed = with_plugin("-m", "vitprof", "strategies", "--json", home=tmp_path)
    assert '"toy"' in listed.stdout, listed.stderr


@pytest.mark.parametrize(
    ("module", "why"),
    [
        ("import no_such_package", "No module named 'no_such_package'"),
        (
            "from vitprof.config.parts import STORAGES\nSTORAGE = STORAGES['lmdb']; STRATEGIES = ()",
            "name already",
        ),
        ("x = 1", "module 'toy_storage' has no attribute 'STORAGE'"),
    ],
)
def test_one_that_cannot_be_used_is_a_line(module: str, why: str, tmp_path: Path) -> None:
    facts = tmp_path / "toy_storage-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text((PLUGIN / facts.name / "METADATA").read_text())
    (facts / "entry_points.txt").write_text("[vitprof.storages]\ntoy = toy_storage\n")
    (tmp_path / "toy_storage.py").write_text(module)
    ended = with_plugin("-c", "import vitprof.config.resolve", folder=tmp_path, home=tmp_path)
    assert (ended.returncode, ended.stderr.count("\n")) == (0, 1), ended.stderr
    assert ended.stderr.startswith("vitprof: toy (toy_storage) is left out: ")
    assert why in ended.stderr
