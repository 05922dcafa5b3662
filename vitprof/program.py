"""The commands that a person types to run vitprof and to install its packages. They are decided here only."""

import errno
import os
import shlex
import shutil
import sys
from pathlib import Path

NAME = "vitprof"
MODULE = "python -m vitprof"
CALLED_AS = "VITPROF_CALLED_AS"
"""Environment variable by which the command line tells the processes that it starts how it was called."""
STILL_RUNNING = "still running: "
"""Begins what a command that takes long says of its progress in a log, after vitprof's name."""
OF_EXTRAS = {
    "libcst": "core",
    "cv2": "images",
    "simplejpeg": "images",
    "spdl": "spdl",
    "litdata": "litdata",
    "ray": "ray",
    "submitit": "slurm",
    "psycopg": "postgres",
    "prometheus_client": "metrics",
    "mcp": "mcp",
    "mcp_types": "mcp",
}
"""Module -> the extra that installs it; all others come with a plain installation."""
IN_REQUIREMENTS = ("core", "dashboard", "images")
"""The extras that requirements.txt lists."""
CORE = "extra == 'core'"
"""Marker in the wheel's metadata of the packages that the extra `core` lists."""
UVX = ("uv", "archive-v0")
"""Consecutive folders in the path of a command that `uvx` runs: uv keeps it in its cache, not on PATH."""


def why_not_started(name: str, error: OSError) -> str:
    """Returns why the program that a person called `name` could not be started.

    A folder of PATH that may not be read makes "Permission denied" of a program that is nowhere;
    shells say that it was not found.
    """
    is_on_path = os.sep not in name
    if is_on_path and error.errno == errno.EACCES and shutil.which(name, os.F_OK) is None:
        return os.strerror(errno.ENOENT)
    return error.strerror or str(error)


def program() -> str:
    """Returns how a person calls vitprof here, for a line to be typed.

    That is as the command line was called that started this process; otherwise by the command, if it is
    installed beside this Python and found on PATH; otherwise by the module.
    """
    called = os.environ.get(CALLED_AS)
    if called:
        return called
    command = shutil.which(NAME)
    # where pip installs commands; not resolved whole: a virtual environment's Python is a link that leads
    # out of it
    folder = Path(os.path.realpath(os.path.dirname(sys.executable)))
    if command is not None and Path(command).resolve().parent == folder:
        return NAME
    return MODULE


def from_anywhere() -> str:
    """Returns the same for a line that is typed in another folder than a checkout's, where only the
    checkout has vitprof.
    """
    called = program()
    if called != MODULE or not _is_checkout():
        return called
    checkout = Path(__file__).parents[1]
    return f"PYTHONPATH={shlex.quote(str(checkout))} {called}"


def keep_call(argument: str) -> str:
    """Stores how this process was called (`argument`: `sys.argv[0]`), also for those that it starts, and
    returns it.
    """
    words = _words(argument)
    os.environ[CALLED_AS] = words
    return words


def install_command(extra: str) -> str:
    """Returns the command that installs the packages of an extra of pyproject.toml."""
    if _is_checkout():
        if extra in IN_REQUIREMENTS:
            return "python -m pip install -r requirements.txt"
        return f"python -m pip install '.[{extra}]'"
    called = program()
    if called in (f"uvx {NAME}", f"pipx run {NAME}"):
        return f"{called.removesuffix(NAME)}'{NAME}[{extra}]'"
    return f"python -m pip install '{NAME}[{extra}]'"


def install_core() -> str:
    """Returns the command that installs the packages of the command line only; extras include a plain
    installation.
    """
    # slow to import, and watched scripts import this module
    from importlib import metadata

    if _is_checkout():
        return install_command("core")
    packages = []
    for line in metadata.requires(NAME) or ():
        requirement, _, marker = line.partition(";")
        if CORE in marker:
            packages.append(requirement)
    return shlex.join(["python", "-m", "pip", "install", *packages])


def _is_of_pipx_run(command: Path) -> bool:
    tag = command.absolute().parent.parent.parent / "CACHEDIR.TAG"
    try:
        return "created by pipx" in tag.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def missing_core_words(error: ModuleNotFoundError) -> str:
    """Returns one line: the package that the command line lacks, and what installs its packages."""
    return f"the package {error.name} is not installed: {install_core()}"


def missing_words(error: ModuleNotFoundError) -> str:
    """Returns one line that names the missing package and the command that installs it."""
    name, _, _ = (error.name or str(error)).partition(".")
    extra = OF_EXTRAS.get(name, "dashboard")
    return f"the package {name} is not installed: {install_command(extra)}"


def _is_checkout() -> bool:
    return (Path(__file__).parents[1] / "requirements.txt").is_file()


def _words(argument: str) -> str:
    """Returns how a person calls the command line that runs as `argument` (`sys.argv[0]`)."""
    path = Path(argument)
    if path.stem != NAME:
        return MODULE
    parts = path.parent.parts
    if any(parts[i : i + 2] == UVX for i in range(len(parts))):
        return f"uvx {NAME}"
    if _is_of_pipx_run(path):
        return f"pipx run {NAME}"
    installed = shutil.which(NAME)
    if installed is not None and os.path.realpath(installed) == os.path.realpath(path):
        return NAME
    return shlex.quote(argument)
