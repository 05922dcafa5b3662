"""How a user's own data set is written: `folder:PATH`, `csv:FILE?path=..&label=..`, or a function
that makes it.
"""

import importlib
import importlib.util
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import parse_qsl

from vitprof.errors import ConfigError
from vitprof.forms import FORMS
from vitprof.masking import MASKED
from vitprof.names import in_one_line
from vitprof.program import program

if TYPE_CHECKING:
    from vitprof.forms.gate import Gate

SYNTAX: dict[str, str] = {
    "folder": "folder:PATH or folder:s3://BUCKET/PATH",
    "csv": "csv:FILE?path=COLUMN&label=COLUMN",
    "parquet": "parquet:FILE?path=COLUMN&label=COLUMN",
    "hdf5": "hdf5:FILE?images=NAME&labels=NAME",
    "lmdb": "lmdb:PATH",
    "webdataset": "webdataset:PATH/{0000..0009}.tar",
    "hf": "hf:PATH",
    "python": "file.py:FUNCTION or package.module:FUNCTION",
}
"""Kind -> how it is written."""
OPTIONS: dict[str, tuple[str, ...]] = {
    "csv": ("path", "label"),
    "parquet": ("path", "image", "label"),
    "hdf5": ("images", "labels", "layout", "black", "white"),
    "hf": ("image", "label", "split"),
}
ALIASES = {"hfds/": "hf:", "wds/": "webdataset:"}
"""timm's prefixes -> ours."""
FUNCTION = re.compile(r"(?P<module>[^:?]+):(?P<function>[A-Za-z_]\w*)")
CODE_ALLOWED = "VITPROF_RUN_CODE"
"""Environment variable: set to 1 where jobs may call functions of the user's; the command line sets
it."""
ROOTS = "VITPROF_DATA_ROOTS"
"""Environment variable: folders below which the dashboard may read data, separated as in PATH."""


@dataclass(frozen=True)
class Spec:
    """Where a data set is, and how it is kept."""

    kind: str
    """One of `SYNTAX`, or a form of `vitprof.forms` that `convert` stored samples in."""
    path: str
    """File or folder; of a function its module or file."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Names in `OPTIONS`, for a function also "function"."""


def wrong(text: str, why: str) -> ConfigError:
    """Returns the error to raise for a spec that cannot be used, in one line: names of files may have more."""
    return ConfigError("dataset", text, in_one_line(why))


def parse(text: str) -> Spec:
    """Returns what `text` names; relative paths are from the current folder. Raises `ConfigError`."""
    for prefix, ours in ALIASES.items():
        if text.startswith(prefix):
            text = f"{ours}{text.removeprefix(prefix)}"
    kind, _, rest = text.partition(":")
    is_known = kind in SYNTAX or kind in FORMS
    if not is_known or kind == "python":
        named = FUNCTION.fullmatch(text)
        if not named:
            raise wrong(text, f"write it as {', '.join(SYNTAX.values())}")
        path = named["module"]
        if path.endswith(".py"):
            path = str(Path(path).absolute())
        return Spec("python", path, {"function": named["function"]})
    path, _, query = rest.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    allowed = OPTIONS.get(kind, ())
    unknown = sorted(set(options) - set(allowed))
    if unknown:
        takes = f"it takes {', '.join(allowed) or 'none'}"
        raise wrong(text, f"{kind} has no option {unknown[0]}; {takes}")
    if not path:
        how = SYNTAX.get(kind, f"{kind}:FOLDER")
        raise wrong(text, f"its path is missing; write {how}")
    if is_remote(path):
        if MASKED in path:
            raise wrong(text, f"give the secret in place of {MASKED}")
        if kind != "folder":
            raise wrong(
                text,
                f"{kind} is read from a disk of this machine; of {path} folder: is read, file by file",
            )
        return Spec(kind, path.rstrip("/"), options)
    try:
        whole = Path(path).expanduser().absolute()
    except RuntimeError as error:
        raise wrong(text, f"there is no home directory for it ({error})") from error
    return Spec(kind, str(whole), options)


def absolute(text: str) -> str:
    """Returns a spec with its path from the root, as it is kept. Raises `ConfigError`."""
    spec = parse(text)
    if spec.kind == "python":
        return f"{spec.path}:{spec.options['function']}"
    kept = f"{spec.kind}:{spec.path}"
    query = text.partition("?")[2]
    if query:
        kept += f"?{query}"
    return kept


