"""Who imports whom: DESIGN.md section 4, and no torch in the dashboard's process."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import vitprof

PACKAGE = Path(vitprof.__file__).parent
ROOT = PACKAGE.parent
UI = PACKAGE / "ui"
PAGES = [*sorted((ROOT / "pages").glob("*.py")), ROOT / "app.py"]
FILES = [*sorted(PACKAGE.rglob("*.py")), *PAGES]

LAYERS: tuple[set[str], ...] = (
    {"errors", "events", "formats"},
    {"accelerators"},
    {"config", "records", "home", "catalog", "decode", "batch"},
    {"parts", "telemetry", "augment", "laps"},
    {"data", "strategies"},
    {"resolve", "storage", "footprint", "model", "devices", "environment"},
    {"analysis"},
    {"store"},
    {"charts", "predictions", "tournaments", "snippets"},
    {"export"},
    {"locations", "loaders", "recorder"},
    {"transfer", "availability"},
    {"pipeline", "trainer", "doctor"},
    {"train"},
    {"jobs"},
    {"selftest", "bundle"},
    {"ui", "cli"},
    {"app", "pages", "__main__"},
)
"""From the bottom up: a module imports from layers below its own, and from its own package."""
ENGINE = {"train", "pipeline", "model", "devices", "recorder", "environment", "storage", "loaders", "transfer"}
ENGINE |= {"batch", "augment", "trainer"}
"""What imports torch: reached through vitprof.jobs.child only."""
BESIDE_THE_ENGINE = {
    "errors",
    "events",
    "formats",
    "config",
    "records",
    "home",
    "catalog",
    "parts",
    "strategies",
    "resolve",
    "data",
}
BESIDE_THE_ENGINE |= {"decode", "laps", "locations", "accelerators"}
"""What the engine may use besides itself: it knows nothing of stores, charts and pages."""


def unit(path: Path) -> str:
    """The part of vitprof that a file belongs to, as `LAYERS` calls it."""
    if path.parent == ROOT:
        return "app"
    if path.parent == ROOT / "pages":
        return "pages"
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[str]:
    """The dotted names that a file imports, wherever in it. Names from `from a import b` as a.b."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports are not used here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def units(path: Path) -> set[str]:
    """The parts of vitprof that a file imports."""
    parts = [name.split(".") for name in imported(path)]
    return {p[1] for p in parts if p[0] == "vitprof" and len(p) > 1 and not p[1].startswith("__")}


def layer(name: str) -> int:
    found = [i for i, names in enumerate(LAYERS) if name in names]
    assert found, f"{name} is new: say in LAYERS where it belongs (DESIGN.md section 4)"
    return found[0]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_run_one_way(path: Path) -> None:
    mine = unit(path)
    if mine == "__init__":  # of vitprof itself
        assert not units(path)
        return
    for other in units(path) - {mine}:
        assert layer(other) < layer(mine), f"{path} imports vitprof.{other}"
    if mine in ENGINE:
        assert units(path) <= ENGINE | BESIDE_THE_ENGINE
    elif path != PACKAGE / "jobs" / "child.py" and mine != "locations":  # those import storage when a job asks
        assert not units(path) & ENGINE, "the engine is reached through vitprof.jobs.child only"


def test_every_layer_is_there() -> None:
    there = {unit(path) for path in FILES} - {"__init__"}
    assert there == set().union(*LAYERS)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_only_the_user_interface_imports_streamlit(path: Path) -> None:
    if path in PAGES or UI in path.parents:
        return
    assert not [name for name in imported(path) if name.split(".")[0] == "streamlit"]


def test_the_dashboard_imports_no_torch() -> None:
    """Nor does the command line, whose jobs have a process of their own, until doctor looks at torch."""
    names = [f"vitprof.ui.{path.stem}" for path in sorted(UI.glob("*.py")) if path.stem != "__init__"]
    names = ["vitprof.ui", *names, "vitprof.cli", "vitprof.jobs.manager", "vitprof.store", "vitprof.charts"]
    names += ["vitprof.export", "vitprof.strategies", "vitprof.doctor", "vitprof.data", "vitprof.jobs.child"]
    names += ["vitprof.locations", "vitprof.locations.tmpfs", "vitprof.availability", "vitprof.selftest"]
    script = "import sys\n" + "".join(
        f"import {name}\nassert not {{'torch', 'torchvision', 'cv2'}} & set(sys.modules), 'it came with {name}'\n"
        for name in names
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-X", "importtime", "-c", script]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, env=env)
    assert ended.returncode == 0, ended.stderr.splitlines()[-1]
    modules = {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines() if line.startswith("import time:")}
    assert "vitprof.ui" in modules
    assert not {name for name in modules if name.split(".")[0] in ("torch", "torchvision")}


def test_a_bare_import_brings_nothing() -> None:
    script = "import sys; before = set(sys.modules); import vitprof; print(*sorted(set(sys.modules) - before))"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, env=env)
    assert ended.stdout.split() == ["vitprof"]
