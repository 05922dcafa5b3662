"""What a person types to call vitprof and to install what is missing of it. No other place decides that."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

NAME = "vitprof"
MODULE = "python -m vitprof"
CALLED_AS = "VITPROF_CALLED_AS"
"""The variable in which the command line tells the processes it starts how it was called."""
OF_IMAGES = ("cv2", "simplejpeg")
"""Modules that the extra images brings; all others come with a plain installation."""
CORE = "extra == 'core'"
"""What a wheel's list says of the packages of this extra."""
UVX = ("uv", "archive-v0")
"""Folders that follow each other in the path of what `uvx` runs: uv keeps it in its cache, not on PATH."""


def program() -> str:
    """Returns how a person calls vitprof here, such as "vitprof" or "python -m vitprof", for a line to be typed.

    As the command line above this process was called; else the command, where it is installed beside this Python and
    found by its name.
    """
    if called := os.environ.get(CALLED_AS):
        return called
    found = shutil.which(NAME)
    return NAME if found is not None and Path(found).resolve().parent == _beside_python() else MODULE


def keep_call(argument: str) -> str:
    """Keeps how this process was called, for itself and for those that it starts; returns the words.

    `argument`: `sys.argv[0]`, which is the file that Python runs.
    """
    os.environ[CALLED_AS] = words = _words(argument)
    return words


def install_command(extra: str) -> str:
    """Returns the command that installs what an extra of pyproject.toml lists."""
    if _is_checkout():
        return "python -m pip install -r requirements.txt"
    if program() in (f"uvx {NAME}", f"pipx run {NAME}"):
        return f"{program().removesuffix(NAME)}'{NAME}[{extra}]'"
    return f"python -m pip install '{NAME}[{extra}]'"


def install_core() -> str:
    """Returns the command that installs what the command line needs, and no more.

    An extra cannot say that: with it comes all that a plain installation has.
    """
    from importlib import metadata  # slow, and programs that are watched import this module

    if _is_checkout():
        return install_command("core")
    listed = [line.partition(";") for line in metadata.requires(NAME) or ()]
    return shlex.join(["python", "-m", "pip", "install", *(r for r, _, when in listed if CORE in when)])


def _is_of_pipx_run(command: Path) -> bool:
    """Returns whether a command lies in an environment that pipx keeps for a while: it tags its cache so."""
    tag = command.absolute().parent.parent.parent / "CACHEDIR.TAG"
    try:
        return "created by pipx" in tag.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def missing_words(error: ModuleNotFoundError) -> str:
    """Returns which package is missing, and what to install, in one line."""
    name = (error.name or str(error)).partition(".")[0]
    return f"the package {name} is not installed: {install_command('images' if name in OF_IMAGES else 'dashboard')}"


def _is_checkout() -> bool:
    return (Path(__file__).parents[1] / "requirements.txt").is_file()


def _words(argument: str) -> str:
    path = Path(argument)
    if path.stem != NAME:
        return MODULE
    parts = path.parent.parts
    if any(parts[i : i + 2] == UVX for i in range(len(parts))):
        return f"uvx {NAME}"
    if _is_of_pipx_run(path):
        return f"pipx run {NAME}"
    found = shutil.which(NAME)
    if found is not None and os.path.realpath(found) == os.path.realpath(path):
        return NAME
    return shlex.quote(argument)


def _beside_python() -> Path:
    """Returns the folder that pip puts commands into; a virtual environment's Python is a link that leads out of it."""
    return Path(os.path.realpath(os.path.dirname(sys.executable)))
