"""Whose a run is: its user, its project, and the program that makes it."""

import contextlib
import getpass
import os
from typing import Any

from vitprof.names import tamed_name
from vitprof.store.stored_run import this_program


def owner_columns(started_by: str = "") -> dict[str, Any]:
    """Returns the columns that say whose a run of this program is.

    The user is `started_by`, the dashboard's user where it has a login; otherwise `VITPROF_USER`, or
    the system's user. The project is `VITPROF_PROJECT`.
    """
    user = started_by or os.environ.get("VITPROF_USER", "")
    if not user:
        # the user of a container may have no name
        with contextlib.suppress(OSError, KeyError, ImportError):
            user = getpass.getuser()
    host, pid, started = this_program()
    return {
        "owner_user": tamed_name(user),
        "project": tamed_name(os.environ.get("VITPROF_PROJECT", "")),
        "owner_host": host,
        "owner_pid": pid,
        "owner_started": started,
    }
