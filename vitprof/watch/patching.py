"""What patches of a watched process rest on: its environment, and calls right after an import."""

from __future__ import annotations

import contextlib
import functools
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    # this is imported in each process below `vitprof watch`
    from collections.abc import Callable, Iterator
    from types import FrameType, ModuleType
    from typing import Any

DATALOADER = "torch.utils.data.dataloader"
OPTIMIZER = "torch.optim.optimizer"
STATEFUL = "torchdata.stateful_dataloader.stateful_dataloader"
"""A module whose DataLoader has its own `__init__` and `__iter__`, and otherwise works as PyTorch's."""
OTHER_LOADERS = (
    ("datasets.iterable_dataset", "IterableDataset"),
    ("grain._src.python.data_loader", "DataLoader"),
    ("nvidia.dali.plugin.base_iterator", "_DaliBaseIterator"),
    ("spdl.dataloader._dataloader", "DataLoader"),
    ("spdl.dataloader._pytorch_dataloader", "PyTorchDataLoader"),
    ("torchdata.nodes.base_node", "BaseNode"),
    ("torchdata.nodes.loader", "Loader"),
    ("webdataset.pipeline", "DataPipeline"),
)
"""Modules of other libraries and their classes of loaders: an iteration that is part of another one is not timed."""
SOCKET = "VITPROF_WATCH_SOCKET"
"""Environment variable: the socket on which the program that started the command listens."""
STEPS = "VITPROF_WATCH_STEPS"
"""Environment variable: the number of steps after which the script is ended."""
DETACH = "VITPROF_WATCH_DETACH_AFTER"
"""Environment variable: the number of steps after which the script goes on unwatched."""
LOG_TO = "VITPROF_WATCH_LOG_TO"
"""Environment variable: the tracker, mlflow or wandb, then a colon and the file that is to say which run it was."""
TRIAL_OVERRIDES, OPENED_UNDER = "VITPROF_WATCH_OVERRIDES", "VITPROF_WATCH_OPENED_UNDER"
"""Environment variables of a tournament's trials: see `trial`."""
READ_AGAIN = "VITPROF_WATCH_READ_AGAIN"
"""Environment variable of such a trial: a file with the files that an earlier trial wrote, a JSON list."""


ERROR_CHARS = 300
"""Most characters of an error's line."""
WORKER_KILLED = "is killed by signal: "
"""What PyTorch says of a worker that a signal ended (torch/csrc/DataLoader.cpp)."""


@functools.cache
def leave_sign(name: str) -> None:
    """Leaves a file with this name beside the socket, for the program that listens where no training is seen."""
    if path := os.environ.get(SOCKET):
        with contextlib.suppress(OSError):
            os.close(os.open(f"{path}.{name}", os.O_WRONLY | os.O_CREAT, 0o600))


def leave_error() -> None:
    """Has the process's uncaught exception written beside the socket, in one line, before it is printed as ever."""
    path, printing = os.environ.get(SOCKET), sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        with contextlib.suppress(Exception):
            line = error_line(error)
            with open(f"{path}.errors", "a", encoding="utf-8", errors="replace") as file:
                file.write(f"{os.getpid()} {line}\n")
        printing(kind, error, trace)

    if path:
        sys.excepthook = hook


def error_line(error: BaseException) -> str:
    """Returns an exception in one line."""
    error = telling(error)
    line = f"{type(error).__name__}: {error}".strip().partition("\n")[0].strip()
    return line.removesuffix(":")[:ERROR_CHARS]


def telling(error: BaseException) -> BaseException:
    """Returns an exception, or its cause where that tells more.

    Where a worker of PyTorch's loader was killed while the loop waited for a batch, the exception says that it
    "exited unexpectedly", and only its cause by which signal.
    """
    cause = error.__cause__
    return cause if cause is not None and WORKER_KILLED in str(cause) else error


class AfterImport:
    """A finder, placed before all others, that calls `then(module)` when the module `name` has been executed."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name, self._then = name, then

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self._name:
            return None
        import importlib.util

        if self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(
            name
        )  # from the finders after this: another may wait for the same module
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_call(module: ModuleType) -> None:
            execute(module)
            try:
                self._then(module)
            except Exception as error:  # the script's import succeeds all the same
                say(f"not watching: {type(error).__name__}: {error}")

        spec.loader.exec_module = execute_and_call  # type: ignore[method-assign]
        return spec


def modules_in_stack() -> Iterator[str]:
    """Yields the names of the modules whose functions this thread is in, that of the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield str(frame.f_globals.get("__name__"))
        frame = frame.f_back


def makes_workers() -> bool:
    """Returns whether this thread forks within a package of loaders."""
    return any(name.startswith(("torch.utils.data", "torchdata")) for name in modules_in_stack())


def when_imported(name: str, then: Callable[[ModuleType], None]) -> None:
    """Calls `then(module)` now, if the module `name` is imported already, else once it has been executed."""
    module = sys.modules.get(name)
    if module is None:
        sys.meta_path.insert(0, AfterImport(name, then))
    else:
        then(module)


def say(line: str) -> None:
    """Prints a line on standard error, if that is open."""
    with contextlib.suppress(Exception):
        sys.stderr.write(f"vitprof: {line}\n")
        sys.stderr.flush()


def whole_number(name: str) -> int:
    """Returns a variable of the environment; 0 where it is not set, or no number."""
    value = os.environ.get(name, "")
    return int(value) if value.isdecimal() else 0
