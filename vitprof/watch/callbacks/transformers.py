"""`vitprof.TrainerCallback`: records a training with the Trainer of Hugging Face's transformers as a run.

The Trainer takes all batches that it accumulates gradients over before `on_step_begin`, from a loader of Accelerate
that fetches one batch ahead. So each wait is timed in PyTorch's DataLoader inside that, the waits for one step of the
optimizer count as one, and a step runs from `on_step_begin` to `on_step_end`: logging, saving and evaluation come after
it. (Read in the sources of transformers 5.23 and Accelerate 1.15.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vitprof.watch.callbacks import FrameworkRun

if TYPE_CHECKING:
    Callback = object
else:
    try:
        from transformers import TrainerCallback as Callback
    except ImportError as error:
        raise ImportError(
            "vitprof.TrainerCallback needs transformers: pip install transformers"
        ) from error


class TrainerCallback(Callback):
    """A callback that watches `Trainer.train`: rank 0, with a train loader that is PyTorch's DataLoader."""

    def __init__(self, *, name: str = "", quiet: bool = False) -> None:
        """`name`: the run's name, by default the script's. `quiet`: print no line at the run's end."""
        self._run = FrameworkRun(name, quiet=quiet)

    def on_train_begin(
        self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any
    ) -> None:
        """Begins the run: the train loader exists, but its workers do not yet."""
        self._run.begin(train_dataloader)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Begins a step: its batches are there."""
        self._run.enter_step()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Ends the step: the optimizer has stepped."""
        self._run.leave_step()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Ends the run."""
        self._run.end()
