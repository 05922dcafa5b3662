"""The places in the plain loop where a tool can hook in, and the tools: torch.profiler, TraceML and gpuprof."""

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitprof.engine.loaders.contract import Batch

NOTHING = nullcontext()


class Bare:
    """The hooks of a loop without a tool. Those of each tool do what its manual tells users to add to their loop."""

    @contextmanager
    def job(self, simulated: bool) -> Iterator[None]:
        """Wraps the whole loop."""
        yield

    def batches(self, batches: Iterable[Batch]) -> Iterable[Batch]:
        """Wraps the loader."""
        return batches

    def step(self, model: nn.Module) -> AbstractContextManager[Any]:
        """Wraps a step, which begins when the loop has the batch."""
        return NOTHING

    def forward(self) -> AbstractContextManager[Any]:
        """Wraps the forward pass."""
        return NOTHING

    def after_step(self) -> None:
        """Is called at the end of each step."""

    def recorded(self) -> int | None:
        """Returns the number of steps of the last job that the tool has recorded; None where it does not say."""
        return None


class Torch(Bare):
    """`torch.profiler`, with its tutorial's schedule over the whole job (it records a cycle, writes it, and begins
    again), or recording all the time."""

    def __init__(self, folder: Path, *, cycles: bool) -> None:
        self._folder, self._cycles = folder, cycles
        self._profile: Any = None

    @contextmanager
    def job(self, simulated: bool) -> Iterator[None]:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        cyclic: dict[str, Any] = {
            "schedule": torch.profiler.schedule(wait=1, warmup=1, active=3),
            "on_trace_ready": torch.profiler.tensorboard_trace_handler(str(self._folder)),
        }
        with torch.profiler.profile(
            activities=activities, **(cyclic if self._cycles else {})
        ) as self._profile:
            yield

    def after_step(self) -> None:
        self._profile.step()

    def recorded(self) -> int | None:
        if not self._cycles:
            return None  # counting takes longer than the job
        traces = list(self._folder.glob("*.pt.trace.json"))
        for trace in traces:
            trace.unlink()
        return 3 * len(traces)


class TraceML(Bare):
    """TraceML as in its README: `traceml run` starts this process, `init` patches, `trace_step` wraps each step."""

    def __init__(self) -> None:
        import traceml_ai

        os.environ.setdefault("TRACEML_ON_MISSING_AGGREGATOR", "raise")
        traceml_ai.init(mode="auto")
        self.step = traceml_ai.trace_step  # type: ignore[method-assign]
        self._before = 0

    def recorded(self) -> int | None:
        from traceml_ai.runtime.state import get_trace_session_state

        before, self._before = self._before, get_trace_session_state().step
        return self._before - before


class GpuProf(Bare):
    """gpuprof as in its README: a context around the loop, which patches torch. A step of a simulated device has no
    `backward` and no optimizer that it could see: its API for other loops is used there."""

    def __init__(self, folder: Path) -> None:
        self._database = folder / "gpuprof.db"
        self._manual: Any = None
        self._recorder: Any = None
        self._number = 0

    @contextmanager
    def job(self, simulated: bool) -> Iterator[None]:
        import gpuprof

        with gpuprof.profile(
            "overhead", auto=not simulated, db_path=str(self._database)
        ) as profiler:
            self._manual = profiler if simulated else None
            self._number = 0
            yield

    def batches(self, batches: Iterable[Batch]) -> Iterable[Batch]:
        return self._manual.wrap_dataloader(batches) if self._manual else batches

    @contextmanager
    def _manual_step(self) -> Iterator[None]:
        with self._manual.step(self._number) as self._recorder:
            yield
        self._number += 1

    def step(self, model: nn.Module) -> AbstractContextManager[Any]:
        return self._manual_step() if self._manual else NOTHING

    def forward(self) -> AbstractContextManager[Any]:
        return self._recorder.phase("forward") if self._manual else NOTHING

    def recorded(self) -> int | None:
        with sqlite3.connect(self._database) as database:
            (count,) = database.execute(
                "SELECT count(*) FROM steps WHERE run_id = (SELECT max(id) FROM runs)"
            ).fetchone()
        return int(count)


def tool_called(name: str, folder: Path) -> Bare:
    """Returns the hooks of the tool `name`, which writes to `folder`; `Bare` for any other name."""
    match name:
        case "torch-cycles" | "torch-always":
            return Torch(folder, cycles=name == "torch-cycles")
        case "traceml":
            return TraceML()
        case "gpuprof":
            return GpuProf(folder)
        case _:
            return Bare()
