"""How a Python below `vitprof watch` starts: any Python, in an environment of its own."""

import glob
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.watch.watching import Host
from vitprof.watch.patching import say, when_imported

PYENV = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
PYTHONS = sorted(
    {*glob.glob("/usr/bin/python3.[0-9]*[0-9]"), *glob.glob(f"{PYENV}/versions/*/bin/python")}
)
SOURCE = """
import sys
try:
    import only_beside_vitprof, numpy
except ImportError as error:
    sys.stdout.write("%s.%s %s" % (sys.version_info[0], sys.version_info[1], str(error).replace("'", "")))
try:
    import torch
except ImportError:
    pass
for name in "install trial".split() if sys.version_info >= (3, 10) else ():
    __import__("vitprof.watch." + name)
    __import__("vitprof.config.accelerators")
early = [name for name in sys.modules if name.startswith("vitprof.forms.")]
if early:
    sys.stdout.write(" and too early: " + " ".join(early))
sys.exit(7)
"""


def test_only_vitprof_is_importable_from_its_side(tmp_path: Path) -> None:
    site, own = tmp_path / "site", tmp_path / "own"
    site.mkdir()
    (site / "vitprof").symlink_to(ROOT / "vitprof")
    (site / "only_beside_vitprof.py").touch()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(own)], check=True)
    env = {
        "VITPROF_WATCH_SOCKET": "/none",
        "VITPROF_WATCH_ROOT": str(site),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    env["PYTHONPATH"] = str(site / "vitprof" / "watch" / "startup")
    for python in (str(own / "bin" / "python"), *PYTHONS):
        done = subprocess.run(
            [python, "-c", SOURCE], env=env, capture_output=True, text=True, check=False
        )
        version, _, missing = done.stdout.partition(" ")
        assert (done.returncode, missing) == (7, "No module named only_beside_vitprof"), (
            python,
            done,
        )
        old = f"vitprof: not watching: this Python is {version}; vitprof watches 3.10 and newer\n"
        assert done.stderr == (
            old if (3, 0) < tuple(map(int, version.split("."))) < (3, 10) else ""
        ), python


HOLDS_ITS_ITERATOR = """
import sys
import vitprof
from torch.utils.data import DataLoader
held = iter(DataLoader(range(8), num_workers=1))
next(held)
def stepping():
    with vitprof.step():
        yield
inside = stepping()
next(inside)
# Python clears these modules, ours among them, before it frees the iterator.
sys.kept = list(sys.modules.values())
"""


def test_what_only_the_end_of_python_frees_ends_as_without_us() -> None:
    """Needs an end of Python: the scripts of a `Host` have none."""
    env = {**os.environ, "VITPROF_WATCH_SOCKET": "/none", "VITPROF_WATCH_ROOT": str(ROOT)}
    env["PYTHONPATH"] = str(ROOT / "vitprof" / "watch" / "startup")
    script = [sys.executable, "-c", HOLDS_ITS_ITERATOR]
    done = subprocess.run(script, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert "Traceback" not in done.stderr, done.stderr


def test_a_broken_environment_is_a_line(host: Host) -> None:
    """In a script that imports the patched module."""
    broken = {
        "STEPS": "x",
        "DETACH_AFTER": "-",
        "OVERRIDES": "{",
        "OPENED_UNDER": "/",
        "TELL": "/",
        "SOCKET": "/none",
    }
    env = {f"VITPROF_WATCH_{name}": value for name, value in broken.items()}
    script = host.running("tests.watch.in_python")
    done = script.run("imports_the_loader_anew", watched=False, listen=False, env=env)
    assert (done.status, done.returned, done.complaint.count("\n")) == (0, "2", 1), done.complaint


def test_a_hook_that_fails_fails_no_import_and_says_nothing_where_standard_error_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "waited_for_in_vain.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    when_imported("waited_for_in_vain", lambda module: 1 / 0)  # type: ignore[arg-type, return-value]
    __import__("waited_for_in_vain")
    assert capsys.readouterr().err == "vitprof: not watching: ZeroDivisionError: division by zero\n"
    monkeypatch.setattr(sys, "stderr", None)
    say("a line")
