"""Nobody but a page of the dashboard's own address can press its buttons; asked of real servers, without a browser.

A web page that somebody has open can reach 127.0.0.1 too: by a WebSocket with its own `Origin`, or under a name that it
makes resolve to 127.0.0.1 (DNS rebinding), with that name as `Host` and as `Origin`. docs/security.md has the table of
what is answered to whom; its rows are what is asked here.
"""

from __future__ import annotations

import http.client
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit

import pytest

from tests import ROOT
from tests.server import serve
from vitprof.ui.assets import SERVED, ensure_assets

OPENED = {True: (200, 101), False: (403, 403)}
"""What a page and a WebSocket are answered, by whether they are let in."""
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Protocol": "streamlit",
}
STREAM = "/_stcore/stream"
TOKEN = "a token of these tests"
ELSEWHERE = ("link.js", ".gitignore", "", "../app.py", "..%2fapp.py", "%2e%2e/app.py", "..%5capp.py", "%2fetc%2fhosts")
WATCHER = """
import sys
def seen(event, args):
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg", "socket.bind"):
        told(event, str(args[1]))
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        told(event, str(args[0]))
def told(event, where):
    with open({log!r}, "a") as file:
        file.write(event + " " + where + chr(10))
sys.addaudithook(seen)
"""
"""Python that writes down every address and name that a process of Python uses, as its `sitecustomize`."""
INWARD = re.compile(r"socket\.bind .*|.* (None|localhost|127\.0\.0\.1|0\.0\.0\.0|::1|\('(127\.0\.0\.1|::1)', .*\))")
"""What stays within this machine."""


def table() -> list[tuple[str, str, bool]]:
    """The rows of the page for operators: Host, Origin ("" for none), and whether they are let in."""
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (opened|refused) \|$", page, re.MULTILINE)
    return [(*(("" if cell == "none" else cell.strip("`")) for cell in row[:2]), row[2] == "opened") for row in rows]


class Reply(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    text: str
    """"" of what became a WebSocket."""


def answer(url: str, path: str, headers: dict[str, str], method: str = "GET", body: str = "") -> Reply:
    """The answer to a request with just these headers."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders(body.encode() or None)
        reply = connection.getresponse()
        text = "" if reply.status == 101 else reply.read().decode(errors="replace")
        return Reply(reply.status, reply.headers, text)
    finally:
        connection.close()


def both(url: str, headers: dict[str, str]) -> tuple[int, int]:
    """How a page and a WebSocket with these headers are answered."""
    return answer(url, "/", headers).status, answer(url, STREAM, headers | UPGRADE).status


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the servers of these tests write down whom they talk to."""
    return tmp_path_factory.mktemp("watched") / "log"


@pytest.fixture(scope="module")
def env(log: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A home of its own; no way to the internet, and what writes down who looks for one."""
    (log.parent / "sitecustomize.py").write_text(WATCHER.format(log=str(log)))
    nowhere = "http://192.0.2.1:9"  # as a proxy: who uses it is seen too
    return {
        "VITPROF_HOME": str(tmp_path_factory.mktemp("home")),
        "PYTHONPATH": os.pathsep.join((str(log.parent), str(ROOT))),
        "HTTP_PROXY": nowhere,
        "HTTPS_PROXY": nowhere,
    }


@pytest.fixture(scope="module")
def url(env: dict[str, str]) -> Iterator[str]:
    """The dashboard as somebody starts it at their own machine."""
    with serve(ROOT / "app.py", env=env) as address:
        yield address


@pytest.fixture(scope="module")
def wide(env: dict[str, str]) -> Iterator[str]:
    """One that other machines reach, under a name and with a token."""
    flags = ("--server.address=0.0.0.0", "--server.allowedHosts=lab.example", "--server.allowedHosts=127.0.0.1")
    with serve(ROOT / "app.py", env=env | {"VITPROF_TOKEN": TOKEN}, flags=flags) as address:
        yield address


@pytest.mark.slow
@pytest.mark.parametrize(("host", "origin", "opened"), table())
def test_the_table_of_the_page_for_operators(url: str, host: str, origin: str, opened: bool) -> None:
    headers = ({"Host": host} if host else {}) | ({"Origin": origin} if origin else {})
    page, stream = both(url, headers)
    if not host:
        assert page == stream == 400, "refused before anybody asks"
    else:
        assert (page, stream) == OPENED[opened]


def test_the_table_has_every_kind() -> None:
    hosts, origins, _ = (set(column) for column in zip(*table(), strict=True))
    assert {"localhost:8501", "127.0.0.1:8501", "[::1]:8501", "evil.example", ""} <= hosts
    assert {"http://evil.example", "http://localhost:9999", "http://[::1]:8501", "null", ""} <= origins


def test_static_gives_its_two_files_and_nothing_else(url: str, tmp_path: Path) -> None:
    host, static = {"Host": "localhost"}, ROOT / "static"
    ensure_assets(static)
    for name in SERVED:
        assert answer(url, f"/app/static/{name}", host).status == 200
    (tmp_path / "outside.js").write_text("secret")
    (static / "link.js").symlink_to(tmp_path / "outside.js")
    try:
        for name in ELSEWHERE:
            reply = answer(url, f"/app/static/{name}", host)
            assert (reply.status in (400, 404), "secret" in reply.text, "import" in reply.text) == (True, False, False)
    finally:
        (static / "link.js").unlink()


def test_protection_as_streamlit_offers_it_is_on(url: str) -> None:
    """Its own cookie against forged uploads, and no foreign page as a frame around it or steering it by messages."""
    told = answer(url, "/_stcore/host-config", {"Host": "localhost"})
    assert '"allowedOrigins":[]' in told.text
    assert "frame-ancestors 'self'" in str(told.headers["content-security-policy"])
    assert told.headers["x-frame-options"] == "SAMEORIGIN"
    assert "_streamlit_xsrf=" in str(answer(url, "/_stcore/health", {"Host": "localhost"}).headers["set-cookie"])
    upload = answer(url, "/_stcore/upload_file/session/file", {"Host": "localhost", "Content-Length": "0"}, "PUT")
    assert upload.status == 403


@pytest.mark.slow
def test_wider_than_this_machine_a_browser_is_asked_for_the_token_once(wide: str) -> None:
    own = {"Host": "lab.example:8501", "Origin": "http://lab.example:8501"}
    assert both(wide, own) == (401, 403)
    assert 'type="password"' in answer(wide, "/", own).text
    for foreign in ({"Host": "evil.example"}, own | {"Origin": "http://evil.example"}):
        assert both(wide, foreign) == (403, 403)
    body = urlencode({"token": TOKEN})
    form = own | {"Content-Type": "application/x-www-form-urlencoded", "Content-Length": str(len(body))}
    told = answer(wide, "/history?text=a", form, "POST", body)
    assert (told.status, told.headers["location"]) == (303, "./history?text=a")
    passed = own | {"Cookie": str(told.headers["set-cookie"]).partition(";")[0]}
    assert both(wide, passed) == (200, 101)


def test_nobody_is_called(url: str, log: Path) -> None:
    """Last, after all of the above: Streamlit alone would ask a server at Amazon for this machine's address."""
    seen = log.read_text().splitlines()
    assert any(line.startswith("socket.bind") for line in seen), "what would be seen is seen"
    assert [line for line in seen if not INWARD.fullmatch(line)] == []
