"""Writes TensorBoard's event files: `python -m vitprof.export.tensorboard_child DIR < scalars`, a pickle that holds for
each run's directory and tag an array (3, n): step, wall time, value.
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
"""Events between two looks at whether the program that asked for them is still there: some 10 ms."""


def main(directory: Path, source: BinaryIO) -> None:
    """Reads all scalars from `source` and writes the files to `directory`. Raises `ImportError`, `OSError`."""
    # tensorboardX imports torch where it finds it, for tensors, of which there are none here. None makes that import
    # fail (Python's documented behaviour): 25 ms instead of 2 s.
    modules: dict[str, Any] = sys.modules
    modules["torch"] = None
    # Its SummaryWriter hands events to a thread, which a full disk ends, and then waits for that thread forever.
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
                by_step.setdefault((wall, step), []).append(
                    Summary.Value(tag=tag, simple_value=value)
                )
    for run, by_step in runs.items():
        (directory / run).mkdir()
        writer = EventsWriter(str(directory / run / "events"))
        for n, ((wall, step), values) in enumerate(
            sorted(by_step.items(), key=lambda item: item[0])
        ):
            if (
                n % LOOK_EVERY == 0 and select.select([source], [], [], 0)[0]
            ):  # at its end: the parent is gone
                shutil.rmtree(directory, ignore_errors=True)
                raise OSError(ENDED)
            writer.write_event(Event(wall_time=wall, step=int(step), summary=Summary(value=values)))
        writer.close()


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), sys.stdin.buffer)
        said = ""
    except ImportError as error:
        said = MISSING if "tensorboardX" in str(error) else str(error)
    except OSError as error:
        said = error.strerror or str(error)
    if said:
        sys.stderr.write(f"{said}\n")
        sys.stderr.flush()
    os._exit(
        1 if said else 0
    )  # at once: closing a file of which the disk took only half would raise again
