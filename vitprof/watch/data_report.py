"""Writes what the dataset of the loader that trains is, where a command asks for it."""

from __future__ import annotations

import os

from vitprof.watch.script_objects import ScriptLoader

DATA = "VITPROF_WATCH_DATA"
"""Environment variable: a file for what the train loader's dataset is, in a script that ends after some steps."""
CONVERT = "VITPROF_WATCH_CONVERT"
"""Environment variable: samples are stored in other forms instead, as this JSON object says."""


def describe_dataset(loader: ScriptLoader | None) -> None:
    """Writes what the dataset of a loader is, or what came of storing it, if that is asked for."""
    path = os.environ.get(DATA)
    if not path or loader is None:
        return
    if request := os.environ.get(CONVERT):
        from vitprof.watch.conversion import report_stored

        report_stored(loader, path, request)
    else:
        from vitprof.watch.dataset import report

        report(loader, path)
