"""Records event logs of scripts on the null device, for the tests of the core, each with what the device itself knows
of its work:

    python -m tests.nullcuda.record [NAME...]

Each script runs in a process of its own, which has not used the device before. Nobody else should use the machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests import ROOT, nullcuda

LOGS = ROOT / "tests" / "watch" / "core" / "device_logs"
STARVED = {"wait_s": 0.02, "work_s": 0.002}
BUSY = {"wait_s": 0.0, "work_s": 0.012}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "starved": ("plain", STARVED),
    "busy": ("plain", BUSY),
    "busy-loss-is-read": ("plain", {**BUSY, "item": True}),
    "quickstart": ("quickstart", STARVED),
    "two-loaders": ("two_loaders", STARVED),
    "two-loaders-apart": ("two_loaders", {**STARVED, "apart": True}),
    "two-loaders-late": ("two_loaders", {**STARVED, "late": True}),
    "accumulating": ("accumulating", STARVED),
    "copied-ahead": ("copied_ahead", STARVED),
    "copied-ahead-busy": ("copied_ahead", BUSY),
    "in-a-stream": ("in_a_stream", STARVED),
    "graphed-starved": ("graphed", STARVED),
    "graphed-busy": ("graphed", BUSY),
    "beside": ("beside", {}),
    "beside-joined": ("beside", {"how": "joined"}),
    "beside-after": ("beside", {"how": "after"}),
    "beside-marked": ("beside", {"how": "marked"}),
    "after-on-the-host": ("works_after", {"host_s": 0.012, "device_s": 0.0}),
    "after-on-the-device": ("works_after", {"host_s": 0.0, "device_s": 0.012}),
    "accelerate-starved": ("by_accelerate", STARVED),
    "accelerate-busy": ("by_accelerate", BUSY),
    "transformers-starved": ("by_transformers", STARVED),
    "lightning-starved": ("by_lightning", STARVED),
    "lightning-busy": ("by_lightning", BUSY),
    "timm-starved": ("by_timm", STARVED),
}
"""Functions of `tests.nullcuda.scripts`, and their arguments, by the name of a log."""


def record(name: str) -> None:
    """Runs a script in this process, and writes its log and its truth."""
    from tests.nullcuda import scripts
    from tests.watch.core.record import hooked, written
    from vitprof.watch.patches import CURRENT

    recorder = hooked()
    CURRENT.recorder = recorder
    function, arguments = CASES[name]
    truth = json.loads(getattr(scripts, function)(**arguments))
    if recorder.marks is not None:
        recorder.marks.finish()
    if recorder.failed is not None:
        raise recorder.failed
    descriptions, rows = recorder.buffer.take()
    written(LOGS / f"{name}.jsonl", descriptions, rows)
    began_s = rows[0][1]
    for moment in ("since_s", "until_s"):
        truth[moment] -= began_s
    truths = LOGS / "truths.json"
    known = json.loads(truths.read_text()) if truths.exists() else {}
    known[name] = {key: round(value, 6) for key, value in truth.items()}
    lines = [f"{json.dumps(key)}: {json.dumps(known[key])}" for key in sorted(known)]
    truths.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main() -> None:
    LOGS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, **nullcuda.environment(Path(folder) / "shm")}
        for name in sys.argv[1:] or CASES:
            code = f"from tests.nullcuda.record import record; record({name!r})"
            subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, check=True)
            sys.stdout.write(f"{name}\n")


if __name__ == "__main__":
    main()
