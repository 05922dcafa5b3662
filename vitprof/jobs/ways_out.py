"""The ways by which a trial of a user's own script reaches files outside of its folder: links, file
systems that are mounted below it, and what its command names.
"""

import contextlib
import os
import stat
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from vitprof.names import MARK, NOT_SHOWN, SPACE

LINK = "link"
MOUNT = "mount"
ARGUMENT = "argument"
MOST_ENTRIES = 300_000
"""The most files and folders among which links are looked for: a folder of samples can have millions."""
MOST_S = 5.0
"""The most seconds that looking for them may take, such as on a slow network drive."""
CHECK_EVERY = 256
"""Entries between two looks at the clock."""
MOST_TARGETS = 100
"""The most files of one folder whose changes are looked for one by one."""
OF_THE_KERNEL = ("/proc", "/sys")
"""Not searched, as the root itself: their links lead anywhere."""
MOUNTS = "/proc/self/mountinfo"


@dataclass(frozen=True)
class WayOut:
    """One way out of the folder to files that this user may write."""

    kind: str
    words: str
    """As people are shown it: "runs -> /data/runs"."""
    place: str
    """The folder that a layer has to cover so that nothing changes by this way."""
    targets: tuple[str, ...]
    """What it leads to: files and folders, or what may become such ones."""


@dataclass(frozen=True)
class WaysOut:
    """The ways out of a folder."""

    folder: str
    ways: tuple[WayOut, ...]
    mounts: tuple[str, ...]
    """The places of this machine at which something is mounted."""
    complete: bool
    """Whether all links were looked at."""

    def covers(self, outer: str, place: str) -> bool:
        """Returns whether a layer over the folder `outer` covers `place`: nothing is mounted between."""
        return is_below(place, outer) and not any(
            mount != outer and is_below(mount, outer) and is_below(place, mount)
            for mount in self.mounts
        )

    def outermost(self, places: Sequence[str]) -> tuple[str, ...]:
        """Returns those of `places` that a layer over none of the others covers, each once."""
        unique = dict.fromkeys(places)
        return tuple(
            place
            for place in unique
            if not any(above in unique and self.covers(above, place) for above in _parents(place))
        )

    def left(self, covered: Sequence[str]) -> list[WayOut]:
        """Returns the ways to what layers over the folders `covered` do not cover."""
        return [
            way for way in self.ways if not any(self.covers(each, way.place) for each in covered)
        ]

    def looked_at(self, covered: Sequence[str]) -> list[str]:
        """Returns the files and folders to which the ways that are left lead."""
        above = [self.folder, *_parents(self.folder)]
        targets = (target for way in self.left(covered) for target in way.targets)
        paths = (_to_look_at(target, above) for target in targets)
        # a folder above would be searched for this one's files again
        unique = dict.fromkeys(path for path in paths if path not in above)
        return [path for path in unique if not any(each in unique for each in _parents(path))]


def _to_look_at(target: str, above: Sequence[str]) -> str:
    """Returns what has changed if `target` is written; `above`: the script's folder and those above."""
    if not os.path.lexists(target):
        return _first_missing(target)
    folder = os.path.dirname(target)
    # what replaces a file is written beside it
    return target if os.path.isdir(target) or folder in above else folder


def ways_out(folder: str, command: Sequence[str] = ()) -> WaysOut:
    """Returns the ways out of `folder`, in which `command` is started.

    They are looked for in the folder, and in those that it and the command lead to.
    """
    search = _Search(os.path.realpath(folder))
    complete = search.run()
    for argument in command[1:]:
        # "--out=/data/out" names a folder, too; a text of several lines is a program, not a path
        name, _, value = argument.partition("=")
        for text in (name, value):
            if os.sep in text and "\n" not in text:
                search.follow_argument(text)
    complete = search.run() and complete
    return WaysOut(search.folder, tuple(search.found()), tuple(search.mounts), complete)


def can_be_covered(folder: str) -> bool:
    """Returns whether a layer over a folder covers anything: over the root it does not, since the root of
    a process stays what it was.
    """
    return folder != os.sep and not any(is_below(folder, each) for each in OF_THE_KERNEL)


def is_below(path: str, folder: str) -> bool:
    """Returns whether a path is that of the folder, or of something in it."""
    return path == folder or path.startswith(os.path.join(folder, ""))


