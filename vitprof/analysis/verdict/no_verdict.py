"""Why there is no verdict on a run, in words: what was not measured, or not for long enough."""

import math
from collections.abc import Mapping
from typing import Any

from vitprof.analysis import intervals, ranks, thresholds
from vitprof.analysis.timing.loading import Exposure
from vitprof.analysis.verdict.wording import Device
from vitprof.config import RunConfig, catalog, own_script
from vitprof.formats import percent, seconds

HEADED = ("disturbed: ", ranks.STARVED)
"""How reasons begin that say in two words what is known."""


def too_few(
    config: RunConfig,
    n_all: int,
    n_steady: int,
    needed: int,
    device: Device | None = None,
    starved: float = math.nan,
) -> str:
    """Returns why there are fewer steady steps than `needed`, and how many to train for.

    `config` is resolved; `starved`: the share of the time that the device idled for data, where it
    did so in each step.
    """
    if not n_all:
        return f"no step was recorded; {needed} steady ones are needed"
    n_not_steady = n_all - n_steady
    which = ""
    if n_not_steady:
        which = f", and {n_not_steady} of them in the warm-up or as an epoch begins"
    longer = ""
    if not own_script.is_own_script(config):
        longer = f": train for at least {_steps_for(config, needed)} steps"
    recorded = "1 step was" if n_all == 1 else f"{n_all} steps were"
    few = f"{recorded} recorded{which}; {needed} steady ones are needed{longer}"
    if device is None or not math.isfinite(starved):
        return few
    return f"almost certainly starved: {device.words} for data {percent(starved)} of the time; but {few}"


def too_alike(n_steps: int) -> str:
    """Returns why steps enough in number have no interval: they say as little as one or two
    independent ones."""
    return f"of its {n_steps} steps {intervals.TOO_ALIKE}; train for longer"


def trained_again(facts: Mapping[str, Any]) -> str:
    """Returns, for the beginning of a reason, that a script trains on the same batch again and
    again; or "".
    """
    updates = int(facts.get("updates_on_one_batch") or 0)
    if not updates:
        return ""
    return f"the optimizer stepped {updates:,} times on one batch, which is loaded once: "


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


def untimed(device: str, waiting: float, idle: float, facts: Mapping[str, Any]) -> str:
    """Returns what is known of a run on an accelerator that is not timed; `waiting` and `idle`:
    shares of its time.
    """
    waits = f"the loop waits for data {percent(waiting)} of the time"
    n = int(facts.get("estimated_from_steps") or 0)
    if n < thresholds.MIN_SAMPLED_STEPS or not math.isfinite(idle):
        return f"{waits}; whether the device idles meanwhile is not known: vitprof cannot time {device}"
    return (
        f"{waits}; {device} idles meanwhile for {percent(idle)} of the time, estimated: as if each "
        f"step took the {seconds(facts['estimated_step_s'])} of the {n} steps in which the host "
        "waited for the device"
    )


def not_measurable(facts: Mapping[str, Any], n_steps: int) -> str:
    """Returns why the waits of the loop that trains are not known for a run of `n_steps`; "" if
    they are.
    """
    if ended := facts.get("partly_watched"):
        return f"partly watched: watching ended after {n_steps:,} steps, and the script may have trained on ({ended})"
    if reason := ranks.too_little_of_rank_0(facts):
        return reason
    if facts.get("several_threads_train"):
        return "several threads of the script train, and vitprof watches one; let one train alone"
    most = thresholds.UNCLEAR_LOADERS_FRAC * n_steps
    unknown = int(facts.get("unknown_wait_steps") or 0)
    side_stream = int(facts.get("side_stream_steps") or 0)
    unclear = int(facts.get("unclear_loaders_steps") or 0)
    if unknown > most and facts.get("fetched_by") == "no loader":
        return (
            "the script takes its batches from no loader that vitprof knows: the waits of "
            f"{unknown:,} of {n_steps:,} steps are not known; watch what gives the batches: for "
            "batch in vitprof.watch(batches)"
        )
    if unknown > most:
        return (
            "the script fetches batches in another thread than the one that trains, so the waits "
            "measured are not the training's; watch what the training loop iterates over: for "
            "batch in vitprof.watch(batches)"
        )
    if side_stream > most:
        return (
            "the GPU works in another stream while that of the optimizer is idle: for how long it "
            "is idle is not known; put `with vitprof.step():` around the work of all streams, at "
            "whose end the optimizer's waits for them (wait_stream)"
        )
    if unclear > most:
        return (
            f"after {unclear:,} of {n_steps:,} steps the script iterated over another loader with "
            "gradients on: it is not clear whether to train or to validate; validate under "
            "torch.no_grad(), or watch what gives all batches of a step: for batches in "
            "vitprof.watch(zip(loader, other))"
        )
    return ""


def held_up(share: float) -> str:
    """Returns why there is no verdict on a run that was kept from launching for a `share` of its
    time.
    """
    return (
        f"disturbed: for {percent(share)} of the time Python was kept from launching the model's "
        "work, by the loader or by other programs, which keep the CPU busy; end them, and run again"
    )


def disturbed(device: Device, exposure: Exposure, without: float) -> str:
    """Returns why there is no verdict on a run that other programs made look starved; `without`
    them it idles less.
    """
    idle = f"{device.words} for data {percent(exposure.idle.value)} of the time"
    least = f"without them perhaps only {percent(without)}"
    return f"disturbed: {idle}, {least}, since other programs keep the CPU busy; end them, and run again"
