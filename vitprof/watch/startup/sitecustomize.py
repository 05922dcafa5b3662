"""Python runs this at the start of each process below `vitprof watch`. It is idle where PyTorch is never imported."""

import importlib
import os
import sys

ROOT = "VITPROF_WATCH_ROOT"
"""Environment variable: the folder that contains vitprof, for an environment in which it is not installed."""


def _run_the_next_one() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    ours = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours


def _watch() -> None:
    try:
        root = os.environ.get(ROOT)
        if root and root not in sys.path:
            sys.path.append(root)  # last, so that the script's own imports do not change
        from vitprof.watch.install import install

        install()
    except Exception as error:  # the script must not fail because of us
        sys.stderr.write(f"vitprof: not watching: {error}\n")


_watch()
_run_the_next_one()
