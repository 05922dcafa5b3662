"""A real dashboard server for tests: `streamlit run` in a process of its own, of which nothing is left afterwards.
`Host` starts several, each sooner."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import psutil
import pytest

from tests import ROOT

LOGS: list[IO[str]] = []
"""What each server that runs now has printed, for the report of a test that fails."""
START_LIMIT_S = 60
STOP_LIMIT_S = 60

Start = Callable[[list[str], dict[str, str], str], psutil.Process]
"""Starts Streamlit with these arguments in this environment; what it prints goes to the file of this name."""


def start_anew(arguments: list[str], env: dict[str, str], log: str) -> psutil.Process:
    """See `Start`. As somebody does who types the command."""
    with open(log, "a") as file:
        command = [sys.executable, "-m", "streamlit", *arguments]
        return psutil.Popen(
            command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=file
        )


class Host:
    """A process that has loaded what a server imports, and forks servers."""

    port: int
    """For one server after another: what a browser has loaded from the last one is good for the next."""

    def __init__(self) -> None:
        self.port = _free_port()
        command = [sys.executable, "-m", "tests.browser.host"]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(self, arguments: list[str], env: dict[str, str], log: str) -> psutil.Process:
        """See `Start`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(
            json.dumps({"arguments": arguments, "env": env, "log": log}) + "\n"
        )
        self._process.stdin.flush()
        return psutil.Process(int(self._process.stdout.readline()))

    def close(self) -> None:
        """Ends it; its servers go on."""
        self._process.communicate()


def _free_port(wanted: int = 0) -> int:
    """The wanted one, or another where a server or a connection has that."""
    with socket.socket() as probe:
        probe.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # after a server that has ended, as servers do
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serve(
    script: Path,
    env: Mapping[str, str] | None = None,
    query: str = "",
    flags: Sequence[str] = (),
    start: Start = start_anew,
    wanted_port: int = 0,
) -> Iterator[str]:
    port = _free_port(wanted_port)
    settings = {
        "server.port": port,
        "server.address": "127.0.0.1",
        "server.headless": "true",
        "server.fileWatcherType": "none",
        "browser.gatherUsageStats": "false",
        "client.toolbarMode": "minimal",
    }
    arguments = ["run", str(script)]
    arguments += [part for name, value in settings.items() for part in (f"--{name}", str(value))]
    base = next(
        (flags[i + 1].strip("/") for i, flag in enumerate(flags) if flag == "--server.baseUrlPath"),
        "",
    )
    url = f"http://127.0.0.1:{port}/{base}".rstrip("/")
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    # Keeping PyTorch loaded takes 3 s, which few files of tests have jobs enough for.
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "VITPROF_WARM": "0",
        **(env or {}),
    }
    with tempfile.NamedTemporaryFile("r") as log:
        server = start([*arguments, *flags], environment, log.name)
        LOGS.append(log)
        try:
            _await_health(server, f"{url}/_stcore/health", log)
            yield f"{url}/{query and '?' + query.lstrip('?')}"
        finally:
            LOGS.remove(log)
            left = _stop(server)
    assert not left, f"the server left processes behind: {left}"


def _await_health(server: psutil.Process, url: str, log: IO[str]) -> None:
    deadline, status = time.monotonic() + START_LIMIT_S, None
    while time.monotonic() < deadline:
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            urllib.request.urlopen(url, timeout=2).close()
            return
        with contextlib.suppress(psutil.TimeoutExpired):
            status = server.wait(
                0.1
            )  # the pause between two attempts, and the end of a server that could not start
            break
    pytest.fail(f"no answer from {url} (exit status {status}):\n{log.read()[-4000:]}")


def _stop(server: psutil.Process) -> list[str]:
    """End the server; what is then left of its process tree, killed."""
    tree: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        tree = server.children(recursive=True)
        server.terminate()
    try:
        server.wait(STOP_LIMIT_S)
    except psutil.TimeoutExpired:
        tree.append(server)
    _, alive = psutil.wait_procs(tree, timeout=STOP_LIMIT_S)
    left = [f"{p.pid} {p.status()} {' '.join(p.cmdline())}" for p in alive]
    for process in alive:
        process.kill()
    server.wait()
    return left
