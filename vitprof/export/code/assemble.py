"""Joins fragments of Python text: fills in blanks, merges and sorts imports, puts two lines between definitions.

A fragment is a file `fragments/<name>.py.txt`: imports first, then code, with blanks such as `$TAKE` as in
`string.Template`. A blank alone on its line takes any number of lines, at that line's indentation; where the blank is
empty, the line is removed. Each fragment imports all that it may need; imports that no line uses are left out.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from string import Template

FRAGMENTS = Path(__file__).with_name("fragments")
WORD = re.compile(r"\w+")
IMPORT = re.compile(r"^(?:from (\S+) )?import (.+)$")
ALONE = re.compile(r"^( *)\$([A-Z_]+)$")


@cache
def _text(name: str) -> str:
    return (FRAGMENTS / f"{name}.py.txt").read_text(encoding="utf-8")


def fragment(name: str, blanks: Mapping[str, str]) -> str:
    """Returns the fragment called `name` with its blanks filled in. Raises `KeyError` for a blank without a value."""
    lines: list[str] = []
    for line in _text(name).splitlines():
        if found := ALONE.match(line):
            lines += [found[1] + filling if filling else "" for filling in blanks[found[2]].splitlines()]
        else:
            lines.append(Template(line).substitute(blanks))
    return "\n".join(lines)


def module(docstring: str, constants: str, pieces: Iterable[str]) -> str:
    """Returns a Python module: docstring, the imports of all `pieces`, `constants` (which may not import), the
    pieces.
    """
    plain: set[str] = set()
    of_module: defaultdict[str, set[str]] = defaultdict(set)
    bodies: list[str] = []
    for piece in pieces:
        lines = piece.splitlines()
        while lines and (not lines[0] or IMPORT.match(lines[0])):
            if found := IMPORT.match(lines.pop(0)):
                if found[1]:
                    of_module[found[1]].update(found[2].split(", "))
                else:
                    plain.add(found[2])
        bodies.append("\n".join(lines))
    used = set(WORD.findall("\n".join([constants, *bodies])))
    plain = {name for name in plain if name.split(" as ")[-1].split(".")[0] in used}
    needed = {name: names & used for name, names in of_module.items() if names & used}
    imports = _imports(plain, needed)
    return "\n\n\n".join([f"{docstring}\n\n{imports}\n\n{constants}", *bodies]) + "\n"


def _imports(plain: set[str], of_module: Mapping[str, set[str]]) -> str:
    """Returns the imports in isort's order: the standard library's, a blank line, the others'."""
    groups: dict[bool, list[str]] = {True: [], False: []}
    for name in sorted(plain, key=str.lower):
        groups[_is_standard(name)].append(f"import {name}")
    for name in sorted(of_module, key=str.lower):
        groups[_is_standard(name)].append(f"from {name} import {', '.join(sorted(of_module[name], key=_by_kind))}")
    return "\n\n".join("\n".join(group) for group in groups.values() if group)


def _is_standard(name: str) -> bool:
    return WORD.findall(name)[0] in sys.stdlib_module_names


def _by_kind(name: str) -> tuple[int, str]:
    """Returns the key that sorts names in isort's order: constants, classes, the rest."""
    return 0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2, name
