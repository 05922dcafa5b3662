"""The names in a request: the server's (Host), and that of the page that sent it (Origin)."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit


def is_named(host: str, allowed: Sequence[str]) -> bool:
    """Returns whether the Host of a request is one of `allowed`, with any port; if `allowed` is empty, every name is.

    The patterns are those of Streamlit's `server.allowedHosts`, which Streamlit applies to WebSockets only:
    "*.lab.example" is every name below lab.example, "*" is any.
    """
    try:
        parts = urlsplit(f"//{host}")
        name, _ = parts.hostname, parts.port  # a port that is no number raises
    except ValueError:
        return False
    if not name or parts.netloc != host or "@" in host:
        return False
    name = name.rstrip(".")
    wanted = [pattern.strip().lower().rstrip(".") for pattern in allowed]
    return not wanted or any(
        pattern in ("*", name) or (pattern.startswith("*.") and name.endswith(pattern[1:])) for pattern in wanted
    )


def is_own_page(origin: str, host: str) -> bool:
    """Returns whether `origin` is a page of the server that the request calls `host`: the same name and port."""
    scheme, _, rest = origin.partition("://")
    return scheme in ("http", "https") and rest.lower() == host.lower()


def is_this_machine(address: str | None) -> bool:
    """Returns whether only this machine can reach a server that listens at `address`; None is all addresses."""
    if address is None:
        return False
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return address == "localhost" or address.startswith("unix:")
