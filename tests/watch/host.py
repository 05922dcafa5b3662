"""Runs functions of modules in forks of a process that has those named as arguments and PyTorch loaded, and never used.
Each line on standard input is a JSON object: module and function, its arguments, variables of the environment, whether
it is watched, the method of a class that fails, and a folder for what comes of it.
Each is answered by its exit status."""

import atexit
import gc
import importlib
import json
import os
import signal
import sys
import traceback
import weakref
from pathlib import Path
from typing import Any, NoReturn

from vitprof.engine import without_collections

ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # a framework that is not installed as it should be prints as it is imported

with without_collections():
    import torchvision  # noqa: F401
    from torch.utils.data import dataloader

    from tests.priority import go_first
    from tests.watch.scripts import SPENT
    from vitprof.watch import trial
    from vitprof.watch.patches.install import record_events

    for name in sys.argv[1:]:
        importlib.import_module(name)


def _run(job: dict[str, Any]) -> NoReturn:
    """The life of a fork."""
    folder = Path(job["folder"])
    status = 70
    try:
        signal.setitimer(signal.ITIMER_REAL, job["limit_s"])
        go_first()
        os.environ.update(job["env"])
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # standard output is for the statuses
        sys.stderr = (folder / "complaint").open("w")
        if job["watched"]:
            _watch(job["failing"])
        function = getattr(importlib.import_module(job["module"]), job["function"])
        (folder / "returned").write_text(str(function(**job["arguments"])))
        status = 0
    except SystemExit as end:
        status = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        (folder / "spent").write_text(json.dumps(SPENT))
        atexit._run_exitfuncs()
        sys.stderr.flush()
        os._exit(status)


def _watch(failing: str) -> None:
    if failing:
        place, _, name = failing.rpartition(".")

        def fail(*_: object, **__: object) -> None:
            raise RuntimeError("a defect\nof two lines")

        module, _, kind = place.rpartition(".")
        setattr(getattr(importlib.import_module(module), kind), name, fail)
    record_events(dataloader)
    if os.environ.get("VITPROF_WATCH_OVERRIDES"):
        trial.override_arguments(dataloader)


def main() -> None:
    gc.freeze()  # a fork that collects garbage among all that is loaded stands still for 15 ms
    for imported in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        imported.atexit = (
            False  # PyTorch's libraries: to take them down is half of what a fork costs
        )
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _run(json.loads(line))
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        ANSWERS.write(f"{status}\n")
        ANSWERS.flush()


if __name__ == "__main__":
    main()
    os._exit(0)  # to take down all that is imported takes seconds of a core
