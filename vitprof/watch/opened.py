"""Which files below a folder this process opens for writing.

Python's own opens only: what a C library writes (`torch.save` among them) is found by looking at the files afterwards
(`vitprof.experiments.tournament.written`).
"""

from __future__ import annotations

import os
import sys

from vitprof.watch.on_import import OPENED_UNDER
from vitprof.watch.tell import TELL, tell

BYTE_CODE = f"{os.sep}__pycache__{os.sep}"
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def install() -> None:
    """Tells of each file below the folder that `OPENED_UNDER` names, once, here and in processes forked from here.

    It cannot be taken off again.
    """
    under = os.path.join(os.environ[OPENED_UNDER], "")
    seen = {os.path.abspath(os.environ.get(TELL, ""))}  # our own

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
