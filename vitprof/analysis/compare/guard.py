"""Whether finished runs can be compared. Compare warns; an unattended check ends, unless it was allowed."""

import itertools
import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from vitprof.analysis import arrays
from vitprof.analysis.compare.bounds import COLUMNS, FIGURE_STEPS, Kind, n_steady
from vitprof.analysis.compare.differences import (
    CHECKS,
    Caveat,
    Check,
    RunFacts,
    config_differences,
    device_name,
    which,
)
from vitprof.analysis.signatures.resources import others_cpu
from vitprof.analysis.thresholds import CACHED_FRAC, CLOCK_FRAC, OTHER_MEMORY_BYTES, OTHERS_CORES
from vitprof.analysis.timing.loading import host_paced
from vitprof.analysis.timing.steady import steady_state, while_steady
from vitprof.analysis.verdict.no_verdict import not_measurable
from vitprof.analysis.verdict.wording import find_device, outside_loader
from vitprof.config import BUDGETS, RunConfig, own_script
from vitprof.formats import number, percent, size
from vitprof.recording.columns import RunSummary

FIRST_LOSSES = 10
"""Steps whose losses are compared: rounding (non-deterministic kernels, orders of summing) grows with every step."""
SAME_LOSS = {"fp32": 1e-3, "other": 0.05}
"""Largest relative difference of the first loss: float32 agrees to 1e-5, bfloat16 and TF32 to some percent."""
BATCH_FRAC = 0.05
"""Relative difference of two scripts' mean samples a step that is unfair: more than a small last batch in 20 makes."""
GROWING_FACTOR = 10.0
"""The median difference over the first steps may be so many times `SAME_LOSS`: the optimizer amplifies it."""


def run_facts(
    run_id: int,
    config: RunConfig,
    environment: Mapping[str, Any],
    facts: Mapping[str, Any],
    summary: RunSummary | None,
    steps: arrays.Series,
    telemetry: arrays.Series,
) -> RunFacts:
    """Returns what `comparability` needs of a run; of `steps` and `telemetry` only t_s and the columns named above."""
    inside = while_steady(steps, telemetry["t_s"])
    of = {column: telemetry[column][inside] for column in GUARDED_TELEMETRY}
    return RunFacts(
        id=run_id,
        config=config,
        environment=environment,
        facts=facts,
        summary=summary,
        loss_step=steps["step"][: 2 * FIRST_LOSSES],
        loss=steps["loss"][: 2 * FIRST_LOSSES],
        sm_clock_mhz=arrays.median(of["gpu_sm_clock_mhz"]),
        other_gpu_bytes=arrays.median(of["gpu_mem_used_bytes"] - of["gpu_mem_job_bytes"]),
        others_cores=others_cpu(steps, telemetry, environment).cores,
    )


GUARDED_STEPS: tuple[str, ...] = ("step", "epoch", "warmup", "loss", "t_start_s")
GUARDED_TELEMETRY = (
    "gpu_sm_clock_mhz",
    "gpu_mem_used_bytes",
    "gpu_mem_job_bytes",
    "cpu_pct",
    "job_cpu_pct",
)


def comparability(runs: Sequence[RunFacts]) -> tuple[Caveat, ...]:
    """Returns what makes the comparison unfair, warnings first; never the strategy and its parts."""
    unique = list({(run.source, run.id): run for run in runs}.values())
    if len(unique) < 2:
        return ()
    found = [
        c for check in (*CHECKS, *MEASURED_CHECKS, _losses) if (c := check(unique)) is not None
    ]
    return tuple(sorted(found, key=lambda c: c.level != "warning"))


def _far_apart(
    topic: str,
    what: str,
    figure: Callable[[RunFacts], float],
    limit: float,
    words: Callable[[float], str],
    why: str,
    *,
    relative: bool = False,
) -> Check:
    """Returns a check that the lowest and the highest known `figure` are at most `limit` apart (`relative`: a share of
    the lower); both are in its sentence, as `words` has them.
    """

    def check(runs: Sequence[RunFacts]) -> Caveat | None:
        known = sorted(
            (run for run in runs if math.isfinite(figure(run))),
            key=lambda run: (figure(run), run.id),
        )
        if not known:
            return None
        low = figure(known[0])
        high = figure(known[-1])
        if not (high > low * (1 + limit) if relative else high - low > limit):
            return None
        ends = "; ".join(f"{words(figure(run))} in {which([run])}" for run in (known[0], known[-1]))
        return Caveat(topic, "warning", f"{what}: {ends}. {why}")

    return check


