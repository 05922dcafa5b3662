"""Who gets in: every request passes through here before Streamlit, which checks Host and Origin of WebSockets only, and
asks a server on the internet for this machine's address. Here both are checked for every request, then the token; pages
ask for a login where an OpenID Connect provider is configured.
"""

import functools
import gzip
import hashlib
import hmac
import ipaddress
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import streamlit as st
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import (
    FileResponse,
    HTMLResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
)
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from streamlit.runtime.scriptrunner import get_script_run_ctx

from vitprof.errors import VitprofError
from vitprof.ui.texts import escaped

SECTION = "auth"
"""Section of .streamlit/secrets.toml: https://docs.streamlit.io/develop/concepts/connections/authentication."""
SHOWN = ("email", "preferred_username", "name")
"""Claims of a provider that may name a user, in the order in which they are tried. None has to be unique but a verified
email address; "sub" is (https://openid.net/specs/openid-connect-core-1_0.html#StandardClaims)."""
VARIABLE = "VITPROF_TOKEN"
MADE_AT_START = "auto"
"""The variable's value for a token that is made at the start and printed, as in the container."""
SHORTEST = 16
"""Characters that a token needs; one made by `secrets.token_urlsafe()` has 43."""
KNOWN_FOR_S = 7 * 24 * 3600
"""Seconds for which a browser that is not closed is not asked for the token again."""
WINDOW_S = 60.0
FROM_ONE, FROM_ALL = 5, 60
"""Attempts allowed in `WINDOW_S` seconds: from one address, and from all of them together."""


@dataclass(frozen=True)
class Token:
    """The secret that opens the dashboard."""

    text: str = field(repr=False)
    """Its characters. Never shown, logged or put in a URL; only one that was made at the start is printed, once."""
    generated: bool
    """Whether it was made at the start, and so has to be printed."""

    def is_right(self, given: str) -> bool:
        return hmac.compare_digest(_bytes(given), _bytes(self.text))

    def pass_for(self, now: float) -> str:
        """Returns the pass that a browser keeps once its user gave the token; `now` in seconds since 1970."""
        return f"{int(now)}.{self._signature(str(int(now)))}"

    def is_pass(self, value: str, now: float) -> bool:
        """Returns whether `value` came from this token's `pass_for` at most `KNOWN_FOR_S` seconds before `now`."""
        issued, _, signature = value.partition(".")
        if not (issued.isdecimal() and issued.isascii() and len(issued) <= 12):
            return False
        signed = hmac.compare_digest(_bytes(signature), _bytes(self._signature(issued)))
        return signed and 0 <= now - int(issued) <= KNOWN_FOR_S

    def _signature(self, issued: str) -> str:
        return hmac.new(
            _bytes(self.text), f"vitprof pass {issued}".encode(), hashlib.sha256
        ).hexdigest()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")  # a variable may hold bytes that are not text


def take_token(environ: MutableMapping[str, str]) -> Token | None:
    """Removes the token from the environment, where jobs would inherit it; raises `VitprofError` if it is short."""
    text = environ.pop(VARIABLE, "").strip()
    if not text:
        return None
    if text == MADE_AT_START:
        return Token(secrets.token_urlsafe(), generated=True)
    if len(text) < SHORTEST:
        wanted = f"give {SHORTEST} or more, or {MADE_AT_START} for one that is made at the start"
        raise VitprofError(f"{VARIABLE} has {len(text)} characters: {wanted}")
    return Token(text, generated=False)


