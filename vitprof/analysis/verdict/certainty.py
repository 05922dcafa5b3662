"""What a verdict may not be sure of: waits that are not the training's, epoch starts, one step that decides it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitprof.analysis.thresholds import SEVERAL_LOADERS_FRAC
from vitprof.analysis.timing.exposure import Exposure
from vitprof.formats import percent, seconds
from vitprof.recording.verdict import SingleEvent

FETCHED_IN_A_THREAD, SEVERAL_LOADERS_STEPS = "fetched_in_a_thread", "several_loaders_steps"
"""Facts of a watched run: whether batches were requested in another thread than the one that trains, and the number of
steps that asked more than one loader for a batch (`vitprof.watch`)."""


def not_measurable(facts: Mapping[str, Any], n_steps: int) -> str:
    """Returns why the waits of the loop that trains are not known for a run of `n_steps`; "" if they are."""
    if facts.get(FETCHED_IN_A_THREAD):
        return (
            "the script fetches batches in another thread than the one that trains, so the waits measured are not the "
            "training's; watch what the training loop iterates over: for batch in vitprof.watch(batches)"
        )
    several = int(facts.get(SEVERAL_LOADERS_STEPS) or 0)
    if several > SEVERAL_LOADERS_FRAC * n_steps:
        return (
            f"{several:,} of {n_steps:,} steps asked more than one loader for a batch, and only the waits for one of "
            "them are measured; watch what gives all batches of a step: "
            "for batches in vitprof.watch(zip(loader, other))"
        )
    return ""


def epoch_starts_count(exposure: Exposure, idle_words: str) -> str:
    """Returns that the waits with which epochs begin change the answer; `idle_words` as in `wording.Device`."""
    return (
        f"each epoch begins with a wait of {seconds(exposure.starts.wait_s)}, {percent(exposure.starts.frac)} of the "
        f"wall clock of training: {idle_words} {percent(exposure.with_epoch_starts.idle.value)} of the time with "
        f"these waits, and {percent(exposure.idle.value)} in the steps between them"
    )


def event_words(event: SingleEvent | None) -> str:
    """Returns the parenthesis that follows the share of time; "" if no single step decides."""
    if event is None:
        return ""
    wait = f"one wait of {seconds(event.idle_s)}, in step {event.step}, decides that"
    return f" ({wait}: {percent(event.idle_frac_without)} without it)"
