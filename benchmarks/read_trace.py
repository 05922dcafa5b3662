"""How long a trace takes to read, and how much memory: by vitprof, and its JSON by other readers.

    python -m benchmarks.read_trace FILE [--gigabytes 1.0] [--rounds 3] [--readers NAME...]

The events are those that torch.profiler records here of a small training, with shapes and stacks,
and kernels with their launches beside them as Kineto writes them; they are repeated with later times
until FILE (.json or .json.gz) is as large as asked for before compression; it is written where it is
not there. Each reader is a process of its own, by turns;
its memory is the most that was resident (VmHWM: `ru_maxrss` counts what the process had that started
it). Readers that are not installed are left out.
"""

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

STEPS = 60
OPENING = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}]}
READERS = {
    "vitprof read": "from vitprof.traces.reading import read_trace\nread_trace(path)",
    "events alone": (
        "from vitprof.traces.trace_file import TraceFile\nn = sum(1 for _ in TraceFile(path).events())"
    ),
    "ijson": (
        "import gzip, ijson\n"
        "opened = gzip.open if path.suffix == '.gz' else open\n"
        "with opened(path, 'rb') as file:\n"
        "    n = sum(1 for _ in ijson.get_backend('yajl2_c').items(file, 'traceEvents.item'))"
    ),
    "json.load": (
        "import gzip, json\n"
        "opened = gzip.open if path.suffix == '.gz' else open\n"
        "with opened(path, 'rb') as file:\n"
        "    n = len(json.load(file)['traceEvents'])"
    ),
}
"""Reader -> what its process runs."""
PROGRAM = """
import resource, sys, time
from pathlib import Path
path = Path(sys.argv[1])
began = time.perf_counter()
{}
took_s = time.perf_counter() - began
used = resource.getrusage(resource.RUSAGE_SELF)
status = Path("/proc/self/status").read_text()
most_kib = int(status.partition("VmHWM:")[2].split()[0])
print(took_s, used.ru_utime + used.ru_stime, most_kib / 1024)
"""


def recorded() -> list[dict[str, Any]]:
    """Returns the events of a training, with shapes and stacks."""
    from torch.profiler import ProfilerActivity, profile

    from tests.traces.profiled_script import train

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        activities = [ProfilerActivity.CPU]
        with profile(activities=activities, record_shapes=True, with_stack=True) as prof:
            train(0.002, 0.001, 0, STEPS, "last", prof)
        prof.export_chrome_trace(str(path))
        events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events + list(kernels(events))


def kernels(events: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields a launch and a kernel for each operator, as a GPU would have them."""
    number = 0
    for event in events:
        if event.get("cat") != "cpu_op":
            continue
        number += 1
        shared = {"External id": number, "correlation": number}
        yield event | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "args": shared}
        grid = {"device": 0, "context": 1, "stream": 7, "grid": [8, 1, 1], "block": [128, 1, 1]}
        yield event | {"cat": "kernel", "name": "kernel", "pid": 0, "tid": 7, "args": shared | grid}


def write(path: Path, n_bytes: float) -> None:
    """Writes a trace of so many bytes before compression."""
    events = recorded()
    times = [event["ts"] for event in events if "ts" in event]
    span_us = max(times) - min(times) + 1e3
    written = 0
    partial = path.with_name(f"{path.name}.part")
    with gzip.open(partial, "wt", 3) if path.suffix == ".gz" else partial.open("w") as file:
        file.write(json.dumps(OPENING)[:-1] + ', "traceEvents": [\n')
        between = ""
        round_ = 0
        while written < n_bytes:
            later = moved(events, round_, span_us)
            text = between + ",\n".join(json.dumps(event) for event in later)
            written += _put(file, text)
            between = ",\n"
            round_ += 1
        file.write("\n]}\n")
    partial.replace(path)


def _put(file: IO[Any], text: str) -> int:
    file.write(text)
    return len(text)


def moved(events: list[dict[str, Any]], round_: int, span_us: float) -> Iterator[dict[str, Any]]:
    """Yields the events later, with numbers of their own."""
    for event in events:
        later = dict(event)
        if "ts" in event:
            later["ts"] = round(event["ts"] + round_ * span_us, 3)
        args = event.get("args")
        if isinstance(args, dict) and "correlation" in args:
            later["args"] = args | {"correlation": args["correlation"] + round_ * 10_000_000}
        yield later


def measure(reader: str, path: Path) -> tuple[float, float, float]:
    """Returns seconds, CPU seconds and mebibytes of a reader's process."""
    program = PROGRAM.format(READERS[reader])
    command = [sys.executable, "-c", program, str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    took_s, cpu_s, mib = map(float, done.stdout.split())
    return took_s, cpu_s, mib


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--readers", nargs="+", default=list(READERS))
    options = parser.parse_args()
    path: Path = options.file
    if not path.exists():
        write(path, options.gigabytes * 1e9)
    print(f"{path}: {path.stat().st_size / 1e6:,.0f} MB on disk")
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in options.readers}
    for _ in range(options.rounds):
        for name, measured in found.items():
            try:
                measured.append(measure(name, path))
            except subprocess.CalledProcessError as error:
                print(f"{name}: {error.stderr.strip().splitlines()[-1]}")
    for name, measured in found.items():
        most = max((mib for _, _, mib in measured), default=float("nan"))
        took = ", ".join(f"{took_s:.1f}" for took_s, _, _ in measured)
        used = ", ".join(f"{cpu_s:.1f}" for _, cpu_s, _ in measured)
        print(f"{name:14} {took} s, {used} s of CPU; at most {most:,.0f} MiB")


if __name__ == "__main__":
    main()