class Attempts:
    """The recent attempts at the token. Right ones count too, so that a refusal does not reveal what was right."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tried: deque[tuple[float, str]] = deque()

    def wait_s(self, address: str) -> float:
        now = self._clock()
        while self._tried and now - self._tried[0][0] >= WINDOW_S:
            self._tried.popleft()
        mine = [when for when, where in self._tried if where == address]
        for times, most in ((mine, FROM_ONE), ([when for when, _ in self._tried], FROM_ALL)):
            if len(times) >= most:
                return max(WINDOW_S - (now - times[-most]), 1.0)
        self._tried.append((now, address))
        return 0.0


LONGEST_FORM = 4096
"""Bytes that are read of a form with a token, at most."""
FORM = "application/x-www-form-urlencoded"
HEALTH = "/_stcore/health"
"""Answered without a token, with "ok" and no more: for a container's health check and `vitprof open`."""
STATIC = "/app/static/"
KEPT = {"Cache-Control": "private, max-age=31536000, immutable", "Vary": "Accept-Encoding"}
"""Of a file below it: its URL has its digest (`live_chart.url_of`), so a browser need not ask for it again."""
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
NAME_REFUSED = "vitprof does not answer under this name. Open it as localhost, or use --server.allowedHosts NAME."
PAGE_REFUSED = "vitprof answers its own pages only. Behind a proxy: have it pass on the Host that the browser sent."


