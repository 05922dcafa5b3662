"""`vitprof.TrainerCallback`: a training with the Trainer of Hugging Face's transformers as a run.

The Trainer takes all batches that it accumulates gradients over before `on_step_begin`, from a loader of Accelerate's
that fetches one batch ahead. So each wait is timed in PyTorch's DataLoader inside, those for one step of the optimizer
are one wait, and the step is from `on_step_begin` to `on_step_end`: logging, saving and evaluation come after it. (Read
in transformers 5.23 and Accelerate 1.15.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vitprof.watch.runs import RUNS, Planned, takes_part
from vitprof.watch.step import step
from vitprof.watch.watched import guarded, prepare, script_name

if TYPE_CHECKING:
    Callback = object
else:
    try:
        from transformers import TrainerCallback as Callback
    except ImportError as error:
        raise ImportError("vitprof.TrainerCallback needs transformers: pip install transformers") from error


class TrainerCallback(Callback):
    """Watches `Trainer.train`: `Trainer(..., callbacks=[vitprof.TrainerCallback()])`.

    Only the first process of a distributed job is watched. A train loader that is no DataLoader of PyTorch's is not.
    """

    def __init__(self, *, name: str = "", quiet: bool = False) -> None:
        """`name`: of the run, by default the script's. `quiet`: no line at its end."""
        self._name, self._quiet = name, quiet
        self._run: Planned | None = None
        guarded(prepare)

    def on_train_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any) -> None:
        """The train loader is there, and its workers are not."""
        if train_dataloader is not None and takes_part():
            guarded(self._begin, train_dataloader)

    def _begin(self, loader: Any) -> None:
        self._run = RUNS.begun(loader, self._name or script_name(), quiet=self._quiet)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The batches of a step are there."""
        if self._run is not None:
            step.__enter__()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The optimizer has stepped."""
        if self._run is not None:
            step.__exit__()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The run is over."""
        run, self._run = self._run, None
        if run is not None:
            guarded(RUNS.end, run)
