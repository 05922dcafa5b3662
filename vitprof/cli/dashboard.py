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
from vitprof.cli.common.ports import free_port, port_option
from vitprof.cli.common.reach import ssh_tunnel, url_of, why_no_browser
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
"""What the server's process runs: this package, and no module that the current directory has under the same name."""

PORT_HELP = "port of the dashboard; the first free one from 8501 if not given"
NO_BROWSER_HELP = "only say the dashboard's address"
ALSO_OF = {"port": ("demo", "open"), "no-browser": ("demo",)}
"""Commands that have these options too."""


def dashboard(
    context: typer.Context,
    port: Annotated[int | None, port_option(PORT_HELP)] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help=NO_BROWSER_HELP)] = False,
    version: Annotated[bool, typer.Option("--version", help="say which version this is, and no more")] = False,
) -> None:
    """Open the dashboard. With a command: do that instead; each has its own --help."""
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
    """Ends the program with what to install where the dashboard cannot run."""
    if find_spec("streamlit") is None:
        complain(f"the dashboard needs Streamlit, which is not installed: {install_command('dashboard')}", EXIT_FAILED)


def serve(script: Path, port: int | None, *, no_browser: bool, lines: Sequence[str] = ()) -> NoReturn:
    """Becomes the dashboard's server, which says `lines` below its address. Raises `ConfigError`, `VitprofError`."""
    address = os.environ.get("STREAMLIT_SERVER_ADDRESS") or "127.0.0.1"
    chosen = free_port(address, port)
    tunnel = ssh_tunnel(chosen)
    opens = not no_browser and (not tunnel or "BROWSER" in os.environ) and not why_no_browser()
    asked = {"script": str(script), "address": address, "port": chosen, "open": url_of(chosen) if opens else ""}
    said = [f"vitprof: the dashboard is running at {url_of(chosen)} (Ctrl-C ends it)", *lines, *tunnel]
    sys.stderr.flush()
    # In place of this process: one to signal and to wait for, and none that lives on when this one is killed.
    arguments = [sys.executable, "-c", START, str(PACKAGE.parent), json.dumps(asked | {"lines": said})]
    os.execv(sys.executable, arguments)


def main_script() -> Path:
    """Returns the script that Streamlit runs; its settings lie beside it, in .streamlit.

    An installed package may lie where nobody can write, and what is added there stays behind when it is uninstalled.
    Streamlit serves files from a folder beside its script only, so the script and its pages are copied to vitprof's
    home. Raises `VitprofError`.
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
    try:  # under a name of its own first: two dashboards that start together both succeed, and none reads half a file
        write_bytes(target, wanted)
    except VitprofError as error:
        raise VitprofError(f"{error}; the dashboard runs from there") from error
