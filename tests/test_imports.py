"""Who imports whom, and no torch in the dashboard's process."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests import ROOT
from vitprof.forms import FORMS, is_installed

PACKAGE = ROOT / "vitprof"
PAGES = [*sorted((ROOT / "pages").glob("*.py")), ROOT / "app.py"]
COLUMNS = PACKAGE / "recording" / "columns.py"
"""A part of recording/ that every folder may use: it imports nothing but the standard library."""
WATCH = PACKAGE / "watch"
EVENTS = [
    *(WATCH / f"{name}.py" for name in ("events", "event_log", "time_sketch")),
    *(WATCH / "core").glob("*.py"),
]
"""The parts of watch/ that work outside of the watched process."""
OUTSIDE = ("events", "event_log", "time_sketch", "core")
FILES = [*sorted(PACKAGE.rglob("*.py")), *PAGES]

BASE = "attempts errors formats home masking names parents program columns cores choices confined"
MAY_IMPORT = {
    "attempts": "",
    "masking": "",
    "errors": "masking",
    "formats": "",
    "names": "",
    "parents": "",
    "cores": "",
    "columns": "",
    "descriptors": "",
    "forms": "",
    "home": "errors",
    "program": "",
    "confined": "cores",
    "choices": "errors",
    "unwatched": "errors program",
    "telemetry": BASE,
    "datasets": f"{BASE} forms",
    "config": f"{BASE} telemetry datasets forms",
    "recording": f"{BASE} telemetry config datasets",
    "analysis": f"{BASE} telemetry datasets config recording forms",
    "measure": f"{BASE} telemetry datasets config",
    "engine": f"{BASE} telemetry config measure datasets forms",
    "events": f"{BASE} measure",
    "watch": f"{BASE} descriptors measure events forms",
    "traces": f"{BASE} telemetry datasets config recording analysis measure",
    "store": f"{BASE} telemetry datasets config recording analysis",
    "charts": f"{BASE} telemetry datasets config recording analysis",
    "jobs": f"{BASE} telemetry datasets config recording analysis measure events engine traces store charts",
    "experiments": f"{BASE} telemetry datasets config recording analysis measure engine store charts jobs forms",
    "selftest": f"{BASE} telemetry datasets config recording analysis measure engine store charts jobs experiments",
    "export": f"{BASE} telemetry datasets config recording analysis store charts jobs forms",
    "demo": f"{BASE} telemetry datasets config recording analysis store charts jobs export",
    "ui": f"{BASE} telemetry demo datasets config recording analysis store charts jobs experiments selftest export",
    "mcp_server": f"{BASE} telemetry forms events datasets config recording analysis store charts jobs experiments "
    "export",
    "cli": f"{BASE} telemetry forms events demo datasets config recording analysis traces store charts jobs "
    "experiments selftest export mcp_server",
    "notebook": f"{BASE} telemetry config recording analysis store charts jobs experiments selftest export",
    "app": "errors config store ui",
    "__main__": "descriptors unwatched cli",
    "__init__": "watch notebook",
}
"""What each folder, or file at the top, may import besides itself. Each line names only what stands above it."""


def folder(path: Path) -> str:
    """The name in `MAY_IMPORT` that a file belongs to."""
    if not path.is_relative_to(PACKAGE):
        return "app"
    if path == COLUMNS:
        return "columns"
    if path in EVENTS:
        return "events"
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a file, gathered once for all tests."""
    return tuple(ast.walk(parsed(path)))


