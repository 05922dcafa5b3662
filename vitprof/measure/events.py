"""What a job reports while it runs: a job in a process of its own sends it over a pipe, one in a thread directly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from vitprof.measure.step_columns import StepMarks


class Events(Protocol):
    """The receiver of what a job reports. Every method returns at once."""

    def environment(self, facts: dict[str, Any]) -> None:
        """Takes facts about what the job runs on."""

    def gauges(self, read: Callable[[], dict[str, float]]) -> None:
        """Takes the function that reads those columns of `TelemetrySample` that only the job knows.

        It is called now and then, in any thread.
        """

    def stage(self, name: str, fraction: float, message: str = "") -> None:
        """Notes what the job is doing now and how far along it is, 0..1 (NaN: unknown)."""

    def step(self, marks: StepMarks) -> None:
        """Takes one finished step, whose marks are times."""

    def phase(self, name: str, t_start_s: float, t_end_s: float) -> None:
        """Notes a span of the run that is not a step, once it has ended: times on the host's clock."""

    def notice(self, line: str) -> None:
        """Takes a line to show with the run."""

    def facts(self, values: dict[str, Any]) -> None:
        """Takes figures that belong to the run as a whole; later values replace earlier ones."""
