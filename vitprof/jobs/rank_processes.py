"""The ranks of a built-in job: rank 0's process starts those of the others, whose steps it sends with
its own.

A rank that fails or dies leaves the others in a collective that nothing can interrupt. So the
processes are watched by threads: the job then ends with the error of the rank that failed first by
itself.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from vitprof.config import RunConfig
from vitprof.config.rank_configs import config_of, slow_rank
from vitprof.engine.ranks.agreement import agreement_bytes
from vitprof.errors import DeviceError, JobError, JobStopped
from vitprof.measure.wire import EventBuffer, Note, read_messages
from vitprof.telemetry.visible import choices, show_only, visible_gpus

RANK = "VITPROF_RANK"
"""Environment variable of all ranks but 0: the rank, the port of the store and the descriptor of the
shared memory, separated by colons."""
LOST = "it lost the other ranks"
"""The error of a rank that failed since another one is gone."""
GRACE_S = 2.0
"""How long (s) a rank may take to say why it ended, once another one misses it."""
LAST_STEPS_S = 60.0
"""How long (s) the other ranks may take to send their last steps and to end, once rank 0 is done."""


def train(config: RunConfig, buffer: EventBuffer, stop: threading.Event) -> bool:
    """Trains this process's rank of the job `config`; as rank 0 it starts the others.

    Returns whether the training was completed. Raises what `engine.train` does, and `JobError` where
    another rank failed.
    """
    if RANK in os.environ:
        rank, port, memory = map(int, os.environ[RANK].split(":"))
        try:
            return _train(rank, port, memory, config, buffer, stop)
        except JobStopped:
            raise
        except Exception as error:
            raise (JobError(LOST) if _is_lost(error) else error) from error
    config = settled(config)
    if config.slow_rank is not None:
        slow, wait_ms = slow_rank(config)
        buffer.notice(f"rank {slow} waits {wait_ms:g} ms before it reads each batch, on purpose")
    with (
        tempfile.TemporaryFile() as memory_file,
        socket.create_server(("127.0.0.1", 0)) as listening,
    ):
        memory_file.truncate(agreement_bytes(config.ranks))
        port = listening.getsockname()[1]
        with RankProcesses(config, buffer, port, memory_file.fileno()) as others:
            try:
                completed = _train(
                    0, port, memory_file.fileno(), config_of(config, 0), buffer, stop, listening
                )
            except JobStopped:
                raise
            except Exception as error:
                cause = others.why(GRACE_S) if _is_lost(error) else ""
                if cause:
                    raise JobError(cause) from error
                raise
            failure = others.finish()
            if failure:
                raise JobError(failure)
            return completed


def _train(
    rank: int,
    port: int,
    memory: int,
    config: RunConfig,
    buffer: EventBuffer,
    stop: threading.Event,
    listening: socket.socket | None = None,
) -> bool:
    show_only(config.device)
    from vitprof.engine.ranks.group import Group
    from vitprof.engine.ranks.training import train_rank

    return train_rank(
        config, buffer, Group(rank, config.ranks, port, memory, stop.is_set, listening)
    )


def _is_lost(error: BaseException) -> bool:
    from vitprof.engine.ranks.group import is_lost

    return is_lost(error)


def settled(config: RunConfig) -> RunConfig:
    """Returns `config` with the first rank's device in place of "auto".

    Raises `DeviceError` for too few GPUs.
    """
    if config.device != "auto" and not config.device.startswith("cuda:"):
        return config
    gpus = visible_gpus()
    if config.device == "auto":
        config = replace(config, device="cuda:0" if gpus else "cpu")
    first = int(config.device.removeprefix("cuda:")) if gpus else 0
    if gpus and first + config.ranks > len(gpus):
        needed = f"{config.ranks} ranks take a GPU each from {config.device} on"
        there = f"there are {len(gpus)} ({choices(gpus)})"
        raise DeviceError(f"{needed}, and {there}; choose fewer ranks, or --device cpu")
    return config


class RankProcesses:
    """The processes of all ranks but 0, and a thread for each that takes its messages; for a `with` block."""

    def __init__(self, config: RunConfig, buffer: EventBuffer, port: int, memory: int) -> None:
        self._buffer = buffer
        self._over = threading.Event()
        """Set once rank 0 has ended: another's end is no failure then."""
        self._ended = threading.Condition()
        self._errors: dict[int, str] = {}
        self._processes: list[subprocess.Popen[bytes]] = []
        self._threads: list[threading.Thread] = []
        for rank in range(1, config.ranks):
            environment = os.environ | {RANK: f"{rank}:{port}:{memory}"}
            process = subprocess.Popen(
                [sys.executable, "-m", "vitprof.jobs.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                pass_fds=(memory,),
            )
            self._processes.append(process)
            buffer.rank(rank, process.pid)
            assert process.stdin is not None
            # it died at once: its thread says so
            with suppress(BrokenPipeError):
                process.stdin.write(json.dumps(config_of(config, rank).to_dict()).encode() + b"\n")
                process.stdin.flush()
            thread = threading.Thread(
                target=self._read, args=(rank, process), name=f"vitprof-rank-{rank}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def _read(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        """Passes on a rank's steps and its GPU, and notes its end. What else it reports is like rank 0's."""
        end: dict[str, Any] = {}
        assert process.stdout is not None
        # what is no message: it is ended below
        with suppress(ValueError), process.stdout:
            for message in read_messages(process.stdout):
                if not isinstance(message, Note):
                    self._buffer.steps(
                        {**message, "rank": np.full(len(message["step"]), float(rank))}
                    )
                elif message.kind == "environment" and message.values.get("gpu_uuid"):
                    self._buffer.gpu(message.values["gpu_uuid"])
                elif message.kind == "end":
                    end = message.values
        if not end:
            process.kill()
        code = process.wait()
        if end.get("status") in ("done", "stopped"):
            return
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit status {code}"
        self._fail(rank, end.get("error") or f"its process was ended {how}")

    def _fail(self, rank: int, error: str) -> None:
        with self._ended:
            self._errors[rank] = error
            self._ended.notify_all()
        # Rank 0 may wait for it in a collective forever. The parent ends a job that says it has failed.
        if not self._over.wait(GRACE_S):
            self._buffer.end("failed", self.why())

    def why(self, wait_s: float = 0.0) -> str:
        """Returns why the ranks failed: the error of the first that did not fail because of another.

        Waits at most `wait_s` seconds for it. "" where none failed.
        """

        def causes() -> list[tuple[int, str]]:
            return [(rank, error) for rank, error in self._errors.items() if error != LOST]

        with self._ended:
            self._ended.wait_for(causes, wait_s)
            errors = causes() or list(self._errors.items())
        if not errors:
            return ""
        rank, error = errors[0]
        return f"rank {rank}: {error}"

    def finish(self) -> str:
        """Waits until all ranks have sent their last steps. Returns why one failed; "" where none did."""
        until = time.monotonic() + LAST_STEPS_S
        for rank, thread in enumerate(self._threads, 1):
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                return f"rank {rank}: it did not end within {LAST_STEPS_S:g} s of rank 0; steps may be missing"
        return self.why()

    def __enter__(self) -> RankProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for process in self._processes:
            if process.poll() is None:
                process.kill()
        for process, thread in zip(self._processes, self._threads, strict=True):
            thread.join()
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.close()
