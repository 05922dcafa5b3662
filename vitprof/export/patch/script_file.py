"""Finds the file in which a script makes its train DataLoader, and whether it is as it ran."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitprof.config.own_script import OwnScript
from vitprof.errors import VitprofError
from vitprof.export.patch.wanted import NoPatch

MOST_FOLDERS = 20_000
"""The most folders that are searched for the file."""
NOT_SEARCHED = ("__pycache__", "node_modules", "site-packages")
"""Folders that have no source of the script's own, besides hidden ones and virtual environments."""


@dataclass(frozen=True, slots=True)
class ScriptFile:
    """A file of the script's."""

    path: Path
    """As it was found: it may be a link."""
    data: bytes
    line: int | None
    """The line that made the loader, in the file as it ran; None where that is not known."""
    changed: bool | None
    """Whether it has changed since; None where nobody kept how it was."""

    @property
    def name(self) -> str:
        return self.path.name


def find_script_file(script: OwnScript) -> ScriptFile:
    """Returns the file with the line that made the train loader, as the first trial noted it.

    Its folder was not noted, since trials may run in a copy: so it is looked for by name and digest,
    first among what the command names, then below the script's folder. Raises `NoPatch` where it is
    not there, or may be several, and `VitprofError` where it cannot be read.
    """
    loader = script.loader or {}
    name, _, line = str(loader.get("made_where") or "").rpartition(":")
    digest = str(loader.get("made_digest") or "")
    if not os.path.isdir(script.directory):
        raise NoPatch(f"no patch: there is no folder {script.directory} on this machine")
    named = [path for path in _named_files(script) if not name or path.name == name]
    path = _of_digest(named, digest) if digest else None
    if path is None:
        path = _only_one(script, name, digest, named)
    data = _read(path)
    changed = None
    if digest:
        changed = digest_of(data) != digest
    return ScriptFile(path, data, int(line) if line.isdecimal() else None, changed)


def digest_of(data: bytes) -> str:
    """Returns what `vitprof.watch.trial` notes of a source file."""
    return hashlib.sha256(data, usedforsecurity=False).hexdigest()


def _only_one(script: OwnScript, name: str, digest: str, named: Sequence[Path]) -> Path:
    """Returns the file to patch where none that the command names is as it ran. Raises `NoPatch`."""
    if not name:
        found = list(named)
    else:
        found = list(dict.fromkeys([*named, *_below(Path(script.directory), name)]))
        as_it_ran = _of_digest(found, digest) if digest else None
        if as_it_ran is not None:
            return as_it_ran
    what = name or "a script"
    if not found:
        raise NoPatch(f"no patch: {what} is not in {script.directory}, nor in a folder below it")
    if len(named) == 1:
        return named[0]
    if len(found) > 1:
        places = ", ".join(str(path) for path in found[:3])
        why = (
            f"there are several files called {name}" if name else "the command names several files"
        )
        raise NoPatch(f"no patch: {why}, and none is known to be the one that ran: {places}")
    return found[0]


def _of_digest(paths: Sequence[Path], digest: str) -> Path | None:
    """Returns the file that is as it ran; None where none is.

    Raises `NoPatch` where several are: which of the copies ran is not known.
    """
    found = [path for path in paths if digest_of(_read(path)) == digest]
    if len({os.path.realpath(path) for path in found}) > 1:
        places = ", ".join(str(path) for path in found[:3])
        raise NoPatch(f"no patch: which of these copies ran is not known: {places}")
    return found[0] if found else None


def _named_files(script: OwnScript) -> list[Path]:
    """Returns the Python files that the command names, also as modules: `-m package.train`."""
    folder = Path(script.directory)
    found = []
    for before, word in zip(("", *script.command), script.command, strict=False):
        if word.endswith(".py"):
            found.append(folder / word)
        elif before == "-m":
            module = folder.joinpath(*word.split("."))
            found += [module.with_name(f"{module.name}.py"), module / "__main__.py"]
    return [path for path in dict.fromkeys(found) if path.is_file()]


def _below(folder: Path, name: str) -> Iterator[Path]:
    """Yields the files of this name in a folder and those below it."""
    for n, (root, folders, files) in enumerate(os.walk(folder)):
        if n >= MOST_FOLDERS:
            return
        if "pyvenv.cfg" in files:
            folders.clear()
            continue
        folders[:] = sorted(
            each for each in folders if not each.startswith(".") and each not in NOT_SEARCHED
        )
        if name in files:
            yield Path(root, name)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise VitprofError(f"{path} cannot be read: {error.strerror or error}") from error
