"""The one rule for "A is faster than B": all samples over all time of undisturbed rounds, and how
sure that is.

**The figure.** A setting makes as many samples/s as all its samples over all its time. A loader
that is uneven by itself is judged by all of it, never by its best part. Only blocks that other
programs disturbed are left out, because those programs were seen (`disturbance`), never because the
blocks were slow. The ratio of two such figures is shown, and the interval of this same ratio
decides.

**The noise.** Settings that ran in the same round are compared within it, so that a drift of the
machine cancels: a model of log speeds with a term for each setting and one for each round
(randomised blocks; Montgomery, Design and Analysis of Experiments, chapter 4). What it leaves over
is a setting's own noise. A part of that is seen within its runs, from block to block: there are
many blocks, so this part is known well. The other is what runs differ by, which two or three rounds
show badly: it counts with Student's t for its few degrees of freedom. The two parts are put
together as Satterthwaite has it (Biometrics Bulletin 1946). With two settings whose blocks are even
the interval is that of the paired t test. The noise of a setting widens no other setting's
interval.

**The outcome.** faster or slower: the whole interval is on one side of 1. equal: all of it is
within 5% of 1. Else undecided: more rounds are needed.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from vitprof.analysis import arrays, intervals, students_t, thresholds
from vitprof.analysis.arrays import UNKNOWN, Floats, Interval
from vitprof.analysis.intervals import variance_of_one

Relation = Literal["faster", "equal", "slower", "undecided"]

MOST_LOG = 700.0
"""Above this a float has no exponential."""
ROUNDING_FRAC = 1e-6
"""Share below which a difference is rounding: on a simulated device all steps are alike."""
FAR_MORE = 3.0
"""Times the median setting's noise from which a setting is far noisier than the others."""
NO_NOISE = ROUNDING_FRAC**2
"""Variance of a log speed that is rounding."""
LEAST_ERROR = 0.01
"""By which runs of one setting differ at least, as a share, where runs are weighted: no run decides
alone."""
USUAL_DIFFERENCE = 0.02
"""By which runs of one setting usually differ from round to round, as a share."""
CLEARLY_MORE = 3.0
"""With three rounds, what runs differ by is above this many times the variance that blocks explain
in one of 20 cases by chance."""
LEAST_ROUNDS = 3
"""Rounds of a tournament unless fewer are asked for; each further one is another look
(`sure_level`)."""
ERROR_CHANCE = 0.05
"""Chance of a wrong answer over all looks together."""
GROUPS = (1, 2, 4)
"""Neighbouring blocks that are taken together to see whether neighbours are alike."""


@dataclass(frozen=True, slots=True)
class LogNoise:
    """How far a figure may be off, on logarithms."""

    variance: float = math.nan
    """NaN where it is not known."""
    df: float = math.nan
    """Degrees of freedom behind it."""

    @property
    def known(self) -> bool:
        return math.isfinite(self.variance)

    def scaled(self, factor: float) -> "LogNoise":
        return LogNoise(self.variance * factor, self.df)


def noise_of_sum(parts: Sequence[LogNoise]) -> LogNoise:
    """Returns the noise of a sum, with Satterthwaite's degrees of freedom (Biometrics Bulletin
    1946)."""
    variance = math.fsum(part.variance for part in parts)
    if variance < NO_NOISE:  # steps of a simulated device are all alike
        return LogNoise(0.0, 1.0)
    if not math.isfinite(variance):
        return LogNoise()
    doubts = math.fsum(part.variance**2 / part.df for part in parts if part.variance > 0)
    return LogNoise(variance, variance**2 / doubts)


