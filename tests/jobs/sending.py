"""What a watched training sends, for scripts that pass for one without PyTorch, and steps for stores of tests."""

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from vitprof.measure.wire import Message, Note, write_message
from vitprof.recording.columns import STEP_COLUMNS


def columns(n: int, **known: Any) -> dict[str, np.ndarray]:
    """`n` steps with these columns, each a number or one for each step; NaN in all others. No copy, and one rank."""
    known = {"rank": 0, "warmup": 0} | known
    return {
        name: np.array(np.broadcast_to(np.asarray(known.get(name, np.nan), float), n))
        for name in STEP_COLUMNS
    }


def waiting(start_s: Any, wait_s: Any, compute_s: Any) -> dict[str, Any]:
    """The times of steps that wait for data, and then compute."""
    known = {
        "t_start_s": start_s,
        "data_wait_s": wait_s,
        "exposed_wait_s": wait_s,
        "gap_s": wait_s,
        "h2d_s": 0.0,
    }
    return known | {
        "compute_start_s": start_s + wait_s,
        "compute_s": compute_s,
        "step_s": wait_s + compute_s,
    }


@contextlib.contextmanager
def watched(**facts: Any) -> Iterator[Callable[[Message], None]]:
    """Connects to whoever watches this script, and describes it; what this gives sends a message at once."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ["VITPROF_WATCH_SOCKET"])
        with connection.makefile("wb") as stream:

            def send(message: Message) -> None:
                write_message(stream, message)
                stream.flush()

            known = {
                "device": "cpu",
                "watched": {},
                "pid": os.getpid(),
                "cpu_count": os.cpu_count(),
            }
            send(Note("environment", known | facts))
            send(Note("stage", {"name": "training", "fraction": 0.0, "message": ""}))
            yield send
            send(Note("end", {"status": "done", "error": ""}))
