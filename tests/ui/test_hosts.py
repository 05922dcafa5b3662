"""Nobody but a page of the dashboard's own address can press its buttons; asked of real servers, without a browser.
A web page that somebody has open can reach 127.0.0.1 too: by a WebSocket, or under a name that it makes resolve there
(DNS rebinding). docs/security.md has the table of what is answered to whom; its rows are what is asked here."""

import http.client
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit

import pytest

from tests import ROOT
from tests.server import serve
from vitprof.charts.style import IN_BROWSER
from vitprof.ui.live_chart import url_of

UPGRADE = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Protocol": "streamlit"}
UPGRADE |= {"Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
STREAM = "/_stcore/stream"
TOKEN = "a token of these tests"
ELSEWHERE = (
    "style.css",
    "",
    "../app.py",
    "..%2fapp.py",
    "%2e%2e/app.py",
    "..%5capp.py",
    "%2fetc%2fhosts",
)
WATCHER = """
import sys
def seen(event, args):
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg", "socket.bind"):
        note(event, str(args[1]))
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        note(event, str(args[0]))
def note(event, where):
    with open({log!r}, "a") as file:
        file.write(event + " " + where + chr(10))
sys.addaudithook(seen)
"""
"""Python that writes down every address and name that a process of Python uses, as its `sitecustomize`."""
INWARD = re.compile(
    r"socket\.bind .*|.* (None|localhost|127\.0\.0\.1|0\.0\.0\.0|::1|\('(127\.0\.0\.1|::1)', .*\))"
)
"""What stays within this machine."""


def table() -> list[tuple[str, str, bool]]:
    """The rows of the page for operators: Host, Origin ("" for none), and whether they are let in."""
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (opened|refused) \|$", page, re.MULTILINE)
    return [
        (*(("" if cell == "none" else cell.strip("`")) for cell in row[:2]), row[2] == "opened")
        for row in rows
    ]


class Reply(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    text: str
    """"" of what became a WebSocket."""
    n_bytes: int
    """Of the text, as it was sent."""


def answer(
    url: str, path: str, headers: dict[str, str], method: str = "GET", body: str = ""
) -> Reply:
    """The answer to a request with just these headers."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders(body.encode() or None)
        reply = connection.getresponse()
        body = b"" if reply.status == 101 else reply.read()
        return Reply(reply.status, reply.headers, body.decode(errors="replace"), len(body))
    finally:
        connection.close()


def both(url: str, headers: dict[str, str]) -> tuple[int, int]:
    """How a page and a WebSocket with these headers are answered."""
    return answer(url, "/", headers).status, answer(url, STREAM, headers | UPGRADE).status


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the server of these tests writes down whom it talks to."""
    return tmp_path_factory.mktemp("watched") / "log"


@pytest.fixture(scope="module")
def url(log: Path) -> Iterator[str]:
    """A dashboard that other machines reach, under a name too and with a token. It has a home of its own, no way to the
    internet, and what writes down who looks for one."""
    (log.parent / "sitecustomize.py").write_text(WATCHER.format(log=str(log)))
    nowhere = "http://192.0.2.1:9"  # as a proxy: who uses it is seen too
    env = {
        "VITPROF_HOME": str(log.parent / "home"),
        "PYTHONPATH": os.pathsep.join((str(log.parent), str(ROOT))),
    }
    env |= {"HTTP_PROXY": nowhere, "HTTPS_PROXY": nowhere, "VITPROF_TOKEN": TOKEN}
    names = [
        f"--server.allowedHosts={name}" for name in ("lab.example", "localhost", "127.0.0.1", "::1")
    ]
    with serve(ROOT / "app.py", env=env, flags=("--server.address=0.0.0.0", *names)) as address:
        yield address


@pytest.fixture(scope="module")
def cookie(url: str) -> str:
    """What a browser got for the token, without the name, which has the port."""
    body = urlencode({"token": TOKEN})
    form = {"Content-Type": "application/x-www-form-urlencoded", "Content-Length": str(len(body))}
    given = str(answer(url, "/", {"Host": "localhost", **form}, "POST", body).headers["set-cookie"])
    return given.partition("=")[2].partition(";")[0]


@pytest.mark.parametrize(("host", "origin", "opened"), table())
def test_the_table_of_the_page_for_operators(
    url: str, cookie: str, host: str, origin: str, opened: bool
) -> None:
    port = host.rpartition(":")[2]
    headers = {
        "Host": host,
        "Origin": origin,
        "Cookie": f"vitprof_{port if port.isdecimal() else ''}={cookie}",
    }
    headers = {name: value for name, value in headers.items() if value}
    answers = (
        [(200, 101)] if opened else [(403, 403)] if host else [(403, 403), (400, 400)]
    )  # the server may be first
    assert both(url, headers) in answers


def test_the_table_has_every_kind() -> None:
    hosts, origins, _ = (set(column) for column in zip(*table(), strict=True))
    assert {"localhost:8501", "127.0.0.1:8501", "[::1]:8501", "evil.example", ""} <= hosts
    assert {
        "http://evil.example",
        "http://localhost:9999",
        "http://[::1]:8501",
        "null",
        "",
    } <= origins
    names = tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text())["server"][
        "allowedHosts"
    ]
    assert {"localhost", "127.0.0.1", "::1"} == set(names), "as the server of these tests has them"


def test_two_files_are_served_and_nothing_else_and_streamlits_own_protection_is_on(
    url: str, cookie: str
) -> None:
    own = {"Host": "localhost", "Cookie": f"vitprof_={cookie}"}
    for source in IN_BROWSER.iterdir():
        reply = answer(url, f"/{url_of(source)}", own)
        kind = reply.headers["content-type"].partition(";")[0]
        assert (reply.status, kind, reply.text) == (200, "text/javascript", source.read_text())
        assert "immutable" in reply.headers["cache-control"], (
            "else sent for every page that is opened"
        )
        packed = answer(url, f"/{url_of(source)}", own | {"Accept-Encoding": "gzip, br"})
        assert packed.headers["content-encoding"] == "gzip"
        assert packed.n_bytes < 0.4 * source.stat().st_size
    for name in ELSEWHERE:
        reply = answer(url, f"/app/static/{name}", own)
        assert (reply.status in (400, 404), "import" in reply.text) == (True, False)
    # Streamlit's cookie against forged uploads, and no foreign page as a frame around it or steering it by messages
    reply = answer(url, "/_stcore/host-config", own)
    assert '"allowedOrigins":[]' in reply.text
    policy, frames = (
        str(reply.headers[name]) for name in ("content-security-policy", "x-frame-options")
    )
    assert ("frame-ancestors 'self'" in policy, frames) == (True, "SAMEORIGIN")
    assert "_streamlit_xsrf=" in str(
        answer(url, "/_stcore/health", {"Host": "localhost"}).headers["set-cookie"]
    )
    assert (
        answer(
            url, "/_stcore/upload_file/session/file", own | {"Content-Length": "0"}, "PUT"
        ).status
        == 403
    )


def test_nobody_is_called(url: str, log: Path) -> None:
    """Last, after all of the above: Streamlit alone would ask a server at Amazon for this machine's address."""
    seen = log.read_text().splitlines()
    assert any(line.startswith("socket.bind") for line in seen), "what would be seen is seen"
    assert [line for line in seen if not INWARD.fullmatch(line)] == []
