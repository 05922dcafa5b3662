"""`vitprof` without a command opens the dashboard, from a checkout or from the installed package.

`demo` opens it on recorded runs, and `open` opens the browser at a dashboard that runs.
"""

import errno
import getpass
import http.client
import json
import os
import shlex
import socket
import sys
import webbrowser
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

import vitprof
from vitprof.cli.common import terminal
from vitprof.config.bounds import PORT
from vitprof.demo import make_home
from vitprof.errors import ConfigError, VitprofError
from vitprof.home import DASHBOARD_FILE, home
from vitprof.program import install_command, program

PACKAGE = Path(vitprof.__file__).parent
START = (
    "import sys; root = sys.argv.pop(1); path = [p for p in sys.path if p]; "
    "sys.path[:] = path if root in path else [root, *path]; from vitprof.ui.serve import main; main()"
)
"""Code that the server's process runs. It imports this package, and no namesake in the current directory."""

PORT_HELP = "port of the dashboard; the first free one from 8501 if not given"
OPEN_PORT_HELP = "port of the dashboard; the first from 8501 that answers if not given"
NO_BROWSER_HELP = "print the dashboard's address without opening a browser"

FIRST = 8501
"""The first port that is tried if none is given: Streamlit's default."""
LAST = 8520
"""The last port that is tried if none is given."""
ANSWER_S = 5.0
"""Seconds that a dashboard may take to answer, also behind a tunnel."""
AT_ONCE_S = 0.2
"""Seconds that a dashboard may take to answer where nobody asked for it."""
SSH_PORT = "22"
SHOWN_BY = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")
"""Environment variables of which at least one is set where a browser can open. Editors that connect by
SSH set the first to a program that opens the browser on the user's machine."""


def port_option(help_text: str) -> Any:
    return terminal.number("port", PORT, help_text, show_default=False)


def dashboard(
    context: typer.Context,
    port: Annotated[int | None, port_option(PORT_HELP)] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help=NO_BROWSER_HELP)] = False,
    version: Annotated[bool, typer.Option("--version", help="print the version and exit")] = False,
) -> None:
    """Open the dashboard, or run a command; each has its own --help."""
    if context.invoked_subcommand is not None:
        for name, is_set in (
            ("port", port is not None),
            ("no-browser", no_browser),
            ("version", version),
        ):
            if is_set:
                allowed = (
                    f"give options after {context.invoked_subcommand}, which may not have this one"
                )
                raise ConfigError(name, port if name == "port" else True, allowed)
        return
    if version:
        terminal.print_text(f"vitprof {vitprof.__version__}\n")
        return
    terminal.check_rate()
    serve(main_script(), port, no_browser=no_browser)


def demo(
    port: Annotated[int | None, port_option(PORT_HELP)] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help=NO_BROWSER_HELP)] = False,
) -> None:
    """Open the dashboard on example runs and a tournament, recorded beforehand. Your own runs are left alone."""
    terminal.check_rate()
    script = main_script()
    place, replaced = make_home()
    os.environ["VITPROF_HOME"] = str(place)
    os.environ.pop("VITPROF_DB", None)
    lines = [f"This is the demonstration. What you run in it is kept in {place}."]
    if replaced:
        lines.append(
            "The demonstration of another version of vitprof was replaced, with all runs made in it."
        )
    serve(script, port, no_browser=no_browser, lines=lines)


def open_dashboard(port: Annotated[int | None, port_option(OPEN_PORT_HELP)] = None) -> None:
    """Open the browser at a dashboard that is running, here or at the other end of a tunnel."""
    port = answering_port(port)
    reason = why_no_browser()
    if not reason and webbrowser.open(url_of(port)):
        terminal.print_text(f"vitprof: opened {url_of(port)}\n")
        return
    words = f"no browser can be opened here ({reason or 'it did not start'}); open {url_of(port)} yourself."
    terminal.complain(" ".join([words, *ssh_tunnel(port)]), terminal.EXIT_FAILED)


def serve(
    script: Path, port: int | None, *, no_browser: bool, lines: Sequence[str] = ()
) -> NoReturn:
    """Replaces this process by the dashboard's server, which prints `lines` too. Raises `VitprofError`."""
    address = os.environ.get("STREAMLIT_SERVER_ADDRESS") or "127.0.0.1"
    chosen = free_port(address, port)
    url = url_of(chosen)
    tunnel = ssh_tunnel(chosen)
    # over SSH a screen, if there is one, is not the user's; an editor's BROWSER is
    is_the_users = not tunnel or "BROWSER" in os.environ
    opens = not no_browser and is_the_users and not why_no_browser()
    running = f"vitprof: the dashboard is running at {url} (Ctrl-C ends it)"
    request = {
        "script": str(script),
        "address": address,
        "port": chosen,
        "open": url if opens else "",
        "lines": [running, *lines, *tunnel],
    }
    sys.stderr.flush()
    # In place of this process: there is one process to signal and wait for, and none is left when it is
    # killed.
    python = [sys.executable, "-c", START, str(PACKAGE.parent)]
    os.execv(sys.executable, [*python, json.dumps(request)])


