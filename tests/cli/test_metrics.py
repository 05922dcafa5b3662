"""`metrics`: a file for node_exporter, an address for Prometheus, and what is wrong with either."""

import contextlib
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests import ROOT
from tests.cli.stored_runs import add
from tests.command_line import Call, one_line, succeeds
from vitprof.store import RunStore


@pytest.fixture
def run_id(vitprof_home: Path) -> int:
    with contextlib.closing(RunStore()) as store:
        return add(store)


def test_the_file_is_whole_and_readable_by_others(call: Call, tmp_path: Path, run_id: int) -> None:
    path = tmp_path / "vitprof.prom"
    assert succeeds(call, "metrics", "--textfile", str(path)) == ""
    samples = [
        s for family in text_string_to_metric_families(path.read_text()) for s in family.samples
    ]
    assert ("vitprof_steps_total", str(run_id), 3.0) in [
        (s.name, s.labels.get("run"), s.value) for s in samples
    ]
    assert path.stat().st_mode & 0o444 == 0o444
    assert [p.name for p in tmp_path.iterdir() if p.name != "home"] == [path.name]


def test_what_is_wrong_is_one_line(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_id: int
) -> None:
    for given in ((), ("--port", "1", "--textfile", "a.prom")):
        assert "give one of --port and --textfile" in one_line(call, "metrics", *given)
    assert "end with .prom" in one_line(call, "metrics", "--textfile", str(tmp_path / "a.txt"))
    assert "there is no directory" in one_line(
        call, "metrics", "--textfile", str(tmp_path / "no" / "a.prom")
    )
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert "in use" in one_line(call, "metrics", "--port", port)
    monkeypatch.setitem(sys.modules, "prometheus_client.registry", None)
    assert "vitprof: metrics need prometheus-client" in one_line(
        call, "metrics", "--textfile", str(tmp_path / "a.prom"), status=1
    )


@pytest.mark.measured
def test_scrapes_are_answered_until_it_is_asked_to_end(run_id: int) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "vitprof", "metrics", "--port", str(port)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            address = f"http://127.0.0.1:{port}/metrics"
            assert address in process.stderr.readline()
            open_metrics = urllib.request.Request(
                address, headers={"Accept": "application/openmetrics-text"}
            )
            with urllib.request.urlopen(open_metrics) as answer:
                text = answer.read().decode()
            assert text.endswith("# EOF\n")
            assert re.search(rf'vitprof_steps_total{{.*run="{run_id}"}} 3.0', text)
            process.send_signal(signal.SIGTERM)
            assert process.stderr.read() == ""
            assert process.wait() == 0
        finally:
            process.kill()
