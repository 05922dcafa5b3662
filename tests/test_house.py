"""The house rules that a program can see: sizes, modules with one importer, names."""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.test_imports import PACKAGE, imported, modules, nodes

TESTS = Path(__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
OWN = [path for path in FILES if "scripts" not in path.parts]
"""All but the scripts of `vitprof code`, which are written for somebody else's folder."""
HOUSE = 31_360, 47_900, 256, 40_400
OWN_DATA, RANKS = (2_730, 4_400, 44, 1_900), (2_600, 4_300, 40, 2_600)
"""The budget of `vitprof/`: lines of code (without docstrings, comments, imports and blanks), all lines, files; and the
lines of tests. Never above 31,000, 47,000, 330 and 40,000 for the house. What reads a user's own data gets 3,000 lines
of code more, and so do many ranks and machines: what the house's modules call them with is among that, 270 and 400."""
OF_OWN_DATA = frozenset(
    ["conversion", "convert", "data", "dataset", "datasets", "dataset_report", "forms", "plugins", "roofline"]
) | {"foreign_models", "own_sets", "sample_values", "torchcodec_images"}
OF_OWN_DATA |= {"optional_parts", "spdl_pipeline", "litdata_chunks"}
OF_RANKS = frozenset(["ranks", "stragglers", "cluster", "nodes", "metrics", "otlp_metrics", "trackers", "machines"])
OF_RANKS |= {"migrations", "versions", "owners", "retention", "postgresql"}
"""Modules and folders of those."""
IMPORTS_PCT = 9.0
"""The most import lines of the house, as a share of code and imports."""
METHODS, ATTRIBUTES = 15, 10
"""The most methods of a class, and the most attributes that change after `__init__`."""
LARGE = {"watch/fast_path.py::PlainSteps"}
"""Classes that are still larger; none is added."""
SMALL = 100
"""A module with fewer lines and a single importer in its own folder is part of that importer."""
DIALECT = frozenset(["told", "heard", "asking", "holders", "left_out", "beside", "hand_on", "take_in"])
"""Names that a reader would have to learn here first."""


def spanned(found: Iterable[ast.stmt | ast.expr]) -> set[int]:
    """The lines of some statements."""
    return {line for node in found for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}


def count(path: Path) -> tuple[int, int, int]:
    """The lines of code, of imports, and all lines of a file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    imports = spanned(n for n in nodes(path) if isinstance(n, ast.Import | ast.ImportFrom))
    texts = [n for n in nodes(path) if isinstance(n, ast.JoinedStr | ast.Constant) and n.lineno != n.end_lineno]
    docstrings = [n for n in nodes(path) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)]
    code = {number for number, line in enumerate(lines, 1) if line.strip() and not line.lstrip().startswith("#")}
    docs = spanned(n for n in docstrings if isinstance(n.value.value, str))  # type: ignore[attr-defined]
    return len((code | spanned(texts)) - imports - docs), len(imports), len(lines)


def is_of_own_data(path: Path) -> bool:
    stem = path.stem.removeprefix("test_")
    if path.parent.parent.name == "engine":  # data sets of vitprof's own
        return stem in ("own", "tar_shards", "drive", "spdl_pipeline", "litdata_chunks")
    return stem in OF_OWN_DATA or path.parent.name in ("forms", "plugin", "sets")


def part(path: Path) -> tuple[int, ...]:
    """The budget that a file belongs to."""
    if is_of_own_data(path):
        return OWN_DATA
    return RANKS if {path.stem.removeprefix("test_"), path.parent.name} & OF_RANKS else HOUSE


@pytest.mark.parametrize("budget", [HOUSE, OWN_DATA, RANKS], ids=["house", "own data", "ranks"])
def test_the_budget_holds(budget: tuple[int, ...]) -> None:
    files = [path for path in FILES if part(path) is budget]
    counted = np.array([count(path) for path in files]).reshape(-1, 3)
    code, imports, lines = counted.sum(axis=0).tolist()
    n_tests = sum(
        len(path.read_text(encoding="utf-8").splitlines()) for path in TESTS.rglob("*.py") if part(path) is budget
    )
    assert all(n <= most for n, most in zip((code, lines, len(files), n_tests), budget, strict=True))
    assert budget is not HOUSE or 100 * imports / (code + imports) <= IMPORTS_PCT


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    for path in FILES:
        for node in nodes(path):
            if isinstance(node, ast.ClassDef):
                yield f"{path.relative_to(PACKAGE)}::{node.name}", node


def test_no_class_is_a_house_of_its_own() -> None:
    large = set()
    for name, node in classes():
        functions = [n for n in node.body if isinstance(n, ast.FunctionDef)]
        changing = {
            target.attr
            for function in functions
            if function.name not in ("__init__", "__post_init__")
            for target in ast.walk(function)
            if isinstance(target, ast.Attribute) and isinstance(target.ctx, ast.Store)
            if isinstance(target.value, ast.Name) and target.value.id == "self"
        }
        if len(functions) > METHODS or len(changing) > ATTRIBUTES:
            large.add(name)
    assert large == LARGE


def importers() -> dict[str, set[str]]:
    """For each module, the modules that import it, wherever in them."""
    known = modules()
    users: dict[str, set[str]] = defaultdict(set)
    for name, path in known.items():
        for dotted in imported(path):
            for module in (dotted, dotted.rpartition(".")[0]):
                if module in known and module != name:
                    users[module].add(name)
                    break
    return users


BOUNDARIES = frozenset(
    {
        "vitprof.engine.torchcodec_images",  # an optional package's import
        "vitprof.engine.data.mnist",  # a plug-in: a data set by its name
        "vitprof.config.plugins",  # other packages' entry points
        "vitprof.analysis.tournament.nodes",  # many ranks and machines, which have a budget of their own
        "vitprof.ui.profile.ranks",
        "vitprof.recording.ranks",
        "vitprof.jobs.nodes",
        "vitprof.store.owners",
        "vitprof.export.ranks",
        "vitprof.watch.proxy",  # passes for objects of any kind: no part of what is declared with it
    }
)
"""Modules that are small on purpose: a Protocol, a plug-in, a child process's entry, the import of a large package."""


def test_a_small_module_with_one_importer_beside_it_is_part_of_it() -> None:
    users, small = importers(), set()
    for name, path in modules().items():
        if path.name == "__init__.py" or name in BOUNDARIES or len(path.read_text().splitlines()) >= SMALL:
            continue
        of = users.get(name, set())
        folders = {modules()[user].parent for user in of if modules()[user].name != "__init__.py"}
        if len(of) == 1 and folders == {path.parent}:
            small.add(name)
    assert not small


def test_names_are_the_fields() -> None:
    stored = {
        f"{path.relative_to(PACKAGE)}: {node.id}"
        for path in FILES
        for node in nodes(path)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in DIALECT
    }
    assert not stored
    assert not [path for path in FILES if path.stem in DIALECT]


def test_files_can_be_read() -> None:
    assert {path.stem for path in OWN if len(path.read_text().splitlines()) > 400} <= {"printed"}
