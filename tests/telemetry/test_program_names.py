"""What a person calls a program: its script, module or executable, and nothing else of its command."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from vitprof.telemetry.program_names import MOST_NAME, name_of, of_python


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python train.py --token=X", "train.py"),
        ("/venv/bin/python -u -X dev -Wignore -W error /a/b/train.py data", "train.py"),
        ("python -B -- -odd.py", "-odd.py"),
        ("python --check-hash-based-pycs always /a/app/", "app"),
        ("/venv/bin/python3 /venv/bin/streamlit run app.py", "streamlit"),
        ("python -m http.server 8000", "python -m http.server"),
        ("python -uBmpytest -x", "python -m pytest"),
        ("python -m ../odd", "python -m"),
        ("python -c print('secret')", "python -c"),
        ("python -Ec1", "python -c"),
        ("python", "python3.12"),
        ("python - secret", "python3.12"),
        ("python -i", "python3.12"),
        ("ray::train --secret", "of the kernel"),
    ],
)
def test_python_programs_are_called_by_what_they_run(command: str, name: str) -> None:
    assert of_python([*command.split(), ""], "python3.12", "of the kernel") == name


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is that of Linux")
def test_a_process_of_this_machine_by_its_file() -> None:
    code = "import sys; print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert name_of(child.pid, "python") == "python -c"
        child.communicate("")
    assert name_of(child.pid, "ended") == "ended"


def test_a_name_is_one_short_line() -> None:
    gone = 2**30
    assert not os.path.exists(f"/proc/{gone}")
    assert name_of(gone, "a\x1b[2J\nb") == "a?[2J?b"
    assert name_of(gone, "x" * 99) == "x" * MOST_NAME
