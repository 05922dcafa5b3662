"""A picture of a user's own runs for a talk: which stretch is shown, and the words on it.

The figures are those of the runs' verdicts, so the picture says what the page says. A run without a
verdict has none, and a ratio is said only where one run is faster by the rule for that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from vitprof import formats
from vitprof.analysis.arrays import Series
from vitprof.analysis.compare.comparison import RunComparison
from vitprof.analysis.compare.differences import config_differences
from vitprof.analysis.timing import activity
from vitprof.analysis.verdict import rendering
from vitprof.charts.talk import WIDE, Lane, Size, talk_figure
from vitprof.config import accelerators, own_script
from vitprof.recording.verdict import Verdict
from vitprof.store import StoredRun

MOST_CHANGES = 2
"""Settings that are named at most; a run that differs in more has its number."""
EXACT_BELOW = 1.5
"""A ratio below this has three digits: "1.0x faster" would contradict itself."""
WAITS = {
    "gpu": "The GPU waits",
    "simulated": "The simulated GPU waits",
    "cpu": "Training on the CPU waits",
}
"""What trains -> how the title begins."""


@dataclass(frozen=True)
class Part:
    """A run for the picture."""

    run: StoredRun
    steps: Series
    verdict: Verdict


@dataclass(frozen=True)
class Talk:
    """A picture: what it shows and says."""

    lanes: tuple[Lane, ...]
    title: str
    length_s: float
    note: str
    """What ran where, for the bottom line."""
    name: str
    """The name of its file, without a suffix."""
    meanings: Mapping[str, str]
    """What a colour means where that is not its usual words."""
    strips: str = "whole run"
    """What the strips show."""

    @property
    def alt(self) -> str:
        """Returns the picture in words."""
        shown = " ".join(f"{lane.name}: {lane.says}." for lane in self.lanes if lane.says)
        return f"{self.title}. {shown}".strip()

    def figure(self, size: Size = WIDE) -> go.Figure:
        """Returns the picture."""
        return talk_figure(
            self.lanes,
            self.title,
            length_s=self.length_s,
            note=self.note,
            meanings=self.meanings,
            strips=self.strips,
            size=size,
        )


def talk(parts: Sequence[Part], gain: RunComparison | None = None) -> Talk | None:
    """Returns the picture of a run, or of a run and of what it is compared with.

    `gain` is how the second compares with the first; None where that is not known. None if a run
    has no device times, because it trained nothing or on a device that cannot be timed.
    """
    if any(part.run.config.loader_only for part in parts):
        return None
    length_s = activity.stretch_length([part.steps for part in parts])
    if not np.isfinite(length_s):
        return None
    names = ["now"]
    if len(parts) > 1:
        names.append(change_in_words(parts[0].run, parts[1].run))
    n_samples = min(samples_of(part.steps) for part in parts)
    is_whole = all(samples_of(part.steps) == n_samples for part in parts)
    lanes = []
    for name, part in zip(names, parts, strict=True):
        stretch = activity.typical_stretch(part.steps, part.run.phases, length_s)
        strip = activity.whole_run(first_samples(part.steps, n_samples))
        says = ""
        if part.verdict.is_conclusive:
            says = f"waits for data {formats.percent(part.verdict.idle_frac)}"
        lanes.append(Lane(name, says, stretch, strip))
    ids = [part.run.id for part in parts]
    verdicts = [part.verdict for part in parts]
    return Talk(
        tuple(lanes),
        title_of(verdicts, names[-1], gain),
        length_s,
        _note([part.run for part in parts]),
        f"vitprof-run-{'-and-'.join(map(str, ids))}",
        _meanings(verdicts),
        "whole run" if is_whole else f"{n_samples:,.0f}<br>samples",
    )


def samples_of(steps: Series) -> float:
    """Returns how many samples a run trained on in these steps."""
    return float(np.nansum(steps["samples"]))


def first_samples(steps: Series, n_samples: float) -> Series:
    """Returns the steps until a run has trained on so many samples: two runs are shown doing the same
    work."""
    until = int(np.searchsorted(np.nancumsum(steps["samples"]), n_samples)) + 1
    return {name: values[:until] for name, values in steps.items()}


def _meanings(verdicts: Sequence[Verdict]) -> dict[str, str]:
    """Returns what colours mean in a picture of runs with these verdicts, where it is not the
    usual.
    """
    found = {}
    if any(verdict.copies_included for verdict in verdicts):
        found["data"] = "waits for data and copies"
    if any(verdict.kind == "launch-bound" for verdict in verdicts):
        # Where in a step they are is not known.
        found["compute"] = "computes, or waits for Python to launch kernels"
    return found


def title_of(verdicts: Sequence[Verdict], change: str, gain: RunComparison | None) -> str:
    """Returns the verdict on one run or two: "The GPU waits for data 70% of the time; with memory
    0.3%: 3.3x faster".

    `change` says what the second one does: "with memory".
    """
    now, *others = verdicts
    if not now.is_conclusive:
        return f"{rendering.render(now).headline}: how long the device waits is not certain"
    waits = WAITS.get(now.device or "gpu", f"The {now.device_name} device waits")
    if now.kind == "launch-bound":
        return f"{waits} for Python to launch kernels {formats.percent(now.paced_frac)} of the time"
    title = f"{waits} for data {formats.percent(now.idle_frac)} of the time"
    if not others:
        return title
    (then,) = others
    if not then.is_conclusive:
        return title
    title += f"; {change} {formats.percent(then.idle_frac)}"
    if gain is not None and gain.relation == "faster":
        title += f": {times(gain.speed_up)} faster"
    elif gain is not None and gain.relation == "slower":
        title += f": {times(1 / gain.speed_up)} slower"
    return title


def times(ratio: float) -> str:
    """Returns a ratio for a title, with two digits where those are enough: "3.3x"."""
    if ratio < EXACT_BELOW:
        return f"{ratio:.3g}x"
    if ratio < 10:
        return f"{ratio:.1f}x"
    return f"{ratio:.0f}x"


def change_in_words(now: StoredRun, then: StoredRun) -> str:
    """Returns what the second run does that the first does not: "with memory"; its number where
    that takes too many words.
    """
    number = f"run {then.id}"
    if now.config.dataset != then.config.dataset:
        return number
    changes = []
    for difference in config_differences([now.config, then.config]):
        cell = difference.cells[1]
        if difference.field in ("name", "steps", "epochs", "seconds"):
            continue
        if difference.field == "strategy":
            # The strategy chose the other settings.
            return f"with {cell.value}"
        value = "default" if cell.value is None else cell.value
        name = difference.field.replace("_", " ")
        if own_script.is_own_script(then.config) and difference.field == "workers":
            name = "num_workers"
        changes.append(f"{name} {value}")
    if not 0 < len(changes) <= MOST_CHANGES:
        return number
    return f"with {' and '.join(changes)}"


def _note(runs: Sequence[StoredRun]) -> str:
    first = runs[0]
    device = accelerators.device_in_words(first.config.device)
    device = str(first.environment.get("device_name", device))
    numbers = " and ".join(str(run.id) for run in runs)
    which = f"run {numbers}" if len(runs) == 1 else f"runs {numbers}"
    what = f"{first.config.dataset}, batch {first.config.batch_size}, on {device}"
    return f"vitprof, {which}: {what}"