def needs_library(spec: Spec) -> bool:
    """Returns whether a library opens the files of `spec` by itself: a damaged file may end its
    process.
    """
    return spec.kind not in ("folder", "csv", "python", "webdataset") and not is_remote(spec.path)


def stamp_of(files: Iterable[str | Path], start: int = 0) -> str:
    """Returns a text that changes with size and time of files."""
    stamp = start
    for path in files:
        # A module, a URL and a pattern of shards are no files here.
        with suppress(OSError, ValueError):
            seen = os.stat(path)
            stamp = zlib.crc32(f"{seen.st_size},{seen.st_mtime_ns};".encode(), stamp)
    return f"{stamp:08x}"


def stamp_of_library_files(spec: Spec) -> str:
    """Returns `stamp_of` the files that a library opens for `spec`; "" where none does."""
    if not needs_library(spec):
        return ""
    # Imported here: a watched script knows specs, and imports no form.
    from vitprof.forms.gate import Gate

    if os.path.isdir(spec.path):
        return stamp_of(Gate().files_below(Path(spec.path)))
    return stamp_of([spec.path])


def is_remote(path: str) -> bool:
    """Returns whether a path is a URL for fsspec, such as s3://bucket/images."""
    return "://" in path


def function_of(text: str, field: str = "dataset") -> Callable[..., Any]:
    """Returns the function that `text` names, as `FUNCTION` says.

    Raises `ConfigError`, and whatever its module raises when it is imported.
    """
    named = FUNCTION.fullmatch(text)
    if named is None:
        raise ConfigError(field, text, f"write it as {SYNTAX['python']}")
    path = named["module"]
    name = named["function"]
    if path.endswith(".py"):
        found = importlib.util.spec_from_file_location("vitprof_own_code", path)
        if found is None or found.loader is None or not os.path.isfile(path):
            raise ConfigError(field, text, f"{path} does not exist")
        module = importlib.util.module_from_spec(found)
        # Dataclasses look for their module there.
        sys.modules[found.name] = module
        # As `python file.py` does it: its own imports are found.
        sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
        found.loader.exec_module(module)
    else:
        sys.path.insert(0, os.getcwd())
        module = importlib.import_module(path)
    function = getattr(module, name, None)
    if not callable(function):
        raise ConfigError(field, text, f"{path} has no function {name}")
    return function  # type: ignore[no-any-return]


def roots(*, local: bool) -> tuple[Path, ...]:
    """Returns the folders below which pages may read: those of `VITPROF_DATA_ROOTS`.

    If it names none, it is the home directory where only this machine is served (`local`), and no
    folder where others are: whoever opens a page could read any image of this user's.
    """
    named = [part for part in os.environ.get(ROOTS, "").split(os.pathsep) if part]
    found = [Path(part).expanduser() for part in named]
    if local and not named:
        found = [Path.home()]
    return tuple(path.resolve() for path in found)


def is_below(path: str | Path, folders: tuple[Path, ...]) -> bool:
    """Returns whether a path is below one of the folders, links and `..` followed."""
    # Imported here: a watched script knows specs, and imports no form.
    from vitprof.forms.gate import Gate

    return Gate(folders).is_inside(path)


def ensure_inside(text: str, spec: Spec, gate: "Gate") -> None:
    """Raises `ConfigError` where a page may not read what `spec` names."""
    # These run code of the user's, or follow paths that the files name.
    form = FORMS.get(spec.kind)
    is_by_itself = form is not None and (form.needs_torch or form.names_files)
    if spec.kind in ("python", "hf") or is_by_itself:
        raise wrong(
            text, f"this kind is added only on the command line: {program()} datasets add NAME SPEC"
        )
    if is_remote(spec.path):
        raise wrong(
            text,
            f"what is on a network is added only on the command line: {program()} datasets add NAME SPEC",
        )
    if not gate.roots:
        raise wrong(
            text,
            f"this dashboard serves other machines too: set {ROOTS} to the folders that it may read",
        )
    paths = [spec.path]
    if spec.kind == "webdataset":
        # NumPy comes with it, which a watched script's Python and the start of a command do not need
        from vitprof.forms.webdataset import shards_of

        def refuse(why: str) -> NoReturn:
            raise wrong(text, why)

        paths = shards_of(spec.path, refuse)
    if not all(gate.is_inside(path) for path in paths):
        raise wrong(
            text,
            f"it is not below {', '.join(map(str, gate.roots))}; add it in a console, or set {ROOTS} to more folders",
        )
