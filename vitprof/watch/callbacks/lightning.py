"""`vitprof.LightningCallback`: records a training with Lightning as a run.

Lightning fetches a batch, moves it to the device, and only then calls `on_train_batch_start`; from a loader of unknown
length it fetches one batch ahead. So a batch is timed where Lightning fetches it, from its combined loader, and a step
runs from `on_train_batch_start` to `on_train_batch_end`. (Read in the source of Lightning 2.6.)
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from vitprof.watch.api import guarded, watch
from vitprof.watch.callbacks import FrameworkRun
from vitprof.watch.runs import takes_part

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
"""Two names of one package, each with its own class `Callback`."""


def _callback() -> Any:
    loaded = [name for name in PACKAGES if name in sys.modules]
    for name in loaded or PACKAGES:
        try:
            return importlib.import_module(name).Callback
        except ImportError:
            continue
    raise ImportError("vitprof.LightningCallback needs Lightning: pip install lightning")


if TYPE_CHECKING:
    Callback = object
else:
    Callback = _callback()


class LightningCallback(Callback):
    """A callback that watches `Trainer.fit`, on the first rank: `Trainer(callbacks=[vitprof.LightningCallback()])`."""

    def __init__(self, *, name: str = "", quiet: bool = False) -> None:
        """`name`: the run's name, by default the script's. `quiet`: print no line at the run's end."""
        super().__init__()
        self._run = FrameworkRun(name, quiet=quiet)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begins to watch the combined loader, whose first iteration has begun."""
        if takes_part():
            guarded(self._watch, trainer.fit_loop._data_fetcher)

    def _watch(self, fetcher: Any) -> None:
        watched = watch(fetcher.combined_loader, name=self._run.name, quiet=self._run.quiet)
        if type(watched) is not type(fetcher.combined_loader):
            self._run.planned = watched._vitprof_run
            fetcher._combined_loader = watched
            fetcher.iterator = watched._vitprof_begun(fetcher.iterator)

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Begins a step: the batch is on the device."""
        self._run.enter_step()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Ends the step: the optimizer has stepped, if it was due."""
        self._run.leave_step()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Ends the run."""
        self._run.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Ends the run, because of an error or Ctrl-C."""
        self._run.end(exception)
