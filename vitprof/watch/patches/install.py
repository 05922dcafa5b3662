"""Records the events of this process from the import of PyTorch's DataLoader to the end, and sends
them."""

from __future__ import annotations

import functools
import os
from types import ModuleType

from vitprof.watch.patches.watching import Watching, the_watching
from vitprof.watch.patching import OPTIMIZER, STATEFUL, when_imported


@functools.cache
def record_events(dataloader: ModuleType) -> None:
    """Installs all hooks, as `torch.utils.data.dataloader` has been imported."""
    from vitprof.watch.patches import dataloader as loaders
    from vitprof.watch.patches import iterables, making

    watching = the_watching()
    watching.begin()
    making.time_fetching(dataloader)
    making.time_composes()
    iterables.record_other_loaders()
    watching.installed.append(loaders.install(watching.recorder, dataloader))
    when_imported(STATEFUL, functools.partial(_install_stateful, watching))
    when_imported(OPTIMIZER, functools.partial(_install_work, watching))


def _install_stateful(watching: Watching, module: ModuleType) -> None:
    from vitprof.watch.patches import dataloader as loaders

    watching.installed.append(loaders.install(watching.recorder, module))


def _install_work(watching: Watching, optimizers: ModuleType) -> None:
    """Installs the hooks that need all of PyTorch: optimizers are imported last."""
    from vitprof.watch.patches import (
        autograd,
        collectives,
        marks,
        optimizer,
        preparation,
        process,
        waits,
    )

    recorder = watching.recorder
    watching.installed += [
        marks.install(recorder),
        collectives.install(recorder),
        preparation.install(recorder),
        optimizer.install(recorder, optimizers),
        autograd.install(recorder),
        waits.install(recorder),
        process.install(recorder, watching.finish),
    ]
    os.register_at_fork(after_in_child=watching.begin_anew_or_stop)
