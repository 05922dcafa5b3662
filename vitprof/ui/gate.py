"""Who gets in: every request passes through here before Streamlit sees it.

The names in it are checked, and a browser that is not let in gets a page that asks for the token,
which a user types once, or says what the operator has to do. Pages ask for a login with the
accounts of an OpenID Connect provider, where the operator configured one for Streamlit.

Streamlit checks Host and Origin of WebSockets only, and for a foreign Origin it asks a server on
the internet for this machine's address. Here both are checked first, for every request and without
using the network.
"""

import hashlib
import hmac
import ipaddress
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

import streamlit as st
from itsdangerous import TimestampSigner
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from streamlit.runtime.scriptrunner import get_script_run_ctx

from vitprof.errors import VitprofError
from vitprof.ui.texts import escaped

SECTION = "auth"
"""Section of .streamlit/secrets.toml:
https://docs.streamlit.io/develop/concepts/connections/authentication."""
SHOWN = ("email", "preferred_username", "name")
"""Claims of a provider that may name a user, in the order in which they are tried. None has to be
unique but a verified email address; "sub" is
(https://openid.net/specs/openid-connect-core-1_0.html#StandardClaims)."""
VARIABLE = "VITPROF_TOKEN"
"""The environment's variable with the token."""
MADE_AT_START = "auto"
"""The variable's value for a token that is made at the start and printed, as in the container."""
SHORTEST = 16
"""Characters that a token needs; one made by `secrets.token_urlsafe()` has 43."""
PASS = "pass"
"""What a pass says; the time at which it was given out and the signature follow it."""
KNOWN_FOR_S = 7 * 24 * 3600
"""Seconds for which a browser that is not closed is not asked for the token again."""
WINDOW_S = 60.0
"""Seconds in which attempts are counted."""
FROM_ONE = 5
"""Attempts allowed from one address in `WINDOW_S`."""
FROM_ALL = 60
"""Attempts allowed from all addresses together in `WINDOW_S`."""


@dataclass(frozen=True)
class Token:
    """The secret that opens the dashboard."""

    text: str = field(repr=False)
    """Its characters. Never shown, logged or put in a URL; only one that was made at the start is
    printed, once."""
    generated: bool
    """Whether it was made at the start, and so has to be printed."""

    def is_right(self, typed: str) -> bool:
        """Returns whether `typed` is the token; takes the same time wherever they differ."""
        return hmac.compare_digest(_bytes(typed), _bytes(self.text))

    def pass_for(self, now: float) -> str:
        """Returns the pass that a browser keeps once its user gave the token; `now` in seconds
        since 1970.
        """
        return _PassSigner(self, now).sign(PASS).decode()

    def is_pass(self, value: str, now: float) -> bool:
        """Returns whether `value` came from this token's `pass_for` at most `KNOWN_FOR_S` seconds
        before `now`.
        """
        return _PassSigner(self, now).validate(_bytes(value), max_age=KNOWN_FOR_S)


class _PassSigner(TimestampSigner):
    """Signs passes with a key made of the token, and knows its own, at a moment given."""

    def __init__(self, token: Token, now: float) -> None:
        super().__init__(
            _bytes(token.text),
            salt="vitprof pass",
            key_derivation="hmac",
            digest_method=hashlib.sha256,
        )
        self._now = now

    def get_timestamp(self) -> int:
        return int(self._now)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")  # a variable may hold bytes that are not text


