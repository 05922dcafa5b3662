"""Runs that cannot be judged, and sides that cannot be compared: what Compare warns of is refused here.

Nobody watches a check that runs unattended. So a difference that makes a comparison unfair ends it, unless the change
under test may be just that (another PyTorch, other losses), or it was allowed by name.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from vitprof.analysis.arrays import Series
from vitprof.analysis.check.bounds import FIGURE_STEPS, n_steady
from vitprof.analysis.compare.differences import Caveat, RunFacts, config_differences, which
from vitprof.analysis.compare.guard import GUARDED_STEPS, comparability
from vitprof.analysis.verdict.certainty import not_measurable
from vitprof.config import BUDGETS

CHECKED_STEPS: tuple[str, ...] = tuple(dict.fromkeys((*FIGURE_STEPS, *GUARDED_STEPS)))
"""Step columns that a check reads."""
UNDER_TEST = ("versions", "variables", "losses")
"""Topics of `Caveat` that may be the change under test: they are reported, and the comparison goes on."""
ALLOWED_TOPICS: tuple[str, ...] = (
    *("order", "data", "model", "batch", "device", "machine", "clocks", "page-cache", "gpu-processes"),
    *("vitprof", "power", "cpu", "sharing", "settings"),
)
"""Topics that are refused unless allowed by name: those of `Caveat`, and settings that differ on one side."""
MAY_DIFFER = frozenset({*BUDGETS, "seed", "name"})
"""Settings in which runs of one side may differ: such runs are repeats."""


@dataclass(frozen=True)
class CheckedRun:
    """A run as a check looks at it."""

    facts: RunFacts
    status: str
    """See `records.Status`."""
    error: str
    """Why it failed; else empty."""
    steps: Series
    """`CHECKED_STEPS`, (n,) each."""
    identity: tuple[object, ...]
    """Equal for two runs only if they are the same run."""

    @property
    def label(self) -> str:
        """Returns "run 3"."""
        return which([self.facts])


@dataclass(frozen=True)
class Comparability:
    """Whether two sides may be compared, and what a reader should know of them."""

    refusals: tuple[str, ...]
    """Sentences: why the runs cannot be compared."""
    remarks: tuple[str, ...]
    """Sentences: what differs and is allowed."""


def why_not_judged(run: CheckedRun, allowed: Collection[str] = ()) -> str:
    """Returns why nothing can be said of a run; "" if something can."""
    if run.status != "done":
        why = f" ({run.error})" if run.error else ""
        how = {"failed": "failed", "stopped": "was stopped", "interrupted": "was interrupted"}.get(run.status)
        return f"{run.label} {how or 'is still going on'}{why}; check a run that has finished"
    if reason := not_measurable(run.facts.facts, len(run.steps["step"])):
        return f"{run.label}: {reason}"
    if not n_steady(run.steps):
        return f"{run.label} has no steps in steady state; train for longer"
    if run.facts.facts.get("n_beside") and "sharing" not in allowed:
        return f"{run.label} shared the machine with another run, which took CPU and disk; run it again alone"
    return ""


def comparable(
    runs: Sequence[CheckedRun], baseline: Sequence[CheckedRun], allowed: Collection[str] = ()
) -> Comparability:
    """Returns whether the two sides may be compared, and the runs of each side put together.

    `allowed` are the topics of `ALLOWED_TOPICS` that are let pass.
    """
    refused, remarks = [], []
    if twice := [run for run in runs if run.identity in {base.identity for base in baseline}]:
        refused.append(f"{which([run.facts for run in twice])} is on both sides; a run says nothing against itself")
    for side in (runs, baseline):
        if (mixed := _mixed(side)) and "settings" not in allowed:
            refused.append(mixed)
    for caveat in comparability([run.facts for run in (*runs, *baseline)]):
        if caveat.topic == "sharing":  # said of each run by `why_not_judged`
            continue
        if _refuses(caveat) and caveat.topic not in allowed:
            refused.append(f"{caveat.sentence} To compare all the same: --allow {caveat.topic}")
        elif caveat.level == "warning":
            remarks.append(caveat.sentence)
    return Comparability(tuple(refused), tuple(remarks))


def _refuses(caveat: Caveat) -> bool:
    """Returns whether a difference ends the comparison.

    Compare only notes another batch size, since it shows samples/s of both; but neither is a regression of the other.
    """
    return caveat.topic == "batch" or (caveat.level == "warning" and caveat.topic not in UNDER_TEST)


def _mixed(side: Sequence[CheckedRun]) -> str:
    """Returns a sentence if the runs of one side are of several settings; "" if not."""
    found = config_differences([run.facts.config for run in side])
    names = [d.field for d in found if d.field not in MAY_DIFFER]
    if not names:
        return ""
    values = "; ".join(
        f"{name} {', '.join(dict.fromkeys(str(getattr(run.facts.config, name)) for run in side))}" for name in names
    )
    return (
        f"{which([run.facts for run in side]).capitalize()} are not of one setting ({values}): the noise from run to "
        "run cannot be told from their differences. To compare all the same: --allow settings"
    )
