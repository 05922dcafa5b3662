"""`vitprof.LightningCallback`: a training with Lightning as a run.

Lightning fetches a batch, moves it to the device, and only then calls `on_train_batch_start`; of a loader of unknown
length it fetches one batch ahead. So a batch is timed where Lightning itself fetches it, from its combined loader, and
the step from `on_train_batch_start` to `on_train_batch_end`. (Read in Lightning 2.6.)
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from vitprof.watch.runs import takes_part
from vitprof.watch.step import step
from vitprof.watch.watched import Watched, guarded, prepare, script_name, watch

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
"""Two names of one package: each has a class `Callback` of its own."""


def _callback() -> Any:
    """Returns the class `Callback` of the package that is in use. Raises `ImportError` where there is none."""
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
    """Watches `Trainer.fit`: `Trainer(callbacks=[vitprof.LightningCallback()])`.

    What Lightning, its loggers and other callbacks do between two steps is told apart from them. Only the first rank is
    watched.
    """

    def __init__(self, *, name: str = "", quiet: bool = False) -> None:
        """`name`: of the run, by default the script's. `quiet`: no line at its end."""
        super().__init__()
        self._name, self._quiet = name, quiet
        self._watched: Watched | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """The loaders are about to be made, and their workers started."""
        guarded(prepare)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The loader is there, and its first iteration has begun."""
        if takes_part():
            guarded(self._watch, trainer.fit_loop._data_fetcher)

    def _watch(self, fetcher: Any) -> None:
        """Stands between Lightning and its combined loader."""
        self._watched = watch(fetcher.combined_loader, name=self._name or script_name(), quiet=self._quiet)
        if type(self._watched) is not type(fetcher.combined_loader):
            fetcher._combined_loader = self._watched
            fetcher.iterator = self._watched._vitprof_begun(fetcher.iterator)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """The batch is on the device."""
        if self._watched is not None:
            step.__enter__()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """The optimizer has stepped, if it was its turn."""
        if self._watched is not None:
            step.__exit__()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """The run is over."""
        self._end(None)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """The run is over, because of an error or Ctrl-C."""
        self._end(exception)

    def _end(self, error: BaseException | None) -> None:
        watched, self._watched = self._watched, None
        if watched is not None:
            watched._vitprof_end(error)
