"""The causal profile of a user's own script: how much shorter its steps would be if a stage were faster.

In blocks of steps one stage seemed faster (`vitprof.watch.causal_ledger`). A round has each stage at each fraction
once, and blocks in which none seemed faster. A stage's blocks are compared with those of their own round, so that a
machine which grows slower meanwhile says nothing of a stage, and rounds are independent of each other.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from vitprof import formats
from vitprof.analysis.arrays import MIN_BLOCKS, UNKNOWN, Interval
from vitprof.analysis.intervals import interval_of_pairs

QUARTER, HALF = 0.25, 0.5
"""The fractions by which stages seem faster."""
NOTHING_FRAC = 0.02
"""A saving that surely is below this share of a step is none that anybody would work for."""
WAITED_FOR_CORE_FRAC = 0.05
"""Share of making batches in which threads waited for a core from which on pauses give cores to others."""
OWN_CORES_FRAC = 0.02
"""Below this share nobody had to share a core, however many processes there are."""
PART_LOW, PART_HIGH = 0.7, 1.4
"""What all others were to pause for, as a share of what it has to be: beyond, a worker did not take part."""
MOST_SLOPES = 1.1
"""Savings of all stages, each as a share of how much faster it was. Together they are 1 at most; rounding and
chance."""
LEAST_REACH = 0.005
"""No interval is asked to be narrower than this on each side."""
MOST_STEPS_MORE = 100_000
WORDS = {
    "sampler": "The sampler",
    "read": "Reading",
    "transform": "Transforms",
    "collate": "Collate",
    "hand-over": "Hand-over",
    "compute": "Compute",
}
"""What a sentence calls the stages, in their order."""
OF_MAKING = ("read", "transform", "collate")
"""The stages that run in workers, where there are any."""
Outcome = Literal["saves", "undecided", "nothing"]
OUTCOMES: tuple[Outcome, ...] = ("saves", "undecided", "nothing")


@dataclass(frozen=True)
class StageGain:
    """What a faster stage would save."""

    stage: str
    took_frac: float
    """Its time for a batch, as a share of a step's; above 1 where workers make batches at the same time."""
    quarter: Interval
    """Share of a step's time that is saved where it is a quarter faster; NaN where that is not known."""
    half: Interval
    """The same where it is twice as fast."""
    n_rounds: int
    was_tried: bool
    """Whether it took enough time to be tried."""
    more_steps: int
    """About how many steps more would tell; 0 where it is told."""

    @property
    def outcome(self) -> Outcome:
        if not self.was_tried:
            return "nothing"
        if self.quarter.low > 0:
            return "saves"
        # what a stage that is twice as fast does not save, one that is a quarter faster does not either
        is_nothing = self.quarter.high < NOTHING_FRAC or self.half.high < NOTHING_FRAC
        return "nothing" if is_nothing else "undecided"

    @property
    def sentence(self) -> str:
        name = WORDS[self.stage]
        if not self.was_tried:
            took = formats.percent(self.took_frac)
            return f"{name}: nothing, with {took} of a step's time."
        if self.outcome == "saves":
            low, high = (formats.percent(max(0.0, end)) for end in self.quarter[1:])
            saved = f"steps {formats.percent(self.quarter.value)} shorter ({low} to {high})"
            return f"{name} 25% faster: {saved}{self._twice}."
        if self.outcome == "nothing":
            why = ", it hides behind the rest" if self.stage != "compute" else ""
            why = why.replace("it hides", "they hide") if self.stage == "transform" else why
            return f"{name} 25% faster: nothing{why}."
        if not math.isfinite(self.quarter.high):
            return f"{name} 25% faster: undecided; {self._more} are needed."
        most = formats.percent(self.quarter.high)
        return (
            f"{name} 25% faster: undecided, steps at most {most} shorter; {self._more} would tell."
        )

    @property
    def _twice(self) -> str:
        if not self.half.low > 0:
            return ""
        low, high = (formats.percent(end) for end in self.half[1:])
        return f"; twice as fast: {formats.percent(self.half.value)} ({low} to {high})"

    @property
    def _more(self) -> str:
        if self.more_steps > MOST_STEPS_MORE:
            return f"over {MOST_STEPS_MORE:,} steps more"
        return f"about {self.more_steps:,} steps more"


