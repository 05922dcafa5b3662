"""Python runs this at the start of each process below `vitprof watch`. It is idle where PyTorch is never imported. Any
Python must be able to read it, also those that are too old to be watched.
"""

import contextlib
import importlib
import os
import sys

ROOT = "VITPROF_WATCH_ROOT"
"""Environment variable: the folder that contains vitprof. Nothing else in it can be imported."""
LEAST = (3, 10)
"""The oldest Python that is watched."""


def _say(line):
    # type: (str) -> None
    with contextlib.suppress(Exception):  # standard error is closed
        sys.stderr.write("vitprof: not watching: " + line + "\n")


class _Vitprof:
    """A finder of vitprof alone: other packages beside it may be for another Python, or missing where the script is."""

    def find_spec(self, name, path=None, target=None):
        # type: (str, object, object) -> object
        if name == "vitprof":
            from importlib.machinery import PathFinder

            return PathFinder.find_spec(name, [os.environ[ROOT]])
        if name == "torch" and sys.version_info < LEAST:
            version = ".".join(map(str, sys.version_info[:2]))
            _say("this Python is " + version + "; vitprof watches 3.10 and newer")
            with contextlib.suppress(
                Exception
            ):  # a sign for the command, see `patching.leave_sign`
                open(os.environ["VITPROF_WATCH_SOCKET"] + ".old " + version, "w").close()
        return None


def _run_the_next_one():
    # type: () -> None
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    ours = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours


def _watch():
    # type: () -> None
    try:
        if os.environ.get(ROOT) and sys.version_info >= (3,):
            sys.meta_path.insert(0, _Vitprof())  # type: ignore[arg-type]
        if sys.version_info >= LEAST:
            from vitprof.watch.install import install

            install()
    except Exception as error:  # the script must not fail because of us
        _say(type(error).__name__ + ": " + str(error))


_watch()
_run_the_next_one()
