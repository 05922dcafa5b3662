"""The trials of a tournament: a trial is a setting, its outcomes are its runs, one for each round.

Whether a setting changes the losses of a user's own script is told step by step, bit for bit. Two
runs of the unchanged script show whether it gives the same losses twice. If not, nothing can be
said of a setting from the step at which those runs differ.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from vitprof import formats
from vitprof.analysis.arrays import Floats, Mask
from vitprof.analysis.tournament.epoch_samples import EpochSamples
from vitprof.config import own_script, strategies
from vitprof.config.parts import LOADERS, THROTTLED
from vitprof.config.varied import setting_words
from vitprof.recording.columns import RunSummary
from vitprof.recording.decoded_files import DecodedFiles

Status = Literal["waiting", "running", "done", "failed", "refused", "cut", "stopped"]
OUT_OF_THE_RACE: tuple[Status, ...] = ("failed", "refused")
"""A trial with one of these statuses stays in the table with its reason but is not ranked: nobody
could use the setting."""


@dataclass(frozen=True)
class RunOutcome:
    """One run of a trial."""

    round: int
    """Number of the repeat, from 1. Runs of one round are close in time, so they are compared in
    pairs."""
    run_id: int
    status: Status
    blocks_per_s: Floats
    """samples/s of blocks of neighbouring steady steps in order (`run_blocks`), (n,) float64; empty
    if none."""
    summary: RunSummary | None
    """None until the run has ended."""
    others_cores: float = np.nan
    """Cores that other programs took in its steady state, on average (`others_cpu`); NaN: not
    known."""
    over_epochs: float = 1.0
    """samples/s over whole epochs / in the steady steps; NaN where it was over before a second
    epoch began."""
    node: str = ""
    """The machine, or a cluster's node on it."""
    block_samples: float = 1.0
    """Samples of each block: with them a longer run weighs more."""
    block_others_cores: Floats = field(default_factory=lambda: np.empty(0))
    """Cores that other programs took during each block (`disturbance`), (n,), NaN where it is not
    known; empty if nobody looked."""
    disturbed: Mask = field(default_factory=lambda: np.empty(0, dtype=bool))
    """Which blocks other programs disturbed, (n,); empty if nobody looked: then all of them
    count."""
    epoch_samples: EpochSamples = EpochSamples()
    decoded: DecodedFiles = field(default_factory=DecodedFiles)
    """The JPEG files of a trial that tries another decoder."""
    cores: float = np.nan
    """Cores of the machine, where the job might use all of them; else NaN."""
    waited: float = np.nan
    """Threads of the job that waited for a core in its steady state, on average; NaN: not counted."""


@dataclass(frozen=True)
class Entry:
    """One trial: a setting with its outcomes."""

    key: str
    """strategy/b<batch>/w<workers or ->/<page cache> (`trial_key`); for a user's own script
    `config.own_script.OwnSetting.key`."""
    strategy: str
    batch_size: int
    workers: int | None
    page_cache: str
    outcomes: tuple[RunOutcome, ...]
    status: Status
    reason: str
    prepare_s: float
    """Seconds to build its storage from the data set; 0 where none is needed, NaN where not
    known."""
    disk_bytes: float
    ram_bytes: float
    """Memory of its RAM disk and of the samples that it keeps; NaN where not known."""
    shuffle: str = "full"
    """Order of an epoch: full, block or none (`RunConfig.shuffle`)."""
    n_made: int = 0
    """Number of its runs in the store, including those that failed, were stopped or are still
    running."""
    throttled: bool = False
    """Whether it reads from the imitated slow drive, or is staged from it."""
    losses: str = ""
    """Its effect on the losses of a user's own script in words; "" for none, and where that is not
    known."""
    effect: str = "unknown"
    """The same as an `Effect`."""
    samples: str = ""
    """Why it is not known whether its workers give each sample once, in words; "" where it is."""
    pixels: str = ""
    """How the pixels of its decoder compare with those of the unchanged script; "" where it tries none."""


