"""Runs a script up to its first step of training, and says what its Dataset is."""

import contextlib
import json
import math
import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from vitprof.analysis.conversion import Conversion
from vitprof.analysis.dataset import DatasetFacts, FileFacts
from vitprof.errors import DataError, JobError
from vitprof.home import temporary_prefix
from vitprof.jobs.command import CommandRunner
from vitprof.measure.wire import Note
from vitprof.recording import codec

STDERR = 2
MOST_READ_BYTES = 64 << 20
"""Bytes that are read of files to time them; a file that is larger than what is left of it is not read."""
Started = Callable[[CommandRunner], None]


def dataset_of(command: Sequence[str], started: Started = lambda _: None) -> DatasetFacts:
    """Returns what the dataset of the command's train loader is; the command ends after its first step, and prints on
    standard error. `started` gets it as it runs. Raises `JobError` where it cannot be started, or shows no dataset.
    """
    facts = codec.from_plain(DatasetFacts, _found(command, started, {}, lambda: None))
    return replace(
        facts, file_facts=file_facts([Path(name) for name in (*facts.files, *facts.held_files)])
    )


def stored(
    command: Sequence[str],
    request: Mapping[str, Any],
    started: Started,
    progress: Callable[[], None],
) -> Conversion:
    """Stores samples of that dataset as `request` says (`vitprof.watch.conversion`), and returns what came of it; calls
    `progress` meanwhile. Raises `JobError`.
    """
    return codec.from_plain(
        Conversion,
        _found(
            command,
            started,
            {"VITPROF_WATCH_CONVERT": json.dumps({**request, "began_s": time.monotonic()})},
            progress,
        ),
    )


def _found(
    command: Sequence[str], started: Started, more: Mapping[str, str], progress: Callable[[], None]
) -> dict[str, Any]:
    """Returns what the script's process writes after its first step."""
    with tempfile.TemporaryDirectory(prefix=temporary_prefix("data")) as directory:
        path = Path(directory) / "dataset.json"
        variables = {"VITPROF_WATCH_STEPS": "1", "VITPROF_WATCH_DATA": str(path), **more}
        runner = CommandRunner(command, variables=variables, stdout=STDERR)
        started(runner)
        reasons = []
        for message in runner.messages():
            runner.kill()
            progress()
            if isinstance(message, Note) and message.kind == "notice":
                reasons.append(str(message.values["line"]))
        runner.close()
        if not path.exists() and (
            runner.stopping or runner.returncode in (-signal.SIGINT, 128 + signal.SIGINT)
        ):
            raise KeyboardInterrupt
        if not path.exists():
            why = "; ".join(reasons) or "no step of training was made"
            raise JobError(f"no dataset was seen: {_ended(runner.returncode)}{why}")
        found = json.loads(path.read_text(encoding="utf-8"))
    if "error" in found:
        raise JobError(
            f"the dataset cannot be {'stored' if more else 'described'}: {found['error']}"
        )
    return dict(found)


def _ended(code: int | None) -> str:
    return (
        f"the script ended with {f'signal {-code}' if code < 0 else f'exit status {code}'}; "
        if code
        else ""
    )


def file_facts(paths: Sequence[Path]) -> FileFacts:
    """Returns where files are, and how long it takes to read one from memory and from the drive."""
    paths = [path for path in paths if path.is_file()]
    if not paths:
        return FileFacts()
    mounts = {mount.mountpoint: mount.fstype for mount in psutil.disk_partitions(all=True)}
    mount = next((str(p) for p in paths[0].resolve().parents if str(p) in mounts), "")
    facts = FileFacts(str(paths[0]), mounts.get(mount, "unknown"), mount)
    chosen = list[Path]()
    left = MOST_READ_BYTES
    for path in paths:
        if (size := path.stat().st_size) <= left:
            chosen = [*chosen, path]
            left = left - size
    if not chosen:
        return replace(facts, why_not_cold="they are too large to be read as a whole")
    mean_bytes = sum(path.stat().st_size for path in chosen) / len(chosen)
    with contextlib.suppress(OSError):
        _read_s(chosen)
        facts = replace(facts, n=len(chosen), mean_bytes=mean_bytes, warm_s=_read_s(chosen))
        from vitprof.engine.locations import pagecache

        try:
            pagecache.drop(chosen)
            return replace(facts, cold_s=_read_s(chosen))
        except DataError as error:
            return replace(facts, why_not_cold=f"from the drive not known: {error}")
    return facts


def _read_s(paths: Sequence[Path]) -> float:
    """Returns the median seconds to read a file as a whole. Raises `OSError`."""
    times = []
    buffer = bytearray(1 << 20)
    for path in paths:
        began = time.perf_counter()
        descriptor = os.open(path, os.O_RDONLY)
        try:
            while os.readv(descriptor, [buffer]):
                pass
        finally:
            os.close(descriptor)
        times.append(time.perf_counter() - began)
    return median(times) if times else math.nan
