"""Forks a dashboard server for each line on standard input, from a process that has what it imports. A line is a JSON
object: Streamlit's arguments, the environment, and the file for what it prints. It is answered by the server's process
id. The end of standard input ends this process, and no server."""

import importlib
import json
import os
import pkgutil
import signal
import sys
from typing import Any, NoReturn

from tests import ROOT
from vitprof.engine import without_collections


def load() -> None:
    """Imports what a server does once somebody has opened its pages."""
    from streamlit.web import bootstrap, cli, server  # noqa: F401

    import vitprof.ui

    for module in pkgutil.walk_packages(vitprof.ui.__path__, "vitprof.ui."):
        importlib.import_module(module.name)


def _serve(job: dict[str, Any]) -> NoReturn:
    """Lives as `python -m streamlit` with these arguments does."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(job["log"], os.O_WRONLY | os.O_APPEND)
    for stream, descriptor in enumerate((os.open(os.devnull, os.O_RDONLY), log, log)):
        os.dup2(descriptor, stream)
    os.environ.clear()
    os.environ.update(job["env"])
    from streamlit.web import cli

    sys.argv = ["streamlit", *job["arguments"]]
    cli.main()
    raise SystemExit(1)  # `main` ends by itself


def main() -> None:
    os.chdir(ROOT)
    signal.signal(
        signal.SIGCHLD, signal.SIG_IGN
    )  # the system takes care of servers that have ended
    for line in sys.stdin:
        if not (pid := os.fork()):
            _serve(json.loads(line))
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    with without_collections():
        load()
    main()
