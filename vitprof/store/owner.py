"""The program that a run or a tournament belongs to, and whether it still runs."""

from __future__ import annotations

import socket

import psutil


def this_program() -> tuple[str, int, float]:
    """Returns host, process id and start (seconds since the epoch) of this process, which together identify it."""
    me = psutil.Process()
    return socket.gethostname(), me.pid, me.create_time()


def is_alive(host: str, pid: int, started: float) -> bool:
    """Returns whether that program still runs; True for one of another machine, where that cannot be known."""
    if host != socket.gethostname():
        return True
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:  # ended too; in a container without an init it stays forever
            return False
        return bool(abs(process.create_time() - started) < 1.0)
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:  # it exists, but access to it is denied
        return True
