"""What tournaments have shown of two runs' settings: the best evidence of which is faster."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from vitprof.analysis import faster
from vitprof.analysis.arrays import Interval
from vitprof.analysis.faster_while_busy import WHILE_BUSY, at_least
from vitprof.analysis.thresholds import OTHERS_CORES
from vitprof.analysis.tournament.blocks import whole_runs_of
from vitprof.analysis.tournament.entries import key_in_words
from vitprof.analysis.tournament.leaderboard import LeaderboardRow, leaderboard
from vitprof.analysis.tournament.recommend import Recommendation, least_others, recommend
from vitprof.config import BUDGETS, RunConfig
from vitprof.errors import ConfigError, StoreError
from vitprof.experiments.tournament.planning import plan
from vitprof.experiments.tournament.tournament_view import TournamentState, TournamentView
from vitprof.store import StoredRun
from vitprof.store.stored_run import read_role
from vitprof.store.tournaments import StoredTournament

FREE = (*BUDGETS, "least_steps", "evaluate", "name", "seed", "share_machine", "isolation")
"""Settings that do not make another job of it: how long it runs, and how it is kept."""


@dataclass(frozen=True)
class Proof:
    """Two settings that a tournament ran alternately."""

    tournament_id: int
    ratio: Interval
    """The second one's speed over the first one's, with its 95% interval. A bound where `at_least`:
    above 1 its upper end is infinite, below 1 its lower end is 0."""
    n_rounds: int
    """Rounds that count."""
    others_cores: float
    """CPU cores that other programs took at least in each run of one of them, or on average where
    `at_least`; NaN if not known."""
    at_least: bool = False
    """Whether one was faster in all rounds, but other programs ran in them."""
    per_s: tuple[float, float] | None = None
    """Samples/s of the first and of the second one, whose ratio it is; None where `at_least`."""

    @property
    def basis(self) -> Literal["alternating, quiet", "alternating, busy", "alternating"]:
        """Returns what the machine was like, as `analysis.compare.answer.Basis` has it."""
        if not math.isfinite(self.others_cores):
            return "alternating"
        busy = self.others_cores >= OTHERS_CORES
        return "alternating, busy" if busy else "alternating, quiet"

    @property
    def rank(self) -> tuple[bool, bool, int, int]:
        """Returns how good it is as evidence: more is better."""
        quiet = self.basis == "alternating, quiet"
        decided = self.at_least or faster.relation(self.ratio) != "undecided"
        return quiet, decided, self.n_rounds, self.tournament_id


def best_proof(
    every: Iterable[StoredTournament],
    view_of: Callable[[int], TournamentView],
    base: StoredRun,
    other: StoredRun,
) -> Proof | None:
    """Returns the best evidence of tournaments that ran both runs' settings alternately on their
    machine; None without any.

    A quiet machine beats a busy one, then a decided comparison one that is not, then more rounds,
    then the newest. Only jobs of the very same settings count, but for `FREE`.
    """
    proofs = []
    for tournament in every:
        keys = _keys(tournament, base, other)
        if keys is None or tournament.held:  # one that runs may still change its mind
            continue
        # a part of it may be of another version, or just being deleted
        with contextlib.suppress(StoreError, ConfigError):
            proof = _proof(view_of(tournament.id).state(), *keys, _hosts(base, other))
            if proof is not None:
                proofs.append(proof)
    return max(proofs, key=lambda proof: proof.rank, default=None)


def _keys(
    tournament: StoredTournament, base: StoredRun, other: StoredRun
) -> tuple[str, str] | None:
    """Returns the keys of the trials with two runs' settings; None where it has not both."""
    key_of_base = _key(tournament, base)
    key_of_other = _key(tournament, other)
    if not key_of_base or not key_of_other or key_of_base == key_of_other:
        return None
    return key_of_base, key_of_other


def _key(tournament: StoredTournament, run: StoredRun) -> str:
    """Returns the key of the trial with a run's settings; "" where there is none."""
    if run.group_key == tournament.group_key:
        key, _ = read_role(run.role)
        return key
    spec = tournament.spec
    # a script is known by its command, of which runs store no whole; and a plan takes time
    unlike = spec.script is not None or run.config.strategy not in spec.strategies
    if unlike or spec.base.dataset != run.config.dataset:
        return ""
    with contextlib.suppress(ConfigError):
        for trial in plan(spec):
            if is_same_job(trial.config, run.config):
                return trial.key
    return ""


