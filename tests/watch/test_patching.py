"""What is done right after a module is imported; which process of a distributed job is watched."""

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock, call

import pytest

from vitprof.watch.patching import error_line, when_imported
from vitprof.watch.rank_identity import RANKS, is_watched_rank, launcher, restarts


def test_everybody_who_waits_for_a_module_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "waited_for").mkdir()
    (tmp_path / "waited_for" / "__init__.py").write_text("from waited_for.inner import VALUE")
    (tmp_path / "waited_for" / "inner.py").write_text("VALUE = 3")
    monkeypatch.syspath_prepend(tmp_path)
    before = list(sys.meta_path)
    first, second, late = Mock(), Mock(), Mock()
    when_imported("waited_for.inner", first)
    when_imported("waited_for.inner", second)
    try:
        module = importlib.import_module("waited_for").inner
        when_imported("waited_for.inner", late)
        assert [told.call_args_list for told in (first, second, late)] == [[call(module)]] * 3
        assert module.VALUE == 3
        assert sys.meta_path == before
    finally:
        for name in ("waited_for", "waited_for.inner"):
            sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("env", "watched"),
    [
        ({}, True),
        ({"RANK": "0", "LOCAL_RANK": "0"}, True),
        ({"RANK": "8", "LOCAL_RANK": "0"}, False),  # torchrun's first process of the second node
        ({"LOCAL_RANK": "1"}, False),  # a child that Lightning started
        ({"LOCAL_RANK": "0", "NODE_RANK": "1"}, False),
        ({"LOCAL_RANK": "0", "NODE_RANK": "0"}, True),
        ({"OMPI_COMM_WORLD_RANK": "3"}, False),
        ({"SLURM_PROCID": "2"}, False),
        ({"RANK": "0", "SLURM_PROCID": "2"}, True),  # torchrun inside a task of srun
    ],
)
def test_the_launchers_tell_the_rank(
    env: dict[str, str], watched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (name for names in RANKS for name in names if name not in env):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert is_watched_rank() is watched


@pytest.mark.parametrize("rank", [0, 1])
def test_processes_that_nobody_told_ask_pytorch(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of `torch.multiprocessing.spawn`."""
    distributed = SimpleNamespace(is_initialized=lambda: True, get_rank=lambda: rank)
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
    assert is_watched_rank() is (rank == 0)


@pytest.mark.parametrize(
    ("variables", "other", "is_same"),
    [
        ({"TORCHELASTIC_ERROR_FILE": "/tmp/t/none_x/attempt_1/0/error.json"}, {}, True),
        ({"TORCHELASTIC_ERROR_FILE": "/tmp/t/none_y/attempt_0/0/error.json"}, {}, False),
        ({"TORCHELASTIC_ERROR_FILE": ""}, {"TORCHELASTIC_ERROR_FILE": ""}, True),
    ],
)
def test_a_launcher_is_known_by_the_folder_of_its_logs_else_as_the_parent(
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    other: dict[str, str],
    is_same: bool,
) -> None:
    assert (launcher(), restarts()) == ("", 0)
    of_torchrun = {
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_ERROR_FILE": "/tmp/t/none_x/attempt_0/3/error.json",
        "TORCHELASTIC_RESTART_COUNT": "2",
    }
    launchers = []
    for more in (variables, other):
        for name, value in {**of_torchrun, **more}.items():
            monkeypatch.setenv(name, value)
        launchers.append(launcher())
    assert (launchers[0] == launchers[1]) is is_same
    assert "tmp" not in launchers[0], "event logs have no names of files"
    assert restarts() == 2


def test_a_killed_worker_is_told_by_its_signal() -> None:
    """PyTorch raises the second error from the first one where the loop waits for a batch."""
    killed = RuntimeError("DataLoader worker (pid 5) is killed by signal: Killed. ")
    gone = RuntimeError("DataLoader worker (pid(s) 5) exited unexpectedly")
    gone.__cause__ = killed
    assert (
        error_line(gone) == "RuntimeError: DataLoader worker (pid 5) is killed by signal: Killed."
    )
    assert error_line(killed) == error_line(gone)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError("no\nroom"), "OSError: no"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (ValueError("of: "), "ValueError: of"),
    ],
)
def test_an_error_is_one_line(error: BaseException, line: str) -> None:
    error.__cause__ = KeyError("of something else")
    assert error_line(error) == line
