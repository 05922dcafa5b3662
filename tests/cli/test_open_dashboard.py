"""`open`: the browser at a dashboard that runs already."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator

import pytest

from tests.command_line import Call, one_line
from vitprof.cli import dashboard


class Handler(http.server.BaseHTTPRequestHandler):
    """As a dashboard answers; `server.answer` is its body."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/_stcore/health" else 404)
        self.end_headers()
        self.wfile.write(self.server.answer)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def server() -> Iterator[http.server.HTTPServer]:
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as made:
        made.answer = b"ok"
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def opened(monkeypatch: pytest.MonkeyPatch, server: http.server.HTTPServer) -> list[str]:
    """What was opened in a browser. The first port to be tried is the server's."""
    urls: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url: not urls.append(url))
    monkeypatch.setattr("webbrowser.get", lambda: None)
    monkeypatch.setattr(dashboard, "FIRST", server.server_port)
    monkeypatch.setattr(dashboard, "LAST", server.server_port)
    for name in ("SSH_CONNECTION", "BROWSER", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DISPLAY", ":0")
    return urls


def test_opens_what_answers(call: Call, server: http.server.HTTPServer, opened: list[str]) -> None:
    url = f"http://localhost:{server.server_port}"
    assert call("open") == call("open", "--port", str(server.server_port)) == (0, f"vitprof: opened {url}\n", "")
    assert opened == [url, url]


def test_nothing_that_answers_is_one_line(call: Call, server: http.server.HTTPServer, opened: list[str]) -> None:
    port = server.server_port
    server.answer = b"another program"
    end = "of this machine; start one with python -m vitprof"
    assert call("open") == (1, "", f"vitprof: no dashboard answers on the ports {port} to {port} {end}\n")
    said = f"vitprof: no dashboard answers on port {port} {end} --port {port}\n"
    assert call("open", "--port", str(port)) == (1, "", said)
    assert call("open", "--port", "70000")[0] == 2
    assert not opened


def test_no_browser_is_one_line_and_over_ssh_the_tunnel(
    call: Call, server: http.server.HTTPServer, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, port = f"http://localhost:{server.server_port}", server.server_port
    monkeypatch.delenv("DISPLAY")
    said = f"vitprof: no browser can be opened here (there is no screen); open {url} yourself."
    assert call("open") == (1, "", f"{said}\n")
    monkeypatch.setenv("SSH_CONNECTION", "198.51.100.1 50000 192.0.2.7 22")
    err = one_line(call, "open", status=1)
    assert err.startswith(said)
    assert f" ssh -N -L {port}:localhost:{port} " in err
    assert not opened
