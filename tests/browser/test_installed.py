"""The package as people install it: built, put into an environment of its own, its dashboard used from elsewhere."""

import contextlib
import os
import re
import subprocess
import sys
import tarfile
import threading
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import psutil
import pytest

from tests import ROOT
from tests.server import _free_port, _stop
from vitprof import __version__
from vitprof.store import RunStore

LIMIT_S = 120
BACKGROUND = {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 23, 29)"}
"""Of the page, as .streamlit/config.toml has it; the dark one is not Streamlit's own."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source distribution."""
    made = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(made)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    return made


@pytest.fixture(scope="module")
def command(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`vitprof` in an environment that has the wheel, and of the running one all other packages."""
    place = tmp_path_factory.mktemp("env")
    venv.create(place, with_pip=False, symlinks=True)
    (wheel,) = built.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", str(place / "bin" / "python"), "install", "-q"]
    subprocess.run([*pip, "--no-deps", "--no-index", "--no-compile", str(wheel)], check=True)
    (site,) = place.glob("lib/python*/site-packages")
    (site / "others.pth").write_text(f"{Path(numpy.__file__).parents[1]}\n")
    return place / "bin" / "vitprof"


@pytest.fixture
def elsewhere(tmp_path: Path, home: Path) -> dict[str, Any]:
    """Arguments for a program that is to know nothing of the checkout."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {
        "cwd": tmp_path,
        "env": env | {"VITPROF_HOME": str(home), "VITPROF_WARM": "0"},
        "text": True,
    }


def test_the_wheel_holds_what_runs_and_no_more(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name.split("/")[0] for name in names} == {"vitprof", f"vitprof-{__version__}.dist-info"}
    assert not [name for name in names if "test_" in name or "__pycache__" in name]
    pages = {f"pages/{path.name}" for path in (ROOT / "pages").glob("*.py")}
    wanted = {"app.py", ".streamlit/config.toml", *pages}
    assert {
        name.partition("dashboard/")[2] for name in names if name.startswith("vitprof/dashboard/")
    } == wanted
    in_package = {
        str(p.relative_to(ROOT))
        for p in (ROOT / "vitprof").rglob("*")
        if p.is_file() and p.suffix != ".pyc"
    }
    assert in_package <= names, "code, texts, styles, py.typed"
    assert f"vitprof-{__version__}.dist-info/licenses/LICENSE" in names


def test_the_source_distribution_is_enough_to_build_and_to_test(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    wanted = {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "app.py",
        ".streamlit/config.toml",
        "requirements.txt",
    }
    assert (
        wanted
        | {"pages/profile.py", "vitprof/__init__.py", "tests/conftest.py", "tests/requirements.txt"}
        <= names
    )


@pytest.mark.measured
def test_nothing_of_the_checkout_is_used(command: Path, elsewhere: dict[str, Any]) -> None:
    script = "import sys, vitprof, vitprof.ui.serve; print(vitprof.__file__); print(*sys.path, sep='\\n')"
    told = subprocess.run(
        [str(command.with_name("python")), "-c", script],
        check=True,
        capture_output=True,
        **elsewhere,
    ).stdout.splitlines()
    assert Path(told[0]).is_relative_to(command.parents[1])
    assert not [path for path in told[1:] if Path(path) == ROOT]


@pytest.mark.measured
def test_the_command_says_its_own_name(command: Path, elsewhere: dict[str, Any]) -> None:
    ended = subprocess.run(
        [str(command), "runs", "99"], check=False, capture_output=True, **elsewhere
    )
    assert (ended.returncode, ended.stderr) == (
        1,
        f"vitprof: there is no run 99; {command} runs lists them\n",
    )


@contextlib.contextmanager
def running(command: Path, elsewhere: dict[str, Any]) -> Iterator[str]:
    """The dashboard as `vitprof --no-browser` starts it: its address. Nothing is left of it."""
    arguments = [str(command), "--no-browser", "--port", str(_free_port())]
    server = psutil.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **elsewhere)
    giving_up = threading.Timer(LIMIT_S, server.kill)
    giving_up.start()
    try:
        before = []
        for line in server.stdout:
            if found := re.fullmatch(
                r"vitprof: the dashboard is running at (\S+) \(Ctrl-C ends it\)\n", line
            ):
                giving_up.cancel()
                yield found[1]
                break
            before.append(line)
        else:
            pytest.fail("".join(before))
    finally:
        giving_up.cancel()
        server.stdout.close()  # as when a connection broke: it ends all the same
        left = _stop(server)
    assert not left


@pytest.mark.measured
def test_its_dashboard_runs_a_job(
    command: Path, elsewhere: dict[str, Any], home: Path, page: Any
) -> None:
    with running(command, elsewhere) as url:
        page.goto(
            f"{url}/?strategy=memory&steps=50000&batch_size=64&threads=1&evaluate=false&device=simulated:20,0"
        )
        page.get_by_text("Is your GPU starved by data loading?").wait_for()
        for scheme, colour in BACKGROUND.items():
            page.emulate_media(color_scheme=scheme)
            page.wait_for_function(
                "colour => getComputedStyle(document.querySelector('.stApp')).backgroundColor === colour",
                arg=colour,
            )
        page.locator(".st-key-run-button button:visible").click()
        # Drawn by files that the dashboard's own server has: plotly-cartesian.min.js and live_chart.js.
        page.locator(".st-key-live-gaps .js-plotly-plot .main-svg").first.wait_for()
        page.locator(".st-key-stop-button button:visible").click()
        page.get_by_text(re.compile("^Stopped")).first.wait_for()
        page.get_by_role("link", name="History").click()
        page.get_by_text("1 run", exact=True).wait_for()
        page.goto("about:blank")
    with contextlib.closing(RunStore(f"sqlite:///{home / 'recordings.sqlite'}")) as store:
        assert store.run(1).status == "stopped"
