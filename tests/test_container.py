"""The files that make a container, held against what they name; and built and run, where that is asked for."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import time
import tomllib
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from tests import ROOT
from vitprof.cli import app
from vitprof.store.database import _parse
from vitprof.ui.gate import MADE_AT_START, VARIABLE

ASKED = os.environ.get("VITPROF_CONTAINER") == "1"
START_LIMIT_S = 120
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def given(instruction: str) -> str:
    """What the last such instruction of the Dockerfile says."""
    return re.findall(rf"^{instruction} ((?:.*\\\n)*.*)$", DOCKERFILE, re.MULTILINE)[-1]


def test_the_build_is_given_what_the_package_is_made_of(pyproject: dict[str, Any]) -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in lines
    let_in = {
        Path(line[1:]).parts[0] if "*" in line else line[1:]
        for line in lines
        if line.startswith("!")
    }
    wheel = pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]
    project = pyproject["project"]
    needed = ["pyproject.toml", project["readme"], *project["license-files"], *wheel["packages"]]
    assert let_in == {*needed, *wheel["force-include"]}


def test_what_it_runs_is_a_command_of_vitprof_and_no_root(pyproject: dict[str, Any]) -> None:
    assert (
        re.search(r"^ARG EXTRA=(\w+)$", DOCKERFILE, re.MULTILINE)[1]
        in pyproject["project"]["optional-dependencies"]
    )
    assert json.loads(given("ENTRYPOINT")) == list(pyproject["project"]["scripts"])
    options = {name for parameter in typer.main.get_command(app).params for name in parameter.opts}
    flags = [word for word in json.loads(given("CMD")) if word.startswith("--")]
    assert flags
    assert set(flags) <= options
    assert given("USER") not in ("root", "0")
    assert f"VITPROF_HOME={given('VOLUME')} " in given("ENV")
    assert "STREAMLIT_SERVER_ADDRESS=0.0.0.0" in given("ENV")
    assert f"{VARIABLE}={MADE_AT_START} " in given("ENV"), (
        "reached from outside the container, so it asks for a token"
    )
    health = json.loads(given("HEALTHCHECK").partition("CMD ")[2])
    assert health[:2] == ["python", "-c"]
    compile(health[2], "HEALTHCHECK", "exec")
    assert f":{given('EXPOSE')}/_stcore/health" in health[2]


def test_compose_starts_it_on_a_database_that_it_can_use() -> None:
    services = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]
    dashboard, database = services["dashboard"], services["database"]
    url = _parse(dashboard["environment"]["VITPROF_DB"])
    of = {name: database["environment"][f"POSTGRES_{name}"] for name in ("USER", "PASSWORD", "DB")}
    assert (url.host, url.username, url.password, url.database) == (
        "database",
        of["USER"],
        of["PASSWORD"],
        of["DB"],
    )
    assert url.get_driver_name() in DOCKERFILE
    assert dashboard["environment"][VARIABLE] == f"${{{VARIABLE}:-{MADE_AT_START}}}"
    assert dashboard["ports"] == [f"127.0.0.1:{given('EXPOSE')}:{given('EXPOSE')}"], (
        "of this machine only"
    )
    assert f"store:{given('VOLUME')}" in dashboard["volumes"]


def docker(*args: str) -> str:
    """What a command of Docker's prints."""
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.run(["docker", *args], cwd=ROOT, check=True, text=True, **both).stdout


@pytest.mark.skipif(
    not ASKED or not shutil.which("docker"), reason="VITPROF_CONTAINER=1 and docker build an image"
)
def test_the_image_answers() -> None:
    cpu = "PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu"
    docker("build", "-q", "--build-arg", cpu, "--tag", "vitprof:test", ".")
    name = docker("run", "--rm", "--detach", "--publish", "127.0.0.1::8501", "vitprof:test").strip()
    try:
        port = docker("port", name, "8501")
        until = time.monotonic() + START_LIMIT_S
        answer = b""
        while answer != b"ok" and time.monotonic() < until:
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"http://{port.strip()}/_stcore/health") as page,
            ):
                answer = page.read()
            time.sleep(0.5)
        assert answer == b"ok"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"http://{port.strip()}/")
        assert re.search(
            r"asks for this token, made for this start: \S{43}\n", docker("logs", name)
        )
        assert docker("exec", name, "id", "-u").strip() == "1000"
    finally:
        docker("stop", name)