@dataclass
class Gate:
    """The check of every request: it needs one of the allowed `hosts`, an Origin that is the dashboard's own if it has
    one, and the token if one is set. `wide`: other machines reach the server; `login`: its pages ask for one; `files`:
    what is served below `STATIC`, by name; `base`: the server's base path ("" or "/name"); `proxies`: some are trusted
    to say in X-Forwarded-For who sent a request. Else anybody may have written that, and it counts as one address.
    """

    app: ASGIApp
    hosts: Sequence[str]
    token: Token | None
    wide: bool
    login: bool
    files: Mapping[str, Path]
    base: str = ""
    proxies: bool = False
    clock: Callable[[], float] = time.time
    attempts: Attempts = field(default_factory=Attempts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request itself or passes it on. A WebSocket that is not let in is refused before it opens."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        refused = await self._answer(scope, receive)
        if refused is not None and scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(SECURITY_HEADERS)
            await send(message)

        await (self.app if refused is None else refused)(scope, receive, send_with_headers)

    async def _answer(self, scope: Scope, receive: Receive) -> Response | None:
        """Returns the answer to a request that is not let in, or a file; None for a request to pass on."""
        path = scope["path"].removeprefix(self.base)
        if path == HEALTH:
            return None
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        origins = headers.getlist("origin")
        if len(hosts) != 1 or not is_named(hosts[0], self.hosts):
            return PlainTextResponse(NAME_REFUSED, status_code=403)
        if any(not is_own_page(origin, hosts[0]) for origin in origins):
            return PlainTextResponse(PAGE_REFUSED, status_code=403)
        if self.token is not None:
            if not self.token.is_pass(
                HTTPConnection(scope).cookies.get(_cookie(hosts[0]), ""), self.clock()
            ):
                return await self._ask(self.token, scope, receive)
        elif not self.login and (
            self.wide or not is_this_machine((scope.get("server") or ("unix:", 0))[0])
        ):
            return HTMLResponse(closed(), status_code=403)
        if path.startswith(STATIC):
            file = self.files.get(path.removeprefix(STATIC))
            if file is None:
                return PlainTextResponse("there is no such file", status_code=404)
            kind = "text/javascript"
            if "gzip" in headers.get("accept-encoding", ""):
                return Response(
                    _packed(file), media_type=kind, headers=KEPT | {"Content-Encoding": "gzip"}
                )
            return FileResponse(file, media_type=kind, headers=KEPT)
        return None

    async def _ask(self, token: Token, scope: Scope, receive: Receive) -> Response:
        """Returns the question for the token, or a redirect with the cookie where a form brings the right one."""
        headers = Headers(scope=scope)
        if (
            scope["type"] != "http"
            or scope["method"] != "POST"
            or headers.get("content-type") != FORM
        ):
            return HTMLResponse(question(), status_code=401)
        client = scope.get("client") if self.proxies or "x-forwarded-for" not in headers else None
        if wait_s := self.attempts.wait_s(client[0] if client else ""):
            problem = f"Too many attempts. Try again in {wait_s:.0f} s."
            return HTMLResponse(
                question(problem), status_code=429, headers={"retry-after": f"{wait_s:.0f}"}
            )
        given = parse_qs((await _body(Request(scope, receive))).decode(errors="replace")).get(
            FIELD, [""]
        )[0]
        if not token.is_right(given.strip()):
            return HTMLResponse(question("That is not the token."), status_code=401)
        # relative to the page's own URL: a proxy may have added to its path, and no other host can be named
        name = scope["path"].rpartition("/")[2]
        query = scope["query_string"].decode("latin-1")
        answer = RedirectResponse(f"./{name}" + (f"?{query}" if query else ""), status_code=303)
        name = _cookie(headers["host"])
        secure = scope["scheme"] == "https"
        answer.set_cookie(
            name, token.pass_for(self.clock()), httponly=True, samesite="lax", secure=secure
        )
        return answer


@functools.cache
def _packed(file: Path) -> bytes:
    return gzip.compress(file.read_bytes(), 6)  # 0.07 s of a core once, for 0.5 MB instead of 1.5


def _cookie(host: str) -> str:
    port = host.rpartition(":")[2]
    return f"vitprof_{port if port.isdecimal() else ''}"


async def _body(request: Request) -> bytes:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > LONGEST_FORM:
            break
    return body[:LONGEST_FORM]


def is_named(host: str, allowed: Sequence[str]) -> bool:
    """Returns whether the Host of a request is one of `allowed`, with any port; if `allowed` is empty, every name is.
    The patterns are those of Streamlit's `server.allowedHosts`: "*.lab.example" is every name below it, "*" any.
    """
    try:
        parts = urlsplit(f"//{host}")
        # a port that is no number raises
        name = parts.hostname
        _ = parts.port
    except ValueError:
        return False
    if not name or parts.netloc != host or "@" in host:
        return False
    name = name.rstrip(".")
    wanted = [pattern.strip().lower().rstrip(".") for pattern in allowed]
    return not wanted or any(
        pattern in ("*", name) or (pattern.startswith("*.") and name.endswith(pattern[1:]))
        for pattern in wanted
    )


def is_own_page(origin: str, host: str) -> bool:
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
    alert = f'<p role="alert">{problem}</p>' if problem else ""
    return PAGE.format(
        body=f'{alert}<form method="post"><p><label for="{FIELD}">Token of this dashboard</label></p>'
        f'<p><input id="{FIELD}" name="{FIELD}" type="password" autocomplete="current-password" required autofocus> '
        f"<button>Open</button></p></form><p>Whoever started it set {VARIABLE}, or saw the token at the start.</p>"
    )


def closed() -> str:
    ways = "".join(f"<li>{way}</li>" for way in WAYS)
    return PAGE.format(
        body=f"<p>This dashboard is closed: {CLOSED}. Whoever started it can:</p><ul>{ways}</ul>"
    )


def has_login() -> bool:
    return bool(st.secrets.load_if_toml_exists()) and SECTION in st.secrets


def needs_login() -> bool:
    return has_login() and not st.user.is_logged_in


def person() -> str:
    """Returns the user who is logged in to this script's page, by a name that no other has; "" where nobody is."""
    if get_script_run_ctx(suppress_warning=True) is None or not has_login() or needs_login():
        return ""
    claims = st.user.to_dict()
    if claims.get("email") and str(claims.get("email_verified")).lower() == "true":
        return str(claims["email"])
    shown = next((str(claims[name]) for name in SHOWN if claims.get(name)), "")
    subject = str(claims.get("sub", ""))
    return (
        f"{shown} ({subject})" if shown and subject else shown or subject or "a user without a name"
    )


def started_by(name: str) -> str:
    return f"Started by {name or 'a user of this machine'}." if has_login() else ""


def require_login() -> None:
    if not has_login():
        return
    if not needs_login():
        with st.sidebar.container(horizontal=True, vertical_alignment="center", key="person"):
            st.caption(escaped(person()), width="stretch")
            st.button("Log out", key="log-out", type="tertiary", on_click=st.logout)
        return
    st.title("vitprof", anchor=False)
    auth = st.secrets[SECTION]
    if "client_id" in auth:
        st.button("Log in", key="log-in-", type="primary", on_click=st.login)
    for name in [name for name, value in auth.items() if isinstance(value, Mapping)]:
        label = f"Log in with {escaped(name)}"
        st.button(label, key=f"log-in-{name}", type="primary", on_click=st.login, args=(name,))
    st.stop()
