"""Where a trial of a user's own script runs, so that it changes none of the user's files: in a layer over its folder
(`jobs.layer`), else in a copy of a small one, else in the folder itself; and what it wrote and deleted.
"""

import contextlib
import itertools
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from vitprof import home
from vitprof.errors import JobError
from vitprof.jobs.killed_jobs import remove_tree, temporary_places

LAYER = "layer"
COPY = "copy"
IN_PLACE = ""
LAYER_SCRIPT = Path(__file__).with_name("layer.py")
PROBE_S, MOST_PROBED = 10.0, 8
"""Seconds that trying a layer may take, and the most folders that are tried one by one where not all can have one."""
COPIED_FILES, COPIED_BYTES = 2_000, 100 << 20
"""The largest folder that is copied for each trial: files, and bytes. Links would not do: a write goes through them."""
IGNORED = ("__pycache__", ".git")
"""Folders that are not searched: what is written there does not matter to the user, such as byte code."""
MOST_FILES, MOST_S = 300_000, 20.0
"""The most files that are checked, and the most seconds: a folder of samples can have millions."""
MOST_LINKED = 5_000
"""The most files of a folder among which links are looked for."""
MORE = "(and perhaps more: there are too many files to check all of them)"
DELETED = " (deleted)"
Files = dict[str, tuple[int, ...]]
"""Path -> what differs once the file was written."""


def isolation_of(folder: str, command: Sequence[str] = ()) -> tuple[str, tuple[str, ...]]:
    """Returns how trials in `folder` can leave it as it is: `LAYER`, `COPY`, `IN_PLACE` where they can't; and the other
    folders, of those that the command names, that a layer covers too.
    """
    named = tuple(named_folders(command, folder))
    if _has_layers(folder, named):
        return LAYER, named
    if _has_layers(
        folder,
        alone := tuple(place for place in named[:MOST_PROBED] if _has_layers(folder, (place,))),
    ):
        return LAYER, alone
    n = 0
    size = 0
    for entry in _entries(folder, ()):
        about = entry.stat(follow_symlinks=False)
        n = n + 1
        size = size + about.st_size
        if (
            n > COPIED_FILES
            or size > COPIED_BYTES
            or not (stat.S_ISREG(about.st_mode) or entry.is_symlink())
        ):
            return IN_PLACE, ()
    return (
        IN_PLACE if home.home().resolve().is_relative_to(os.path.realpath(folder)) else COPY
    ), ()


def _has_layers(folder: str, others: Sequence[str]) -> bool:
    with contextlib.suppress(JobError, OSError, subprocess.SubprocessError):
        trial = TrialFolder(folder, LAYER, others)
        try:
            subprocess.run(
                trial.command(["true"], "/"), check=True, capture_output=True, timeout=PROBE_S
            )
            return True
        finally:
            trial.remove()
    return False


class TrialFolder:
    """The folder of one trial. Raises `JobError` where it can't be made."""

    def __init__(
        self,
        folder: str,
        isolation: str,
        layered: Sequence[str] = (),
        looked_at: Sequence[str] | None = None,
    ) -> None:
        """`layered`: folders to put layers over; `looked_at`: where `changes` looks, None: it is not asked for."""
        self._folder = os.path.realpath(folder)
        self._isolation = isolation
        self._layered = [self._folder, *layered] if isolation == LAYER else []
        self.cwd = folder
        self._made = _new_folder(self._layered or [self._folder]) if isolation else ""
        if isolation == COPY:
            self.cwd = os.path.join(self._made, os.path.basename(self._folder))
            try:
                shutil.copytree(self._folder, self.cwd, symlinks=True)
            except (OSError, shutil.Error) as error:
                self.remove()
                raise JobError(f"{folder} could not be copied for the trial: {error}") from error
        places = (
            []
            if looked_at is None
            else [self.cwd, *(p for p in looked_at if Path(p) not in Path(folder).parents)]
        )
        self._before = {
            place: _files(place) for place in places if os.path.realpath(place) not in self._layered
        }

    def command(self, command: Sequence[str], kept: str) -> list[str]:
        """Returns the command to start, in `cwd`; `kept`: a folder of vitprof's own that it writes to."""
        if self._isolation == LAYER:
            return [
                sys.executable,
                "-I",
                str(LAYER_SCRIPT),
                self._made,
                kept,
                json.dumps(self._layered),
                *command,
            ]
        if self._isolation == COPY:
            inside = os.path.join(self._folder, "")
            return [
                os.path.join(self.cwd, a[len(inside) :]) if a.startswith(inside) else a
                for a in command
            ]
        return list(command)

    def changes(self, reported: Sequence[str] = ()) -> list[str]:
        """Returns the files that were written or deleted since, relative to the folder; of those that stay as they are
        now and are outside it, whole paths. `reported`: more of these, as the script reported them.
        """
        layers = tuple(os.path.join(folder, "") for folder in self._layered)
        found = [path for path in reported if not path.startswith(layers)]
        for number, folder in enumerate(self._layered):
            found += [
                os.path.relpath(path, self._folder) for path in self._of_layer(str(number), folder)
            ]
        for place, before in self._before.items():
            after = _files(place)
            shown = {
                path: path if place == self.cwd else os.path.join(place, path)
                for path in before | after
            }
            found += [
                shown[path]
                for path, about in after.items()
                if before.get(path) != about and path != MORE
            ]
            if MORE in before | after:
                found.append(MORE)
            else:
                found += [shown[path] + DELETED for path in before if path not in after]
        return list(dict.fromkeys(found))

    def _of_layer(self, number: str, folder: str) -> Iterator[str]:
        """Yields the files that a layer over a folder has, and those that it hides, as whole paths."""
        upper = os.path.join(self._made, number, "upper")
        for entry in _entries(upper, (), whole=True):
            under = os.path.join(folder, os.path.relpath(entry.path, upper))
            about = entry.stat(follow_symlinks=False)
            if stat.S_ISCHR(about.st_mode) and about.st_rdev == 0:
                yield from (
                    path + DELETED for path in [e.path for e in _entries(under, ())] or [under]
                )
            elif not stat.S_ISDIR(about.st_mode):
                yield under
            elif _is_opaque(entry.path):
                for gone in _entries(under, ()):
                    if not os.path.lexists(os.path.join(upper, os.path.relpath(gone.path, folder))):
                        yield gone.path + DELETED

    def remove(self) -> None:
        if self._made:
            remove_tree(Path(self._made))


