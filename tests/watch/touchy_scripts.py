"""Scripts that look at their own process while they are watched. Each returns what it saw there."""

import faulthandler
import gc
import os
import platform
import signal
import socket
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

from torch.utils.data import DataLoader

import vitprof
from tests.watch.own_scripts import numbers
from tests.watch.scripts import fit
from vitprof.watch import connection as connections
from vitprof.watch.connection import Connection
from vitprof.watch.patches import CURRENT


def train() -> None:
    """Takes some steps, so that vitprof sends from here on."""
    fit(DataLoader(numbers(), batch_size=2), inputs=1)


def joins_all_threads() -> str:
    train()
    names = [thread.name for thread in threading.enumerate()]
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            thread.join()
    return f"{' '.join(names)} {threading.active_count()}"


def asks_for_the_thread_wherever_garbage_is_collected() -> str:
    """Python calls it in the thread that happens to collect."""
    seen = threading.Event()
    main = threading.get_ident()

    def note(phase: str, info: dict[str, Any]) -> None:
        name = threading.current_thread().name
        if threading.get_ident() != main and name:
            seen.set()

    gc.callbacks.append(note)
    gc.set_threshold(1)
    train()
    elsewhere = seen.wait(60)
    gc.callbacks.remove(note)
    return f"{elsewhere} {[thread.name for thread in threading.enumerate()]}"


def waits_for_a_signal_that_it_has_blocked() -> str:
    train()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    os.kill(os.getpid(), signal.SIGUSR1)
    return signal.Signals(signal.sigwait({signal.SIGUSR1})).name


def joins_all_threads_in_a_fork() -> str:
    """Exits with the number of threads in a fork of a process that sends."""
    train()
    pid = os.fork()
    if pid == 0:
        os._exit(threading.active_count())
    return str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def ends_at_broken_pipes() -> str:
    """Trains until vitprof has noticed that nobody receives its data."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    while CURRENT.recorder is not None:
        train()
    return "trained"


def ends_at_broken_pipes_and_sends_at_its_end() -> str:
    """Sends in its main thread, as at the end of a script, to a receiver that has gone just now."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    ours, theirs = socket.socketpair()
    theirs.close()
    try:
        Connection(ours).send(b"steps")
    except OSError as error:
        return type(error).__name__
    return "sent"


def standard_streams() -> str:
    """Returns which of the numbers of standard streams stay open. Another thread that reads a file for a
    moment gets the lowest one that is free; between two looks it is let go on.
    """
    stay_open = set("012")
    for _ in range(2_000):
        os.sched_yield()
        stay_open = {number for number in stay_open if os.path.exists(f"/proc/self/fd/{number}")}
    return " ".join(sorted(stay_open))


def has_closed_standard_input_and_error() -> str:
    os.close(0)
    os.close(2)
    train()
    return standard_streams()


def starts_a_collector_with_closed_standard_streams() -> str:
    """Returns whether a collector's end of the connection would be none of its standard streams."""
    given: list[int] = []

    def start(*_: object, pass_fds: list[int], **__: object) -> SimpleNamespace:
        given.extend(pass_fds)
        return SimpleNamespace(poll=lambda: 0, wait=lambda _: 0)

    connections.subprocess.Popen = start  # type: ignore[assignment, misc]
    os.close(0)
    os.close(2)
    connection = connections.connect()
    streams = standard_streams()
    connection.close()
    return f"{streams} {min(given) >= 3}"


def counts_its_children() -> str:
    """Returns how many processes have ended below it: a handler may wait for them, and miss one."""
    ended: list[int] = []
    signal.signal(signal.SIGCHLD, lambda number, _: ended.append(number))
    platform._uname_cache = None  # type: ignore[attr-defined]
    train()
    return str(len(ended))


def traces_its_threads() -> str:
    """Returns in how many threads but its own something was traced."""
    threads: set[int] = set()

    def trace(*_: object) -> None:
        threads.add(threading.get_ident())

    threading.settrace(trace)
    threading.setprofile(trace)
    train()
    threading.settrace(None)  # type: ignore[arg-type]
    threading.setprofile(None)
    return str(len(threads - {threading.get_ident()}))


def forbids_connections() -> str:
    def forbid(event: str, _: object) -> None:
        if event == "socket.connect":
            raise PermissionError("no connections here")

    sys.addaudithook(forbid)
    train()
    return "trained"


def shows_its_faults() -> str:
    """Returns what it sees of its handlers: those that faulthandler sets are none of Python's."""
    faulthandler.enable()
    numbers = sorted(signal.valid_signals())
    before = [signal.getsignal(number) for number in numbers]
    train()
    after = [signal.getsignal(number) for number in numbers]
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    return f"{faulthandler.is_enabled()} {before == after} {blocked}"


def stops_its_clocks() -> str:
    """Does what freezegun does, in a script that watches itself: it replaces them everywhere."""
    loader = vitprof.watch(DataLoader(numbers(), batch_size=2))
    fit(loader, inputs=1)
    real = (time.time, time.monotonic, time.perf_counter)
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if any(value is clock for clock in real):
                setattr(module, name, lambda: 1.0)
    for _ in range(3):
        fit(loader, inputs=1)
    return "trained"
