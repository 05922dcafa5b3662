"""How a person is told to call vitprof, and to install what is missing of it."""

import errno
import os
import sys
from importlib import metadata
from pathlib import Path

import pytest

from vitprof import program as module
from vitprof.program import (
    CALLED_AS,
    MODULE,
    install_command,
    install_core,
    keep_call,
    missing_words,
    program,
    why_not_started,
)


@pytest.fixture(autouse=True)
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment's folder of commands, with Python and vitprof; on no path, and nobody has called yet."""
    made = tmp_path / "env" / "bin"
    made.mkdir(parents=True)
    for name in ("python", "vitprof"):
        (made / name).touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(made / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv(CALLED_AS, "")
    return made


def test_it_is_called_as_the_user_called_it(
    commands: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert keep_call("/a/vitprof/__main__.py") == program() == MODULE
    assert keep_call(str(commands / "vitprof")) == program() == str(commands / "vitprof")
    monkeypatch.setenv("PATH", str(commands))
    assert keep_call(str(commands / "vitprof")) == program() == "vitprof"
    assert os.environ[CALLED_AS] == "vitprof", "programs that it starts are told"


def test_a_link_to_the_command_is_the_command(
    commands: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = tmp_path / "local"  # as pipx and uv tool have it
    local.mkdir()
    (local / "vitprof").symlink_to(commands / "vitprof")
    monkeypatch.setenv("PATH", str(local))
    assert keep_call(str(local / "vitprof")) == "vitprof"
    monkeypatch.setenv(CALLED_AS, "")
    assert program() == "vitprof"


def test_it_can_be_typed_and_what_pipx_keeps_for_a_while_is_called_by_pipx(tmp_path: Path) -> None:
    assert keep_call("/home/a b/.cache/uv/archive-v0/5xG/bin/vitprof") == "uvx vitprof"
    assert keep_call("/home/a b/env/bin/vitprof") == "'/home/a b/env/bin/vitprof'"
    for path in ("env/bin/vitprof", "vitprof"):
        assert keep_call(path) == path
    kept = tmp_path / "cache" / "6293" / "bin" / "vitprof"
    kept.parent.mkdir(parents=True)
    assert keep_call(str(kept)) == str(kept)
    (tmp_path / "cache" / "CACHEDIR.TAG").write_text(
        "# This file is a cache directory tag created by pipx.\n"
    )
    assert keep_call(str(kept)) == "pipx run vitprof"


def test_called_by_nobody(commands: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert program() == MODULE
    monkeypatch.setenv("PATH", str(commands))
    assert program() == "vitprof"
    monkeypatch.setattr(sys, "executable", str(tmp_path / "other" / "bin" / "python"))
    assert program() == MODULE, (
        "another environment's vitprof may be another one, or without a script's packages"
    )


def test_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        install_command("images") == install_core() == "python -m pip install -r requirements.txt"
    )
    assert install_command("spdl") == "python -m pip install '.[spdl]'", (
        "requirements.txt has no such extra"
    )
    monkeypatch.setattr(
        module, "__file__", str(tmp_path / "site-packages" / "vitprof" / "program.py")
    )
    assert install_command("images") == "python -m pip install 'vitprof[images]'"
    core = ["numpy>=1.26; extra == 'core'", "typer; extra == 'core'"]
    monkeypatch.setattr(
        metadata, "requires", lambda _: [*core, "torch>=2.6", "torch>=2.6; extra == 'dashboard'"]
    )
    assert install_core() == "python -m pip install 'numpy>=1.26' typer"
    for name, extra in (
        ("simplejpeg", "images"),
        ("spdl.pipeline", "spdl"),
        ("plotly.graph_objects", "dashboard"),
    ):
        error = ModuleNotFoundError(f"No module named '{name}'", name=name)
        package = name.partition(".")[0]
        assert (
            missing_words(error)
            == f"the package {package} is not installed: {install_command(extra)}"
        )
    keep_call("/home/ada/.cache/uv/archive-v0/5xG/bin/vitprof")
    assert install_command("images") == "uvx 'vitprof[images]'"
    monkeypatch.setenv(CALLED_AS, "pipx run vitprof")
    assert install_command("images") == "pipx run 'vitprof[images]'"


def test_a_program_that_is_nowhere_is_not_found_whatever_of_path_may_be_read(
    tmp_path: Path,
) -> None:
    denied = PermissionError(errno.EACCES, "Permission denied")
    assert why_not_started("no-such-command", denied) == "No such file or directory"
    (tmp_path / "text").touch(mode=0o644)
    assert why_not_started("text", denied) == "Permission denied", "it is there, and no program"
    assert why_not_started("./no-such-command", denied) == "Permission denied"
    assert why_not_started("x", OSError("no number")) == "no number"
