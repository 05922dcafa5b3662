"""Python runs this at the start of each process below `vitprof watch`. It is idle where PyTorch is never imported. Any
Python must be able to read it, also those that are too old to be watched.

It imports only what is loaded already: a file of the script on PYTHONPATH may have the name of any
other module.
"""

import os
import sys

ROOT = "VITPROF_WATCH_ROOT"
"""Environment variable: the folder that contains vitprof. Nothing else in it can be imported."""
LEAST = (3, 10)
"""The oldest Python that is watched."""
HERE = os.path.dirname(os.path.abspath(__file__))


def _say(line):
    # type: (str) -> None
    try:  # noqa: SIM105 - nothing is imported here
        sys.stderr.write("vitprof: not watching: " + line + "\n")
    except Exception:
        pass  # standard error is closed


class _TooOld:
    """A finder that says where PyTorch is imported that this Python is not watched."""

    def find_spec(self, name, path=None, target=None):
        # type: (str, object, object) -> None
        if name == "torch":
            version = ".".join(map(str, sys.version_info[:2]))
            _say("this Python is " + version + "; vitprof watches 3.10 and newer")
            try:  # noqa: SIM105
                # a sign for the command, see `patching.leave_sign`
                open(os.environ["VITPROF_WATCH_SOCKET"] + ".old " + version, "w").close()
            except Exception:
                pass


def _own_imports():
    # type: () -> object
    """Returns the module `vitprof.watch.own_imports`, by its file: no import finds it yet."""
    from _frozen_importlib_external import SourceFileLoader

    name = "vitprof.watch.own_imports"
    module = type(sys)(name)
    loader = SourceFileLoader(name, os.path.join(os.path.dirname(HERE), "own_imports.py"))
    loader.exec_module(module)
    return module


def _run_the_next_one():
    # type: () -> None
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != HERE]
    ours = sys.modules.pop("sitecustomize", None)
    try:
        __import__("sitecustomize")
    except ImportError as error:
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours


def _watch():
    # type: () -> None
    try:
        if sys.version_info >= LEAST:
            imports = _own_imports().OwnImports(os.environ.get(ROOT))  # type: ignore[attr-defined]
            imports.install()
            imports.copies_all = True
            from vitprof.watch.install import install

            imports.copies_all = False
            install()
        elif sys.version_info >= (3,):  # noqa: UP036
            sys.meta_path.insert(0, _TooOld())
    except Exception as error:  # the script must not fail because of us
        _say(type(error).__name__ + ": " + str(error))


_watch()
_run_the_next_one()
