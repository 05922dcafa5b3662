"""Installs the hooks in a process below `vitprof watch`. It is idle until the process imports PyTorch's DataLoader."""

from __future__ import annotations

import os

from vitprof.watch import patching
from vitprof.watch.rank_identity import is_recorded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType


def install() -> None:
    """Watches the process as soon as it imports the DataLoader, where a program listens to it or it counts steps."""
    patching.leave_sign("python")
    patching.leave_error()
    if os.environ.get(patching.OPENED_UNDER):
        from vitprof.watch.trial import report_written_files

        report_written_files()
    if os.environ.get(patching.READ_AGAIN):
        from vitprof.watch.trial import report_read_files

        report_read_files()
    if not os.environ.get(patching.SOCKET) or not (is_recorded() or os.environ.get(patching.STEPS)):
        return

    def hook(module: ModuleType) -> None:
        from vitprof.watch.patches.install import record_events

        patching.leave_sign("torch")
        record_events(module)
        if os.environ.get(patching.TRIAL_OVERRIDES):
            from vitprof.watch.trial import override_arguments

            override_arguments(module)

    patching.when_imported(patching.DATALOADER, hook)