@dataclass(frozen=True, slots=True)
class RunBlocks:
    """The blocks of one run that count, in order."""

    samples: Floats
    """(n,) samples of each."""
    seconds: Floats
    """(n,) time of each."""

    @property
    def per_s(self) -> float:
        """Returns all samples over all time; NaN without any."""
        total_s = float(self.seconds.sum())
        return float(self.samples.sum()) / total_s if total_s > 0 else math.nan

    @property
    def noise(self) -> "LogNoise":
        """Returns the noise of the logarithm of `per_s`, from how blocks differ; not known with
        fewer than four.

        Neighbours may be alike, so its variance is the largest of those of single blocks, pairs and
        fours, and of single blocks as alike as they look, which count for fewer independent ones
        (Satterthwaite's degrees of freedom are those of as many). Without the last, two equal
        settings of 20 blocks that vary by 20% with AR(1) 0.8 were told to differ in 9% of the cases
        after three rounds, in place of 2.5%.
        """
        n = len(self.seconds)
        if n < arrays.MIN_BLOCKS:
            return LogNoise()
        off = self.seconds - self.samples / self.per_s
        groups = [group for group in GROUPS if n // group >= arrays.MIN_BLOCKS]
        estimates = [(variance_of_one(off, group), n // group - 1.0) for group in groups]
        likeness = intervals.alike(off)
        # blocks that say as little as a single independent one
        n_alike = (1 + likeness) / (1 - likeness)
        estimates.append((variance_of_one(off, 1) * n_alike, max(1.0, n / n_alike - 1)))
        of_a_block, df = max(estimates)
        total_s = float(self.seconds.sum())
        return LogNoise(n * of_a_block / total_s**2, df)

    def slower_by(self, factor: float) -> "RunBlocks":
        return RunBlocks(self.samples, self.seconds * factor)


Rounds = Mapping[int, RunBlocks]
"""Round -> the blocks of a setting's run in it."""


def per_s(rounds: Rounds) -> float:
    """Returns all samples over all time of these rounds; NaN without any."""
    total_s = math.fsum(float(blocks.seconds.sum()) for blocks in rounds.values())
    samples = math.fsum(float(blocks.samples.sum()) for blocks in rounds.values())
    return samples / total_s if total_s > 0 else math.nan


def sure_level(n_rounds: int) -> float:
    """Returns how sure an answer must be after `n_rounds`, 0..1.

    Each further round is another look, at which chance may mislead: look k may err with 5% / (k (k
    + 1)), which sums to 5% over any number of looks.
    """
    look = max(1, n_rounds - LEAST_ROUNDS + 1)
    return 1 - ERROR_CHANCE / (look * (look + 1))


def relation(ratio: Interval) -> Relation:
    """Returns what the interval of a ratio says. "equal" means known to differ by less than 5%, not
    merely unknown."""
    if not (math.isfinite(ratio.low) and math.isfinite(ratio.high)):
        return "undecided"
    least = 1 - thresholds.EQUAL_FRAC
    if ratio.low >= least and ratio.high <= 1 / least:
        return "equal"
    if ratio.low > 1 + ROUNDING_FRAC:
        return "faster"
    return "slower" if ratio.high < 1 - ROUNDING_FRAC else "undecided"


@dataclass(frozen=True, slots=True)
class Speed:
    """A setting's speed in the rounds that count."""

    per_s: float
    """All samples over all time."""
    own: LogNoise
    """Without what all settings of a round share; not known after one round."""
    alone: LogNoise
    """With that: how sure the speed by itself is."""
    rounds: frozenset[int]
    """Rounds behind it."""

    @classmethod
    def without_interval(cls, per_s: float) -> "Speed":
        """Returns a speed of which it is not known how far it may be off."""
        return cls(per_s, LogNoise(), LogNoise(), frozenset())


@dataclass(frozen=True, slots=True)
class NearBest:
    """Whether a setting is within 5% of the fastest."""

    probability: float = math.nan
    """At least with which no other is faster by more than 5%; NaN if that is not known."""
    behind: bool = False
    """Whether another one is surely faster by more than 5%."""


@dataclass(frozen=True)
class Speeds:
    """The speeds of settings that are compared with each other."""

    by_key: Mapping[str, Speed]

    def interval(self, key: str) -> Interval:
        """Returns samples/s of a setting by itself; its interval includes the machine's moments."""
        speed = self.by_key[key]
        return _interval(speed.per_s, speed.alone, sure_level(len(speed.rounds)))

    def ratio(self, key: str, base: str) -> Interval:
        """Returns the speed of a setting over that of another, with its interval."""
        mine = self.by_key[key]
        other = self.by_key[base]
        level = sure_level(_rounds_of_both(mine, other))
        return _interval(mine.per_s / other.per_s, noise_of_sum((mine.own, other.own)), level)

    def not_behind(self, key: str, rival: str) -> float:
        """Returns the confidence that `rival` is not faster than the setting by more than 5%; NaN
        if not known."""
        speed = self.by_key[key]
        other = self.by_key[rival]
        noise = noise_of_sum((speed.own, other.own))
        log_lead = math.log(speed.per_s / other.per_s) - math.log(1 - thresholds.EQUAL_FRAC)
        if not noise.known:
            return math.nan
        if noise.variance == 0:
            return float(log_lead > -ROUNDING_FRAC)
        return students_t.below(log_lead / math.sqrt(noise.variance), noise.df)

    def behind(self, key: str, rival: str) -> bool:
        """Returns whether the setting is surely slower than `rival` by more than 5%."""
        n_rounds = _rounds_of_both(self.by_key[key], self.by_key[rival])
        return self.not_behind(key, rival) <= 1 - sure_level(n_rounds)

    def near_best(self, keys: Sequence[str], ended: Collection[str] = ()) -> dict[str, NearBest]:
        """Returns for each of `keys` the least probability that none of them is faster by more than
        5% (Bonferroni's bound).

        A setting that is surely behind is no rival any more, whatever the look: that was decided
        with the error that its own rounds may have. NaN for all while a rival of unknown noise that
        is not among the `ended` reached half of the best speed; NaN also where its own noise is not
        known.
        """
        known = [key for key in keys if self.by_key[key].own.known]
        best = max((self.by_key[key].per_s for key in keys), default=math.nan)
        unclear = [
            key
            for key in keys
            if key not in known and key not in ended and self.by_key[key].per_s > best / 2
        ]
        near = dict.fromkeys(keys, NearBest())
        if unclear:
            return near
        # only a slower setting can be behind, so that the fastest never is
        behind = {key for key in known if any(self.behind(key, o) for o in known if o != key)}
        for key in known:
            sure = {other: self.not_behind(key, other) for other in known if other != key}
            if key in behind:
                near[key] = NearBest(min(sure.values()), behind=True)
                continue
            doubts = math.fsum(1 - sure[other] for other in sure if other not in behind)
            near[key] = NearBest(max(0.0, 1 - doubts))
        return near


def _rounds_of_both(one: Speed, other: Speed) -> int:
    return min(len(one.rounds), len(other.rounds))


def _interval(value: float, noise: LogNoise, level: float) -> Interval:
    if not noise.known:
        return Interval(value, math.nan, math.nan)
    reach = 0.0
    if noise.variance > 0:
        reach = students_t.quantile((1 + level) / 2, noise.df) * math.sqrt(noise.variance)
    reach = min(reach, MOST_LOG)
    return Interval(value, value * math.exp(-reach), value * math.exp(reach))


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of a setting, with what the model needs of it."""

    key: str
    round: int
    log: float
    """Logarithm of its samples/s."""
    within: LogNoise
    """From its blocks."""


def speeds(runs: Mapping[str, Rounds]) -> Speeds:
    """Returns the speeds of settings from their rounds' undisturbed blocks; those without any are
    left out. Where not all ran in the same rounds, a run's time is first brought to the mean of all
    rounds (`in_all_rounds`).
    """
    every = _runs(runs)
    if not every:
        return Speeds({})
    level = in_all_rounds(runs)
    fit = _fit(every)
    by_key = {}
    for key in sorted({run.key for run in every}):
        at = [i for i, run in enumerate(every) if run.key == key]
        of_setting = [every[i] for i in at]
        own = _noise(of_setting, fit.residuals[at], float(fit.df[at].sum()))
        logs = np.array([run.log for run in of_setting])
        alone = _noise(of_setting, logs - logs.mean(), len(of_setting) - 1.0)
        by_key[key] = Speed(per_s(level[key]), own, alone, frozenset(runs[key]))
    return Speeds(by_key)


def _runs(runs: Mapping[str, Rounds]) -> list[_Run]:
    return [
        _Run(key, number, math.log(blocks.per_s), blocks.noise)
        for key, rounds in runs.items()
        for number, blocks in sorted(rounds.items())
    ]


def _noise(runs: Sequence[_Run], residuals: Floats, df: float) -> LogNoise:
    """Returns the noise of the mean of a setting's runs: what is seen within them, and what they
    differ by beyond.

    What two or three runs differ by is often far less than what they could differ by. So the noise
    within runs is not just taken off it, and neither is its weight in the degrees of freedom what
    it happens to be: where blocks are even, all of it counts. The more uneven the blocks are, the
    less of it is news, unless the runs differ by far more than their blocks explain.
    """
    within = noise_of_sum([run.within for run in runs]).scaled(1 / len(runs))
    if len(runs) < 2 or df < DF_ROUNDING or not within.known:
        return LogNoise()
    differ = float((residuals**2).sum()) / df
    news = USUAL_DIFFERENCE**2 / (USUAL_DIFFERENCE**2 + within.variance)
    beyond = max(news * differ, differ - CLEARLY_MORE * within.variance)
    variance = within.variance + beyond
    weight = max(news, beyond / variance) if variance > 0 else news
    doubt = weight**2 / df
    if within.variance > 0:
        doubt += (1 - weight) ** 2 / within.df
    return LogNoise(variance, 1 / doubt).scaled(1 / len(runs))


DF_ROUNDING = 1e-6
"""Degrees of freedom below which a setting has none: a sum of leverages is off by rounding."""


@dataclass(frozen=True, slots=True)
class _Fit:
    """What a model of settings and rounds leaves over of each run."""

    residuals: Floats
    df: Floats
    """Degrees of freedom of each: 1 less its leverage."""
    of_round: Mapping[int, float]
    """How much faster each round was than their mean, on logarithms."""


def _fit(runs: Sequence[_Run]) -> _Fit:
    """Fits log speeds by settings and rounds, by least squares weighted by how even a run was.
    Rounds in which one setting ran alone say nothing about the round; those settings' runs are held
    against their own mean.

    A setting whose runs differ far more than those of the others hardly says how fast a round was,
    and would spread its noise over all of them: a second fit gives its runs the weight that they
    deserve.
    """
    even = np.array([_evenness(run) for run in runs])
    first = _weighted_fit(runs, even)
    noise = {}
    for key in sorted({run.key for run in runs}):
        at = [i for i, run in enumerate(runs) if run.key == key]
        df = float(first.df[at].sum())
        if df > DF_ROUNDING:
            noise[key] = math.sqrt(float((first.residuals[at] ** 2).sum()) / df)
    far_more = FAR_MORE * float(np.median(list(noise.values()))) if noise else math.inf
    noisy = {key: own for key, own in noise.items() if own > max(far_more, LEAST_ERROR)}
    if not noisy:
        return first
    deserved = [1 / noisy[run.key] if run.key in noisy else math.inf for run in runs]
    return _weighted_fit(runs, np.minimum(even, deserved))


def _weighted_fit(runs: Sequence[_Run], even: Floats) -> _Fit:
    keys = sorted({run.key for run in runs})
    crowded = _crowded(runs)
    columns = [[float(run.key == key) for run in runs] for key in keys]
    columns += [[float(run.round == number) for run in runs] for number in crowded]
    design = np.array(columns).T
    logs = np.array([run.log for run in runs])
    weighted = design * even[:, None]
    inverse = np.linalg.pinv(weighted)
    coefficients = inverse @ (logs * even)
    leverage = np.einsum("ij,ji->i", weighted, inverse)
    effects = coefficients[len(keys) :]
    effects = effects - effects.mean() if len(effects) else effects
    of_round = dict(zip(crowded, map(float, effects), strict=True))
    return _Fit(logs - design @ coefficients, np.clip(1 - leverage, 0.0, 1.0), of_round)


def _evenness(run: _Run) -> float:
    noise = run.within.variance if run.within.known else 1.0
    return 1 / math.sqrt(LEAST_ERROR**2 + noise)


def _crowded(runs: Sequence[_Run]) -> list[int]:
    """Returns the rounds in which at least two settings ran, of the largest group whose settings
    lead from each to each other. Without that nothing tells a round's moment from the settings that
    happened to run in it.
    """
    in_round: dict[int, set[str]] = {}
    for run in runs:
        in_round.setdefault(run.round, set()).add(run.key)
    crowded = {number: keys for number, keys in sorted(in_round.items()) if len(keys) > 1}
    largest: list[int] = []
    for keys in crowded.values():
        group = set[str]()
        more = set(keys)
        while more != group:
            group = more
            more = group.union(*(others for others in crowded.values() if others & group))
        reached = [number for number, others in crowded.items() if others & group]
        largest = max(largest, reached, key=len)
    return largest


def in_all_rounds(runs: Mapping[str, Rounds]) -> dict[str, dict[int, RunBlocks]]:
    """Returns the rounds of each setting as if all had run in the mean of all rounds: where one
    missed a slow round, it did not gain by that. As they are where all ran in the same rounds, or
    nothing connects them.
    """
    as_they_are = {key: dict(rounds) for key, rounds in runs.items()}
    took_part = [set(rounds) for rounds in runs.values() if rounds]
    if len(took_part) < 2 or all(rounds == took_part[0] for rounds in took_part):
        return as_they_are
    of_round = _fit(_runs(runs)).of_round
    return {
        key: {
            number: blocks.slower_by(math.exp(of_round.get(number, 0.0)))
            for number, blocks in rounds.items()
        }
        for key, rounds in as_they_are.items()
    }


def of_runs(candidate: Floats, base: Floats) -> Interval:
    """Returns the ratio of two speeds of which runs were made apart, not by turns, from the
    logarithms of their samples/s, (n,) and (m,): Student's two-sample t, both sides alike in
    scatter. At least three runs together.
    """
    df = len(candidate) + len(base) - 2
    squares = math.fsum(float(((side - side.mean()) ** 2).sum()) for side in (candidate, base))
    variance = squares / df * (1 / len(candidate) + 1 / len(base))
    ratio = math.exp(float(candidate.mean() - base.mean()))
    return _interval(ratio, LogNoise(variance, df), 1 - ERROR_CHANCE)


def of_intervals(candidate: Interval, base: Interval) -> Interval:
    """Returns the ratio of two speeds that were measured apart, one run each, from their intervals.
    What differs from run to run is not in it: to have that, run both by turns.
    """
    known = all(math.isfinite(end) for end in (*candidate, *base))
    if not known or min(candidate.low, base.low) <= 0:
        return Interval(candidate.value / base.value, math.nan, math.nan) if base.value else UNKNOWN
    return arrays.ratio_of(candidate, base)
