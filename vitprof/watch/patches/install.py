"""Records the events of this process from the import of PyTorch's DataLoader to the end, and sends
them."""

from __future__ import annotations

import os
from types import ModuleType

from vitprof.watch.events import Buffer
from vitprof.watch.patches import CURRENT, Recorder, Replacements
from vitprof.watch.patching import OPTIMIZER, SOCKET, STATEFUL, makes_workers, when_imported
from vitprof.watch.transport import Transport


def record_events(dataloader: ModuleType) -> None:
    """Installs all hooks, as `torch.utils.data.dataloader` has been imported."""
    from vitprof.watch.patches import dataloader as loaders

    buffer = Buffer()
    recorder = Recorder(buffer)
    CURRENT.recorder = recorder
    transport = Transport(buffer, os.environ[SOCKET])
    transport.begin()
    installed = [loaders.install(recorder, dataloader)]
    when_imported(STATEFUL, lambda module: installed.append(loaders.install(recorder, module)))
    when_imported(OPTIMIZER, lambda module: _install_work(recorder, transport, module, installed))


def _install_work(
    recorder: Recorder,
    transport: Transport,
    optimizers: ModuleType,
    installed: list[Replacements],
) -> None:
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

    def begin_anew_or_stop() -> None:
        """A fork of a process that trains, and a worker of a loader, record nothing; any other child
        may train itself."""
        transport.forget()
        if transport.connected or makes_workers():
            CURRENT.recorder = None
            recorder.stop()
        else:
            recorder.forget_numbers()
            transport.begin()

    installed.append(marks.install(recorder))
    installed.append(collectives.install(recorder))
    installed.append(preparation.install(recorder))
    installed.append(optimizer.install(recorder, optimizers))
    installed.append(autograd.install(recorder))
    installed.append(waits.install(recorder))
    installed.append(process.install(recorder, transport.finish))
    os.register_at_fork(after_in_child=begin_anew_or_stop)
