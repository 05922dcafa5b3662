"""Callbacks for frameworks that have a loop of their own: a file for each, and what they share."""

from typing import Any

from vitprof.watch.api import RUNS, guarded, prepare, script_name, step
from vitprof.watch.runs import Planned, takes_part


class FrameworkRun:
    """The run of a training whose loop a framework has: its callback says when it begins, and what a step is."""

    def __init__(self, name: str = "", *, quiet: bool = False) -> None:
        """`name`: by default the script's; `quiet`: print no line at the end. Make it before workers start."""
        self.name, self.quiet = name or script_name(), quiet
        self.planned: Planned | None = None
        guarded(prepare)

    def begin(self, loader: Any) -> None:
        """Begins the run of a PyTorch DataLoader whose workers have not started yet."""
        if loader is not None and takes_part():
            guarded(self._begin, loader)

    def _begin(self, loader: Any) -> None:
        self.planned = RUNS.begun(loader, self.name, quiet=self.quiet)

    def enter_step(self) -> None:
        """Begins a step: its batches are there."""
        step.__enter__()

    def leave_step(self) -> None:
        """Ends the step: the optimizer has stepped, if it was due."""
        step.__exit__()

    def end(self, error: BaseException | None = None) -> None:
        """Ends the run, with the error that ended it, if any."""
        planned, self.planned = self.planned, None
        if planned is not None:
            guarded(RUNS.end, planned, error)
