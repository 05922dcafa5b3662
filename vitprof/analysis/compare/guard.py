"""Whether finished runs can be compared: what differs between them other than the way they load
their data.

Compare warns of it. Nobody watches a check that runs unattended, so there a difference that makes a
comparison unfair ends it, unless the change under test may be just that (another PyTorch, other
losses), or it was allowed by name.
"""

import itertools
import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

import numpy as np

from vitprof.analysis import arrays
from vitprof.analysis.compare.bounds import COLUMNS, FIGURE_STEPS, Kind, n_steady
from vitprof.analysis.compare.differences import (
    CHECKS,
    Caveat,
    Check,
    Level,
    RunFacts,
    config_differences,
    device_name,
    which,
)
from vitprof.analysis.signatures.resources import others_cpu
from vitprof.analysis.thresholds import CACHED_FRAC, CLOCK_FRAC, OTHER_MEMORY_BYTES, OTHERS_CORES
from vitprof.analysis.timing.loading import host_paced
from vitprof.analysis.timing.steady import steady_state, while_steady
from vitprof.analysis.verdict.evidence import (
    before_model_frac,
    device_kind,
    left_early_frac,
    read_in_step_bytes,
)
from vitprof.analysis.verdict.no_verdict import not_measurable
from vitprof.analysis.verdict.rendering import (
    ended_early,
    prepared_before_model,
    read_by_the_loop,
    why_none_in_words,
)
from vitprof.config import BUDGETS, RunConfig, own_script
from vitprof.formats import cores, percent, size
from vitprof.recording.columns import RunSummary

FIRST_LOSSES = 10
"""Steps whose losses are compared. Later ones drift apart even where everything is the same:
rounding grows with every step of an optimizer (non-deterministic kernels, other orders of
summing)."""
SAME_LOSS = {"fp32": 1e-3, "other": 0.05}
"""Largest relative difference of the first loss, which no optimizer step has touched. float32 sums
of a few thousand terms agree to about 1e-5, and JPEG decoders differ by a level or two. bfloat16
has 8 bits, and its error after a few layers is a few percent, as it may be between devices that use
TF32 or other kernels."""
BATCH_FRAC = 0.05
"""Relative difference between two scripts' mean samples a step that makes comparing them unfair.
One smaller batch at the end of each epoch of 20 steps or more stays below."""
GROWING_FACTOR = 10.0
"""How many times as large as `SAME_LOSS` the median difference over the first steps may be: the
optimizer amplifies it."""
TINY_LOSS = 1e-12
"""Losses below are taken for this one where they are divided by."""


def run_facts(
    run_id: int,
    config: RunConfig,
    environment: Mapping[str, Any],
    facts: Mapping[str, Any],
    summary: RunSummary | None,
    steps: arrays.Series,
    telemetry: arrays.Series,
) -> RunFacts:
    """Returns what `comparability` needs of a run.

    `steps` needs only `GUARDED_STEPS`, and `telemetry` only t_s and `GUARDED_TELEMETRY`.
    """
    inside = while_steady(steps, telemetry["t_s"])
    steady = {column: telemetry[column][inside] for column in GUARDED_TELEMETRY}
    return RunFacts(
        id=run_id,
        config=config,
        environment=environment,
        facts=facts,
        summary=summary,
        # more than are compared: two runs need not have recorded the same steps
        loss_step=steps["step"][: 2 * FIRST_LOSSES],
        loss=steps["loss"][: 2 * FIRST_LOSSES],
        sm_clock_mhz=arrays.median(steady["gpu_sm_clock_mhz"]),
        other_gpu_bytes=arrays.median(steady["gpu_mem_used_bytes"] - steady["gpu_mem_job_bytes"]),
        others_cores=others_cpu(steps, telemetry, environment).cores,
    )


