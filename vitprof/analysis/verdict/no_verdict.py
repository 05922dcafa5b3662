"""Why there is no verdict on a run: what was not measured, or not for long enough.

Each rule looks at one thing and returns why that leaves no verdict, or None. `rendering` has a
sentence for each reason.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from vitprof.analysis import rank_report, thresholds
from vitprof.analysis.verdict.evidence import Evidence, read_in_step_bytes
from vitprof.config import RunConfig, own_script
from vitprof.datasets import catalog
from vitprof.formats import size
from vitprof.recording.verdict import NoVerdict

Rule = Callable[[Evidence], NoVerdict | None]


def only_loads(evidence: Evidence) -> NoVerdict | None:
    """A loader-only run has no device work that could wait for data."""
    if evidence.config.loader_only:
        return NoVerdict("loader_only")
    return None


def waits_unknown(evidence: Evidence) -> NoVerdict | None:
    """The waits of the loop that trains are not known."""
    return not_measurable(evidence.facts, evidence.n_recorded)


def not_measurable(facts: Mapping[str, Any], n_steps: int) -> NoVerdict | None:
    """Returns why the waits of the loop that trains are not known for a run of `n_steps`; None if
    they are.
    """
    if ended := facts.get("partly_watched"):
        return NoVerdict("partly_watched", n_steps=n_steps, what=str(ended))
    if too_little := rank_report.too_little_of_rank_0(facts):
        return too_little
    if facts.get("several_threads_train"):
        return NoVerdict("several_threads")
    if facts.get("forked_process_trains"):
        return NoVerdict("forked_process", n_steps=n_steps)
    most = thresholds.UNCLEAR_LOADERS_FRAC * n_steps
    unknown = int(facts.get("unknown_wait_steps") or 0)
    side_stream = int(facts.get("side_stream_steps") or 0)
    unclear = int(facts.get("unclear_loaders_steps") or 0)
    if unknown > most and facts.get("fetched_by") == "no loader":
        return NoVerdict("no_loader", n=unknown, n_steps=n_steps)
    if unknown > most:
        return NoVerdict("fetched_elsewhere", n=unknown, n_steps=n_steps)
    if side_stream > most:
        return NoVerdict("side_stream", n=side_stream, n_steps=n_steps)
    if unclear > most:
        return NoVerdict("unclear_loaders", n=unclear, n_steps=n_steps)
    return None


def few_steps(evidence: Evidence) -> NoVerdict | None:
    """Too few steps are steady."""
    n_steady = evidence.trace.n_steady
    if n_steady >= thresholds.MIN_STEPS:
        return None
    starved_frac = math.nan
    if n_steady and not evidence.facts.get("untimed_device"):
        starved_frac = evidence.starved_frac
    return too_few(
        evidence.config, evidence.n_recorded, n_steady, evidence.facts, starved_frac=starved_frac
    )


def too_few(
    config: RunConfig,
    n_steps: int,
    n_steady: int,
    facts: Mapping[str, Any],
    *,
    starved_frac: float = math.nan,
    needed: int = thresholds.MIN_STEPS,
) -> NoVerdict:
    """Returns why fewer steps than `needed` are steady, and how many to train for.

    `config` is resolved; `starved_frac`: the share of the time that the device idled for data,
    where it did so in each step.
    """
    train_for = 0
    if not own_script.is_own_script(config):
        train_for = _steps_for(config, needed)
    return NoVerdict(
        "too_few_steps" if n_steps else "no_steps",
        n_steps=n_steps,
        n_steady=n_steady,
        needed=needed,
        train_for=train_for,
        updates_on_one_batch=int(facts.get("updates_on_one_batch") or 0),
        idle_frac=starved_frac,
    )


def _steps_for(config: RunConfig, needed: int) -> int:
    """Returns how many steps to train for so that `needed` are steady: see
    `analysis.timing.steady.steady_state`.
    """
    samples_of_a_rank = (
        catalog.dataset_info(config.dataset, config.n_images).n_train // config.ranks
    )
    # both rounded up in whole numbers: a stored warm-up may be too long for floating point
    in_epoch = -(-samples_of_a_rank // config.batch_size)
    warmup = config.warmup_steps
    if in_epoch == 1:  # every step begins an epoch, and counts nevertheless
        return warmup + needed
    # Counted among the steps that begin no epoch: those of the warm-up, then `needed` more.
    warmup_epochs = -(-warmup // in_epoch)
    last = warmup - warmup_epochs + needed - 1
    epochs, rest = divmod(last, in_epoch - 1)
    return epochs * in_epoch + rest + 2


def untimed_device(evidence: Evidence) -> NoVerdict | None:
    """The device has no times that can be read while it trains."""
    device = evidence.facts.get("untimed_device")
    if not device:
        return None
    return NoVerdict("untimed_device", frac=evidence.loop_waits_frac, what=str(device))


def no_device_times(evidence: Evidence) -> NoVerdict | None:
    """The times of the device are not known for enough steps."""
    if math.isfinite(evidence.exposure.idle.value):
        return None
    return NoVerdict("no_device_times")


def steps_too_alike(evidence: Evidence) -> NoVerdict | None:
    """Steps enough in number say as little as one or two independent ones."""
    exposure = evidence.exposure
    unknown_pace = evidence.pace_decides(0.0) and not math.isfinite(exposure.paced.low)
    if unknown_pace or not math.isfinite(exposure.idle.low):
        return NoVerdict("steps_too_alike", n_steady=exposure.n)
    return None


def launching_held_up(evidence: Evidence) -> NoVerdict | None:
    """Python is kept from launching, by other programs or by the loader: that cannot be told."""
    share = evidence.launching_held_up_frac
    if share and evidence.saturated and evidence.kind_with(0.0) == "launch-bound":
        return NoVerdict("held_up", frac=share)
    return None


def interval_too_wide(evidence: Evidence) -> NoVerdict | None:
    """The interval reaches from "not" to "input-bound"."""
    idle = evidence.exposure.idle
    if idle.low < thresholds.MODERATE_FRAC and idle.high > thresholds.INPUT_BOUND_FRAC:
        return NoVerdict("interval_too_wide", n_steady=evidence.trace.n_steady)
    return None


def prepared_outside(evidence: Evidence) -> NoVerdict | None:
    """Batches may be prepared between the loader and the model, so the waits may be longer."""
    if evidence.before_model_frac and evidence.kind != "input-bound":
        return NoVerdict("prepared_outside")
    return None


def left_early(evidence: Evidence) -> NoVerdict | None:
    """Workers end of loops that are left early, which is loading and in no wait."""
    if evidence.left_early_frac and evidence.kind != "input-bound":
        return NoVerdict("left_early")
    return None


def read_in_step(evidence: Evidence) -> NoVerdict | None:
    """The thread that trains reads data itself after its batch has come, so the waits may be longer."""
    n_bytes = read_in_step_bytes(evidence.facts)
    if not n_bytes or evidence.kind == "input-bound":
        return None
    frac = float(evidence.facts["reading_steps_frac"])
    return NoVerdict("read_in_step", frac=frac, what=size(n_bytes))


def disturbed(evidence: Evidence) -> NoVerdict | None:
    """Without other programs the run would be in another class."""
    if not evidence.is_inflated or evidence.contention.of_training_too:
        return None
    if evidence.idle_frac_without_others < _class_begins(evidence.exposure.idle.low):
        return NoVerdict("disturbed")
    return None


def _class_begins(low: float) -> float:
    """Returns where the class of a run begins whose idle share is at least `low`."""
    edges = (thresholds.MODERATE_FRAC, thresholds.INPUT_BOUND_FRAC)
    return max((edge for edge in edges if edge <= low), default=0.0)


NOT_MEASURED: tuple[Rule, ...] = (
    only_loads,
    waits_unknown,
    few_steps,
    untimed_device,
    no_device_times,
    steps_too_alike,
)
"""Why the device's idle time is not known, in the order in which the rules are asked."""
NO_CLASS: tuple[Rule, ...] = (
    launching_held_up,
    interval_too_wide,
    read_in_step,
    prepared_outside,
    left_early,
)
"""Why a known idle time puts a run into no class."""
NOT_ITS_OWN: tuple[Rule, ...] = (disturbed,)
"""Why the class with its cause is not that of the run by itself."""


def why_none(rules: tuple[Rule, ...], evidence: Evidence) -> NoVerdict | None:
    """Returns why the first of the rules that applies leaves no verdict; None where none does."""
    for rule in rules:
        reason = rule(evidence)
        if reason is not None:
            return reason
    return None
