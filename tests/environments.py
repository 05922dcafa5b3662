"""Environments of their own for tests, made without a network: a virtual environment that has, of
the packages installed here, exactly those that some requirements bring, as links to their files.
"""

import functools
import os
import shutil
import subprocess
import sys
import venv
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests import ROOT


def build_wheel(folder: Path) -> Path:
    """Builds vitprof's wheel, as `python -m pip wheel --no-deps .` does, and returns its path."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def closure(requirements: Iterable[str]) -> dict[str, metadata.Distribution]:
    """Returns what pip would install for these, by name. Skips the test where one is not here."""
    found: dict[str, metadata.Distribution] = {}
    begun: set[str] = set()
    pending = [Requirement(text) for text in requirements]
    while pending:
        wanted = pending.pop()
        key = f"{canonicalize_name(wanted.name)}[{','.join(sorted(wanted.extras))}]"
        if key in begun:
            continue
        begun.add(key)
        try:
            distribution = metadata.distribution(wanted.name)
        except metadata.PackageNotFoundError:
            pytest.skip(f"{wanted.name} is not installed here")
        found[canonicalize_name(wanted.name)] = distribution
        for text in distribution.requires or ():
            needed = Requirement(text)
            markers = [{"extra": extra} for extra in (*wanted.extras, "")]
            if needed.marker is None or any(map(needed.marker.evaluate, markers)):
                pending.append(needed)
    return found


@functools.cache
def _with_vitprof(wheel: Path) -> Path:
    """Returns an environment that has the wheel alone, compiled, for others to copy: to install it and to
    compile it at its first use takes 3 s of a core.
    """
    place = wheel.parent / "environment"
    venv.create(place, with_pip=False, symlinks=True)
    python = str(place / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q"]
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True)
    return place


def _make(place: Path, wheel: Path, requirements: Sequence[str]) -> Path:
    """Makes an environment at `place` that has the wheel, without what it requires, and
    `requirements` with what those require. Returns the path of its command `vitprof`.
    """
    needed = closure(requirements).values()
    shutil.copytree(_with_vitprof(wheel), place, symlinks=True)
    command = place / "bin" / "vitprof"
    _, script = command.read_text(encoding="utf-8").split("\n", 1)
    command.write_text(f"#!{place / 'bin' / 'python'}\n{script}", encoding="utf-8")
    (packages,) = place.glob("lib/python*/site-packages")
    _link(needed, packages)
    return command


@functools.cache
def _owners() -> dict[PurePosixPath, set[str]]:
    """Returns each folder that packages are installed in here, with the names of those that have
    files in it.
    """
    owners: dict[PurePosixPath, set[str]] = defaultdict(set)
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        for folder in {PurePosixPath(file).parent for file in distribution.files or ()}:
            for each in (folder, *folder.parents):
                owners[each].add(name)
    return owners


def _link(distributions: Iterable[metadata.Distribution], packages: Path) -> None:
    """Links what the distributions have installed: a folder that is one's alone as a whole, what
    several share by its parts.
    """
    owners = _owners()
    linked: set[PurePosixPath] = set()
    for distribution in distributions:
        for file in distribution.files or ():
            relative = PurePosixPath(file)
            if ".." in relative.parts or "__pycache__" in relative.parts:
                continue  # commands, and what Python compiles by itself
            alone = [each for each in relative.parents if each.parts and len(owners[each]) == 1]
            target = alone[-1] if alone else relative
            if target in linked:
                continue
            linked.add(target)
            place = packages / target
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(Path(str(distribution.locate_file(target))))


def _elsewhere(folder: Path, home: Path, **variables: str) -> dict[str, str]:
    """Returns variables for a program that is to know nothing of this checkout and environment."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    return kept | {"HOME": str(folder), "VITPROF_HOME": str(home), "VITPROF_WARM": "0"} | variables


@dataclass(frozen=True)
class Environment:
    """An environment that has vitprof, and the folder and the home that its commands run in."""

    command: Path
    folder: Path
    home: Path

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs `vitprof` there, by its path alone."""
        return self._ended(str(self.command), *arguments, **variables)

    def python(self, script: str) -> subprocess.CompletedProcess[str]:
        """Runs a script by its Python."""
        return self._ended(str(self.command.with_name("python")), "-c", script)

    def _ended(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        env = _elsewhere(self.folder, self.home, **variables)
        return subprocess.run(
            command, cwd=self.folder, env=env, check=False, capture_output=True, text=True
        )


Make = Callable[..., Environment]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("dist"))


@pytest.fixture
def environment(wheel: Path, tmp_path: Path, vitprof_home: Path) -> Make:
    """Makes an environment with these requirements."""

    def make(*lines: str) -> Environment:
        folder = tmp_path / "work"
        folder.mkdir()
        return Environment(_make(tmp_path / "env", wheel, lines), folder, vitprof_home)

    return make