def over_whole_epochs(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """Returns the trials with the blocks of whole epochs, where every run began a second one; else
    as they are."""
    ended = [o.over_epochs for e in entries for o in e.outcomes if len(o.blocks_per_s)]
    if not np.isfinite(ended).all():
        return entries

    def of(outcome: RunOutcome) -> RunOutcome:
        return replace(outcome, blocks_per_s=outcome.blocks_per_s * outcome.over_epochs)

    return tuple(replace(e, outcomes=tuple(map(of, e.outcomes))) for e in entries)


def trial_key(
    strategy: str, batch_size: int, workers: int | None, page_cache: str, more: Sequence[str] = ()
) -> str:
    """Returns the key of a trial: strategy/b<batch>/w<workers or ->/<page cache>, and what else is
    set, in words."""
    return "/".join(
        [strategy, f"b{batch_size}", f"w{'-' if workers is None else workers}", page_cache, *more]
    )


def more_of(key: str) -> list[str]:
    """Returns what the key of a trial of vitprof's own sets besides strategy, batch size, workers and page
    cache, in words.
    """
    return key.split("/")[4:]


def setting_in_words(entry: Entry, *, batch: bool = True) -> str:
    """Returns the setting in words: "pt-memory, batch 512, 2 workers, cold cache"; `batch`: with
    the batch size."""
    if own_script.is_own_key(entry.key):
        return own_script.own_key_in_words(entry.key)
    batch_size = entry.batch_size if batch else None
    more = more_of(entry.key)
    return _joined(
        entry.strategy, batch_size, entry.workers, entry.page_cache, more, throttled=entry.throttled
    )


def key_in_words(key: str) -> str:
    """Returns the setting with this key, as `setting_in_words` words it; the key itself if it is
    not one."""
    if own_script.is_own_key(key):
        return own_script.own_key_in_words(key)
    strategy, *rest = key.split("/")
    try:
        batch, workers, cache, *more = rest
        return _joined(
            strategy, int(batch[1:]), None if workers == "w-" else int(workers[1:]), cache, more
        )
    except ValueError:
        return key


def _joined(
    strategy: str,
    batch_size: int | None,
    workers: int | None,
    page_cache: str,
    more: Sequence[str] = (),
    *,
    throttled: bool = False,
) -> str:
    known = strategies.STRATEGIES.get(strategy)
    throttled = throttled or (known is not None and known.location in THROTTLED)
    parts = [f"{strategy} (throttled)" if throttled else strategy]
    if batch_size is not None:
        parts.append(f"batch {batch_size:,}")
    if workers is not None:
        parts.append(formats.count(workers, _worker_of(known, more)))
    if page_cache != "as-is":
        parts.append(f"{page_cache} cache")
    return ", ".join([*parts, *more])


LOADER = setting_words("loader", "")
"""How the loader of a trial is named in its key, where it is not the one of the strategy."""


def _worker_of(strategy: strategies.Strategy | None, more: Sequence[str]) -> str:
    """Returns what one of the workers of a setting is called, as the names of its runs have it."""
    loader = "dataloader" if strategy is None else strategy.loader
    for words in more:
        if words.startswith(LOADER):
            loader = words.removeprefix(LOADER)
    return LOADERS[loader].worker if loader in LOADERS else "worker"


Effect = Literal["unknown", "same", "changes", "not yet", "differs by itself"]


@dataclass(frozen=True)
class Losses:
    """The losses of one run. (n,) each."""

    step: Floats
    loss: Floats


@dataclass(frozen=True)
class LossEffect:
    """What a setting does to the losses."""

    effect: Effect
    """changes: other losses than those of the unchanged script. not yet: they differ, but the
    unchanged script has run only once, so that may be chance. differs by itself: the unchanged
    script gives other losses each time, so the effect of the setting cannot be told. unknown: there
    is no step with a loss of both."""
    step: int = -1
    """The first step at which they differ; -1 if there is none."""
    own_step: int = -1
    """The first step at which runs of this setting differ from each other; -1 if they do not, or
    there is only one."""

    @property
    def sentence(self) -> str:
        """Returns the effect in words, for the middle of a sentence; "" if there is nothing to
        say.
        """
        more = (
            f", and they differ from run to run from step {self.own_step}"
            if self.own_step >= 0
            else ""
        )
        sentences = {
            "changes": f"changes the losses: from step {self.step}{more}",
            "not yet": f"the losses differ from step {self.step} on; the next round tells whether by chance",
            "differs by itself": f"the unchanged script's losses differ from run to run, from step {self.step}",
        }
        return sentences.get(self.effect, "")


def loss_effect(as_it_is: Sequence[Losses], of_setting: Sequence[Losses]) -> LossEffect:
    """Returns the effect of a setting on the losses: `of_setting` are those of its runs, `as_it_is` those
    of the unchanged script.
    """
    pairs = [(a, b) for a in as_it_is for b in of_setting]
    if not any(len(_common(a, b)[0]) for a, b in pairs):
        return LossEffect("unknown")
    own, by_itself = (_first(itertools.combinations(runs, 2)) for runs in (of_setting, as_it_is))
    partings = [_first([pair]) for pair in pairs]
    first = min(partings)
    if by_itself < np.inf:
        # runs that differ by chance do so at different steps; a setting's effect is at the same
        # step in all pairs
        at_once = len(of_setting) > 1 and set(partings) == {first} and first < min(by_itself, own)
        if not at_once:
            return LossEffect("differs by itself", int(by_itself))
    elif first == np.inf:
        return LossEffect("same")
    elif len(as_it_is) < 2:
        return LossEffect("not yet", int(first))
    return LossEffect("changes", int(first), -1 if own == np.inf else int(own))


def _first(pairs: Iterable[tuple[Losses, Losses]]) -> float:
    """Returns the first step at which any of these pairs of runs differ; infinite if none does."""
    steps = (step[mine != other] for step, mine, other in (_common(a, b) for a, b in pairs))
    return min((float(differ[0]) for differ in steps if len(differ)), default=np.inf)


def _common(a: Losses, b: Losses) -> tuple[Floats, Floats, Floats]:
    steps, at_a, at_b = np.intersect1d(a.step, b.step, return_indices=True)
    mine = a.loss[at_a]
    other = b.loss[at_b]
    known = ~np.isnan(mine) & ~np.isnan(other)
    return steps[known], mine[known], other[known]
