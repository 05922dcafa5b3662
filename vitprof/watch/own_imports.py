"""Imports of vitprof's modules in a script's process: a standard library and a clock of their own.

A script may have a file with the name of a module of the standard library, beside it or on
PYTHONPATH: `resource.py`, `statistics.py`. Python finds that first. It would be executed because
vitprof, or what it imports, imports the module of that name, and then be taken for it. So the code
of vitprof is executed with an `__import__` of its own. Where such a file is there, that gives it
private copies of modules that are not loaded. `sys.modules` has them under other names: what the
script imports is what it gets without vitprof.

Its modules also have a private copy of `time`. Libraries that stop the clock for tests (freezegun)
put their own functions in place of `time.perf_counter` in every module that has it, and tell it by
its identity.

This file is executed before any of this holds, so it imports only what the interpreter has loaded.
"""

from __future__ import annotations

import _imp
import builtins
import os
import sys
from _frozen_importlib import BuiltinImporter, ModuleSpec
from _frozen_importlib_external import PathFinder, SourceFileLoader, SourcelessFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import ModuleType
    from typing import Any

PACKAGE = "_vitprof_library"
"""The package that has the private copies: `_vitprof_library.resource`."""
CLOCK = "time"
BUILT_IN = ("built-in", "frozen")
"""Where modules come from that no file can hide."""


class OwnImports:
    """A finder, before all others, for vitprof's modules and private copies of the library's."""

    def __init__(self, root: str | None) -> None:
        """`root`: the folder that contains vitprof; nothing else in it can be imported."""
        self._root = None if root is None else [root]
        zipped = f"python{sys.version_info[0]}{sys.version_info[1]}.zip"
        parts = [path for path in sys.path if os.path.basename(path) in ("lib-dynload", zipped)]
        self._library = [os.path.dirname(os.__file__), *parts]
        self._import = builtins.__import__
        self._builtins = {**vars(builtins), "__import__": self._import_own}
        self.copies_all = False
        """Whether to make a copy of each module that is not loaded. At the start of Python the
        script's folder is not known: what were loaded then would hide the script's own module."""
        self._looked_at: list[str] = []
        """The path for which it is known whether it hides names of the library."""
        self._hidden = False

    def install(self) -> None:
        package = type(sys)(PACKAGE)
        package.__path__ = self._library
        sys.modules[PACKAGE] = package
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        top = name.partition(".")[0]
        if top not in ("vitprof", PACKAGE):
            return None
        if name == f"{PACKAGE}.{CLOCK}":
            return ModuleSpec(name, _Clock())  # type: ignore[arg-type]
        spec = PathFinder.find_spec(name, self._root if path is None else path)
        if spec is not None and isinstance(spec.loader, SourceFileLoader | SourcelessFileLoader):
            execute = spec.loader.exec_module

            def execute_with_own_imports(module: ModuleType) -> None:
                module.__dict__["__builtins__"] = self._builtins
                execute(module)

            spec.loader.exec_module = execute_with_own_imports  # type: ignore[method-assign]
        return spec

    def _import_own(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] = (),
        level: int = 0,
    ) -> ModuleType:
        top = name.partition(".")[0]
        if level or top not in sys.stdlib_module_names or not self._needs_a_copy(top):
            return self._import(name, globals, locals, fromlist, level)
        module = self._import(f"{PACKAGE}.{name}", globals, locals, fromlist or ("__name__",))
        # `import a.b` names a
        return module if fromlist else sys.modules[f"{PACKAGE}.{top}"]

    def _needs_a_copy(self, name: str) -> bool:
        """Returns whether `import name` may give, or execute, other files than the library's."""
        if name == CLOCK:
            return True
        module = sys.modules.get(name)
        if module is not None:
            return not self._is_in_library(module)
        if name == "importlib" or name in sys.builtin_module_names or _imp.is_frozen(name):
            return False
        # where the library has no such file, the import goes its usual way
        may_be_hidden = self.copies_all or self._names_are_hidden()
        return may_be_hidden and PathFinder.find_spec(name, self._library) is not None

    def _is_in_library(self, module: ModuleType) -> bool:
        origin = getattr(getattr(module, "__spec__", None), "origin", None)
        if origin is None or origin in BUILT_IN:
            return origin is not None
        folder, file = os.path.split(origin)
        if file.startswith("__init__."):
            folder = os.path.dirname(folder)
        return folder in self._library

    def _names_are_hidden(self) -> bool:
        """Returns whether any name of the library is found elsewhere: any import may lead there."""
        if self._looked_at != sys.path:
            self._looked_at = list(sys.path)
            self._hidden = any(map(_has_a_librarys_name, self._before_library()))
        return self._hidden

    def _before_library(self) -> Iterator[str]:
        for folder in sys.path:
            if folder in self._library:
                return
            yield folder


def _has_a_librarys_name(folder: str) -> bool:
    try:
        files = os.listdir(folder or os.curdir)
    except OSError:
        return False
    return not sys.stdlib_module_names.isdisjoint(file.partition(".")[0] for file in files)


class _Clock:
    """Makes another module of `time`, whose functions are the same, and are other objects."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        clock = BuiltinImporter.find_spec(CLOCK)
        assert clock is not None
        return _imp.create_builtin(clock)

    def exec_module(self, module: ModuleType) -> None:
        _imp.exec_builtin(module)
