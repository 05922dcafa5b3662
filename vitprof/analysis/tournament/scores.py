"""How fast a setting is on a machine that also runs other programs, how sure that is, and how two settings compare.

Other programs only ever slow a run down. So a setting is judged by its score, the throughput that a fifth of its blocks
reach: blocks that others slowed down do not count against it. A loader that is uneven by itself must not gain by that:
a block, of neighbouring steps, contains a whole period of its stalls.

A score has noise within a run, from block to block, and between runs. Both are found by a bootstrap: of blocks within
their runs, and of rounds (Davison and Hinkley, Bootstrap Methods and their Application, 1997, section 3.8). One of two
or three rounds covers far less than it claims (Hesterberg, The American Statistician 2015, section 4.1), so the noise
between rounds is widened as Student's t would be. All settings see the same draws of rounds: what slowed down a whole
round cancels. All of it is on logarithms, because a machine's noise is a share of the time. docs/tournament.md says how
often it errs.
"""

import math
import zlib
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from vitprof.analysis import arrays, thresholds
from vitprof.analysis.arrays import Floats, Interval, Ints, Series
from vitprof.analysis.intervals import NORMAL_975, student_t, variance_of_one
from vitprof.analysis.timing.steady import steady_state, whole_epochs
from vitprof.analysis.tournament.entries import OUT_OF_THE_RACE, Entry, Outcome
from vitprof.analysis.verdict.headroom import ROUNDING_FRAC

SCORE_QUANTILE = 0.8
"""Share of the blocks slower than the score: 0.75 to 0.9 were never wrong in simulation; higher favours uneven."""
SPOILED_FRAC = 0.9
"""Share of the best run's throughput below which a run is slow for another reason than chance, some percent."""
LEAST_ROUNDS = 3
"""Rounds of a tournament unless fewer are asked for; each further one is another look (`sure_level`)."""
ERROR_CHANCE = 0.05
"""Chance of a wrong answer over all looks together."""

Comparison = Literal["faster", "equal", "slower", "undecided"]
Rounds = Mapping[int, Floats]
"""Round -> samples/s of the blocks of a setting's run in it, (n,) float64."""


@dataclass(frozen=True)
class Score:
    """A setting's throughput on a machine that is left alone, on logarithms."""

    value: float
    """log of samples/s; NaN without a run."""
    draws: Floats
    """The same for each draw, (1000,); NaN where its noise is not known: one run, or runs of fewer than four blocks."""

    @property
    def known(self) -> bool:
        return bool(np.isfinite(self.draws).all())


NO_SCORE = Score(math.nan, np.full(arrays.BOOTSTRAP_RESAMPLES, math.nan))


def spoiled(entry: Entry) -> dict[int, float]:
    """Returns the rounds that do not count -> the cores that other programs used then: under 0.9 times the setting's
    best run, with clearly more of the CPU used by others. Such a round is run again; any other slow one counts.
    """
    runs = {
        o.round: o for o in entry.outcomes if o.status == "done" and len(usable(o.blocks_per_s))
    }
    rates = {number: float(1 / (1 / usable(o.blocks_per_s)).mean()) for number, o in runs.items()}
    best = max(rates, key=rates.__getitem__, default=None)
    if best is None:
        return {}
    least = (
        runs[best].others_cores + thresholds.OTHERS_CORES
    )  # NaN if not known: then no round is spoiled
    return {
        number: o.others_cores
        for number, o in sorted(runs.items())
        if rates[number] < SPOILED_FRAC * rates[best] and o.others_cores >= least
    }


def rounds_of(entry: Entry) -> dict[int, Floats]:
    """Returns the blocks of a setting's runs that count, by round; if a round has two runs, the later one's."""
    out = spoiled(entry)
    runs = {
        o.round: usable(o.blocks_per_s) for o in entry.outcomes if counts(o) and o.round not in out
    }
    return dict(sorted(runs.items()))


def counts(run: Outcome) -> bool:
    """Returns whether a run gave a figure, and did not fail."""
    return run.status not in OUT_OF_THE_RACE and len(usable(run.blocks_per_s)) > 0


