"""The script of `vitprof watch` starts whatever is missing of vitprof's own packages."""

import subprocess
import sys

import typer

from tests import ROOT
from vitprof import unwatched
from vitprof.cli import app


def without_packages(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command line by a Python that has the standard library alone."""
    command = [sys.executable, "-S", "-m", "vitprof", *arguments]
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)


def test_the_script_starts_whatever_is_missing() -> None:
    """Its exit status, its output and the signal that ends it are its own."""
    for ends, status in (("exit 3", 3), ("kill -TERM $$", -15), ("kill -PIPE $$", -13)):
        ended = without_packages("watch", "--steps", "30", "--", "sh", "-c", f"echo ran; {ends}")
        assert (ended.returncode, ended.stdout) == (status, "ran\n")
        assert ended.stderr.startswith("vitprof: not watching: the package ")
        assert (" is not installed: " in ended.stderr, ended.stderr.count("\n")) == (True, 1)
    ended = without_packages("watch", "--", "no-such-program")
    assert ended.returncode == unwatched.EXIT_NOT_FOUND
    assert ended.stderr.endswith(
        "vitprof: cannot start no-such-program: No such file or directory\n"
    )


def test_the_script_starts_with_closed_streams() -> None:
    command = f"exec {sys.executable} -S -m vitprof watch -- sh -c 'exit 3' <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", command], cwd=ROOT, check=False).returncode == 3


def test_other_commands_say_what_is_missing() -> None:
    for words in ((), ("runs",), ("watch", "--help")):
        ended = without_packages(*words)
        assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (1, "", 1)
        assert ended.stderr.startswith("vitprof: the package ")


def test_the_command_of_the_script_is_read_as_the_command_line_reads_it() -> None:
    options = typer.main.get_command(app).commands["watch"].params  # type: ignore[attr-defined]
    taking = {
        name
        for option in options
        for name in option.opts
        if option.param_type_name == "option" and not option.is_flag
    }
    assert taking == set(unwatched.WITH_VALUE)
    for words, command in (
        ("watch -- python a.py --steps 3", "python a.py --steps 3"),
        ("watch --quiet --name x python a.py", "python a.py"),
        ("watch --name=x python -- a.py --quiet", "python a.py --quiet"),
        ("watch --help", ""),
        ("runs -- python a.py", ""),
        ("", ""),
    ):
        assert unwatched.script_of(words.split()) == command.split(), words
