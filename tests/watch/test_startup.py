"""How a Python below `vitprof watch` starts: any Python, in an environment of its own, with vitprof from a wheel."""

from __future__ import annotations

import glob
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests import ROOT
from vitprof.watch.patching import when_imported

pytestmark = pytest.mark.slow
PYTHONS = sorted({*glob.glob("/usr/bin/python3.[0-9]*[0-9]"), *glob.glob("/root/.pyenv/versions/*/bin/python")})
SOURCE = """
import sys
try:
    import only_beside_vitprof, numpy
except ImportError as error:
    sys.stdout.write(str(error).replace("'", "") + "\\n")
try:
    import torch
except ImportError:
    pass
for name in "install loader_hooks trial".split() if sys.version_info >= (3, 10) else ():
    __import__("vitprof.watch." + name)
    __import__("vitprof.config.accelerators")
sys.exit(7)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with vitprof as pip installs it, and with a package beside it."""
    folder = tmp_path_factory.mktemp("wheel")
    build = ["wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(folder), str(ROOT)]
    subprocess.run([sys.executable, "-m", "pip", *build], check=True)
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    (folder / "site" / "only_beside_vitprof.py").touch()
    return folder / "site"


@pytest.fixture(scope="module")
def pythons(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    own = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(own)], check=True)
    return [str(own / "bin" / "python"), *PYTHONS]


def test_only_vitprof_is_importable_from_its_side(site: Path, pythons: list[str]) -> None:
    env = {"VITPROF_WATCH_SOCKET": "/none", "VITPROF_WATCH_ROOT": str(site), "PYTHONDONTWRITEBYTECODE": "1"}
    env["PYTHONPATH"] = str(site / "vitprof" / "watch" / "startup")
    for python in pythons:
        version = subprocess.check_output([python, "-c", "import sys; print(sys.version)"], text=True)
        major, minor = map(int, version.split(".")[:2])
        done = subprocess.run([python, "-c", SOURCE], env=env, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (7, "No module named only_beside_vitprof\n"), (python, done)
        old = f"vitprof: not watching: this Python is {major}.{minor}; vitprof watches 3.10 and newer\n"
        assert done.stderr == (old if (3, 0) < (major, minor) < (3, 10) else ""), python


def test_a_broken_environment_is_a_line(tmp_path: Path) -> None:
    """A script that imports the patched module, with its standard error closed or not."""
    broken = {"STEPS": "x", "DETACH_AFTER": "-", "OVERRIDES": "{", "OPENED_UNDER": "/", "TELL": "/", "SOCKET": "/none"}
    env = {**os.environ, **{f"VITPROF_WATCH_{name}": value for name, value in broken.items()}}
    env |= {"PYTHONPATH": os.pathsep.join([str(ROOT / "vitprof" / "watch" / "startup"), str(ROOT)])}
    source = "import torch.utils.data as d, sys; sys.exit(len(list(d.DataLoader([1, 2]))))"
    for closed in ("", " 2>&-"):
        command = ["sh", "-c", f"exec {sys.executable} -c '{source}'{closed}"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr.count("\n")) == (2, not closed), done.stderr


def test_a_hook_that_fails_fails_no_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "waited_for_in_vain.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    when_imported("waited_for_in_vain", lambda module: 1 / 0)  # type: ignore[arg-type, return-value]
    __import__("waited_for_in_vain")
    assert capsys.readouterr().err == "vitprof: not watching: ZeroDivisionError: division by zero\n"