def throughput(runs: Rounds, samples: Mapping[int, float], key: str) -> Interval:
    """Returns samples/s over the rounds that count, with an interval; `samples` weigh the rounds' runs."""
    if not runs:
        return arrays.UNKNOWN
    weights = np.array([samples[number] for number in sorted(runs)])

    def over_time(logs: Floats, drawn: Ints) -> Floats:
        made = weights[drawn]
        return np.asarray(
            -np.log((made * np.exp(-logs).mean(axis=-1)).sum(axis=-1) / made.sum(axis=-1))
        )

    found = _drawn(runs, key, over_time)
    # the blocks of a short run are repeated (`_padded`), which must not change the figure itself
    seconds = sum(samples[number] * float((1 / blocks).mean()) for number, blocks in runs.items())
    exact = math.log(float(weights.sum()) / seconds)
    return interval(exact, found.draws + (exact - found.value), sure_level(len(runs)))


def score(runs: Rounds, key: str) -> Score:
    """Returns the score of a setting. Draws of blocks depend on key and round; those of rounds are the same for all."""
    return _drawn(runs, key, _upper) if runs else NO_SCORE


def within_low(runs: Rounds, key: str) -> float:
    """Returns the lower end of the 95% interval from blocks alone, samples/s; NaN with too few blocks."""
    if not runs or min(map(len, runs.values())) < arrays.MIN_BLOCKS:
        return math.nan
    drawn = -np.log(np.exp(-_resampled(_padded(runs), runs, key)).mean(axis=2)).mean(axis=1)
    return math.exp(float(np.percentile(drawn, 2.5)))


def sure_level(n_rounds: int) -> float:
    """Returns how sure an answer must be, 0..1: look k may err with 5% / (k (k + 1)), 5% over all."""
    look = max(1, n_rounds - LEAST_ROUNDS + 1)
    return 1 - ERROR_CHANCE / (look * (look + 1))


def interval(value: float, draws: Floats, level: float) -> Interval:
    """Returns exp(`value`) with the interval that contains `level` of its draws, and the value itself."""
    if not np.isfinite(draws).all():
        return Interval(math.exp(value), math.nan, math.nan)
    tail = 50 * (1 - level)
    low, high = (float(v) for v in np.percentile(draws, [tail, 100 - tail]))
    return Interval(math.exp(value), math.exp(min(low, value)), math.exp(max(high, value)))


def ratio(mine: Score, base: Score, level: float) -> Interval:
    """Returns `mine` over `base`, with its interval at `level`."""
    if math.isnan(mine.value) or math.isnan(base.value):
        return arrays.UNKNOWN
    return interval(mine.value - base.value, mine.draws - base.draws, level)


def comparison(gain: Interval) -> Comparison:
    """Returns what the interval of a ratio says. "equal" means known to differ by less than 5%, not merely unknown."""
    if not math.isfinite(gain.low):
        return "undecided"
    if gain.low >= 1 - thresholds.EQUAL_FRAC and gain.high <= 1 / (1 - thresholds.EQUAL_FRAC):
        return "equal"
    if gain.low > 1 + ROUNDING_FRAC:
        return "faster"
    return "slower" if gain.high < 1 - ROUNDING_FRAC else "undecided"


def near_best(scores: Mapping[str, Score], out: Container[str] = ()) -> dict[str, float]:
    """Returns for each setting the probability that no other is faster by more than 5%. NaN for all while one of
    unknown noise, not in `out`, reached half of the best score; NaN also where its own is not known.
    """
    best = max((s.value for s in scores.values()), default=math.nan)
    known = {key: s for key, s in scores.items() if s.known}
    rivals = [
        k
        for k, s in scores.items()
        if not s.known and k not in out and s.value > best + math.log(0.5)
    ]
    if rivals or not known:
        return dict.fromkeys(scores, math.nan)
    draws = np.array([s.draws for s in known.values()])
    near = (draws >= draws.max(axis=0) + math.log(1 - thresholds.EQUAL_FRAC)).mean(axis=1)
    return dict.fromkeys(scores, math.nan) | dict(zip(known, (float(v) for v in near), strict=True))


MOST_DRAWN_ROUNDS = 128
"""More rounds than a tournament can have (`TOURNAMENT_BOUNDS`)."""


