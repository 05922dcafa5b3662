"""Installs the hooks in a process below `vitprof watch`. It is idle until the process imports PyTorch's DataLoader."""

from __future__ import annotations

import os
import sys
from types import ModuleType

from vitprof.watch.patching import (
    DATALOADER,
    OPENED_UNDER,
    SOCKET,
    STEPS,
    TRIAL_OVERRIDES,
    AfterImport,
    is_watched_rank,
)


def install() -> None:
    """Watches the DataLoader as soon as it is imported; does nothing where no program listens.

    Of a distributed job, rank 0 is watched. Other ranks only count steps, where all have to end after the same step, as
    in a trial, whose arguments apply to the loaders of all ranks.
    """
    if os.environ.get(OPENED_UNDER):
        from vitprof.watch.trial import report_written_files

        report_written_files()
    if not os.environ.get(SOCKET) or not (is_watched_rank() or os.environ.get(STEPS)):
        return

    def hook(module: ModuleType) -> None:
        from vitprof.watch import loader_hooks

        loader_hooks.install(module)
        if os.environ.get(TRIAL_OVERRIDES):
            from vitprof.watch.trial import override_arguments

            override_arguments(module)

    sys.meta_path.insert(0, AfterImport(DATALOADER, hook))
