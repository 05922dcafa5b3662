"""A real dashboard server for tests: `streamlit run` in a process of its own, of which nothing is left afterwards."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import psutil
import pytest

from tests import ROOT

START_LIMIT_S = 60
STOP_LIMIT_S = 15


@contextmanager
def serve(
    script: Path, env: Mapping[str, str] | None = None, query: str = "", flags: Sequence[str] = ()
) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = {
        "server.port": port,
        "server.address": "127.0.0.1",
        "server.headless": "true",
        "server.fileWatcherType": "none",
        "server.enableStaticServing": "true",
        "browser.gatherUsageStats": "false",
        "client.toolbarMode": "minimal",
    }
    command = [sys.executable, "-m", "streamlit", "run", str(script)]
    command += [part for name, value in settings.items() for part in (f"--{name}", str(value))]
    base = next((flags[i + 1].strip("/") for i, flag in enumerate(flags) if flag == "--server.baseUrlPath"), "")
    url = f"http://127.0.0.1:{port}/{base}".rstrip("/")
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    # Keeping PyTorch loaded takes 3 s, which few files of tests have jobs enough for.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "VITPROF_WARM": "0", **(env or {})}
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen(
            [*command, *flags], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            _await_health(server, f"{url}/_stcore/health", log)
            yield f"{url}/{query and '?' + query.lstrip('?')}"
        finally:
            left = _stop(server)
    assert not left, f"the server left processes behind: {left}"


def _await_health(server: subprocess.Popen[bytes], url: str, log: IO[str]) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            urllib.request.urlopen(url, timeout=2).close()
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(0.1)  # the pause between two attempts, and the end of a server that could not start
            break
    log.seek(0)
    pytest.fail(f"no answer from {url} (exit status {server.poll()}):\n{log.read()[-4000:]}")


def _stop(server: subprocess.Popen[bytes]) -> list[str]:
    """End the server; what is then left of its process tree, killed."""
    tree = psutil.Process(server.pid).children(recursive=True) if server.poll() is None else []
    server.terminate()
    try:
        server.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        tree.append(psutil.Process(server.pid))
    _, alive = psutil.wait_procs(tree, timeout=STOP_LIMIT_S)
    left = [f"{process.pid} {process.name()}" for process in alive]
    for process in alive:
        process.kill()
    server.wait()
    return left