def imported(path: Path) -> Iterator[str]:
    """The dotted names that a file imports, wherever in it. Names from `from a import b` as a.b."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports are not used here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def folders(path: Path) -> set[str]:
    """The folders of vitprof that a file imports from."""
    columns = "vitprof.recording.columns"
    parts = [name.replace(columns, "vitprof.columns").split(".") for name in imported(path)]
    found = {p[1] for p in parts if p[0] == "vitprof" and len(p) > 1 and not p[1].startswith("__")}
    of_events = [p for p in parts if p[:2] == ["vitprof", "watch"] and p[2:3] and p[2] in OUTSIDE]
    others = [p for p in parts if p[:2] == ["vitprof", "watch"] and p not in of_events]
    if of_events:
        found.add("events")
    return found if others else found - {"watch"}


def test_imports_run_one_way() -> None:
    upward = {
        f"{path.relative_to(ROOT)} -> {other}"
        for path in FILES
        for other in folders(path) - {folder(path)} - set(MAY_IMPORT[folder(path)].split())
    }
    assert not upward


def test_the_table_names_every_folder_once_and_nothing_below_itself() -> None:
    assert set(MAY_IMPORT) == {folder(path) for path in FILES}
    names = list(MAY_IMPORT)
    for i, name in enumerate(names):
        assert set(MAY_IMPORT[name].split()) <= set(names[:i]), name


@functools.cache
def modules() -> dict[str, Path]:
    """Every module of vitprof, by its dotted name; without what `vitprof code` writes, which nobody imports."""
    scripts = PACKAGE / "export" / "code" / "scripts"
    paths = (path for path in PACKAGE.rglob("*.py") if path.parent != scripts)
    dotted = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in paths}
    return {name.removesuffix(".__init__"): path for name, path in dotted.items()}


def needs_of_modules() -> dict[str, set[str]]:
    """Returns for each module the modules that it imports, in functions and for type checkers too."""
    known = modules()
    needs: dict[str, set[str]] = {}
    for name, path in known.items():
        found = {
            dotted if dotted in known else dotted.rpartition(".")[0] for dotted in imported(path)
        }
        # a package is begun before its modules
        needs[name] = {f for f in found & set(known) if not f"{name}.".startswith(f"{f}.")}
    return needs


def test_no_module_imports_itself_by_a_detour() -> None:
    needs = needs_of_modules()
    # what needs nothing that remains is in no circle, and neither is what nothing that remains needs
    while free := [name for name in needs if not needs[name] & set(needs)]:
        for name in free:
            del needs[name]
    while free := [name for name in needs if not any(name in other for other in needs.values())]:
        for name in free:
            del needs[name]
    assert not needs


def test_only_the_store_talks_to_the_database_and_only_the_user_interface_imports_streamlit() -> (
    None
):
    """The store's methods are whole transactions: nobody else opens one or asks in SQL."""
    for path in FILES:
        packages = {name.split(".")[0] for name in imported(path)}
        assert folder(path) in ("ui", "app") or "streamlit" not in packages, path
        if folder(path) == "store":
            continue
        assert "sqlalchemy" not in packages, path
        # `files.writing` is of a data set: what makes one has no store
        opens = (
            ("transaction",)
            if folder(path) in ("engine", "measure", "datasets")
            else ("transaction", "writing")
        )
        calls = (node.func for node in nodes(path) if isinstance(node, ast.Call))
        assert not [f.attr for f in calls if isinstance(f, ast.Attribute) and f.attr in opens], path


def python(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True, cwd=ROOT
    )


def is_importable(name: str) -> bool:
    """Returns whether the packages that a form needs are installed; all else is importable."""
    form = name.removeprefix("vitprof.forms.")
    return form not in FORMS or is_installed(form)


