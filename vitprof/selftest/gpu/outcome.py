"""The outcome of a case on a GPU: passed, failed or not run, with what was measured in words and in figures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["passed", "failed", "not run"]


@dataclass(frozen=True)
class Outcome:
    """The result of one case."""

    status: Status
    measured: str = ""
    """What was measured, in words; empty where nothing was."""
    reason: str = ""
    """What is wrong, or why it was not run, in one line; empty where it passed."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """Every figure behind it, as JSON can hold it; the names have the units."""

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values for JSON; NaN and infinities become None."""
        return {
            "status": self.status,
            "measured": self.measured,
            "reason": self.reason,
            "figures": finite(self.figures),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Outcome:
        """Returns the outcome that `to_dict` made the values of."""
        return cls(values["status"], values["measured"], values["reason"], values["figures"])


def not_run(reason: str, **figures: Any) -> Outcome:
    """Returns the outcome of a case that cannot be run here, and why."""
    return Outcome("not run", reason=reason, figures=figures)


def judged(measured: str, wrong: list[str], **figures: Any) -> Outcome:
    """Returns the outcome of a case that was run: it passed if `wrong` is empty."""
    return Outcome("failed" if wrong else "passed", measured, "; ".join(wrong), figures)


def finite(value: Any) -> Any:
    """Returns `value` as JSON can hold it, at any depth: None for NaN and infinities, lists for tuples, text keys."""
    if isinstance(value, Mapping):
        return {str(name): finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
