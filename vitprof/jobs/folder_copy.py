"""A copy of a script's folder, in which a trial works as it would in the folder itself.

What names the folder by its whole path leads into the copy: links in it, words of the command, and
environment variables such as `PWD`. What leads out of the folder leads to the same place from the copy.
"""

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from vitprof.jobs.ways_out import is_below


@dataclass(frozen=True)
class FolderCopy:
    """A folder and its copy."""

    folder: str
    """Without links in its path."""
    copy: str

    def make(self) -> None:
        """Copies the folder. Raises `OSError` and `shutil.Error`."""
        shutil.copytree(self.folder, self.copy, symlinks=True)
        for link in list(_links(self.copy)):
            original = os.path.join(self.folder, os.path.relpath(link, self.copy))
            target = self.target(original)
            if target != os.readlink(link):
                os.unlink(link)
                os.symlink(target, link)

    def target(self, link: str) -> str:
        """Returns what the copy of a link in the folder is to hold."""
        text = os.readlink(link)
        beside = os.path.realpath(os.path.dirname(link))
        if not os.path.isabs(text) and self._stays(beside, text):
            return text
        path = os.path.join(beside, text)
        first = _one_step(path)
        # a link outside may lead back
        last = os.path.realpath(path)
        if not is_below(first, self.folder) and is_below(last, self.folder):
            return self.inside(last)
        return self.inside(first)

    def _stays(self, beside: str, text: str) -> bool:
        """Returns whether a relative path leads from `beside` to its end without leaving the folder."""
        parts = text.split(os.sep)
        on_the_way = [os.path.join(beside, *parts[:n]) for n in range(1, len(parts))]
        reached = [*map(os.path.realpath, on_the_way), _one_step(os.path.join(beside, text))]
        return all(is_below(path, self.folder) for path in reached)

    def inside(self, path: str) -> str:
        """Returns the path in the copy of one in the folder; any other as it is."""
        if not is_below(path, self.folder):
            return path
        return os.path.normpath(os.path.join(self.copy, os.path.relpath(path, self.folder)))

    def command(self, command: Sequence[str]) -> list[str]:
        """Returns the command as it is to be started in the copy."""
        return [self._word(word) for word in command]

    def environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Returns environment variables with the copy's paths in place of the folder's."""
        return {
            name: os.pathsep.join(self._path(part) for part in value.split(os.pathsep))
            for name, value in variables.items()
        }

    def _word(self, word: str) -> str:
        name, equals, value = word.partition("=")
        if equals and os.sep not in name:
            return name + equals + self._path(value)
        return self._path(word)

    def _path(self, text: str) -> str:
        """Returns a text in which paths in the folder are those in the copy."""
        if os.pardir in text.split(os.sep) and not self._stays(self.folder, text):
            path = os.path.join(self.folder, text)
            # a text that is no path, such as a program, leads nowhere
            if os.path.isdir(os.path.dirname(path)):
                return self.inside(_one_step(path))
        named = self._named().sub(lambda _: self.copy, text)
        if named == text and os.path.isabs(text):
            # by a link that leads into the folder
            path = _one_step(text)
            return self.inside(path) if is_below(path, self.folder) else text
        return named

    def _named(self) -> "re.Pattern[str]":
        """Returns what finds the folder's path in a text, and not one that only begins like it."""
        before = r"(?:(?<![\w./~-])|(?<=^-\w))"
        return re.compile(before + re.escape(self.folder) + r"(?![\w.~-])")


def _one_step(path: str) -> str:
    """Returns a path without links on its way. Where it ends in a link it is that link's own: the
    script may turn that one elsewhere.
    """
    folder, name = os.path.split(path)
    if name in ("", os.curdir, os.pardir):
        return os.path.realpath(path)
    return os.path.join(os.path.realpath(folder), name)


def _links(folder: str) -> Iterator[str]:
    """Yields the links in a folder and below it."""
    for path, folders, files in os.walk(folder):
        for name in (*folders, *files):
            link = os.path.join(path, name)
            if os.path.islink(link):
                yield link
