"""Where forms are read and written, and what their modules bring."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.test_imports import PACKAGE, folder, imported
from vitprof.forms import FORMS, is_installed, module_name

LIBRARIES = {
    "fsspec",
    "h5py",
    "lmdb",
    "tarfile",
    "webdataset",
    "litdata",
    "streaming",
    "lance",
    "datasets",
}
"""Libraries of forms. Parquet is not among them: recordings are kept in it, too."""
ELSEWHERE = {"pyarrow"}
"""Libraries that other folders have other uses of."""


def reads_a_form(path: Path) -> bool:
    """Returns whether a file imports the library of a form, or opens a file as one by NumPy or PyTorch."""
    libraries = LIBRARIES
    if folder(path) in ("engine", "sets", "watch"):
        libraries = LIBRARIES | ELSEWHERE
    if libraries & {name.partition(".")[0] for name in imported(path)}:
        return True
    text = path.read_text(encoding="utf-8")
    calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    for call in calls:
        if ast.unparse(call.func) in ("torch.load", "np.memmap", "np.lib.format.open_memmap"):
            return True
        maps = {word.arg for word in call.keywords} & {"mmap_mode"}
        if ast.unparse(call.func) == "np.load" and maps:
            return True
    return False


def test_no_form_is_read_or_written_outside_of_forms() -> None:
    paths = [path for path in PACKAGE.rglob("*.py") if PACKAGE / "forms" not in path.parents]
    assert not [path for path in paths if reads_a_form(path)]


def test_the_module_of_a_form_needs_nothing_else_of_vitprof_and_no_more_than_its_library() -> None:
    """A script's own Python has no more, and exported code has the module's text."""
    usual = {"vitprof", "numpy", "PIL", *sys.stdlib_module_names}
    for form, facts in FORMS.items():
        top = PACKAGE / "forms" / (facts.module or form)
        paths = [*top.rglob("*.py")] or [top.with_suffix(".py")]
        allowed = usual | {facts.package, "pyarrow" if form == "lance" else facts.package}
        if facts.needs_torch:
            allowed.add("torch")
        for path in paths:
            others = {name for name in imported(path) if name.startswith("vitprof.")}
            assert all(name.startswith("vitprof.forms.") for name in others), path
            assert {name.partition(".")[0] for name in imported(path)} <= allowed, path


def test_what_runs_in_a_scripts_own_python_needs_no_more_than_is_there() -> None:
    """PyTorch and NumPy; of vitprof the forms alone."""
    usual = {"vitprof", "numpy", "torch", "PIL", *sys.stdlib_module_names}
    paths = [*(PACKAGE / "forms" / "script").glob("*.py")]
    assert paths
    for path in paths:
        names = set(imported(path))
        others = {name for name in names if name.startswith("vitprof")}
        assert all(name.startswith("vitprof.forms.") for name in others), path
        assert {name.partition(".")[0] for name in names} <= usual, path


@pytest.mark.parametrize("form", [name for name in FORMS if not FORMS[name].needs_torch])
def test_a_form_is_read_without_pytorch(form: str) -> None:
    if not is_installed(form):
        pytest.skip(f"{FORMS[form].package} is not installed")
    script = f"import sys, {module_name(form)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False, cwd=ROOT).returncode == 0