def _upper(logs: Floats, drawn: Ints) -> Floats:
    flat = logs.reshape(*logs.shape[:-2], -1)
    at = max(0, math.ceil(SCORE_QUANTILE * flat.shape[-1] - 1e-9) - 1)
    return np.asarray(np.partition(flat, at, axis=-1)[..., at])


def _drawn(runs: Rounds, key: str, figure: Callable[[Floats, Ints], Floats]) -> Score:
    """Returns a figure of all blocks, with its draws: noise of blocks plus that of rounds, widened. `figure` is called
    with blocks on logarithms, (..., rounds, blocks), and each row's round.
    """
    logs = _padded(runs)
    n = len(runs)
    every = np.arange(n)
    value = float(figure(logs, every))
    if n < 2 or min(map(len, runs.values())) < arrays.MIN_BLOCKS:
        return Score(value, NO_SCORE.draws)
    blocks = figure(_resampled(logs, runs, key), every) - value
    shared = np.random.default_rng(0).random((arrays.BOOTSTRAP_RESAMPLES, MOST_DRAWN_ROUNDS))[:, :n]
    drawn = (shared * n).astype(int)
    rounds = figure(logs[drawn], drawn) - value
    widened = student_t(n - 1) / NORMAL_975 * math.sqrt(n / (n - 1))
    return Score(value, value + blocks + widened * rounds)


def _padded(runs: Rounds) -> Floats:
    most = max(map(len, runs.values()))
    return np.log([np.resize(blocks, most) for _, blocks in sorted(runs.items())])


def _resampled(logs: Floats, runs: Rounds, key: str) -> Floats:
    drawn = []
    for line, number in zip(logs, sorted(runs), strict=True):
        rng = np.random.default_rng([0, zlib.crc32(key.encode()), number])
        drawn.append(line[rng.integers(len(line), size=(arrays.BOOTSTRAP_RESAMPLES, len(line)))])
    return np.stack(drawn, axis=1)


REGULAR = 0.5
"""Autocorrelation from which steps `period` apart are alike for a reason. Of 2,000 runs of 400 unrelated steps none had
such a peak beyond a block's length (one in 40 stalled: 0.05%; bursts: 0.2%); with a stall every 8th to 64th step all
had."""
SURE_SIGMAS = 4.5
"""Standard errors (1 / sqrt(n), for unrelated steps) by which it must also be above 0, which matters for few steps."""
MOST_LONGER = 3.0
"""How far above the median a step counts at most, in medians: the longest stall must not hide the others."""
LEAST_PERIODS = 4
"""Periods that a run must contain for one to be found."""
LEAST_QUEUES = 4
"""Times the queue's change that a block must contain: steps after a stop are then 1/4 faster at most."""
WRONG_STOP_CHANCE = 0.01
"""Chance of cutting a trial short that is as good as the best's lower bound, if blocks were independent and alike."""
MIN_BLOCKS_TO_STOP = 20
"""The bound is asymptotic: with fewer blocks its spread is not known well enough."""
WORTH_FULL_TIME_FRAC = 0.05
"""What is within 5% of the best is worth its full time: runs of one setting differ by some percent."""
EARLIEST_STOP_FRAC = 0.5
"""Share of its budget that a trial always gets: while it warms up it is slower than it will be."""


def usable(blocks: Floats) -> Floats:
    return np.asarray(blocks[np.isfinite(blocks) & (blocks > 0)], dtype=np.float64)


def period(seconds: Floats) -> int:
    """Returns the number of steps after which step times (n,) repeat, 1 if they do not: the lag of the highest peak of
    the autocorrelation after it dips below 0 (Box and Jenkins, Time Series Analysis, chapter 2).
    """
    n = len(seconds)
    most = n // LEAST_PERIODS
    if most < 2:
        return 1
    longer = np.clip(seconds / np.median(seconds) - 1, 0, MOST_LONGER)
    longer -= longer.mean()
    spectrum = np.fft.rfft(longer, 2 * n)
    together = np.fft.irfft(spectrum * np.conj(spectrum))[: most + 1]
    if not together[0] > 0:
        return 1
    alike = together / together[0] * n / (n - np.arange(most + 1))
    dips = np.flatnonzero(alike < 0)
    if not len(dips):
        return 1
    first = int(dips[0])
    peak = alike[first:].max()
    lag = first + int(
        np.argmax(alike[first:] >= 0.9 * peak)
    )  # its multiples are as high, apart from noise
    return lag if peak >= max(REGULAR, SURE_SIGMAS / np.sqrt(n)) else 1


