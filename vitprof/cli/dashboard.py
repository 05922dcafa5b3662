"""`vitprof` without a command: opens the dashboard, from a checkout or from the installed package."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, NoReturn

import typer

import vitprof
from vitprof.cli.common.ports import free_port, port_option, ssh_tunnel, url_of, why_no_browser
from vitprof.cli.common.terminal import EXIT_FAILED, complain, print_text
from vitprof.errors import ConfigError, VitprofError
from vitprof.export.writing import write_bytes
from vitprof.home import ensure_dir, home
from vitprof.program import install_command

PACKAGE = Path(vitprof.__file__).parent
START = (
    "import sys; root = sys.argv.pop(1); path = [p for p in sys.path if p]; "
    "sys.path[:] = path if root in path else [root, *path]; from vitprof.ui.serve import main; main()"
)
"""Code that the server's process runs. It imports this package, and no namesake in the current directory."""

PORT_HELP = "port of the dashboard; the first free one from 8501 if not given"
NO_BROWSER_HELP = "print the dashboard's address without opening a browser"
ALSO_OF = {"port": ("demo", "open"), "no-browser": ("demo",)}
"""Option -> the commands that have it too."""


def dashboard(
    context: typer.Context,
    port: Annotated[int | None, port_option(PORT_HELP)] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help=NO_BROWSER_HELP)] = False,
    version: Annotated[bool, typer.Option("--version", help="print the version and exit")] = False,
) -> None:
    """Open the dashboard, or run a command; each has its own --help."""
    if context.invoked_subcommand is not None:
        for name, given in (("port", port is not None), ("no-browser", no_browser), ("version", version)):
            if given:
                command = context.invoked_subcommand
                own = command in ALSO_OF.get(name, ())
                allowed = f"give it after {command}" if own else f"it is no option of {command}; leave it out"
                raise ConfigError(name, port if name == "port" else True, allowed)
        return
    if version:
        print_text(f"vitprof {vitprof.__version__}\n")
        return
    need_streamlit()
    serve(main_script(), port, no_browser=no_browser)


def need_streamlit() -> None:
    """Ends the program with a line that says what to install if Streamlit is missing."""
    if find_spec("streamlit") is None:
        complain(f"the dashboard needs Streamlit, which is not installed: {install_command('dashboard')}", EXIT_FAILED)


def serve(script: Path, port: int | None, *, no_browser: bool, lines: Sequence[str] = ()) -> NoReturn:
    """Replaces this process by the dashboard's server, which prints `lines` below its address.

    Raises `ConfigError` if `port` cannot be used, `VitprofError` if no port is free or the address is not this
    machine's.
    """
    address = os.environ.get("STREAMLIT_SERVER_ADDRESS") or "127.0.0.1"
    chosen = free_port(address, port)
    tunnel = ssh_tunnel(chosen)
    opens = not no_browser and (not tunnel or "BROWSER" in os.environ) and not why_no_browser()
    asked = {"script": str(script), "address": address, "port": chosen, "open": url_of(chosen) if opens else ""}
    lines = [f"vitprof: the dashboard is running at {url_of(chosen)} (Ctrl-C ends it)", *lines, *tunnel]
    sys.stderr.flush()
    # In place of this process: there is one process to signal and wait for, and none is left when it is killed.
    arguments = [sys.executable, "-c", START, str(PACKAGE.parent), json.dumps(asked | {"lines": lines})]
    os.execv(sys.executable, arguments)


def main_script() -> Path:
    """Returns the path of the script that Streamlit runs; its settings are beside it, in .streamlit.

    From an installed package, the script and its pages are first copied to vitprof's home: Streamlit serves files only
    from a folder beside its script, the package's folder may be read-only, and files added there would stay behind when
    it is uninstalled. Raises `VitprofError` if they cannot be copied.
    """
    packed = PACKAGE / "dashboard"
    if not packed.is_dir():
        return PACKAGE.parent / "app.py"
    copy = home() / "dashboard" / vitprof.__version__
    for source in sorted(path for path in packed.rglob("*") if path.suffix in (".py", ".toml")):
        target = copy / source.relative_to(packed)
        ensure_dir(target.parent)
        _copy(source, target)
    ensure_dir(copy / "static")
    return copy / "app.py"


def _copy(source: Path, target: Path) -> None:
    wanted = source.read_bytes()
    if target.is_file() and target.read_bytes() == wanted:
        return
    try:  # writes another file and renames it: of two dashboards that start together none reads half a file
        write_bytes(target, wanted)
    except VitprofError as error:
        raise VitprofError(f"{error}; the dashboard runs from there") from error
