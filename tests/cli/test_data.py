"""`data`: a script of somebody's own, up to its first step."""

import os
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.cli.json_objects import told
from tests.command_line import Call, one_line

SCRIPT = """
import sys, torch
from torch.utils.data import DataLoader, TensorDataset
print("of the script")
samples = TensorDataset(torch.arange(4000.0).reshape(100, 40), torch.arange(100))
weight = torch.nn.Parameter(torch.zeros(()))
optimizer = torch.optim.SGD([weight], 0.1)
for x, _ in DataLoader(samples, batch_size=10):
    (x.mean() * weight).backward()
    optimizer.step()
open(sys.argv[1], "w").close()
"""


@pytest.mark.measured
def test_a_script_ends_after_its_first_step_and_its_dataset_is_described(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    script, ended = tmp_path / "train.py", tmp_path / "ended"
    script.write_text(SCRIPT)
    status, out, _ = call("data", "--json", "--", sys.executable, str(script), str(ended))
    found = told("data", out)["dataset"]
    assert (status, ended.exists()) == (0, False)
    assert (found["kind"], found["samples"]) == ("torch.utils.data.dataset.TensorDataset", 100)
    assert (found["loader"]["batch_size"], found["leaves"][0]["largest_shape"]) == (10, [40])
    assert (found["files"], found["fork"]["works"], found["pickle"]["works"]) == ([], True, True)


def test_a_script_that_trains_nothing_or_is_interrupted(call: Call) -> None:
    status, out, err = call("data", "--", "sh", "-c", "exit 3")
    first, line = err.splitlines()
    assert (status, out) == (1, "")
    assert first == (
        f"sh -c 'exit 3' runs in {os.getcwd()} up to its first step of training; what it writes until "
        "then, such as logs, caches and downloads, stays"
    )
    assert line.endswith(
        "no dataset was seen: the script ended with exit status 3; no step of training was made"
    )
    status, out, err = call("data", "--", "sh", "-c", "kill -INT $$")
    assert (status, out, err.splitlines()[1:]) == (130, "", ["vitprof: interrupted"])


def test_a_command_that_cannot_be_started(call: Call) -> None:
    line = one_line(call, "data", "--json", "--", "no-such-command", status=127)
    assert line == "vitprof: cannot start no-such-command: No such file or directory\n"