GUARDED_STEPS: tuple[str, ...] = ("step", "epoch", "warmup", "loss", "t_start_s")
"""Step columns that `run_facts` reads."""
GUARDED_TELEMETRY = (
    "gpu_sm_clock_mhz",
    "gpu_mem_used_bytes",
    "gpu_mem_job_bytes",
    "cpu_pct",
    "job_cpu_pct",
)
"""Telemetry columns that `run_facts` reads besides t_s."""


def comparability(runs: Sequence[RunFacts]) -> tuple[Caveat, ...]:
    """Returns what makes the comparison of these runs unfair, warnings first.

    What is not known of a run is ignored. The strategy and its parts may differ: they are what is
    compared.
    """
    # a run that is given twice is one
    unique = list({(run.source, run.id): run for run in runs}.values())
    if len(unique) < 2:
        return ()
    caveats = [check(unique) for check in (*CHECKS, *MEASURED_CHECKS, _losses)]
    known = [caveat for caveat in caveats if caveat is not None]
    return tuple(sorted(known, key=lambda caveat: caveat.level != "warning"))


Trust = Literal["fair", "disturbed", "other conditions", "unlike"]
"""How far a ratio of two runs' speeds can be trusted. fair: nothing is known against it. disturbed:
other programs, or other runs, took CPU or the GPU meanwhile. other conditions: something else was
not the same, such as the GPU's clock. unlike: they did other work or ran on another machine, so
the ratio is no gain of one over the other."""
UNLIKE = frozenset({"data", "model", "device", "machine"})
"""Topics of warnings that make a ratio meaningless."""
DISTURBED = frozenset({"sharing", "gpu-processes"})
"""Topics of warnings about what else ran."""


def trust_of(runs: Sequence[RunFacts]) -> Trust:
    """Returns how far a ratio of these runs' speeds can be trusted, the worst that is known."""
    caveats = comparability(runs)
    topics = {c.topic for c in caveats if c.level == "warning"} - {*UNDER_TEST}
    if topics & UNLIKE:
        return "unlike"
    others = [run.others_cores for run in runs if math.isfinite(run.others_cores)]
    if topics & DISTURBED or max(others, default=0.0) >= OTHERS_CORES:
        return "disturbed"
    return "other conditions" if topics else "fair"


