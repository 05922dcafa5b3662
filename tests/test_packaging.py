"""What the package says of itself, in the several files that say it."""

import re
import tomllib
from typing import Any

import pytest

import vitprof
from tests import ROOT
from vitprof.jobs.preflight import PACKAGES


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    return project


def listed(name: str) -> list[str]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def named(requirement: str) -> str:
    return re.split(r"[<>=;\[ ]", requirement)[0]


def test_a_plain_installation_has_what_core_and_dashboard_list(project: dict[str, Any]) -> None:
    extras = project["optional-dependencies"]
    engines = {"ray", "slurm", "postgres"}
    assert (
        set(extras)
        == {
            "core",
            "dashboard",
            "images",
            "dali",
            "spdl",
            "litdata",
            "metrics",
            "mcp",
            "all",
        }
        | engines
    )
    assert sorted(project["dependencies"]) == sorted(extras["core"] + extras["dashboard"])
    assert extras["all"] == ["vitprof[images,dali]"]
    assert not {"torch", "streamlit"} & set(map(named, extras["core"]))


def test_extras_are_those_that_are_installed_tested_and_looked_for(project: dict[str, Any]) -> None:
    wanted = project["dependencies"] + project["optional-dependencies"]["images"]
    assert sorted(listed("requirements.txt")) == sorted(wanted)
    tested = [line.replace('"', "'") for line in listed("tests/requirements.txt")]
    assert set(project["optional-dependencies"]["dali"]) - {"vitprof[images]"} <= set(tested)
    for extra, packages in PACKAGES.items():
        assert {names[0] for names in packages} <= set(
            map(named, project["optional-dependencies"][extra])
        ), extra


def test_pages_name_the_core_and_every_dependency_with_its_licence(project: dict[str, Any]) -> None:
    page = (ROOT / "docs" / "installing.md").read_text(encoding="utf-8")
    core = sorted(map(named, project["optional-dependencies"]["core"]))
    assert f"python -m pip install {' '.join(core)}\n" in page
    page = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    extras = project["optional-dependencies"]
    wanted = {named(line) for extra in extras.values() for line in extra} - {"vitprof"}
    assert wanted == set(re.findall(r"^\| ([\w-]+) \| \S", page, re.MULTILINE)) - {"package"}


def test_one_version(project: dict[str, Any]) -> None:
    assert "version" in project["dynamic"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (.+)$", citation, re.MULTILINE)[1] == vitprof.__version__
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^## (\S+)", changes, re.MULTILINE)[1] == vitprof.__version__


def test_continuous_integration_types_what_readme_says_in_its_order() -> None:
    """It installs by uv, which chooses the same packages as pip in a third of the time."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    typed = re.findall(r"python -m (?:pip install|pytest|tests)\b[^\n`&]*", readme)
    first = next(line for line in typed if "'.[images]'" in line)
    tests = [line for line in typed if "tests" in line or "pytest" in line]
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    script = script.replace("pip_install", "python -m pip install")
    places = [script.find(line.strip()) for line in (first, *tests)]
    assert len(tests) == 3
    assert -1 not in places
    assert places == sorted(places)