def _samples_a_step(run: RunFacts) -> float:
    """Returns the mean samples of a step of a user's own script, whose loader need not have a batch size."""
    s = run.summary
    return (
        s.n_samples / s.n_steps
        if own_script.is_own_script(run.config) and s is not None and s.n_steps
        else math.nan
    )


def _cached(run: RunFacts) -> float:
    frac = run.facts.get("page_cached_frac")
    return math.nan if frac is None else float(frac)


def _cores(cores: float) -> str:
    return f"{number(max(cores, 0.0))} cores"


SIZES = "Steps of another size run at another speed."
IN_USE = "They may have used the GPU as well."
HEAT = "Heat, power limit or load lowered it, and with it the speed of compute."
COLD = "Cold and warm reads are different experiments: set page_cache."
LACKS = "Loading that lacks a core is slower."
CLOCK = attrgetter("sm_clock_mhz")
OTHER_MEMORY = attrgetter("other_gpu_bytes")
OTHERS = attrgetter("others_cores")
MEASURED_CHECKS: tuple[Check, ...] = (
    _far_apart(
        "batch",
        "Samples a step differ",
        _samples_a_step,
        BATCH_FRAC,
        "{:.4g}".format,
        SIZES,
        relative=True,
    ),
    _far_apart(
        "clocks",
        "The GPU's clock differs",
        CLOCK,
        CLOCK_FRAC,
        "{:.0f} MHz".format,
        HEAT,
        relative=True,
    ),
    _far_apart(
        "page-cache",
        "The share of files in the page cache differs",
        _cached,
        CACHED_FRAC,
        percent,
        COLD,
    ),
    _far_apart(
        "gpu-processes",
        "Other processes' GPU memory differs",
        OTHER_MEMORY,
        OTHER_MEMORY_BYTES,
        size,
        IN_USE,
    ),
    _far_apart(
        "cpu", "The CPU taken by other programs differs", OTHERS, OTHERS_CORES, _cores, LACKS
    ),
)


def _losses(runs: Sequence[RunFacts]) -> Caveat | None:
    pairs = []
    for a, b in itertools.combinations(runs, 2):
        if _work(a) == _work(b) and a.config.augment in ("off", None):
            strict = a.config.precision == "fp32" and device_name(a) == device_name(b)
            pairs.append(_disagreement(a, b, SAME_LOSS["fp32" if strict else "other"]))
    excess, words = max(pairs, key=lambda pair: pair[0], default=(0.0, ""))
    own = any(own_script.is_own_script(run.config) for run in runs)  # whose seed is not known
    sentence = (
        f"The losses at equal steps do not agree: {words}. With the same seed, data and order they should: "
        f"{'unless the script sets no seed, ' if own else ''}one of them trains on other images or labels."
    )
    return Caveat("losses", "note" if own else "warning", sentence) if excess > 1 else None


def _work(run: RunFacts) -> tuple[Hashable, ...]:
    c = run.config
    same = (
        c.dataset,
        c.n_images,
        c.model,
        c.image_size,
        c.precision,
        c.lr,
        c.seed,
        c.batch_size,
        c.loader_only,
    )
    return *same, c.ranks, c.shuffle or "full", c.augment, c.skip_unreadable


def _disagreement(a: RunFacts, b: RunFacts, tolerance: float) -> tuple[float, str]:
    """Returns how many times what is allowed the first losses differ, and the largest difference in words."""
    steps, at_a, at_b = np.intersect1d(a.loss_step, b.loss_step, return_indices=True)
    loss_a = a.loss[at_a][:FIRST_LOSSES]
    loss_b = b.loss[at_b][:FIRST_LOSSES]
    known = np.isfinite(loss_a) & np.isfinite(loss_b)
    if not known.any() or steps[0] != 0:
        return 0.0, ""
    loss_a = loss_a[known]
    loss_b = loss_b[known]
    steps = steps[:FIRST_LOSSES][known]
    relative = np.abs(loss_a - loss_b) / np.maximum(
        np.maximum(np.abs(loss_a), np.abs(loss_b)), 1e-12
    )
    worst = int(
        np.argmax(np.round(relative, 6))
    )  # the first of those that are equal but for rounding
    words = f"{loss_a[worst]:.4g} in {which([a])} and {loss_b[worst]:.4g} in {which([b])} at step {steps[worst]:.0f}"
    return max(float(relative[0]), float(np.median(relative)) / GROWING_FACTOR) / tolerance, words


