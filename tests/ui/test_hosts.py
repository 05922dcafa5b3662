"""Nobody but a page of the dashboard's own address can press its buttons; asked of a real server, without a browser.

A web page that somebody has open can reach 127.0.0.1 too: by a WebSocket with its own `Origin`, or under a name that it
makes resolve to 127.0.0.1 (DNS rebinding), with that name as `Host` and as `Origin`.
"""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
import requests
from streamlit import net_util
from streamlit.web.server.server_util import is_url_from_allowed_origins

from tests import ROOT
from tests.server import serve
from tests.ui.dashboard import app
from vitprof.store import RunStore

ACCEPTED, REFUSED = 101, 403
OWN = ("localhost", "127.0.0.1", "[::1]")
FOREIGN = ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "0.0.0.0", "192.168.1.7", "2130706433")
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Protocol": "streamlit",
}


def answer(url: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
    """Status and body of a GET with just these headers; "" as body of a connection that became a WebSocket."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    try:
        connection.putrequest("GET", path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        reply = connection.getresponse()
        return reply.status, "" if reply.status == ACCEPTED else reply.read().decode()
    finally:
        connection.close()


def connect(url: str, host: str, origin: str | None) -> int:
    """How the server answers a WebSocket of a page at `origin`, the server being called `host` there."""
    given = {"Host": host, **UPGRADE} | ({} if origin is None else {"Origin": origin})
    return answer(url, "/_stcore/stream", given)[0]


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A home of its own, and no way to the internet."""
    nowhere = "http://127.0.0.1:9"
    return {"VITPROF_HOME": str(tmp_path_factory.mktemp("home")), "HTTP_PROXY": nowhere, "HTTPS_PROXY": nowhere}


@pytest.fixture(scope="module")
def url(env: dict[str, str]) -> Iterator[str]:
    """The dashboard as somebody starts it who gives --server.address."""
    with serve(ROOT / "app.py", env=env) as address:
        yield address


@pytest.mark.parametrize("host", OWN)
@pytest.mark.parametrize("port", ["", ":1", ":8501"])
def test_its_own_names_are_accepted_with_any_port(url: str, host: str, port: str) -> None:
    for origin in (None, f"http://{host}{port}", f"https://{host}{port}", "http://localhost:3000"):
        assert connect(url, host + port, origin) == ACCEPTED


@pytest.mark.parametrize("host", FOREIGN)
@pytest.mark.parametrize("port", ["", ":8501"])
def test_a_foreign_name_is_refused_whatever_the_origin(url: str, host: str, port: str) -> None:
    for origin in (None, f"http://{host}{port}", "http://localhost:8501", "http://127.0.0.1"):
        assert connect(url, host + port, origin) == REFUSED


@pytest.mark.parametrize("host", OWN)
def test_a_foreign_page_is_refused_under_its_own_names(url: str, host: str) -> None:
    for origin in ("http://evil.example", "https://localhost.evil.example:8501", "null", "file://"):
        assert connect(url, host, origin) == REFUSED


@pytest.mark.parametrize("host", ["localhost", "evil.example"])
def test_plain_http_gives_any_name_files_of_the_program_only(url: str, host: str) -> None:
    """Streamlit checks the name for WebSockets alone. What is about runs, and every click, goes over one of these."""
    headers = {"Host": host, "Origin": f"http://{host}"}
    status, page = answer(url, "/", headers)
    assert status == 200
    assert "<noscript>" in page
    assert "vitprof" not in page
    assert answer(url, "/_stcore/health", headers) == (200, "ok")


@pytest.mark.slow
def test_an_operator_can_name_another_host(env: dict[str, str]) -> None:
    flags = ("--server.allowedHosts", "lab.example", "--server.allowedHosts", "localhost")
    with serve(ROOT / "app.py", env=env, flags=flags) as address:
        for host in ("lab.example:8501", "localhost"):
            assert connect(address, host, f"http://{host}") == ACCEPTED
        assert connect(address, "evil.example", "http://evil.example") == REFUSED


@pytest.mark.slow
def test_a_foreign_page_does_not_make_it_ask_the_internet(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """To compare it with the page's address, Streamlit would ask a server at Amazon for the one of this machine."""
    asked: list[str] = []
    monkeypatch.setattr(net_util, "_external_ip", None)
    monkeypatch.setattr(requests, "get", lambda url, **_: asked.append(url))
    app()
    assert not is_url_from_allowed_origins("http://evil.example")
    assert not asked
