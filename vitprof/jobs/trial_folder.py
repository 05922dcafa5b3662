"""Where a trial of a user's own script runs, so that it changes none of the user's files; and what it
wrote and deleted.

It runs in a layer over its folder (`jobs.layer`). Where no layer can be made, it runs in a copy of the
folder if that is small, otherwise in the folder itself.
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
PROBE_S = 10.0
"""Seconds that trying a layer may take."""
MOST_PROBED = 8
"""The most folders that are tried one by one where not all of them together can have a layer."""
COPIED_FILES = 2_000
"""The most files of a folder that is copied for each trial. Hard links would not do: a write goes
through them to the user's file."""
COPIED_BYTES = 100 << 20
"""The most bytes of such a folder."""
IGNORED = ("__pycache__", ".git")
"""Folders that are not searched: what is written there, such as byte code, does not matter to users."""
MOST_FILES = 300_000
"""The most files that are checked: a folder of samples can have millions."""
MOST_S = 20.0
"""The most seconds that checking the files of a folder may take."""
MOST_LINKED = 5_000
"""The most files of a folder among which links are looked for."""
MORE = "(and perhaps more: there are too many files to check all of them)"
DELETED = " (deleted)"
Files = dict[str, tuple[int, ...]]
"""Path -> what differs once the file was written: inode, bytes, and the time of the change (ns), which
programs cannot set. So what a C library wrote is seen, and a file that replaced another one."""


def isolation_of(folder: str, command: Sequence[str] = ()) -> tuple[str, tuple[str, ...]]:
    """Returns how trials in `folder` can leave it as it is: `LAYER`, `COPY`, `IN_PLACE` where they
    can't; and the other folders, of those that the command names, that a layer covers too.
    """
    named = tuple(named_folders(command, folder))
    if _has_layers(folder, named):
        return LAYER, named
    possible = tuple(place for place in named[:MOST_PROBED] if _has_layers(folder, (place,)))
    if _has_layers(folder, possible):
        return LAYER, possible
    return COPY if _can_be_copied(folder) else IN_PLACE, ()


def _can_be_copied(folder: str) -> bool:
    # vitprof's home, with the data sets and the run store, is no part of a script's folder
    if home.home().resolve().is_relative_to(os.path.realpath(folder)):
        return False
    n_bytes = 0
    for n, entry in enumerate(_entries(folder, ()), 1):
        about = entry.stat(follow_symlinks=False)
        n_bytes += about.st_size
        if n > COPIED_FILES or n_bytes > COPIED_BYTES:
            return False
        # a copy of a pipe, socket or device is none
        if not stat.S_ISREG(about.st_mode) and not entry.is_symlink():
            return False
    return True


def _has_layers(folder: str, others: Sequence[str]) -> bool:
    """Tries layers over `folder` and `others`."""
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
        """`layered`: other folders to put layers over. `looked_at`: other folders that `changes` looks
        through; None: `changes` will not be called.
        """
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
        places: list[str] = []
        if looked_at is not None:
            # a folder above would be searched for this one's files again
            parents = Path(folder).parents
            places = [self.cwd, *(place for place in looked_at if Path(place) not in parents)]
        self._before = {
            place: _files(place) for place in places if os.path.realpath(place) not in self._layered
        }

    def command(self, command: Sequence[str], kept: str) -> list[str]:
        """Returns the command to start, in `cwd`; `kept`: a folder of vitprof's own that it writes to."""
        if self._isolation == LAYER:
            layer_script = [sys.executable, "-I", str(LAYER_SCRIPT)]
            return [*layer_script, self._made, kept, json.dumps(self._layered), *command]
        if self._isolation == COPY:
            return [self._copied(word) for word in command]
        return list(command)

    def _copied(self, word: str) -> str:
        """Returns a word of the command, with the copy's path in place of the folder's."""
        inside = os.path.join(self._folder, "")
        if word.startswith(inside):
            return os.path.join(self.cwd, word.removeprefix(inside))
        return word

    def changes(self, reported: Sequence[str] = ()) -> list[str]:
        """Returns the files that were written or deleted since, relative to the folder; whole paths of
        those outside it that have no layer over them. `reported`: more of these, as the script
        reported them.
        """
        layers = tuple(os.path.join(folder, "") for folder in self._layered)
        changed = [path for path in reported if not path.startswith(layers)]
        for number, folder in enumerate(self._layered):
            for path in self._of_layer(str(number), folder):
                changed.append(os.path.relpath(path, self._folder))
        for place, before in self._before.items():
            after = _files(place)
            root = "" if place == self.cwd else place
            for path, about in after.items():
                if path != MORE and before.get(path) != about:
                    changed.append(os.path.join(root, path))
            if MORE in before or MORE in after:
                # a file that was not reached in one of both looks is not known to be deleted
                changed.append(MORE)
                continue
            for path in before:
                if path not in after:
                    changed.append(os.path.join(root, path) + DELETED)
        return list(dict.fromkeys(changed))

    def _of_layer(self, number: str, folder: str) -> Iterator[str]:
        """Yields the files that a layer over a folder has, and those that it hides, as whole paths."""
        upper = os.path.join(self._made, number, "upper")
        for entry in _entries(upper, (), whole=True):
            under = os.path.join(folder, os.path.relpath(entry.path, upper))
            about = entry.stat(follow_symlinks=False)
            # overlayfs marks what was deleted by a character device with the number 0
            if stat.S_ISCHR(about.st_mode) and about.st_rdev == 0:
                in_folder = [gone.path for gone in _entries(under, ())]
                for path in in_folder or [under]:
                    yield path + DELETED
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
    """Returns the folders outside `folder` that a trial may write to: those that the arguments of the
    command name, those with the files that they name, and those that links in `folder` lead to.

    Without folders that are inside of another one in the list.
    """
    texts: list[str] = []
    for argument in command[1:]:
        # "--out=/data/out" names a folder, too; a text of several lines is a program, not a path
        name, _, value = argument.partition("=")
        texts += [text for text in (name, value) if os.sep in text and "\n" not in text]
    entries = itertools.islice(_entries(folder, ()), MOST_LINKED)
    links = [entry.path for entry in entries if entry.is_symlink()]
    outside: dict[str, None] = {}
    for text in (*texts, *links):
        path = os.path.realpath(os.path.join(folder, os.path.expanduser(text)))
        place = path if os.path.isdir(path) else os.path.dirname(path)
        inside = Path(place).is_relative_to(os.path.realpath(folder))
        if os.path.isdir(place) and os.access(place, os.W_OK) and not inside:
            outside[place] = None
    return [
        place
        for place in outside
        if not any(str(parent) in outside for parent in Path(place).parents)
    ]


def _new_folder(folders: Sequence[str]) -> str:
    """Returns a new folder outside of `folders`, where possible on a disk that overlayfs can write to.

    Raises `JobError` where there is no place for it.
    """
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
    """Yields the files below `folder`; with `whole` its folders too. Leaves out what cannot be read,
    folders in `skipped`, and `IGNORED`.
    """
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
    """Returns the files below `folder`, and `MORE` among them where there are too many."""
    files: Files = {}
    until = time.monotonic() + MOST_S
    homes = [str(home.home().resolve()), str(home.home())]
    for n, entry in enumerate(_entries(folder, homes)):
        if n >= MOST_FILES or (n % 1000 == 0 and time.monotonic() > until):
            return {**files, MORE: ()}
        with contextlib.suppress(OSError):  # gone meanwhile
            about = entry.stat(follow_symlinks=False)
            path = os.path.relpath(entry.path, folder)
            files[path] = (about.st_ino, about.st_size, about.st_ctime_ns)
    return files