def trusts_of(runs: Sequence[RunFacts], baseline: int | None) -> list[Trust]:
    """Returns how far the ratio of each run to the one at position `baseline` can be trusted."""
    if baseline is None:
        return ["fair"] * len(runs)
    return [trust_of([runs[baseline], run]) for run in runs]


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
    """Returns a check that the lowest and the highest known `figure` are at most `limit` apart.

    With `relative`, the limit is a share of the lower one. The sentence has both figures, as
    `words` formats them, and the runs that they are of.
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
        too_far = high > low * (1 + limit) if relative else high - low > limit
        if not too_far:
            return None
        ends = "; ".join(f"{words(figure(run))} in {which([run])}" for run in (known[0], known[-1]))
        return Caveat(topic, "warning", f"{what}: {ends}. {why}")

    return check


def _samples_a_step(run: RunFacts) -> float:
    """Returns the mean samples of a step of a user's own script; NaN for any other run.

    A script's batch size need not be an argument of its loader.
    """
    summary = run.summary
    if not own_script.is_own_script(run.config) or summary is None or not summary.n_steps:
        return math.nan
    return summary.n_samples / summary.n_steps


def _cached(run: RunFacts) -> float:
    frac = run.facts.get("page_cached_frac")
    return math.nan if frac is None else float(frac)


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
        "cpu", "The CPU taken by other programs differs", OTHERS, OTHERS_CORES, cores, LACKS
    ),
)
"""Checks of what is measured and may differ slightly."""


def _losses(runs: Sequence[RunFacts]) -> Caveat | None:
    """Returns a caveat about the two runs of the same work whose losses agree least; None if all
    agree.
    """
    pairs = []
    for a, b in itertools.combinations(runs, 2):
        if _work(a) == _work(b) and a.config.augment in ("off", None):
            strict = a.config.precision == "fp32" and device_name(a) == device_name(b)
            pairs.append(_disagreement(a, b, SAME_LOSS["fp32" if strict else "other"]))
    excess, words = max(pairs, key=lambda pair: pair[0], default=(0.0, ""))
    if not excess > 1:
        return None
    level: Level = "warning"
    unless = ""
    if any(own_script.is_own_script(run.config) for run in runs):  # whose seed is not known
        level = "note"
        unless = "unless the script sets no seed, "
    sentence = (
        f"The losses at equal steps do not agree: {words}. With the same seed, data and order they "
        f"should: {unless}one of them trains on other images or labels."
    )
    return Caveat("losses", level, sentence)


def _work(run: RunFacts) -> tuple[Hashable, ...]:
    """Returns what is equal for two runs that should reach equal losses."""
    config = run.config
    return (
        config.dataset,
        config.n_images,
        config.model,
        config.image_size,
        config.precision,
        config.lr,
        config.seed,
        config.batch_size,
        config.loader_only,
        config.ranks,
        config.shuffle or "full",
        config.augment,
        config.skip_unreadable,
    )


def _disagreement(a: RunFacts, b: RunFacts, tolerance: float) -> tuple[float, str]:
    """Returns how many times what is allowed the losses of two runs differ, and the largest
    difference.

    They are compared at the first step and over the first few. The difference is in words; it is 0
    without the first step of both.
    """
    steps, at_a, at_b = np.intersect1d(a.loss_step, b.loss_step, return_indices=True)
    loss_a = a.loss[at_a][:FIRST_LOSSES]
    loss_b = b.loss[at_b][:FIRST_LOSSES]
    known = np.isfinite(loss_a) & np.isfinite(loss_b)
    # only before the first step of the optimizer both have the same weights
    if not known.any() or steps[0] != 0:
        return 0.0, ""
    loss_a = loss_a[known]
    loss_b = loss_b[known]
    steps = steps[:FIRST_LOSSES][known]
    larger = np.maximum(np.abs(loss_a), np.abs(loss_b))
    relative = np.abs(loss_a - loss_b) / np.maximum(larger, TINY_LOSS)
    # rounded: the first of those that are equal but for rounding
    worst = int(np.argmax(np.round(relative, 6)))
    words = f"{loss_a[worst]:.4g} in {which([a])} and {loss_b[worst]:.4g} in {which([b])} at step {steps[worst]:.0f}"
    at_first = float(relative[0])
    over_first_few = float(np.median(relative)) / GROWING_FACTOR
    return max(at_first, over_first_few) / tolerance, words


LAUNCHED_STEPS: tuple[str, ...] = ("compute_start_s", "compute_s", "host_s", "launch_idle_s")
CHECKED_STEPS: tuple[str, ...] = tuple(
    dict.fromkeys((*FIGURE_STEPS, *GUARDED_STEPS, *LAUNCHED_STEPS))
)
"""Step columns that a check reads."""
UNDER_TEST = ("versions", "variables", "losses")
"""Topics of `Caveat` that may be the change under test: they are reported, and the comparison goes
on."""
ALLOWED_TOPICS: tuple[str, ...] = (
    "order",
    "data",
    "model",
    "batch",
    "device",
    "machine",
    "clocks",
    "page-cache",
    "gpu-processes",
    "vitprof",
    "power",
    "cpu",
    "sharing",
    "settings",
)
"""Topics that are refused unless allowed by name: those of `Caveat`, and settings that differ on
one side."""
MAY_DIFFER = frozenset({*BUDGETS, "seed", "name"})
"""Settings in which runs of one side may differ: such runs are repeats."""


@dataclass(frozen=True)
class CheckedRun:
    """A run as a check looks at it."""

    facts: RunFacts
    status: str
    error: str
    steps: arrays.Series
    """`CHECKED_STEPS`, (n,) each."""
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


HOW_ENDED = {"failed": "failed", "stopped": "was stopped", "interrupted": "was interrupted"}


def why_not_judged(run: CheckedRun, allowed: Collection[str] = ()) -> str:
    """Returns why nothing can be said of a run; "" if something can."""
    if run.status != "done":
        why = f" ({run.error})" if run.error else ""
        ended = HOW_ENDED.get(run.status, "is still going on")
        return f"{run.label} {ended}{why}; check a run that has finished"
    if reason := not_measurable(run.facts.facts, len(run.steps["step"])):
        return f"{run.label}: {why_none_in_words(reason)}"
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
    """Returns what a figure of a run leaves out, so that a bound on it cannot be called met; "" if
    nothing.
    """
    if kind not in COLUMNS:
        return ""
    if outside_frac := before_model_frac(run.facts.facts):
        return prepared_before_model(outside_frac)
    if early_frac := left_early_frac(run.facts.facts):
        return ended_early(early_frac)
    if n_bytes := read_in_step_bytes(run.facts.facts):
        return read_by_the_loop(run.facts.facts["reading_steps_frac"], size(n_bytes))
    if kind == "max_idle" and _may_idle_inside(run):
        return IDLE_INSIDE
    return ""


def _may_idle_inside(run: CheckedRun) -> bool:
    """Returns whether the device may have waited for launches inside the steps.

    For how long is not known where no step's launch bubbles were measured.
    """
    rows = np.flatnonzero(steady_state(run.steps))
    known = np.isfinite(run.steps["launch_idle_s"])
    on_cpu = device_kind(run.facts.config, run.facts.environment) == "cpu"
    return not on_cpu and not known[rows].any() and host_paced(run.steps, rows)


def comparable(
    runs: Sequence[CheckedRun], baseline: Sequence[CheckedRun], allowed: Collection[str]
) -> Comparability:
    """Returns whether the two sides may be compared, and the runs of each side put together.

    `allowed` are the topics of `ALLOWED_TOPICS` that are let pass.
    """
    refused = []
    remarks = []
    of_baseline = {base.identity for base in baseline}
    twice = [run for run in runs if run.identity in of_baseline]
    if twice:
        refused.append(
            f"{which([run.facts for run in twice])} is on both sides; a run says nothing against "
            "itself"
        )
    for side in (runs, baseline):
        mixed = _mixed(side)
        if mixed and "settings" not in allowed:
            refused.append(mixed)
    for caveat in comparability([run.facts for run in (*runs, *baseline)]):
        if caveat.topic == "sharing":  # said of each run by `why_not_judged`
            continue
        # Compare only notes another batch size: it shows samples/s of both, but neither is a
        # regression of the other
        refuses = caveat.topic == "batch" or (
            caveat.level == "warning" and caveat.topic not in UNDER_TEST
        )
        if refuses and caveat.topic not in allowed:
            refused.append(f"{caveat.sentence} To compare all the same: --allow {caveat.topic}")
        elif caveat.level == "warning":
            remarks.append(caveat.sentence)
    return Comparability(tuple(refused), tuple(remarks))


def _mixed(side: Sequence[CheckedRun]) -> str:
    """Returns why the runs of a side are not repeats of one setting; "" if they are."""
    differences = config_differences([run.facts.config for run in side])
    names = [d.field for d in differences if d.field not in MAY_DIFFER]
    if not names:
        return ""
    used = {}
    for name in names:
        used[name] = dict.fromkeys(str(getattr(run.facts.config, name)) for run in side)
    values = "; ".join(f"{name} {', '.join(each)}" for name, each in used.items())
    return (
        f"{which([run.facts for run in side]).capitalize()} are not of one setting ({values}): the "
        "noise from run to run cannot be told from their differences. To compare all the same: "
        "--allow settings"
    )
