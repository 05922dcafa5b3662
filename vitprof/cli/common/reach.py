"""Ways to reach the dashboard: a browser on this machine, or an SSH tunnel from the user's machine."""

from __future__ import annotations

import getpass
import os
import shlex
import sys
import webbrowser

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
