"""What a job reports while it runs. The job's own process sends it over a pipe; a thread hands it on directly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

StepRow = tuple[float, ...]
"""One step in the order of `vitprof.records.STEP_COLUMNS`."""


class Events(Protocol):
    """Where a job reports to. Every method returns at once."""

    def environment(self, facts: dict[str, Any]) -> None:
        """What the job runs on."""

    def gauges(self, read: Callable[[], dict[str, float]]) -> None:
        """`read` gives columns of `TelemetrySample` that only the job knows. Called now and then, in any thread."""

    def stage(self, name: str, fraction: float, message: str = "") -> None:
        """What the job is doing now and how far it is, 0..1 (NaN: no telling)."""

    def step(self, row: StepRow) -> None:
        """One finished step, in the order of `STEP_COLUMNS`."""

    def phase(self, name: str, t_start_s: float, t_end_s: float) -> None:
        """A stretch of the run that is not a step has ended."""

    def notice(self, line: str) -> None:
        """Something a person should know about the run: a line, shown with it."""

    def facts(self, values: dict[str, Any]) -> None:
        """Figures that belong to the run as a whole; later values replace earlier ones."""
