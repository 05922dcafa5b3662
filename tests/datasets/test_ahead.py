"""A data set that is made while a job's process still imports PyTorch: for which sets, by what, and until when."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from vitprof import home
from vitprof.datasets import ahead
from vitprof.errors import JobStopped


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, vitprof_home: Path) -> Mock:
    """What is called in place of `subprocess.Popen`."""
    popen = Mock(return_value=Mock(wait=Mock(return_value=0)))
    monkeypatch.setattr(subprocess, "Popen", popen)
    return popen


def test_a_process_is_started_for_digits_that_are_not_there(started: Mock) -> None:
    ahead.begin("digits")
    (command,) = started.call_args.args
    assert command == [sys.executable, "-m", "vitprof.datasets.ahead", "digits"]
    assert started.call_args.kwargs["stdin"] == subprocess.PIPE, "whose end ends the process"


def test_none_is_started_for_a_set_that_is_there_or_that_takes_long(started: Mock) -> None:
    (home.data_dir() / "digits").mkdir(parents=True)
    for name in ("digits", "photos", "mnist"):
        ahead.begin(name)
    started.assert_not_called()


def test_the_process_makes_the_set_until_its_standard_input_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read, write = os.pipe()
    asked: list[bool] = []

    def prepare(name: str, *, stop: Callable[[], bool]) -> None:
        asked.append(stop())
        os.close(write)
        asked.append(stop())
        raise JobStopped(f"stopped while the data set {name} was being made")

    monkeypatch.setattr("vitprof.datasets.on_disk.prepare", prepare)
    monkeypatch.setattr(sys, "argv", ["ahead", "digits"])
    with open(read, encoding="utf-8") as standard_input:
        monkeypatch.setattr(sys, "stdin", standard_input)
        assert ahead.main() == 1
    assert asked == [False, True]
