"""`demo`: which store its dashboard opens, and what is said of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.command_line import Call
from vitprof import demo, program
from vitprof.cli import dashboard


class Started(Exception):
    """In place of the server's process: what it would have been asked for."""


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def execv(executable: str, arguments: list[str]) -> None:
        raise Started(arguments[4])

    monkeypatch.setattr(os, "execv", execv)
    monkeypatch.setenv("BROWSER", "true")
    for name in ("SSH_CONNECTION", "STREAMLIT_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)


def asked(call: Call, *args: str) -> dict[str, Any]:
    with pytest.raises(Started) as started:
        call("demo", *args)
    found: dict[str, Any] = json.loads(str(started.value))
    return found


def test_its_dashboard_opens_its_own_store(call: Call, vitprof_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITPROF_DB", f"sqlite:///{vitprof_home / 'mine.sqlite'}")
    found = asked(call)
    place = vitprof_home / "demo"
    assert (os.environ["VITPROF_HOME"], "VITPROF_DB" in os.environ) == (str(place), False)
    assert demo.is_demonstration()
    assert list(vitprof_home.iterdir()) == [place], "no store of the user's was opened"
    assert (found["script"], found["open"]) == (str(ROOT / "app.py"), f"http://localhost:{found['port']}")
    running, said = found["lines"]
    assert f"running at {found['open']} " in running
    assert str(place) in said

    monkeypatch.setenv("VITPROF_HOME", str(vitprof_home))
    (place / demo.MARK).write_text("of another version")
    assert "was replaced" in asked(call, "--no-browser")["lines"][-1]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["demo", "--port", "0"], "--port 0: give a whole number from 1 to 65535"),
        (["--port", "8600", "demo"], "--port 8600: give it after demo"),
        (["--no-browser", "demo"], "--no-browser: give it after demo"),
        (["--version", "demo"], "--version: it is no option of demo; leave it out"),
    ],
)
def test_options_are_those_of_the_dashboard(call: Call, args: list[str], said: str) -> None:
    assert call(*args) == (2, "", f"vitprof: {said}\n")


def test_with_the_core_alone_it_makes_nothing(call: Call, vitprof_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard, "find_spec", lambda _: None)
    monkeypatch.setattr(program, "__file__", "/site-packages/vitprof/program.py")
    status, _, err = call("demo")
    assert (status, "pip install 'vitprof[dashboard]'" in err) == (1, True)
    assert not vitprof_home.exists()
