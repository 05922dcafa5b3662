"""The dashboard as a web application: who gets in, what is printed at the start, and what is closed
at the end.
"""

import os
import sys
import threading
import webbrowser
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any

from anyio import to_thread
from starlette.middleware import Middleware
from streamlit import config
from streamlit.web.server import server_util

from vitprof.errors import VitprofError
from vitprof.jobs import users
from vitprof.ui import gate, live_chart, resources


def parts() -> dict[str, Any]:
    """Returns the arguments of `st.App` besides its script.

    Exits with one line where the token cannot be used.
    """
    try:
        token = gate.take_token(os.environ)
    except VitprofError as error:
        sys.exit(f"vitprof: {error}")
    address = config.get_option("server.address")
    has_login = gate.has_login()
    if has_login:
        users.ask_with(gate.person)
    path = str(config.get_option("server.baseUrlPath")).strip("/")
    middleware = Middleware(
        gate.Gate,
        hosts=tuple(config.get_option("server.allowedHosts")),
        token=token,
        wide=not gate.is_this_machine(address),
        login=has_login,
        files=live_chart.SERVED,
        base=f"/{path}" if path else "",
        # without it uvicorn trusts this machine
        proxies=bool(os.environ.get("FORWARDED_ALLOW_IPS")),
    )

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        for line in start_lines(address, token, login=has_login):
            print(line, file=sys.stderr, flush=True)  # noqa: T201
        if not config.get_option("server.headless"):
            url = server_util.get_url("localhost")
            threading.Thread(
                target=webbrowser.open, args=(url,), name="vitprof-open", daemon=True
            ).start()
        yield
        # here, because atexit does not run where uvicorn ends by SIGTERM
        await to_thread.run_sync(resources.end)

    return {"middleware": [middleware], "lifespan": lifespan}


def start_lines(address: str | None, token: gate.Token | None, *, login: bool) -> list[str]:
    """Returns the lines to print at the start.

    They give a token made for it, what a login lacks, and where other machines reach the server,
    what it asks of them or why it is closed.
    """
    lines = []
    if token is not None and token.generated:
        lines.append(f"vitprof: the page asks for this token, made for this start: {token.text}")
    if login and find_spec("authlib") is None:
        lines.append(
            "vitprof: nobody can log in until you run python -m pip install 'streamlit[auth]'"
        )
    if gate.is_this_machine(address):
        return lines
    where = address or "all addresses"
    if token is None and not login:
        return [
            f"vitprof: the dashboard is closed ({where}): {gate.CLOSED}",
            *(f"    {way}" for way in gate.WAYS),
        ]
    asks = []
    if token is not None:
        asks.append(f"the token ({gate.VARIABLE})")
    if login:
        asks.append("a login")
    reached = (
        f"vitprof: other machines reach the dashboard ({where}); it asks for {' and '.join(asks)}"
    )
    return [*lines, reached]
