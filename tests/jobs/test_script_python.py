"""Which Python runs a script, as far as its command tells it, and what that has."""

import sys
from pathlib import Path

import pytest

from vitprof.jobs.script_python import missing_modules, python_of


@pytest.mark.parametrize(
    ("command", "python"),
    [
        (("python", "train.py"), ["python"]),
        (("/opt/it/bin/python3.11", "-u", "train.py"), ["/opt/it/bin/python3.11"]),
        (("no-such-program", "train.py"), []),
        (("sh", "run.sh"), []),
        ((), []),
    ],
)
def test_a_python_is_named_by_the_command(command: tuple[str, ...], python: list[str]) -> None:
    assert python_of(command) == python


@pytest.mark.parametrize(
    ("first_line", "python"),
    [
        (b"#!/opt/it/bin/python3\n", ["/opt/it/bin/python3"]),
        (b"#!/usr/bin/env python3\n", ["python3"]),
        (b"#!/bin/sh\n", []),
        (b"#!\n", []),
        (b"\x7fELF", []),
        (b"", []),
    ],
)
def test_a_program_such_as_torchrun_names_it_in_its_first_line(
    first_line: bytes, python: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "torchrun"
    program.write_bytes(first_line + b"pass\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert python_of(["torchrun", "train.py"]) == python


def test_modules_that_it_lacks_are_named_and_none_where_it_does_not_say() -> None:
    found = missing_modules([sys.executable], ["json", "no_such_module_of_anyone"])
    assert found == {"no_such_module_of_anyone"}
    assert missing_modules(["/no/such/python"], ["cv2"]) == frozenset()
    assert missing_modules([sys.executable, "-c", "pass"], ["cv2"]) == frozenset()
