"""Writes scalars as TensorBoard's event files: `python -m vitprof.export.tensorboard_child DIR < scalars`.

Standard input: one line of JSON, name of a run's directory -> tag -> n; then for each tag (3, n) little-endian float64:
step, wall time, value.
Ends with 0, or with one line on standard error and 1.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

MISSING = "the package tensorboardX is not there; install it with: pip install tensorboardX"


def main(directory: Path, source: BinaryIO) -> None:
    """Reads all scalars and writes the file. Raises `ImportError`, `OSError`."""
    # It takes in torch where it finds it, for tensors that we have none of; None makes that import fail (Python's
    # documented behaviour), and this process has no other use for torch. 25 ms instead of 2 s.
    modules: dict[str, Any] = sys.modules
    modules["torch"] = None
    from tensorboardX import SummaryWriter
    from tensorboardX.proto.summary_pb2 import Summary

    lengths: dict[str, dict[str, int]] = json.loads(source.readline())
    for run, tags in lengths.items():
        by_step: dict[tuple[float, float], list[Any]] = {}
        for tag, n in tags.items():
            table = np.frombuffer(source.read(3 * 8 * n), dtype="<f8").reshape(3, n)
            for step, wall, value in zip(*table.tolist(), strict=True):
                by_step.setdefault((wall, step), []).append(Summary.Value(tag=tag, simple_value=value))
        with SummaryWriter(str(directory / run)) as writer:
            for (wall, step), values in sorted(by_step.items(), key=lambda item: item[0]):
                writer.file_writer.add_summary(Summary(value=values), int(step), wall)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), sys.stdin.buffer)
    except ImportError as error:
        sys.exit(MISSING if "tensorboardX" in str(error) else str(error))
    except OSError as error:
        sys.exit(str(error))
