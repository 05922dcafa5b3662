"""Python runs this at the start of each process below `vitprof watch`. Idle where PyTorch is never imported.

Another `sitecustomize` that this one stands in front of runs all the same.
"""

import importlib
import os
import sys

ROOT = "VITPROF_WATCH_ROOT"
"""Names the folder that vitprof lies in, for an environment it is not installed in."""


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
            sys.path.append(root)  # last: whatever the script imports comes from where it did
        from vitprof.watch import on_import

        on_import.install()
    except Exception as error:  # the script must not fail because of us
        sys.stderr.write(f"vitprof: not watching: {error}\n")


_watch()
_run_the_next_one()
