"""Files of the script with the name of a module of the standard library, and clocks it stops."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.command_line import Call
from vitprof.store import RunStore
from vitprof.watch import own_imports

NAMES = "resource shlex statistics"
"""Modules of the standard library that vitprof imports in a script, and PyTorch does not."""
N_STEPS = 30
SCRIPT = f"""
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset
assert not {{*{NAMES.split()}}} & {{*sys.modules}}
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-6)
for (x,) in DataLoader(TensorDataset(torch.zeros({N_STEPS}, 1)), batch_size=1):
    model(x).sum().backward()
    optimizer.step()
import {NAMES.replace(" ", ", ")}
with open(sys.argv[1], "w") as file:
    print(resource.MINE, shlex.MINE, statistics.MINE, file=file)
"""


@pytest.fixture(autouse=True)
def _where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def hide(folder: Path, *names: str) -> None:
    """Makes modules of these names; each notes that it is executed."""
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / f"{name}.py").write_text(
            f"MINE = {name!r}\nopen({str(folder / 'executed')!r}, 'a').write({name + ' '!r})\n"
        )


@pytest.mark.measured
def test_files_beside_the_script_are_its_own(call: Call, tmp_path: Path) -> None:
    """They are executed when it imports them, once, and it is watched as ever."""
    scripts = tmp_path / "scripts"
    hide(scripts, *NAMES.split())
    (scripts / "train.py").write_text(SCRIPT)
    script = [sys.executable, str(scripts / "train.py")]
    executed = scripts / "executed"
    subprocess.run([*script, "alone"], check=True)
    as_ever = executed.read_text()
    executed.unlink()
    status, _, err = call("watch", "--", *script, "watched")
    assert status == 0, err
    assert "not watching" not in err
    assert (tmp_path / "watched").read_text() == (tmp_path / "alone").read_text()
    assert executed.read_text() == as_ever
    assert sorted(as_ever.split()) == NAMES.split()
    store = RunStore()
    (run,) = store.runs()
    store.close()
    assert run.summary is not None
    assert run.summary.n_steps == N_STEPS


def test_files_on_pythonpath_are_not_executed_for_vitprof(
    tmp_path: Path, vitprof_home: Path
) -> None:
    """Neither in the script's process nor in vitprof's own."""
    names = (
        "array contextlib functools inspect json math random resource shlex signal socket"
        " statistics traceback typing"
    )
    hide(tmp_path / "mine", *names.split())
    path = os.pathsep.join([str(tmp_path / "mine"), str(ROOT)])
    # a file hides none of the interpreter's own modules: which these are depends on how it was built
    hidden = "{*sys.argv[1:]} - {*sys.builtin_module_names}"
    source = f"import sys; print(sorted({hidden} & {{*sys.modules}}))"
    script = [sys.executable, "-c", source, *names.split()]
    env = {**os.environ, "PYTHONPATH": path}
    alone = subprocess.run(script, env=env, capture_output=True, text=True, check=True)
    executed = tmp_path / "mine" / "executed"
    before = executed.read_text() if executed.exists() else ""
    executed.write_text("")
    start = "import sys; from vitprof.__main__ import main; main()"
    command = [sys.executable, "-c", start, "watch", "--quiet", "--", *script]
    watched = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (watched.returncode, watched.stderr.count("\n")) == (0, 1), watched.stderr
    assert watched.stderr.startswith(
        "no training was seen: PyTorch's DataLoader was imported in no"
    )
    assert executed.read_text().split() == before.split()
    # what vitprof has loaded would else hide a module of that name beside the script
    assert watched.stdout == alone.stdout


STOPS_CLOCKS = """
import sys, time
import torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-6)
def train():
    for (x,) in DataLoader(TensorDataset(torch.zeros(15, 1)), batch_size=1):
        model(x).sum().backward()
        optimizer.step()
        sum(range(1000))
def stop(loaded):
    def stopped():
        return 1.0
    real = [time.time, time.monotonic, time.perf_counter]
    for module in loaded:
        for name, value in list(vars(module).items()):
            if any(value is clock for clock in real):
                setattr(module, name, stopped)
train()
stop([module for module in list(sys.modules.values()) if hasattr(module, "__dict__")])
assert time.perf_counter() == time.time() == 1.0
train()
"""
"""What freezegun does: it replaces the clocks in `time`, and wherever they were imported."""


@pytest.mark.measured
def test_a_script_that_stops_its_clocks_is_watched_by_the_real_ones(
    call: Call, tmp_path: Path
) -> None:
    errors = tmp_path / "errors"
    (tmp_path / "train.py").write_text(STOPS_CLOCKS)
    shell = f"exec {sys.executable} train.py 2> {errors}"
    status, _, err = call("watch", "--", "/bin/sh", "-c", shell)
    assert (status, errors.read_text()) == (0, ""), err
    store = RunStore()
    (run,) = store.runs()
    steps = store.steps(run.id)
    store.close()
    assert len(steps["step"]) == 2 * 15
    assert steps["step_s"].min() > 0.0


def test_what_is_not_hidden_is_the_scripts_own_and_the_clock_is_a_copy() -> None:
    """In a Python of its own: other imports stay as they are."""
    source = f"""
import sys, time
from importlib import util
spec = util.spec_from_file_location("own", {own_imports.__file__!r})
own = util.module_from_spec(spec)
spec.loader.exec_module(own)
own.OwnImports({str(ROOT)!r}).install()
import vitprof.errors, vitprof.watch.transport as sends, vitprof.watch.connection as connection
import json, socket
assert connection.json is json and connection.socket is socket
assert sends.time is not time and sends.time.monotonic is not time.monotonic
assert abs(sends.time.monotonic() - time.monotonic()) < 60
assert sends.perf_counter is not time.perf_counter
assert sys.modules["time"] is time
try:
    exec("import no_such_module", vars(sends))
except ModuleNotFoundError as error:
    assert error.name == "no_such_module"
exec("import os.path as p; import xml.dom; from importlib import machinery", vars(sends))
assert sends.p is sys.modules["posixpath"] and sends.xml is sys.modules["xml"]
"""
    subprocess.run([sys.executable, "-c", source], check=True, cwd=ROOT)
