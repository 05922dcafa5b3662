"""Reports the files below a folder that this process opens for writing.

It sees only opens by Python: files that a C library writes (as `torch.save` does) are found afterwards, by looking at
the files (`vitprof.experiments.tournament.changed_files`).
"""

from __future__ import annotations

import os
import sys

from vitprof.watch.on_import import OPENED_UNDER
from vitprof.watch.trial_messages import TELL, tell

BYTE_CODE = f"{os.sep}__pycache__{os.sep}"
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def install() -> None:
    """Reports each file below the folder in `OPENED_UNDER` once, in this process and in its forks.

    The audit hook cannot be removed again.
    """
    under = os.path.join(os.environ[OPENED_UNDER], "")
    seen = {os.path.abspath(os.environ.get(TELL, ""))}  # vitprof's own file

    def hook(event: str, args: tuple[object, ...]) -> None:
        if event != "open":
            return
        path, _, flags = args
        if not (isinstance(flags, int) and flags & WRITES and isinstance(path, str)):
            return
        whole = os.path.abspath(path)
        if whole.startswith(under) and whole not in seen and BYTE_CODE not in whole:
            seen.add(whole)
            tell("opened", whole[len(under) :])

    sys.addaudithook(hook)
