"""Runs a script up to its first step of training, and says what its Dataset is."""

import contextlib
import json
import math
import os
import shlex
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from vitprof.errors import DataError, JobError
from vitprof.experiments.script_data.facts import DatasetFacts, FileFacts
from vitprof.experiments.script_data.stored_forms import Conversion
from vitprof.home import temporary_prefix
from vitprof.jobs.command import CommandRunner
from vitprof.masking import masked, masked_command
from vitprof.measure.wire import Note
from vitprof.recording import codec

STDERR = 2
MOST_READ_BYTES = 64 << 20
"""The most bytes of files that are read to time them; a file that no longer fits is left out."""
Started = Callable[[CommandRunner], None]
"""Is called with the command once it runs."""


def begin_words(command: Sequence[str]) -> str:
    """Returns what running a command up to its first step does to the user's files, in a line."""
    runs = f"{shlex.join(masked_command(command))} runs in {os.getcwd()} up to its first step of training"
    return f"{runs}; what it writes until then, such as logs, caches and downloads, stays"


def dataset_of(command: Sequence[str], started: Started = lambda _: None) -> DatasetFacts:
    """Returns what the dataset of the command's train loader is.

    The command ends after its first step, and prints on standard error. Raises `JobError` where it
    cannot be started, or shows no dataset.
    """
    facts = codec.from_plain(DatasetFacts, _reported(command, started, {}, lambda: None))
    paths = [Path(name) for name in (*facts.files, *facts.held_files)]
    return replace(facts, file_facts=file_facts(paths))


def stored(
    command: Sequence[str],
    request: Mapping[str, Any],
    started: Started,
    progress: Callable[[], None],
) -> Conversion:
    """Stores samples of that dataset as `request` says (`vitprof.forms.script.conversion`), and
    returns the outcome. Calls `progress` again and again meanwhile. Raises `JobError`.
    """
    timed_request = json.dumps({**request, "began_s": time.monotonic()})
    variables = {"VITPROF_WATCH_CONVERT": timed_request}
    return codec.from_plain(Conversion, _reported(command, started, variables, progress))


def _reported(
    command: Sequence[str], started: Started, more: Mapping[str, str], progress: Callable[[], None]
) -> dict[str, Any]:
    """Returns what the script's process writes after its first step; `more`: variables for it."""
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
        if not path.exists():
            if runner.stopping or runner.returncode in (-signal.SIGINT, 128 + signal.SIGINT):
                raise KeyboardInterrupt
            why = "; ".join(reasons) or "no step of training was made"
            raise JobError(f"no dataset was seen: {_ended(runner.returncode)}{why}")
        report = json.loads(path.read_text(encoding="utf-8"))
    if "error" in report:
        done = "stored" if more else "described"
        raise JobError(f"the dataset cannot be {done}: {masked(report['error'])}")
    return dict(report)


def _ended(code: int | None) -> str:
    """Returns how the script ended, in front of the reason; "" where it ended well."""
    if not code:
        return ""
    how = f"signal {-code}" if code < 0 else f"exit status {code}"
    return f"the script ended with {how}; "


def file_facts(paths: Sequence[Path]) -> FileFacts:
    """Returns where files are, and how long it takes to read one from memory and from the drive."""
    paths = [path for path in paths if path.is_file()]
    if not paths:
        return FileFacts()
    file_systems = {mount.mountpoint: mount.fstype for mount in psutil.disk_partitions(all=True)}
    folders = [str(folder) for folder in paths[0].resolve().parents]
    mount = next((folder for folder in folders if folder in file_systems), "")
    facts = FileFacts(str(paths[0]), file_systems.get(mount, "unknown"), mount)
    chosen = list[Path]()
    remaining_bytes = MOST_READ_BYTES
    for path in paths:
        size = path.stat().st_size
        if size <= remaining_bytes:
            chosen.append(path)
            remaining_bytes -= size
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
