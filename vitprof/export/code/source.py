"""The text of code that is given away: what is needed of vitprof's own modules, and no more."""

import ast
import importlib.util
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path

FORMS = "vitprof.forms"
"""The package whose modules may be given away: they import nothing else of vitprof."""
Import = tuple[str, str]
"""The module, and what of it; "" and the module for a plain import."""


@dataclass(frozen=True)
class Module:
    """A file's statements, each by the name that it defines."""

    docstring: str
    imports: dict[str, Import]
    """By the name that is bound, what comes from elsewhere."""
    of_forms: dict[str, str]
    """By the name that is bound, the module of `vitprof.forms` that defines it."""
    texts: dict[str, str]
    """Functions, classes and constants, with the comments and docstrings that belong to them."""


@dataclass
class Needed:
    """Parts of modules that a script needs."""

    imports: dict[str, Import] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    """In an order in which they can be executed."""

    def add(self, module: str, names: Iterable[str]) -> None:
        """Adds what `names` of a module of `vitprof.forms` need.

        Raises `ValueError` where two modules have different parts of one name.
        """
        source = module_of(module)
        own = closure(source.texts, names)
        used = set[str]().union(*(names_in(source.texts[name]) for name in own))
        for name in sorted(used & source.of_forms.keys()):
            self.add(source.of_forms[name], [name])
        for name in used & source.imports.keys():
            self.imports[name] = source.imports[name]
        for name, text in source.texts.items():
            if name not in own:
                continue
            if self.texts.setdefault(name, text) != text:
                raise ValueError(f"{module} has another {name}")


def closure(texts: dict[str, str], names: Iterable[str]) -> set[str]:
    """Returns those of `names` that `texts` define, with all that they use of it."""
    needed = set[str]()
    to_do = set(names) & texts.keys()
    while to_do:
        needed |= to_do
        used = set[str]().union(*(names_in(texts[name]) for name in to_do))
        to_do = (used & texts.keys()) - needed
    return needed


@cache
def names_in(text: str) -> frozenset[str]:
    """Returns the names that a statement uses."""
    nodes = ast.walk(ast.parse(text))
    return frozenset(node.id for node in nodes if isinstance(node, ast.Name))


@cache
def module_of(name: str) -> Module:
    """Reads the file of a module of `vitprof.forms`."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    text = Path(spec.origin).read_text(encoding="utf-8")
    tree = ast.parse(text)
    found = Module(ast.get_docstring(tree, clean=False) or "", {}, {}, {})
    lines = text.splitlines()
    last = ""
    for node in tree.body[1:]:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(FORMS):
            found.of_forms.update({alias.name: node.module or "" for alias in node.names})
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found.imports.update(names_of(node))
        elif isinstance(node, ast.Expr):
            # The docstring of the constant above it.
            found.texts[last] += "\n" + lines_of(node, lines)
        else:
            last = name_defined(node)
            found.texts[last] = lines_of(node, lines)
    return found


def name_defined(node: ast.stmt) -> str:
    """Returns the name that a statement defines; a statement that defines none is its own name."""
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0])
    if isinstance(node, ast.AnnAssign):
        return ast.unparse(node.target)
    return getattr(node, "name", "") or ast.unparse(node)


def lines_of(node: ast.stmt, lines: list[str]) -> str:
    """Returns the lines of a statement, with the decorators and the comment above it."""
    first = min(of.lineno for of in [node, *getattr(node, "decorator_list", [])])
    while first > 1 and lines[first - 2].startswith("#"):
        first -= 1
    return "\n".join(lines[first - 1 : node.end_lineno])


def names_of(node: ast.Import | ast.ImportFrom) -> dict[str, Import]:
    """Returns, by the name that is bound, the module, and what of it; "" and the module for a plain
    import.
    """
    of = (isinstance(node, ast.ImportFrom) and node.module) or ""
    return {alias.asname or alias.name: (of, ast.unparse(alias)) for alias in node.names}


def import_lines(imports: Iterable[Import]) -> str:
    """Returns imports as ruff sorts them: the standard library apart, and plain imports first."""
    lines = list[str]()
    for module, names in groupby(sorted(set(imports)), key=lambda pair: pair[0]):
        if module:
            lines.append(f"from {module} import {', '.join(name for _, name in names)}")
        else:
            lines += [f"import {name}" for _, name in names]

    def third_party(line: str) -> bool:
        return re.split(r"\W", line)[1] not in sys.stdlib_module_names

    lines.sort(key=lambda line: (third_party(line), line.startswith("from"), line.lower()))
    return "\n\n".join("\n".join(group) for _, group in groupby(lines, key=third_party))