def take_token(environ: MutableMapping[str, str]) -> Token | None:
    """Removes the token from the environment, where jobs would inherit it, and returns it.

    None where there is none. Raises `VitprofError` where it has fewer than `SHORTEST` characters.
    """
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
    """The recent attempts at the token.

    Right ones count too, so that a refusal does not reveal what was right.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tried: deque[tuple[float, str]] = deque()

    def wait_s(self, address: str) -> float:
        """Counts an attempt from `address` and returns 0; or, if it is one too many, the seconds to
        wait.
        """
        now = self._clock()
        while self._tried and now - self._tried[0][0] >= WINDOW_S:
            self._tried.popleft()
        from_all = [when for when, _ in self._tried]
        from_one = [when for when, where in self._tried if where == address]
        for times, most in ((from_one, FROM_ONE), (from_all, FROM_ALL)):
            if len(times) >= most:
                return max(WINDOW_S - (now - times[-most]), 1.0)
        self._tried.append((now, address))
        return 0.0


LONGEST_FORM = 4096
"""Bytes that are read of a form with a token, at most."""
FORM = "application/x-www-form-urlencoded"
HEALTH = "/_stcore/health"
"""Answered without a token, with "ok" and no more: for a container's health check and `vitprof
open`."""
SECURITY_HEADERS = {
    # Nothing is loaded from elsewhere, and nothing sent there, whatever got into a page. Streamlit
    # needs inline styles and scripts; Plotly and Vega make functions from text.
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
    """The check of every request.

    It needs an allowed Host, an Origin that is the dashboard's own if it has one, and the token if
    one is set.
    """

    app: ASGIApp
    hosts: Sequence[str]
    """The allowed names."""
    token: Token | None
    wide: bool
    """Whether other machines reach the server."""
    login: bool
    """Whether its pages ask for a login."""
    base: str = ""
    """The server's base path ("" or "/name")."""
    proxies: bool = False
    """Whether some are trusted to say in X-Forwarded-For who sent a request. Else anybody may have
    written that, and it counts as one address."""
    clock: Callable[[], float] = time.time
    attempts: Attempts = field(default_factory=Attempts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request itself or passes it on.

        A WebSocket that is not let in is refused before it opens.
        """
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        refused = await self._answer(scope, receive)
        if refused is not None and scope["type"] == "websocket":
            # 1008: against the server's policy (RFC 6455, section 7.4.1)
            await send({"type": "websocket.close", "code": 1008})
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(SECURITY_HEADERS)
            await send(message)

        await (self.app if refused is None else refused)(scope, receive, send_with_headers)

    async def _answer(self, scope: Scope, receive: Receive) -> Response | None:
        """Returns the answer to a request that is not let in; None for a request to pass on."""
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
            cookie = HTTPConnection(scope).cookies.get(_cookie(hosts[0]), "")
            if not self.token.is_pass(cookie, self.clock()):
                return await self._ask(self.token, scope, receive)
        elif not self.login:
            listens_at, _ = scope.get("server") or ("unix:", 0)
            if self.wide or not is_this_machine(listens_at):
                return HTMLResponse(closed(), status_code=403)
        return None

    async def _ask(self, token: Token, scope: Scope, receive: Receive) -> Response:
        """Returns the question for the token, or a redirect with the cookie where a form brings the
        right one.
        """
        headers = Headers(scope=scope)
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        if not is_post or headers.get("content-type") != FORM:
            return HTMLResponse(question(), status_code=401)
        address = ""
        client = scope.get("client")
        if client and (self.proxies or "x-forwarded-for" not in headers):
            address = client[0]
        if wait_s := self.attempts.wait_s(address):
            problem = f"Too many attempts. Try again in {wait_s:.0f} s."
            after = {"retry-after": f"{wait_s:.0f}"}
            return HTMLResponse(question(problem), status_code=429, headers=after)
        form = await _body(Request(scope, receive))
        typed = parse_qs(form.decode(errors="replace")).get(FIELD, [""])[0]
        if not token.is_right(typed.strip()):
            return HTMLResponse(question("That is not the token."), status_code=401)
        # relative to the page's own URL: a proxy may have added to its path, and no other host can
        # be named
        page = f"./{scope['path'].rpartition('/')[2]}"
        if query := scope["query_string"].decode("latin-1"):
            page += f"?{query}"
        # 303: the page is then asked for by GET, so a reload does not send the token again
        answer = RedirectResponse(page, status_code=303)
        answer.set_cookie(
            _cookie(headers["host"]),
            token.pass_for(self.clock()),
            # scripts cannot read it, and forms of foreign pages do not bring it
            httponly=True,
            samesite="lax",
            secure=scope["scheme"] == "https",
        )
        return answer


def _cookie(host: str) -> str:
    """Returns the cookie's name.

    Browsers send cookies to every port of a host, and each port is another dashboard.
    """
    port = host.rpartition(":")[2]
    return f"vitprof_{port}" if port.isdecimal() else "vitprof_"


async def _body(request: Request) -> bytes:
    """Returns the body, at most `LONGEST_FORM` bytes of it."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > LONGEST_FORM:
            break
    return body[:LONGEST_FORM]


def is_named(host: str, allowed: Sequence[str]) -> bool:
    """Returns whether the Host of a request is one of `allowed`, with any port.

    If `allowed` is empty, every name is. The patterns are those of Streamlit's
    `server.allowedHosts`: "*.lab.example" is every name below lab.example, "*" is any.
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
    if not allowed:
        return True
    for pattern in allowed:
        wanted = pattern.strip().lower().rstrip(".")
        if wanted in ("*", name):
            return True
        if wanted.startswith("*.") and name.endswith(wanted[1:]):
            return True
    return False


def is_own_page(origin: str, host: str) -> bool:
    """Returns whether `origin` is a page of the server that the request calls `host`: the same name
    and port.
    """
    scheme, _, rest = origin.partition("://")
    return scheme in ("http", "https") and rest.lower() == host.lower()


def is_this_machine(address: str | None) -> bool:
    """Returns whether only this machine can reach a server that listens at `address`; None is all
    addresses.
    """
    if address is None:
        return False
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return address == "localhost" or address.startswith("unix:")


@dataclass
class _Reach:
    """Who can open the pages of this process."""

    this_machine_only: bool = False
    """False until the server says otherwise: then nobody is trusted with more than the roots."""


_reach = _Reach()


def state_reach(
    address: str | None, hosts: Sequence[str], *, token: bool, login: bool, proxies: bool
) -> None:
    """States who can open the pages: the server's address, the names that it answers under, and
    whether it asks for a `token` or a `login`, or trusts `proxies`.

    A name of another machine is what a proxy here passes on, a token or a login is set to let
    others in: then the pages are not this machine's alone.
    """
    names = bool(hosts) and all(is_this_machine(host) for host in hosts)
    asks = token or login
    _reach.this_machine_only = is_this_machine(address) and names and not asks and not proxies


def serves_this_machine_only() -> bool:
    return _reach.this_machine_only


CLOSED = (
    f"it listens for other machines too, and neither a token ({VARIABLE}) nor a login ([auth] in "
    ".streamlit/secrets.toml) is set: no page is shown and no job is started"
)
"""Why nobody gets in, as printed at the start and shown on the page."""
WAYS = (
    "Leave out the address, so that it listens on 127.0.0.1 only, and use SSH: ssh -N -L 8501:localhost:8501 HOST",
    f"Set {VARIABLE} to {SHORTEST} characters or more before the start, or to {MADE_AT_START} for "
    "one that is printed. "
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
    """Returns the page that asks for the token; `problem` says what was wrong with the last one."""
    alert = f'<p role="alert">{problem}</p>' if problem else ""
    return PAGE.format(
        body=f'{alert}<form method="post"><p><label for="{FIELD}">Token of this dashboard</label></p>'
        f'<p><input id="{FIELD}" name="{FIELD}" type="password" autocomplete="current-password" required autofocus> '
        f"<button>Open</button></p></form><p>Whoever started it set {VARIABLE}, or saw the token "
        "at the start.</p>"
    )


def closed() -> str:
    """Returns the page of a dashboard that nobody may use as it was started."""
    ways = "".join(f"<li>{way}</li>" for way in WAYS)
    return PAGE.format(
        body=f"<p>This dashboard is closed: {CLOSED}. Whoever started it can:</p><ul>{ways}</ul>"
    )


def has_login() -> bool:
    return bool(st.secrets.load_if_toml_exists()) and SECTION in st.secrets


def needs_login() -> bool:
    return has_login() and not st.user.is_logged_in


def person() -> str:
    """Returns the user who is logged in to the page whose script this is.

    "" where nobody is, and outside a script. No two users of a provider have the same name: what
    one of them started the other one cannot stop.
    """
    if get_script_run_ctx(suppress_warning=True) is None or not has_login() or needs_login():
        return ""
    claims = st.user.to_dict()
    if claims.get("email") and str(claims.get("email_verified")).lower() == "true":
        return str(claims["email"])
    shown = next((str(claims[name]) for name in SHOWN if claims.get(name)), "")
    subject = str(claims.get("sub", ""))
    if shown and subject:
        return f"{shown} ({subject})"
    return shown or subject or "a user without a name"


def started_by(name: str) -> str:
    """Returns a sentence about who started something; "" where no login is configured."""
    if not has_login():
        return ""
    return f"Started by {name or 'a user of this machine'}."


def require_login() -> None:
    """Draws only the buttons to log in where the user has to, and ends the script.

    Where nobody has to, it draws the user's name and the button to log out.
    """
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
    providers = [name for name, value in auth.items() if isinstance(value, Mapping)]
    for name in providers:
        label = f"Log in with {escaped(name)}"
        st.button(label, key=f"log-in-{name}", type="primary", on_click=st.login, args=(name,))
    st.stop()
