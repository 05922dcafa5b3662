"""Where the dashboard is: its port, and the browser or the SSH tunnel that reaches it."""

from __future__ import annotations

import errno
import getpass
import http.client
import os
import shlex
import socket
import sys
import webbrowser
from typing import Any

import typer

from vitprof.cli.common.terminal import reader
from vitprof.errors import ConfigError, VitprofError
from vitprof.program import program

FIRST, LAST = 8501, 8520
"""Range of the ports that are tried if none is given. The first is Streamlit's default."""
HIGHEST = 65535
ALLOWED = f"give a whole number from 1 to {HIGHEST}"
ANSWER_S = 5.0
"""Seconds that a dashboard may take to answer, also behind a tunnel."""


def port_option(help_text: str) -> Any:
    """Returns the option --port, a whole number. Its range is checked by `checked`."""
    return typer.Option(
        "--port", metavar="INTEGER", help=help_text, parser=reader("port", int, ALLOWED), show_default=False
    )


def checked(port: int) -> int:
    """Returns `port`. Raises `ConfigError` if it is not a port number."""
    if not 1 <= port <= HIGHEST:
        raise ConfigError("port", port, ALLOWED)
    return port


def free_port(address: str, asked: int | None) -> int:
    """Returns `asked`, or if that is None the first free port from `FIRST` to `LAST`.

    Raises `ConfigError` if `asked` cannot be used, `VitprofError` if no port is free or this machine has no such
    `address`.
    """
    if asked is not None:
        if why := _why_not(address, checked(asked)):
            raise ConfigError("port", asked, f"{why}; give another, or none for the first that is free")
        return asked
    for port in range(FIRST, LAST + 1):
        if not _why_not(address, port):
            return port
    raise VitprofError(f"the ports {FIRST} to {LAST} are all in use; give one with --port")


def answering_port(asked: int | None) -> int:
    """Returns the port on which a dashboard answers: `asked`, or if that is None the first from `FIRST` to `LAST`.

    Raises `ConfigError` if `asked` is not a port number, `VitprofError` if no dashboard answers.
    """
    ports = range(FIRST, LAST + 1) if asked is None else [checked(asked)]
    for port in ports:
        if _answers(port):
            return port
    where = f"the ports {FIRST} to {LAST}" if asked is None else f"port {asked}"
    named = "" if asked is None else f" --port {asked}"
    raise VitprofError(f"no dashboard answers on {where} of this machine; start one with {program()}{named}")


def _why_not(address: str, port: int) -> str:
    """Returns why no server can listen on this port; "" if one can. Raises `VitprofError` for a foreign address."""
    try:
        family, kind, _, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
            probe.listen()  # beside a listener on all addresses, binding alone can succeed
    except OSError as error:
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            raise VitprofError(
                f"this machine has no address {address}; set STREAMLIT_SERVER_ADDRESS to one it has"
            ) from None
        if error.errno == errno.EADDRINUSE:
            return "it is in use"
        return f"{error.strerror or error}"
    return ""


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)
    try:
        connection.request("GET", "/_stcore/health")
        return connection.getresponse().read(16).strip() == b"ok"
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


SSH_PORT = "22"
SHOWN_BY = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")
"""Environment variables of which at least one is set where a browser can open. Editors that connect by SSH set the
first to a program that opens the browser on the user's machine."""


def url_of(port: int) -> str:
    """Returns the dashboard's URL on the machine that it runs on. At the user's end of a tunnel it is the same."""
    return f"http://localhost:{port}"


def ssh_tunnel(port: int) -> list[str]:
    """Returns lines with the command that opens a tunnel from the user's machine; none if this is no SSH session.

    The host is the address by which this machine was reached (`SSH_CONNECTION`: the client's address and port, then the
    server's, see ssh(1)).
    """
    connection = os.environ.get("SSH_CONNECTION", "").split()
    if len(connection) != 4:
        return []
    host, ssh_port = connection[2:]
    other = [] if ssh_port == SSH_PORT else ["-p", ssh_port]
    command = ["ssh", "-N", *other, "-L", f"{port}:localhost:{port}", f"{_user()}@{host}"]
    return [
        "To see it on your own computer, type there (with the name that you use for this machine, if you use one):",
        f"    {shlex.join(command)}",
        f"and open {url_of(port)} there while that runs.",
    ]


def why_no_browser() -> str:
    """Returns why no browser can be opened on this machine; "" if one can."""
    if sys.platform.startswith("linux") and not any(os.environ.get(name) for name in SHOWN_BY):
        return "there is no screen"  # a text browser would take the terminal from the server
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