LAUNCHED_STEPS: tuple[str, ...] = ("compute_start_s", "compute_s", "host_s", "launch_idle_s")
CHECKED_STEPS: tuple[str, ...] = tuple(
    dict.fromkeys((*FIGURE_STEPS, *GUARDED_STEPS, *LAUNCHED_STEPS))
)
UNDER_TEST = ("versions", "variables", "losses")
"""Topics of `Caveat` that may be the change under test: they are reported, and the comparison goes on."""
ALLOWED_TOPICS: tuple[str, ...] = (
    *(
        "order",
        "data",
        "model",
        "batch",
        "device",
        "machine",
        "clocks",
        "page-cache",
        "gpu-processes",
    ),
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
    error: str
    steps: arrays.Series
    identity: tuple[object, ...]
    """Equal for two runs only if they are the same run."""

    @property
    def label(self) -> str:
        return which([self.facts])


@dataclass(frozen=True)
class Comparability:
    """Whether two sides may be compared, and what a reader should know of them."""

    refusals: tuple[str, ...]
    remarks: tuple[str, ...]


def why_not_judged(run: CheckedRun, allowed: Collection[str] = ()) -> str:
    """Returns why nothing can be said of a run; "" if something can."""
    if run.status != "done":
        why = f" ({run.error})" if run.error else ""
        how = {"failed": "failed", "stopped": "was stopped", "interrupted": "was interrupted"}.get(
            run.status
        )
        return f"{run.label} {how or 'is still going on'}{why}; check a run that has finished"
    if reason := not_measurable(run.facts.facts, len(run.steps["step"])):
        return f"{run.label}: {reason}"
    if not n_steady(run.steps):
        return f"{run.label} has no steps in steady state; train for longer"
    if run.facts.facts.get("n_beside") and "sharing" not in allowed:
        return f"{run.label} shared the machine with another run, which took CPU and disk; run it again alone"
    return ""


IDLE_INSIDE = (
    "Python launched the steps no faster than they ran: "
    "for how long the device is idle inside them is not known"
)


def beyond(run: CheckedRun, kind: Kind) -> str:
    """Returns what a figure of a run leaves out, so that a bound on it cannot be called met; "" if nothing."""
    if kind not in COLUMNS:
        return ""
    return outside_loader(run.facts.facts) or (
        IDLE_INSIDE if kind == "max_idle" and _may_idle_inside(run) else ""
    )


def _may_idle_inside(run: CheckedRun) -> bool:
    """Returns whether the device may have waited for launches inside the steps, for a time that is not known."""
    rows = np.flatnonzero(steady_state(run.steps))
    known = np.isfinite(run.steps["launch_idle_s"])
    on_cpu = find_device(run.facts.config, run.facts.environment).on_cpu
    return not on_cpu and not known[rows].any() and host_paced(run.steps, rows)


def comparable(
    runs: Sequence[CheckedRun], baseline: Sequence[CheckedRun], allowed: Collection[str]
) -> Comparability:
    """Returns whether the sides may be compared, and each side put together; `allowed` topics are let pass."""
    refused = []
    remarks = []
    if twice := [run for run in runs if run.identity in {base.identity for base in baseline}]:
        refused.append(
            f"{which([run.facts for run in twice])} is on both sides; a run says nothing against itself"
        )
    for side in (runs, baseline):
        if (mixed := _mixed(side)) and "settings" not in allowed:
            refused.append(mixed)
    for caveat in comparability([run.facts for run in (*runs, *baseline)]):
        if caveat.topic == "sharing":  # said of each run by `why_not_judged`
            continue
        # Compare only notes another batch size: it shows samples/s of both, but neither is a regression of the other
        refuses = caveat.topic == "batch" or (
            caveat.level == "warning" and caveat.topic not in UNDER_TEST
        )
        if refuses and caveat.topic not in allowed:
            refused.append(f"{caveat.sentence} To compare all the same: --allow {caveat.topic}")
        elif caveat.level == "warning":
            remarks.append(caveat.sentence)
    return Comparability(tuple(refused), tuple(remarks))


def _mixed(side: Sequence[CheckedRun]) -> str:
    found = config_differences([run.facts.config for run in side])
    names = [d.field for d in found if d.field not in MAY_DIFFER]
    if not names:
        return ""
    each = {
        name: dict.fromkeys(str(getattr(run.facts.config, name)) for run in side) for name in names
    }
    values = "; ".join(f"{name} {', '.join(of)}" for name, of in each.items())
    return (
        f"{which([run.facts for run in side]).capitalize()} are not of one setting ({values}): the noise from run to "
        "run cannot be told from their differences. To compare all the same: --allow settings"
    )