@dataclass(frozen=True)
class CausalProfile:
    """What faster stages would save in the steps of a run."""

    stages: tuple[StageGain, ...]
    """In the order in which a batch goes through them."""
    n_rounds: int
    n_blocks: int
    why_unknown: str
    """Why nothing is claimed; empty where it is."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """Returns what is claimed, those stages first that save most; or why nothing is."""
        if self.why_unknown:
            return (f"The causal profile is undecided: {self.why_unknown}.",)
        return tuple(gain.sentence for gain in self.by_gain)

    @property
    def by_gain(self) -> tuple[StageGain, ...]:
        """Returns the stages that save anything, the most first; then those of which it is not known."""
        of = {
            outcome: [gain for gain in self.stages if gain.outcome == outcome]
            for outcome in OUTCOMES
        }
        of["saves"].sort(key=lambda gain: gain.quarter.value, reverse=True)
        return tuple(gain for outcome in OUTCOMES for gain in of[outcome])


def causal_profile(
    facts: Mapping[str, Any], environment: Mapping[str, Any]
) -> CausalProfile | None:
    """Returns the causal profile in the facts of a run; None where none was asked for."""
    fact = facts.get("causal")
    if not isinstance(fact, Mapping):
        return None
    blocks: Sequence[Mapping[str, Any]] = fact["blocks"]
    look = fact.get("look")
    rounds = _rounds(blocks, look["blocks_per_round"]) if look else []
    gains: tuple[StageGain, ...] = ()
    if look:
        gains = tuple(_gain(stage, look, blocks, rounds) for stage in WORDS if _occurs(stage, look))
    why = _why_unknown(fact, facts, environment) or _why_not_trusted(blocks, gains)
    return CausalProfile(gains, len(rounds), len(blocks), why)


def _workers(environment: Mapping[str, Any]) -> int:
    return int((environment.get("watched") or {}).get("num_workers") or 0)


def _occurs(stage: str, look: Mapping[str, Any]) -> bool:
    return bool(look["stage_s"].get(stage, 0.0) > 0)


Round = dict[tuple[str, float], float]
"""The effective seconds of a step by stage and fraction, of a round that has all of them."""


def _rounds(blocks: Sequence[Mapping[str, Any]], blocks_per_round: int) -> list[Round]:
    """Returns the rounds that have ended."""
    effective_s: dict[int, Round] = defaultdict(lambda: defaultdict(float))
    steps: dict[int, Round] = defaultdict(lambda: defaultdict(float))
    n_blocks = Counter[int]()
    for block in blocks:
        number = int(block["round"])
        cell = (str(block["stage"]), float(block["fraction"]))
        effective_s[number][cell] += block["effective_s"]
        steps[number][cell] += block["steps"]
        n_blocks[number] += 1
    return [
        {cell: total_s / steps[number][cell] for cell, total_s in in_round.items()}
        for number, in_round in effective_s.items()
        if n_blocks[number] == blocks_per_round
    ]


def _gain(
    stage: str,
    look: Mapping[str, Any],
    blocks: Sequence[Mapping[str, Any]],
    rounds: Sequence[Round],
) -> StageGain:
    took_frac = look["stage_s"][stage] / look["wall_s"]
    was_tried = stage in look["tried"]
    quarter = half = UNKNOWN
    more_steps = 0
    if was_tried:
        quarter = _saved(rounds, stage, QUARTER)
        half = _saved(rounds, stage, HALF)
        more_steps = _more_steps(quarter, look, blocks, len(rounds))
    gain = StageGain(stage, took_frac, quarter, half, len(rounds), was_tried, more_steps)
    if gain.outcome == "undecided":
        return gain
    return StageGain(stage, took_frac, quarter, half, len(rounds), was_tried, 0)


def _saved(rounds: Sequence[Round], stage: str, fraction: float) -> Interval:
    """Returns the share of a step's time that is saved, with its interval over rounds."""
    if len(rounds) < MIN_BLOCKS:
        return UNKNOWN
    faster = np.array([each[stage, fraction] for each in rounds])
    usual = np.array([each["", 0.0] for each in rounds])
    left = interval_of_pairs(faster, usual)
    return Interval(1 - left.value, 1 - left.high, 1 - left.low)


