"""The text of code that is given away."""

import ast

import pytest

from vitprof.export.code.source import Needed, closure, import_lines, module_of, names_of


def test_a_part_comes_with_all_that_it_uses_and_nothing_else() -> None:
    needed = Needed()
    needed.add("vitprof.forms.memmap", ["map_npy"])
    assert list(needed.texts) == ["map_npy"]
    needed.add("vitprof.forms.memmap", ["Writer"])
    assert list(needed.texts) == ["map_npy", "JoinedFile", "Names", "add_to_each", "ENDS", "Writer"]
    assert "npy" not in needed.imports
    namespace: dict[str, object] = {}
    exec("\n".join([import_lines(needed.imports.values()), *needed.texts.values()]), namespace)
    assert callable(namespace["Writer"])


def test_two_modules_with_different_parts_of_a_name_are_refused() -> None:
    needed = Needed()
    needed.add("vitprof.forms.memmap", ["Reader"])
    with pytest.raises(ValueError, match="hdf5 has another Reader"):
        needed.add("vitprof.forms.hdf5", ["Reader"])


def test_constants_keep_the_comments_and_docstrings_that_belong_to_them() -> None:
    text = module_of("vitprof.forms.hdf5").texts["CHUNK_BYTES"]
    assert text.startswith("CHUNK_BYTES = ")
    assert text.endswith('"""')


def test_what_uses_each_other_is_found_once() -> None:
    texts = {"a": "def a(): b()", "b": "def b(): a()", "c": "def c(): a()"}
    assert closure(texts, ["a", "elsewhere"]) == {"a", "b"}


def test_imports_are_sorted_as_ruff_does() -> None:
    tree = ast.parse("from b import c\nimport os\nfrom b import a\nimport b\n")
    found = [
        of
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for of in names_of(node).values()
    ]
    assert import_lines(found) == "import os\n\nimport b\nfrom b import a, c"