def main_script() -> Path:
    """Returns the path of the script that Streamlit runs, in the package or in the checkout.

    Raises `VitprofError` where Streamlit is missing.
    """
    if find_spec("streamlit") is None:
        raise VitprofError(
            f"the dashboard needs Streamlit, which is not installed: {install_command('dashboard')}"
        )
    packed = PACKAGE / "dashboard" / "app.py"
    if packed.is_file():
        return packed
    return PACKAGE.parent / "app.py"


# its port, and what reaches it


def free_port(address: str, requested: int | None) -> int:
    """Returns `requested`, or the first free port from `FIRST` to `LAST`.

    Raises `ConfigError` where the requested one is in use, and `VitprofError`.
    """
    if requested is not None:
        reason = _why_not(address, requested)
        if reason:
            todo = "give another, or none for the first that is free"
            raise ConfigError("port", requested, f"{reason}; {todo}")
        return requested
    for port in range(FIRST, LAST + 1):
        if not _why_not(address, port):
            return port
    raise VitprofError(f"the ports {FIRST} to {LAST} are all in use; give one with --port")


def answering_port(requested: int | None) -> int:
    """Returns `requested`, or the first port, on which a dashboard answers. Raises `VitprofError`."""
    ports = range(FIRST, LAST + 1) if requested is None else [requested]
    for port in ports:
        if _answers(port, ANSWER_S):
            return port
    where = f"the ports {FIRST} to {LAST}"
    start = program()
    if requested is not None:
        where = f"port {requested}"
        start += f" --port {requested}"
    raise VitprofError(f"no dashboard answers on {where} of this machine; start one with {start}")


def _why_not(address: str, port: int) -> str:
    """Returns why a server cannot listen on a port; "" if it can. Raises `VitprofError`."""
    try:
        family, kind, _, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
            # beside a listener on all addresses, binding alone can succeed
            probe.listen()
    except OSError as error:
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            todo = "set STREAMLIT_SERVER_ADDRESS to one it has"
            raise VitprofError(f"this machine has no address {address}; {todo}") from None
        if error.errno == errno.EADDRINUSE:
            return "it is in use"
        return f"{error.strerror or error}"
    return ""


def address_of(run_id: int) -> str:
    """Returns where the dashboard of this `VITPROF_HOME` shows a run; "" where none answers at once."""
    try:
        port = int((home() / DASHBOARD_FILE).read_text(encoding="utf-8"))
        PORT.check("port", port)
    except (OSError, ValueError, ConfigError):
        return ""
    if run_id and _answers(port, AT_ONCE_S):
        return f"{url_of(port)}/?run={run_id}"
    return ""


def _answers(port: int, within_s: float) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=within_s)
    try:
        connection.request("GET", "/_stcore/health")
        return connection.getresponse().read(16).strip() == b"ok"
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def url_of(port: int) -> str:
    return f"http://localhost:{port}"


def ssh_tunnel(port: int) -> list[str]:
    """Returns lines with the command of a tunnel from the user's machine; none if this is no SSH session.

    The host is that of `SSH_CONNECTION`: the client's address and port, then the server's, see ssh(1).
    """
    connection = os.environ.get("SSH_CONNECTION", "").split()
    if len(connection) != 4:
        return []
    _client, _client_port, host, ssh_port = connection
    command = ["ssh", "-N"]
    if ssh_port != SSH_PORT:
        command += ["-p", ssh_port]
    command += ["-L", f"{port}:localhost:{port}", f"{_user()}@{host}"]
    return [
        "To see it on your own computer, type there (with the name that you use for this machine, if you use one):",
        f"    {shlex.join(command)}",
        f"and open {url_of(port)} there while that runs.",
    ]


def why_no_browser() -> str:
    if sys.platform.startswith("linux") and not any(os.environ.get(name) for name in SHOWN_BY):
        # a text browser would take the terminal from the server
        return "there is no screen"
    try:
        webbrowser.get()
    except webbrowser.Error:
        return "none is installed"
    return ""


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return "user"