def ahead(queue_depth: Floats) -> int:
    """Returns by how many batches a loader's queue changed over a run's steps (n,), without outliers."""
    depths = arrays.known(queue_depth)
    return int(np.ceil(np.quantile(depths, 0.95) - np.quantile(depths, 0.05))) if len(depths) else 0


def block_rates(steps: Series) -> Floats:
    """Returns samples/s of up to 20 blocks of neighbouring steady steps, (n,), all with the same number of samples. If
    step times repeat, a block is at least a whole period; likewise where the loader's queue fills and empties
    (`ahead`), unless the loop hardly waits for data.
    """
    steady = steady_state(steps) & np.isfinite(steps["step_s"]) & (steps["samples"] > 0)
    seconds = steps["step_s"][steady]
    samples = steps["samples"][steady]
    if not len(seconds):
        return np.empty(0)
    n = min(arrays.BOOTSTRAP_BLOCKS, len(seconds) // period(seconds))
    if np.nansum(steps["data_wait_s"][steady]) > thresholds.MODERATE_FRAC * seconds.sum():
        least = max(1, LEAST_QUEUES * ahead(steps["queue_depth"][steady]))
        n = min(n, max(arrays.MIN_BLOCKS, len(seconds) // least))
    made, passed = (np.concatenate([[0.0], np.cumsum(values)]) for values in (samples, seconds))
    took = np.diff(np.interp(np.linspace(0, made[-1], n + 1), made, passed))
    return np.asarray(made[-1] / n / took[took > 0], dtype=np.float64)


def over_epochs(steps: Series) -> float:
    """Returns samples/s over whole epochs as a multiple of that of the steady steps; NaN without a second epoch."""
    if not np.diff(steps["epoch"]).any():
        return math.nan

    def rate(weights: Floats) -> float:
        return float((steps["samples"] * weights).sum() / np.nansum(steps["step_s"] * weights))

    keep = steady_state(steps)
    return rate(whole_epochs(steps)) / rate(keep.astype(float)) if keep.any() else math.nan


def cannot_win(entry_blocks: Floats, best_low: float) -> bool:
    """Returns whether a trial can no longer win: its upper 99% bound, and `WORTH_FULL_TIME_FRAC` more, is below
    `best_low` (`LeaderboardRow.within_low`). The bound must hold for all of `entry_blocks` (`block_rates`) so far and
    for their later half: a trial may get faster. Asked repeatedly, from `EARLIEST_STOP_FRAC` of its budget on: the
    one-sided asymptotic confidence sequence of Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas (Annals of Statistics
    2024). It assumes independent blocks, so the spread is the largest of single blocks, pairs and fours; noise that
    lasts for a large part of the run can still have a good trial cut.
    """
    blocks = usable(entry_blocks)
    if len(blocks) < MIN_BLOCKS_TO_STOP or not math.isfinite(best_low):
        return False
    seconds = 1 / blocks
    deviation = math.sqrt(max(variance_of_one(seconds, group) for group in (1, 2, 4)))
    log_alpha = -2 * math.log(2 * WRONG_STOP_CHANCE)
    rho2 = (log_alpha + math.log(log_alpha + 1)) / MIN_BLOCKS_TO_STOP
    for judged in (seconds, seconds[len(seconds) // 2 :]):
        n = len(judged)
        scale = n * rho2 + 1
        bound = math.sqrt(
            2 * scale / (n * n * rho2) * math.log(1 + math.sqrt(scale) / (2 * WRONG_STOP_CHANCE))
        )
        if (
            best_low <= 0
            or judged.mean() - deviation * bound <= (1 + WORTH_FULL_TIME_FRAC) / best_low
        ):
            return False
    return True


def without_others(blocks: Floats, others_cores: float) -> Floats:
    """Returns the most samples/s of blocks, (n,), alone on the machine; infinite from a whole core taken on."""
    left = 1 - max(others_cores, 0.0) if math.isfinite(others_cores) else 0.0
    return blocks / left if left > 0 else np.full(len(blocks), math.inf)
