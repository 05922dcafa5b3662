"""Every request to the dashboard passes through here before Streamlit sees it: the names in it are checked, and a
browser that is not let in gets a page that asks for the token or says what the operator has to do.

Streamlit checks Host and Origin of WebSockets only, and for a foreign Origin it asks a server on the internet for this
machine's address. Here both are checked first, for every request and without using the network.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Sequence
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitprof.ui.gate.token import MADE_AT_START, SHORTEST, VARIABLE, Attempts, Token

LONGEST_FORM = 4096
"""Bytes that are read of a form with a token, at most."""
FORM = "application/x-www-form-urlencoded"
HEALTH = "/_stcore/health"
"""Answered without a token, with "ok" and no more: for a container's health check and `vitprof open`."""
STATIC = "/app/static/"
SECURITY_HEADERS = {
    # Nothing is loaded from elsewhere, and nothing sent there, whatever got into a page. Streamlit needs inline styles
    # and scripts; Plotly and Vega make functions from text.
    "content-security-policy": "default-src 'self' data: blob:; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'self'",
    "x-frame-options": "SAMEORIGIN",  # no foreign page can frame it and trick a user into clicking
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
NAME_REFUSED = (
    "vitprof does not answer under this name. Open it as localhost, or start it with --server.allowedHosts NAME."
)
PAGE_REFUSED = "vitprof answers its own pages only. Behind a proxy: have it pass on the Host that the browser sent."


class Gate:
    """The check of every request: it needs an allowed Host, an Origin that is the dashboard's own if it has one, and
    the token if one is set.

    `hosts` are the allowed names; `wide` says whether other machines reach the server, `login` whether its pages ask
    for one; `files` are the names that static/ serves, `base` is the server's base path ("" or "/name").
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Sequence[str],
        token: Token | None,
        wide: bool,
        login: bool,
        files: Sequence[str],
        base: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._app = app
        self._hosts, self._token, self._files, self._base = hosts, token, files, base
        self._wide, self._login = wide, login
        self._attempts = Attempts()
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request itself or passes it on. A WebSocket that is not let in is refused before it opens."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        refused = await self._answer(scope, receive)
        if refused is not None and scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(SECURITY_HEADERS)
            await send(message)

        await (self._app if refused is None else refused)(scope, receive, send_with_headers)

    async def _answer(self, scope: Scope, receive: Receive) -> Response | None:
        """Returns the answer to a request that is not let in; None for a request to pass on."""
        path = scope["path"].removeprefix(self._base)
        if path == HEALTH:
            return None
        headers = Headers(scope=scope)
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) != 1 or not is_named(hosts[0], self._hosts):
            return PlainTextResponse(NAME_REFUSED, status_code=403)
        if any(not is_own_page(origin, hosts[0]) for origin in origins):
            return PlainTextResponse(PAGE_REFUSED, status_code=403)
        if self._token is not None:
            if not self._token.is_pass(HTTPConnection(scope).cookies.get(_cookie(hosts[0]), ""), self._clock()):
                return await self._ask(scope, receive)
        elif not self._login and (self._wide or not is_this_machine((scope.get("server") or ("unix:", 0))[0])):
            return HTMLResponse(closed(), status_code=403)
        if path.startswith(STATIC) and path.removeprefix(STATIC) not in self._files:
            return PlainTextResponse("there is no such file", status_code=404)
        return None

    async def _ask(self, scope: Scope, receive: Receive) -> Response:
        """Returns the question for the token, or a redirect with the cookie where a form brings the right one."""
        headers = Headers(scope=scope)
        if scope["type"] != "http" or scope["method"] != "POST" or headers.get("content-type") != FORM:
            return HTMLResponse(question(), status_code=401)
        assert self._token is not None
        client = scope.get("client")
        if wait_s := self._attempts.wait_s(client[0] if client else ""):
            problem = f"Too many attempts. Try again in {wait_s:.0f} s."
            return HTMLResponse(question(problem), status_code=429, headers={"retry-after": f"{wait_s:.0f}"})
        given = parse_qs((await _body(Request(scope, receive))).decode(errors="replace")).get(FIELD, [""])[0]
        if not self._token.is_right(given.strip()):
            return HTMLResponse(question("That is not the token."), status_code=401)
        # relative to the page's own URL: a proxy may have added to its path, and no other host can be named
        name = scope["path"].rpartition("/")[2]
        query = scope["query_string"].decode("latin-1")
        answer = RedirectResponse(f"./{name}" + (f"?{query}" if query else ""), status_code=303)
        value = self._token.pass_for(self._clock())
        secure = scope["scheme"] == "https"
        answer.set_cookie(_cookie(headers["host"]), value, httponly=True, samesite="lax", secure=secure)
        return answer


def _cookie(host: str) -> str:
    """Returns the cookie's name. Browsers send cookies to every port of a host, and each port is another dashboard."""
    port = host.rpartition(":")[2]
    return f"vitprof_{port if port.isdecimal() else ''}"


async def _body(request: Request) -> bytes:
    """Returns the body, at most `LONGEST_FORM` bytes of it."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > LONGEST_FORM:
            break
    return body[:LONGEST_FORM]


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


CLOSED = (
    f"it listens for other machines too, and neither a token ({VARIABLE}) nor a login ([auth] in "
    ".streamlit/secrets.toml) is set: no page is shown and no job is started"
)
"""Why nobody gets in, as printed at the start and shown on the page."""
WAYS = (
    "Leave out the address, so that it listens on 127.0.0.1 only, and use SSH: ssh -N -L 8501:localhost:8501 HOST",
    f"Set {VARIABLE} to {SHORTEST} characters or more before the start, or to {MADE_AT_START} for one that is printed. "
    "The page then asks for it.",
    "Configure a login for st.login, [auth] in .streamlit/secrets.toml.",
)
"""What the operator can do about it."""
FIELD = "token"
"""The name of the field that the token is typed into."""

PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>vitprof</title>
<meta name="viewport" content="width=device-width"><meta name="robots" content="noindex">
<style>:root{{color-scheme:light dark}}body{{font:1rem/1.5 system-ui,sans-serif;max-width:34rem;margin:12vh auto;
padding:0 1rem}}input,button{{font:inherit;padding:.4rem .6rem}}li{{margin:.4rem 0}}</style></head>
<body><main><h1>vitprof</h1>{body}</main></body></html>
"""


def question(problem: str = "") -> str:
    """Returns the page that asks for the token; `said` says what was wrong with the last one."""
    alert = f'<p role="alert">{problem}</p>' if problem else ""
    return PAGE.format(
        body=f'{alert}<form method="post"><p><label for="{FIELD}">Token of this dashboard</label></p>'
        f'<p><input id="{FIELD}" name="{FIELD}" type="password" autocomplete="current-password" required autofocus> '
        f"<button>Open</button></p></form><p>Whoever started it set {VARIABLE}, or saw the token at the start.</p>"
    )


def closed() -> str:
    """Returns the page of a dashboard that nobody may use as it was started."""
    ways = "".join(f"<li>{way}</li>" for way in WAYS)
    return PAGE.format(body=f"<p>This dashboard is closed: {CLOSED}. Whoever started it can:</p><ul>{ways}</ul>")
