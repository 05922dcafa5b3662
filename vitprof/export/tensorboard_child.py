"""Writes scalars as TensorBoard's event files: `python -m vitprof.export.tensorboard_child DIR <
scalars`.

Standard input is a pickle that holds, for each run's directory and tag, an array (3, n): step, wall
time, value. The exit status is 0, or 1 with one line on standard error.
"""

import os
import pickle
import select
import shutil
import sys
from pathlib import Path
from typing import Any, BinaryIO

from vitprof.analysis.arrays import Floats

MISSING = "the package tensorboardX is not installed; install it with: pip install tensorboardX"
ENDED = "the program that asked for them has ended"
LOOK_EVERY = 1000
"""Events between two looks at whether the program that asked for them is still there: some 10
ms."""


def main(directory: Path, source: BinaryIO) -> None:
    """Reads all scalars from `source` and writes the files to `directory`.

    Raises `ImportError`, `OSError`.
    """
    # tensorboardX imports torch where it finds it, for tensors, of which there are none here. None
    # makes that import fail (Python's documented behaviour): 25 ms instead of 2 s.
    modules: dict[str, Any] = sys.modules
    modules["torch"] = None
    # Its SummaryWriter hands events to a thread, which a full disk ends, and then waits for that
    # thread forever.
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary

    try:
        scalars: dict[str, dict[str, Floats]] = pickle.load(source)
    except (EOFError, pickle.UnpicklingError) as error:
        raise OSError(ENDED) from error
    runs: dict[str, dict[tuple[float, float], list[Any]]] = {}
    for run, tags in scalars.items():
        by_step = runs.setdefault(run, {})
        for tag, points in tags.items():
            for step, wall, value in points.T.tolist():
                values = by_step.setdefault((wall, step), [])
                values.append(Summary.Value(tag=tag, simple_value=value))
    for run, by_step in runs.items():
        (directory / run).mkdir()
        writer = EventsWriter(str(directory / run / "events"))
        in_order = sorted(by_step.items(), key=lambda item: item[0])
        for n, ((wall, step), values) in enumerate(in_order):
            # There is something to read only at the input's end: the parent is gone.
            if n % LOOK_EVERY == 0 and select.select([source], [], [], 0)[0]:
                shutil.rmtree(directory, ignore_errors=True)
                raise OSError(ENDED)
            writer.write_event(Event(wall_time=wall, step=int(step), summary=Summary(value=values)))
        writer.close()


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), sys.stdin.buffer)
        said = ""
    except ImportError as error:
        said = str(error)
        if "tensorboardX" in said:
            said = MISSING
    except OSError as error:
        said = error.strerror or str(error)
    if said:
        sys.stderr.write(f"{said}\n")
        sys.stderr.flush()
    # At once: closing a file of which the disk took only half would raise again.
    os._exit(1 if said else 0)