class _Search:
    """Follows links out of a folder, and those in the folders that they lead to."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.mounts = _mount_points()
        self._waiting = deque([_Tree(folder, LINK, "", writable=True)])
        self._known = [folder]
        self._ways: dict[tuple[str, str], list[WayOut]] = {}
        """By kind and place; of each the first `MOST_TARGETS`."""
        self._number: Counter[tuple[str, str]] = Counter()
        self._n = 0
        self._until = time.monotonic() + MOST_S

    def found(self) -> Iterator[WayOut]:
        """Yields the ways; of several to one place the first, with the number of the others."""
        for key, ways in self._ways.items():
            words = ways[0].words
            if self._number[key] > 1:
                words += f" and {self._number[key] - 1} more into {_shown(ways[0].place)}"
            targets = dict.fromkeys(target for way in ways for target in way.targets)
            yield replace(ways[0], words=words, targets=tuple(targets))

    def run(self) -> bool:
        """Returns whether all folders were searched."""
        complete = True
        while self._waiting:
            tree = self._waiting.popleft()
            if not self._search(tree):
                complete = False
                # what this user may write in it is not known
                if not tree.writable:
                    self._add(WayOut(tree.kind, tree.words, tree.folder, (tree.folder,)))
        return complete

    def follow_argument(self, text: str) -> None:
        """Notes where a word of the command leads."""
        path = os.path.realpath(os.path.join(self.folder, os.path.expanduser(text)))
        self._follow(ARGUMENT, path, _shown(path), self.folder)

    def _follow(self, kind: str, target: str, words: str, tree: str) -> None:
        """Notes a way to `target` if that is outside of `tree`, the folder in which it was found."""
        if is_below(target, tree):
            return
        place = place_of(target)
        is_folder = os.path.isdir(target)
        is_searched = is_folder and can_be_covered(target)
        if is_folder and not is_searched:
            place = target
        if place:
            self._add(WayOut(kind, words, place, (target,)))
        if is_searched and not any(is_below(target, known) for known in self._known):
            self._known.append(target)
            self._waiting.append(_Tree(target, kind, words, writable=bool(place)))

    def _add(self, way: WayOut) -> None:
        key = (way.kind, way.place)
        self._number[key] += 1
        if self._number[key] <= MOST_TARGETS:
            self._ways.setdefault(key, []).append(way)

    def _search(self, tree: "_Tree") -> bool:
        """Looks for links below a folder; returns whether it was searched to its end."""
        for mount in self.mounts:
            if mount != tree.folder and is_below(mount, tree.folder) and os.access(mount, os.W_OK):
                kind = MOUNT if tree.kind == LINK else tree.kind
                self._add(WayOut(kind, f"{self._name(mount)} (mounted)", mount, (mount,)))
        waiting = [(tree.folder, tree.writable)]
        while waiting:
            folder, writable = waiting.pop()
            # one that this user may not read is left out
            with contextlib.suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    if self._is_over():
                        return False
                    if entry.is_symlink():
                        target = os.path.realpath(entry.path)
                        words = f"{self._name(entry.path)} -> {_shown(target)}"
                        self._follow(tree.kind, target, words, tree.folder)
                    elif entry.is_dir():
                        # a user may own folders in one that others own
                        owns = not writable and os.access(entry.path, os.W_OK)
                        if owns:
                            self._add(WayOut(tree.kind, tree.words, entry.path, (entry.path,)))
                        waiting.append((entry.path, writable or owns))
        return True

    def _is_over(self) -> bool:
        """Counts an entry; returns whether there were too many, or they took too long."""
        self._n += 1
        is_late = self._n % CHECK_EVERY == 0 and time.monotonic() > self._until
        return self._n > MOST_ENTRIES or is_late

    def _name(self, path: str) -> str:
        inside = is_below(path, self.folder)
        return _shown(os.path.relpath(path, self.folder) if inside else path)


@dataclass(frozen=True)
class _Tree:
    """A folder whose links are looked for."""

    folder: str
    kind: str
    words: str
    writable: bool
    """Whether this user may write in it."""


def place_of(target: str) -> str:
    """Returns the folder in which a file or folder is written; "" where this user may not write it, or
    nothing of it can be kept: a device, a pipe, a socket.
    """
    try:
        mode = os.stat(target).st_mode
    except OSError:
        # what does not exist is made in the first folder above that does
        missing = _first_missing(target)
        place = os.path.dirname(missing)
        return place if os.path.isdir(place) and os.access(place, os.W_OK) else ""
    if stat.S_ISDIR(mode):
        return target if os.access(target, os.W_OK) else ""
    place = os.path.dirname(target)
    if stat.S_ISREG(mode) and (os.access(target, os.W_OK) or os.access(place, os.W_OK)):
        return place
    return ""


def _first_missing(path: str) -> str:
    """Returns the first part of a path that does not exist."""
    while not os.path.isdir(os.path.dirname(path)):
        path = os.path.dirname(path)
    return path


def _parents(path: str) -> list[str]:
    parents = []
    while path != os.path.dirname(path):
        path = os.path.dirname(path)
        parents.append(path)
    return parents


def _mount_points() -> list[str]:
    """Returns where something is mounted; [] where the system does not say."""
    try:
        with open(MOUNTS, "rb") as file:
            # spaces and the like are octal escapes (proc(5))
            return [
                os.fsdecode(line.split()[4].decode("unicode_escape").encode("latin-1"))
                for line in file
            ]
    except OSError:
        return []


def _shown(path: str) -> str:
    return NOT_SHOWN.sub(MARK, SPACE.sub(" ", path))


def gathered(places: Sequence[str], most: int) -> list[str]:
    """Returns `places`, or so many folders above them that there are no more than `most`."""
    few = list(dict.fromkeys(places))
    while len(few) > most:
        deepest = max(place.count(os.sep) for place in few)
        if deepest <= 1:
            return few[:most]
        above = (
            os.path.dirname(place) if place.count(os.sep) == deepest else place for place in few
        )
        few = list(dict.fromkeys(above))
    return few
