"""The program that a run or a tournament belongs to, and whether it is still there."""

from __future__ import annotations

import socket

import psutil


def this_program() -> tuple[str, int, float]:
    """Host, process id and start (seconds since the epoch) of this process: together they name it for good."""
    me = psutil.Process()
    return socket.gethostname(), me.pid, me.create_time()


def is_alive(host: str, pid: int, started: float) -> bool:
    """Returns whether that program still runs. Of another machine's that cannot be told: then yes."""
    if host != socket.gethostname():
        return True
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:  # ended too; in a container without an init it stays for good
            return False
        return bool(abs(process.create_time() - started) < 1.0)
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:  # it exists but is not ours to look at: no reason to call it gone
        return True
