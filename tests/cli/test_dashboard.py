"""`vitprof` without a command: what is started, where, and what is said; `demo`; and `open`, the browser at it."""

import http.server
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.cli.stored_runs import add
from tests.command_line import Call, one_line
from vitprof import __version__, demo, program
from vitprof.cli import dashboard
from vitprof.store import RunStore


class Started(Exception):
    """In place of the server's process: what it would have been asked for."""


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def execv(executable: str, arguments: list[str]) -> None:
        assert [executable, "-c", dashboard.START, str(ROOT)] == [sys.executable, *arguments[1:4]]
        raise Started(arguments[4])

    monkeypatch.setattr(os, "execv", execv)
    for name in (
        "SSH_CONNECTION",
        "BROWSER",
        "DISPLAY",
        "WAYLAND_DISPLAY",
        "STREAMLIT_SERVER_ADDRESS",
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def asked(call: Call, *args: str) -> dict[str, Any]:
    """What the server is asked for."""
    with pytest.raises(Started) as started:
        call(*args)
    found: dict[str, Any] = json.loads(str(started.value))
    return found


def test_in_a_checkout_its_own_script_is_run(call: Call, taken: int) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    found = asked(call, "--port", str(free))
    assert (found["script"], found["address"], found["port"]) == (
        str(ROOT / "app.py"),
        "127.0.0.1",
        free,
    )
    assert found["open"] == "", "there is no screen"
    assert found["lines"] == [
        f"vitprof: the dashboard is running at http://localhost:{free} (Ctrl-C ends it)"
    ]


def test_without_a_port_the_first_free_one_is_taken(
    call: Call, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard, "FIRST", taken)
    monkeypatch.setattr(dashboard, "LAST", taken + 5)
    assert taken < asked(call)["port"] <= taken + 5
    monkeypatch.setattr(dashboard, "LAST", taken)
    assert call() == (
        1,
        "",
        f"vitprof: the ports {taken} to {taken} are all in use; give one with --port\n",
    )


def test_the_browser_is_opened_where_there_is_one(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROWSER", "true")
    found = asked(call)
    assert (found["open"], asked(call, "--no-browser")["open"]) == (
        f"http://localhost:{found['port']}",
        "",
    )


def test_over_ssh_the_command_of_the_tunnel_is_said(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPLAY", ":10")  # forwarded: a browser would be drawn over the network
    monkeypatch.setenv("LOGNAME", "ada")
    monkeypatch.setenv("SSH_CONNECTION", "198.51.100.1 50000 192.0.2.7 22")
    found = asked(call)
    port = found["port"]
    assert found["open"] == ""
    assert f"    ssh -N -L {port}:localhost:{port} ada@192.0.2.7" in found["lines"]
    assert f"http://localhost:{port}" in found["lines"][-1]
    monkeypatch.setenv("SSH_CONNECTION", "2001:db8::1 50000 2001:db8::7 2222")
    assert f"    ssh -N -p 2222 -L {port}:localhost:{port} ada@2001:db8::7" in asked(call)["lines"]
    monkeypatch.setenv("BROWSER", "true")  # an editor's, that opens one where the user sits
    assert asked(call)["open"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--port", "0"], "--port 0: give a whole number from 1 to 65,535"),
        (["--port", "65536"], "--port 65536: give a whole number from 1 to 65,535"),
        (["--port", "web"], "--port web: give a whole number from 1 to 65,535"),
        (
            ["--port", "TAKEN"],
            "--port TAKEN: it is in use; give another, or none for the first that is free",
        ),
        (
            ["--port", "8600", "demo"],
            "--port 8600: give options after demo, which may not have this one",
        ),
        (
            ["--no-browser", "runs"],
            "--no-browser: give options after runs, which may not have this one",
        ),
        (["--version", "runs"], "--version: give options after runs, which may not have this one"),
        (["--address", "::"], "No such option: --address. See 'python -m vitprof --help'"),
        (["demo", "--port", "0"], "--port 0: give a whole number from 1 to 65,535"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    call: Call, taken: int, args: list[str], said: str
) -> None:
    args, said = (
        [arg.replace("TAKEN", str(taken)) for arg in args],
        said.replace("TAKEN", str(taken)),
    )
    assert call(*args) == (2, "", f"vitprof: {said}\n")


def test_an_address_of_another_machine(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMLIT_SERVER_ADDRESS", "192.0.2.1")
    said = "this machine has no address 192.0.2.1; set STREAMLIT_SERVER_ADDRESS to one it has"
    assert call() == (1, "", f"vitprof: {said}\n")


@pytest.mark.measured
def test_a_demonstration_opens_its_own_store(
    call: Call, vitprof_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROWSER", "true")
    monkeypatch.setenv("VITPROF_DB", f"sqlite:///{vitprof_home / 'mine.sqlite'}")
    found = asked(call, "demo")
    place = vitprof_home / "demo"
    assert (os.environ["VITPROF_HOME"], "VITPROF_DB" in os.environ) == (str(place), False)
    assert demo.is_demonstration()
    assert list(vitprof_home.iterdir()) == [place], "no store of the user's was opened"
    assert (found["script"], found["open"]) == (
        str(ROOT / "app.py"),
        f"http://localhost:{found['port']}",
    )
    running, said = found["lines"]
    assert f"running at {found['open']} " in running
    assert str(place) in said

    monkeypatch.setenv("VITPROF_HOME", str(vitprof_home))
    (place / demo.MARK).write_text("of another version")
    assert "was replaced" in asked(call, "demo", "--no-browser")["lines"][-1]


def test_with_the_core_alone_nothing_is_made(
    call: Call, vitprof_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard, "find_spec", lambda _: None)
    monkeypatch.setattr(program, "__file__", "/site-packages/vitprof/program.py")
    said = "the dashboard needs Streamlit, which is not installed: python -m pip install 'vitprof[dashboard]'"
    assert call() == call("demo") == (1, "", f"vitprof: {said}\n")
    assert not vitprof_home.exists()


def test_without_pyarrow_one_line(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mine: RunStore
) -> None:
    number = add(mine)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    file = tmp_path / "run.parquet"
    said = (
        "vitprof: the package pyarrow is not installed: python -m pip install -r requirements.txt\n"
    )
    assert call("export", str(number), "--format", "parquet", "--output", str(file)) == (
        1,
        "",
        said,
    )
    assert not file.exists()


def test_version(call: Call) -> None:
    assert call("--version") == (0, f"vitprof {__version__}\n", "")


def test_a_package_that_the_command_line_needs_is_named() -> None:
    hide = "import sys; sys.modules['typer'] = None; sys.argv[1:] = ['runs']; from vitprof.__main__ import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", hide], cwd=ROOT, check=False, capture_output=True, text=True
    )
    said = (
        "vitprof: the package typer is not installed: python -m pip install -r requirements.txt\n"
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", said)


def test_an_installed_package_runs_its_own_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard, "PACKAGE", tmp_path)
    script = tmp_path / "dashboard" / "app.py"
    script.parent.mkdir()
    script.touch()
    assert dashboard.main_script() == script


class Handler(http.server.BaseHTTPRequestHandler):
    """As a dashboard answers; `server.answer` is its body."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/_stcore/health" else 404)
        self.end_headers()
        self.wfile.write(self.server.answer)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server() -> Iterator[http.server.HTTPServer]:
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as made:
        made.answer = b"ok"
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, server: http.server.HTTPServer) -> list[str]:
    """What was opened in a browser. The first port to be tried is the server's."""
    urls: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url: not urls.append(url))
    monkeypatch.setattr("webbrowser.get", lambda: None)
    monkeypatch.setattr(dashboard, "FIRST", server.server_port)
    monkeypatch.setattr(dashboard, "LAST", server.server_port)
    monkeypatch.setenv("DISPLAY", ":0")
    return urls


def test_opens_what_answers(
    call: Call, server: http.server.HTTPServer, opened: list[str], vitprof_home: Path
) -> None:
    url = f"http://localhost:{server.server_port}"
    assert (
        call("open")
        == call("open", "--port", str(server.server_port))
        == (0, f"vitprof: opened {url}\n", "")
    )
    assert opened == [url, url]
    vitprof_home.mkdir()
    for port, address in (("", ""), ("1", ""), (server.server_port, f"{url}/?run=3")):
        (vitprof_home / "dashboard-port").write_text(str(port))
        assert dashboard.address_of(3) == address


def test_nothing_that_answers_is_one_line(
    call: Call, server: http.server.HTTPServer, opened: list[str]
) -> None:
    port = server.server_port
    server.answer = b"another program"
    end = "of this machine; start one with python -m vitprof"
    assert call("open") == (
        1,
        "",
        f"vitprof: no dashboard answers on the ports {port} to {port} {end}\n",
    )
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