def is_same_job(one: RunConfig, other: RunConfig) -> bool:
    """Returns whether two resolved configs are the same job, but for `FREE`."""
    names = [f.name for f in dataclasses.fields(RunConfig) if f.name not in FREE]
    return all(getattr(one, name) == getattr(other, name) for name in names)


def _hosts(*runs: StoredRun) -> set[str]:
    return {host for run in runs if (host := run.environment.get("hostname"))}


def _proof(now: TournamentState, base: str, other: str, hosts: set[str]) -> Proof | None:
    """Returns what a tournament has shown of two of its trials; None where that is not known, or it
    ran on another machine than `hosts`.
    """
    board = leaderboard(now.entries, baseline=base, n_train=now.n_train)
    rows = [board.row(base), board.row(other)]
    known = [row for row in rows if row is not None]
    if len(known) < 2:
        return None
    nodes = {outcome.node for row in known for outcome in row.entry.outcomes if outcome.node}
    if hosts and nodes - hosts:
        return None
    found = known[1]
    if found.against_baseline in ("undecided", WHILE_BUSY):
        proof = _while_busy(now.tournament.id, known[0], found)
        if proof is not None:
            return proof
    ratio = Interval(found.speed_up, found.speed_up_low, found.speed_up_high)
    if not all(map(math.isfinite, ratio)):
        return None
    n_rounds = min(row.n_runs for row in known)
    return Proof(
        now.tournament.id,
        ratio,
        n_rounds,
        _others_cores(*known),
        per_s=(known[0].samples_per_s, known[1].samples_per_s),
    )


def _while_busy(tournament_id: int, base: LeaderboardRow, other: LeaderboardRow) -> Proof | None:
    """Returns which of two settings was faster while other programs ran; None where that is not
    sure."""
    gain = other.while_busy
    if gain is not None:
        ratio = Interval(gain.times, gain.times, math.inf)
        return Proof(tournament_id, ratio, gain.n_rounds, gain.others_cores, at_least=True)
    if base.rank is None or other.rank is None:
        return None
    loss = at_least(whole_runs_of(base.entry), whole_runs_of(other.entry))
    if loss is None:
        return None
    ratio = Interval(1 / loss.times, 0.0, 1 / loss.times)
    return Proof(tournament_id, ratio, loss.n_rounds, loss.others_cores, at_least=True)


def _others_cores(*rows: LeaderboardRow) -> float:
    """Returns the most cores that other programs took at least in each run of one of the settings;
    NaN where that is not known of both and no one of them was surely disturbed.
    """
    cores = [least_others(row) for row in rows]
    most = max((each for each in cores if math.isfinite(each)), default=math.nan)
    known_of_both = all(map(math.isfinite, cores))
    return most if known_of_both or most >= OTHERS_CORES else math.nan


@dataclass(frozen=True)
class Decision:
    """What a tournament recommends, seen from some of its runs."""

    tournament_id: int
    setting: str
    """The setting that it recommends, in words."""
    at: int | None
    """Position of the first of the runs that has this setting; None where none of them has it."""
    as_fast: tuple[int, ...]
    """Positions of the runs whose settings are as fast as that one."""


def decision_of(
    tournament: StoredTournament,
    view_of: Callable[[int], TournamentView],
    runs: Sequence[StoredRun],
    baseline: int,
) -> Decision | None:
    """Returns what a tournament recommends that made the run at position `baseline` and one of another
    setting among `runs`; None where it recommends nothing, or made no such two.
    """
    keys = {}
    for at, run in enumerate(runs):
        if run.group_key == tournament.group_key:
            keys[at], _ = read_role(run.role)
    if baseline not in keys or len(set(keys.values())) < 2 or tournament.held:
        return None
    # a part of it may be of another version, or just being deleted
    with contextlib.suppress(StoreError, ConfigError):
        viewed = view_of(tournament.id)
        best = recommend(viewed.board(viewed.state()))
        if best is not None and best.recommended is not None:
            return _decision(tournament.id, best, keys)
    return None


def _decision(tournament_id: int, best: Recommendation, keys: Mapping[int, str]) -> Decision:
    """Returns the decision for runs whose positions are those in `keys`, with the keys of their trials."""
    recommended = best.recommended or ""
    chosen = [at for at, key in keys.items() if key == recommended]
    return Decision(
        tournament_id,
        key_in_words(recommended),
        chosen[0] if chosen else None,
        tuple(at for at, key in keys.items() if key in best.equals),
    )
