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
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Scope
from streamlit import config
from streamlit.web.server import server_util

from vitprof.charts.style import IN_BROWSER
from vitprof.errors import VitprofError
from vitprof.jobs import users
from vitprof.ui import gate, live_chart, navigation, resources
from vitprof.ui.unknown_pages import UnknownPages

FILE_HEADERS = {
    # the URL has the file's digest (`live_chart.url_of`), so no browser need ask for it again
    "cache-control": "private, max-age=31536000, immutable",
    # not what this machine's table calls .js: under `nosniff` a browser runs no other type
    "content-type": "text/javascript; charset=utf-8",
}


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
    base = f"/{path}" if path else ""
    hosts = tuple(config.get_option("server.allowedHosts"))
    # without it uvicorn trusts this machine
    proxies = bool(os.environ.get("FORWARDED_ALLOW_IPS"))
    gate.state_reach(address, hosts, token=token is not None, login=has_login, proxies=proxies)
    middleware = Middleware(
        gate.Gate,
        hosts=hosts,
        token=token,
        wide=not gate.is_this_machine(address),
        login=has_login,
        base=base,
        proxies=proxies,
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

    unknown = Middleware(UnknownPages, pages=navigation.addresses(), base=base)
    return {
        "middleware": [middleware, unknown],
        "routes": [chart_files(base)],
        "lifespan": lifespan,
    }


def chart_files(base: str) -> Mount:
    """Returns the route to the files that charts load, below the server's base path."""
    return Mount(f"{base}/{live_chart.STATIC}", ChartFiles(directory=IN_BROWSER))


class ChartFiles(StaticFiles):
    """The files of a directory by their names; Streamlit packs what it sends by gzip."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        if scope["path"] != f"{scope['root_path']}/{path}":
            raise HTTPException(404)  # it was asked for as x/../NAME or NAME/
        response = await super().get_response(path, scope)
        response.headers.update(FILE_HEADERS)
        return response


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