def test_the_dashboard_imports_no_torch() -> None:
    """Nor does the command line: jobs have a process of their own. Every module outside the engine is imported."""
    names = sorted(
        name
        for name, path in modules().items()
        if folder(path) not in ("engine", "measure", "__main__")
    )
    # for a process that trains; nothing here may import their folder at all
    alone = "callbacks.lightning callbacks.transformers stored_samples"
    for name in ["demo.slow_dataset", *(f"watch.{name}" for name in alone.split())]:
        names.remove(f"vitprof.{name}")
    # where their samples are read or written; a data set of the user's is read here, too
    of_torch = "stored pt litdata mosaicml script.cut script.conversion"
    with_torch = [f"vitprof.forms.{name}" for name in of_torch.split()]
    names = [name for name in names if name not in with_torch and is_importable(name)]
    names.remove("vitprof.datasets.scenes")  # photos are drawn by it, with OpenCV, in a job
    names.remove("vitprof.store.migrations.env")  # Alembic runs it
    assert "vitprof.ui.compare" in names
    names.sort(
        key=lambda name: name.startswith("vitprof.ui")
    )  # last, for the others must do without Streamlit
    script = "import sys\n"
    for name in names:
        banned = {"torch", "torchvision", "cv2"} | (
            set() if name.startswith("vitprof.ui") else {"streamlit"}
        )
        script += f"import {name}\nassert not {banned} & set(sys.modules), 'it came with {name}'\n"
    ended = python(script)
    assert ended.returncode == 0, ended.stderr.splitlines()[-1]


def at_once(body: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports that happen as a module is imported: none in functions or for type checkers."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from at_once(node.orelse)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for inner in ("body", "orelse", "finalbody"):
                yield from at_once(getattr(node, inner, []))
            for handler in getattr(node, "handlers", []):
                yield from at_once(handler.body)


def come_with(*begun: str) -> set[str]:
    """The dotted names that come with these modules of vitprof: they, what they import, and so on."""
    known = modules()
    seen = set[str]()
    todo = [*begun]
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        if name not in known:
            continue
        todo += [parent for parent in [name.rpartition(".")[0]] if parent in known]
        for node in at_once(parsed(known[name]).body):
            names = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{each}" for each in names] + [str(node.module)]
            todo += names
    return seen


def brought(*begun: str) -> set[str]:
    """The packages of others that come with these modules of vitprof, and with what they import."""
    packages = {name.partition(".")[0] for name in come_with(*begun)}
    return packages - sys.stdlib_module_names - {"vitprof"}


def test_a_watched_process_imports_forms_when_a_dataset_is_looked_at() -> None:
    """Or replaced by stored samples: not as it starts, nor as its training is watched."""
    watching = [name for name in modules() if name.startswith("vitprof.watch.patches")]
    began = come_with(
        "vitprof.watch.install", "vitprof.watch.trial", "vitprof.watch.api", *watching
    )
    assert "vitprof.watch.data_report" in began
    assert not {name for name in began if name.startswith("vitprof.forms")}
    at_start = brought("vitprof.watch.install", "vitprof.watch.trial")
    assert not at_start, "they may be missing"


def test_a_job_without_image_files_needs_none_of_their_packages() -> None:
    """Those of the extra images."""
    job = ("engine.train", "engine.loaders.batch_assembly", "engine.loaders.dataloader")
    outside = brought(*(f"vitprof.{name}" for name in job))
    assert "torch" in outside
    assert not {"cv2", "simplejpeg", "nvidia"} & outside


def test_the_command_line_needs_the_core_alone() -> None:
    """All commands come with `vitprof.cli`. What they import later is tried in tests/test_extras.py."""
    modules_of = {"nvidia-ml-py": "pynvml"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    core = [re.split("[<>=]", line)[0] for line in project["optional-dependencies"]["core"]]
    with_pydantic = {"pydantic_core", "typing_extensions"}
    outside = brought("vitprof.cli", "vitprof.jobs.command", "vitprof.jobs.supervisor")
    assert "typer" in outside
    assert outside <= {modules_of.get(name, name) for name in core} | with_pydantic
    assert not brought("vitprof.__main__"), "this starts a script whatever is missing"


def test_a_bare_import_brings_nothing() -> None:
    script = "import sys; before = set(sys.modules); import vitprof; print(*sorted(set(sys.modules) - before))"
    assert python(script).stdout.split() == ["vitprof"]
