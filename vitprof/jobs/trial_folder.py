"""Where a trial of a user's own script runs, so that it changes none of the user's files; and what it
wrote and deleted.

It runs in a layer over its folder (`jobs.layer`). Where no layer can be made, it runs in a copy of the
folder if that is small, otherwise in the folder itself.
"""

import contextlib
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitprof import home
from vitprof.errors import JobError
from vitprof.jobs.folder_copy import FolderCopy
from vitprof.jobs.killed_jobs import remove_tree, temporary_places
from vitprof.jobs.ways_out import (
    ARGUMENT,
    MOUNT,
    WaysOut,
    can_be_covered,
    gathered,
    is_below,
    ways_out,
)

LAYER = "layer"
COPY = "copy"
IN_PLACE = ""
LAYER_SCRIPT = Path(__file__).with_name("layer.py")
PROBE_S = 10.0
"""Seconds that trying a layer may take."""
MOST_PROBED = 16
"""The most folders that are tried one by one where not all of them together can have a layer."""
MOST_LAYERS = 32
"""The most folders with a layer; folders above them are covered where there are more."""
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
NOT_ALL_LINKS = "places to which links lead that were not looked at (there are too many files)"
MORE = "(and perhaps more: there are too many files to check all of them)"
DELETED = " (deleted)"
Files = dict[str, tuple[int, ...]]
"""Path -> what differs once the file was written: inode, bytes, and the time of the change (ns), which
programs cannot set. So what a C library wrote is seen, and a file that replaced another one."""


@dataclass(frozen=True)
class Isolation:
    """How trials leave the user's files as they are, and by what they can change some after all."""

    kind: str
    """`LAYER`, `COPY`, or `IN_PLACE` where neither can be had."""
    layered: tuple[str, ...] = ()
    """Other folders that a layer covers."""
    links_out: tuple[str, ...] = ()
    """Links, and what is mounted in the folder, by which a trial writes to files that stay, in words."""
    open_places: tuple[str, ...] = ()
    """What the command names besides, and nothing covers, in words."""


def isolation_of(folder: str, command: Sequence[str] = ()) -> Isolation:
    """Returns how trials of `command` in `folder` can leave the user's files as they are."""
    found = ways_out(folder, command)
    layered = _layered(found)
    if layered is not None:
        left = found.left((found.folder, *layered))
    elif _can_be_copied(folder):
        # the copy has what is mounted in the folder, too
        left = [way for way in found.ways if way.kind != MOUNT]
    else:
        return Isolation(IN_PLACE)
    links = [way.words for way in left if way.kind != ARGUMENT]
    places = [way.words for way in left if way.kind == ARGUMENT]
    if not found.complete:
        places.append(NOT_ALL_LINKS)
    kind = COPY if layered is None else LAYER
    return Isolation(kind, layered or (), tuple(links), tuple(dict.fromkeys(places)))


def _layered(found: WaysOut) -> tuple[str, ...] | None:
    """Returns the folders besides the script's that can have a layer; None where that one cannot."""
    places = [way.place for way in found.left([found.folder]) if can_be_covered(way.place)]
    outside = [place for place in places if os.path.isdir(place)]
    wanted = found.outermost(gathered(found.outermost(outside), MOST_LAYERS))
    if _has_layers(found.folder, wanted):
        return wanted
    if not (wanted and _has_layers(found.folder, ())):
        return None
    possible: tuple[str, ...] = ()
    waiting = deque(wanted)
    for _ in range(MOST_PROBED):
        if not waiting:
            break
        place = waiting.popleft()
        if _has_layers(found.folder, (*possible, place)):
            possible += (place,)
        else:
            # it does not keep those below it from having one
            waiting += found.outermost([p for p in outside if p != place and is_below(p, place)])
    return possible


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
        """`layered`: other folders to put layers over. `looked_at`: files and folders without a layer
        that `changes` looks at; None: `changes` will not be called.
        """
        self._folder = os.path.realpath(folder)
        self._isolation = isolation
        self._layered = [self._folder, *layered] if isolation == LAYER else []
        self.cwd = folder
        self._made = _new_folder(self._layered or [self._folder]) if isolation else ""
        self._copy: FolderCopy | None = None
        if isolation == COPY:
            self.cwd = os.path.join(self._made, os.path.basename(self._folder))
            self._copy = FolderCopy(self._folder, self.cwd)
            try:
                self._copy.make()
            except (OSError, shutil.Error) as error:
                self.remove()
                raise JobError(f"{folder} could not be copied for the trial: {error}") from error
        places: list[str] = []
        if looked_at is not None:
            places = list(looked_at)
            if isolation != LAYER:
                elsewhere = [path for path in places if not is_below(path, self._folder)]
                # a script may have its own folder's path in its code, and so write beside the copy
                original = [self._folder] if isolation == COPY else []
                places = [self.cwd, *original, *elsewhere]
        self._before = {place: _files(place) for place in places}

    def command(self, command: Sequence[str], kept: str) -> list[str]:
        """Returns the command to start, in `cwd`; `kept`: a folder of vitprof's own that it writes to."""
        if self._isolation == LAYER:
            layer_script = [sys.executable, "-I", str(LAYER_SCRIPT)]
            return [*layer_script, self._made, kept, json.dumps(self._layered), *command]
        return self._copy.command(command) if self._copy else list(command)

    def environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Returns the environment variables for the command, given those of this program."""
        return self._copy.environment(variables) if self._copy else dict(variables)

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
                    changed.append(os.path.join(root, path) if path else root)
            if MORE in before or MORE in after:
                # a file that was not reached in one of both looks is not known to be deleted
                changed.append(MORE)
                continue
            for path in before:
                if path not in after:
                    changed.append((os.path.join(root, path) if path else root) + DELETED)
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
    """Returns the files below `folder`, and `MORE` among them where there are too many.

    Where it is a file, that one, under the name "".
    """
    files: Files = {}
    with contextlib.suppress(OSError):
        about = os.lstat(folder)
        if not stat.S_ISDIR(about.st_mode):
            return {"": _state(about)}
    until = time.monotonic() + MOST_S
    homes = [str(home.home().resolve()), str(home.home())]
    for n, entry in enumerate(_entries(folder, homes)):
        if n >= MOST_FILES or (n % 1000 == 0 and time.monotonic() > until):
            return {**files, MORE: ()}
        with contextlib.suppress(OSError):  # gone meanwhile
            about = entry.stat(follow_symlinks=False)
            path = os.path.relpath(entry.path, folder)
            files[path] = _state(about)
    return files


def _state(about: os.stat_result) -> tuple[int, ...]:
    return about.st_ino, about.st_size, about.st_ctime_ns