def named_folders(command: Sequence[str], folder: str) -> list[str]:
    """Returns the folders outside `folder` that the arguments of a command name, that the files are in they name, and
    that links in the folder lead to.
    """
    texts = [
        text for argument in command[1:] for text in argument.partition("=")[::2] if os.sep in text
    ]
    links = [e.path for e in itertools.islice(_entries(folder, ()), MOST_LINKED) if e.is_symlink()]
    found: dict[str, None] = {}
    for text in (*(text for text in texts if "\n" not in text), *links):
        path = os.path.realpath(os.path.join(folder, os.path.expanduser(text)))
        place = path if os.path.isdir(path) else os.path.dirname(path)
        inside = Path(place).is_relative_to(os.path.realpath(folder))
        if os.path.isdir(place) and os.access(place, os.W_OK) and not inside:
            found[place] = None
    return [
        place
        for place in found
        if not any(other in Path(place).parents for other in map(Path, found))
    ]


def _new_folder(folders: Sequence[str]) -> str:
    """Returns a new folder outside of `folders`, on a disk that overlayfs can write to where there is one."""
    for place in temporary_places():
        if place.is_dir() and not any(map(place.resolve().is_relative_to, folders)):
            with contextlib.suppress(OSError):
                return tempfile.mkdtemp(prefix=home.temporary_prefix("layer"), dir=place)
    raise JobError(f"there is no place for what a trial in {folders[0]} writes; give --in-place")


def _is_opaque(path: str) -> bool:
    """Returns whether a folder of a layer hides all that was in the one below it."""
    for name in ("user.overlay.opaque", "trusted.overlay.opaque"):
        with contextlib.suppress(OSError):
            if os.getxattr(path, name) == b"y":
                return True
    return False


def _entries(
    folder: str, skipped: Sequence[str], *, whole: bool = False
) -> Iterator[os.DirEntry[str]]:
    """Yields the files below `folder`; with `whole` its folders too. What cannot be read is left out."""
    folders = [folder]
    while folders:
        try:
            entries = list(os.scandir(folders.pop()))
        except OSError:  # such as a folder that this user may not read
            continue
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                yield entry
            elif entry.name not in IGNORED and entry.path not in skipped:
                folders.append(entry.path)
                if whole:
                    yield entry


def _files(folder: str) -> Files:
    found: Files = {}
    until = time.monotonic() + MOST_S
    for n, entry in enumerate(_entries(folder, [str(home.home().resolve()), str(home.home())])):
        if n >= MOST_FILES or (n % 1000 == 0 and time.monotonic() > until):
            return {**found, MORE: ()}
        with contextlib.suppress(OSError):  # gone meanwhile
            about = entry.stat(follow_symlinks=False)
            found[os.path.relpath(entry.path, folder)] = (
                about.st_ino,
                about.st_size,
                about.st_ctime_ns,
            )
    return found
