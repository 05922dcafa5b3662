"""What a job reports while it runs. The job's own process sends it over a pipe; a thread hands it on directly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

StepRow = tuple[float, ...]
"""One step in the order of `vitprof.records.STEP_COLUMNS`."""


class Events(Protocol):
    """Takes what a job reports. Every method returns at once."""

    def environment(self, facts: dict[str, Any]) -> None:
        """Takes facts about what the job runs on."""

    def gauges(self, read: Callable[[], dict[str, float]]) -> None:
        """Takes what reads columns of `TelemetrySample` that only the job knows: called now and then, in any thread."""

    def stage(self, name: str, fraction: float, message: str = "") -> None:
        """Notes what the job is doing now and how far it is, 0..1 (NaN: no telling)."""

    def step(self, row: StepRow) -> None:
        """Takes one finished step, in the order of `STEP_COLUMNS`."""

    def phase(self, name: str, t_start_s: float, t_end_s: float) -> None:
        """Notes that a stretch of the run that is not a step has ended."""

    def notice(self, line: str) -> None:
        """Takes a line that people should read: it is shown with the run."""

    def facts(self, values: dict[str, Any]) -> None:
        """Takes figures that belong to the run as a whole; later values replace earlier ones."""