def _more_steps(
    quarter: Interval, look: Mapping[str, Any], blocks: Sequence[Mapping[str, Any]], n_rounds: int
) -> int:
    """Returns about how many steps more would tell whether a stage saves anything."""
    a_block = float(look["settle"] + look["needed"])
    if blocks:
        a_block = look["settle"] + sum(block["steps"] for block in blocks) / len(blocks)
    a_round = a_block * float(look["blocks_per_round"])
    if n_rounds < MIN_BLOCKS:
        return math.ceil((MIN_BLOCKS - n_rounds) * a_round)
    reach = (quarter.high - quarter.low) / 2
    wanted = max(quarter.value, NOTHING_FRAC - quarter.value, LEAST_REACH)
    more = n_rounds * ((reach / wanted) ** 2 - 1)
    return math.ceil(max(1.0, more) * a_round)


def _why_unknown(
    fact: Mapping[str, Any], facts: Mapping[str, Any], environment: Mapping[str, Any]
) -> str:
    """Returns why nothing can be claimed of a run, whatever its blocks say."""
    if fact.get("refused"):
        return str(fact["refused"])
    if facts.get("partly_watched"):
        return "the run was watched in part"
    if facts.get("several_threads_train") or facts.get("unknown_wait_steps"):
        return "it is not known what the loop that trains waits for"
    if facts.get("loaders") or facts.get("iterators_at_once"):
        return "several iterations over its loaders are open at once"
    if not fact.get("look"):
        return "no block of steps has ended; train for longer"
    if _workers(environment) and not any(_occurs(stage, fact["look"]) for stage in OF_MAKING):
        return "its workers do not say what they do, so they did not pause either"
    return _why_cores_are_shared(facts, environment)


def _why_cores_are_shared(facts: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    """Returns why a pause would give cores to others; empty where it does not."""
    making = facts.get("making") or {}
    waited_frac = math.nan
    if making.get("queued_s") is not None and making.get("made_s"):
        waited_frac = float(making["queued_s"] / making["made_s"])
    if waited_frac >= WAITED_FOR_CORE_FRAC:
        waited = formats.percent(waited_frac)
        return (
            f"batches waited for a core for {waited} of the time that it took to make them, and a pause gives "
            "cores to the rest"
        )
    cores = int(environment.get("job_cpu_count") or 0)
    workers = _workers(environment)
    busy = workers + int(environment.get("torch_threads") or 1)
    if workers and 0 < cores < busy and not waited_frac < OWN_CORES_FRAC:
        share = formats.count(cores, "core")
        return (
            f"{busy} threads that load and train share {share}, and a pause gives cores to the rest"
        )
    return ""


def _why_not_trusted(blocks: Sequence[Mapping[str, Any]], gains: Sequence[StageGain]) -> str:
    """Returns what shows that pauses were not what they should be; empty where nothing does."""
    for gain in gains:
        own = [block for block in blocks if block["stage"] == gain.stage]
        wanted_s = sum(block["fraction"] * block["stage_s"] for block in own)
        owed_s = sum(block["saved_s"] for block in own)
        if own and not PART_LOW * wanted_s <= owed_s <= PART_HIGH * wanted_s:
            return f"not all processes took part when {WORDS[gain.stage].lower()} seemed faster"
    slower = [g for g in gains if g.quarter.high < -NOTHING_FRAC or g.half.high < -NOTHING_FRAC]
    if slower:
        return f"steps were longer where {WORDS[slower[0].stage].lower()} seemed faster"
    slopes = sum(max(0.0, gain.quarter.low) / QUARTER for gain in gains if gain.quarter.low > 0)
    if slopes > MOST_SLOPES:
        return "the savings of all stages are more than there is to save"
    return ""
