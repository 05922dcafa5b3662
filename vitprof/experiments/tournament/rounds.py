"""The rounds of a tournament: which setting runs next, and when none does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from vitprof import formats
from vitprof.analysis.thresholds import OTHERS_CORES
from vitprof.analysis.tournament import can_be_fastest
from vitprof.analysis.tournament.scores import rounds_of, spoiled
from vitprof.analysis.tournament.tuning import first_rung, rung_sizes
from vitprof.config.bounds import MORE_ROUNDS
from vitprof.config.tournament_spec import TournamentSpec
from vitprof.experiments.tournament.planning import PlannedTrial, baseline_of
from vitprof.experiments.tournament.tournament_view import TournamentState, TournamentView, planned_rounds, rotated

Next = tuple[int, PlannedTrial]
"""A round, from 1, and the setting to run in it."""
CutShort = Callable[[str, str], None]
"""Called with the key of a setting that takes no part in the rounds to come, and why."""


def rounds(
    view: TournamentView, spec: TournamentSpec, planned: Sequence[PlannedTrial], cut_short: CutShort
) -> Iterator[Next]:
    """Yields what to run: whole rounds, then rounds of those that can still be the fastest until it is decided.

    Where a user's own script has too many settings for the time limit, they are halved (successive halving).
    """
    if is_large(view.look(), spec, planned):
        yield from _halved(view, spec, planned, cut_short)
    else:
        yield from planned_rounds(planned, spec.repeats)
        for trial in planned:
            yield from _again(view, spec, trial)
    if not spec.until_decided:
        return
    for number in range(spec.repeats + 1, spec.repeats + MORE_ROUNDS + 1):
        open_ = can_be_fastest(view.board(view.look()))
        if not open_:
            return
        by_key = {t.key: t for t in planned}
        yield from ((number, by_key[key]) for key in rotated(open_, number))


def is_large(now: TournamentState, spec: TournamentSpec, planned: Sequence[PlannedTrial]) -> bool:
    """Returns whether the time limit is too short for all rounds of the settings of a user's own script."""
    if spec.script is None or spec.seconds is None:
        return False
    return _run_s(now) * spec.repeats * sum(not t.refused for t in planned) > spec.seconds


def _run_s(now: TournamentState) -> float:
    took = [o.summary.wall_s for e in now.entries for o in e.outcomes if o.status == "done" and o.summary]
    return float(np.median(took)) if took else 0.0


def _halved(
    view: TournamentView, spec: TournamentSpec, planned: Sequence[PlannedTrial], cut_short: CutShort
) -> Iterator[Next]:
    """Yields rounds, after each of which the best third continues, until two are left; the baseline runs in each.

    Where the time is too short for all, only some begin, spread over the list. Settings that were not begun or cut
    short before, also by another program, stay out.
    """
    now, base = view.look(), baseline_of(spec, planned)
    others = [t for t in planned if not t.refused and t.key != base]
    began = {e.key for e in now.entries if e.outcomes}
    if not any(t.key in began for t in others):
        fits = first_rung(len(others), int((spec.seconds or 0.0) / max(_run_s(now), 1e-3)), spec.repeats)
        taken = {round(i * (len(others) - 1) / max(fits - 1, 1)) for i in range(fits)}
        for trial in (t for i, t in enumerate(others) if i not in taken):
            cut_short(trial.key, f"not begun: there is time for {fits} of {len(others)} settings; give a longer --time")
        now = view.look()
    others = [t for t in others if t.key in began or not _is_out(now, t.key)]
    sizes = rung_sizes(len(others))
    for number in range(1, max(spec.repeats, len(sizes)) + 1):
        now = view.look()
        alive = [t for t in planned if t.key == base or (t in others and not _is_out(now, t.key))]
        yield from ((number, trial) for trial in rotated(alive, number))
        if number < len(sizes):
            rivals = [t for t in alive if t.key != base]
            yield from _disturbed(view.look(), rivals, sizes[number], number)
            _keep_the_best(view.look(), [t.key for t in rivals], sizes[number], number, cut_short)


def _disturbed(now: TournamentState, rivals: Sequence[PlannedTrial], n: int, number: int) -> Iterator[Next]:
    """Yields another run of each trial that would drop out after a round in which other programs took clearly more CPU
    from it than from the others. That run counts as its next round, should the trial continue.
    """
    keys = [t.key for t in rivals]
    of_round = {e.key: o.others_cores for e in now.entries if e.key in keys for o in e.outcomes if o.round == number}
    least = min((cores for cores in of_round.values() if np.isfinite(cores)), default=np.nan)
    best = sorted(keys, key=lambda key: -np.nan_to_num(_speed(now, key)))[:n]
    for trial in rivals:
        if trial.key not in best and of_round.get(trial.key, np.nan) >= least + OTHERS_CORES:
            yield number + 1, trial


def _keep_the_best(now: TournamentState, keys: Sequence[str], n: int, number: int, cut_short: CutShort) -> None:
    speeds = {key: _speed(now, key) for key in keys if not _is_out(now, key)}
    known = sorted((key for key in speeds if np.isfinite(speeds[key])), key=lambda key: -speeds[key])
    for key in known[n:]:
        reached = f"{formats.number(speeds[key], 'samples/s')}, and the best has {formats.number(speeds[known[0]])}"
        cut_short(key, f"not among the best {n} after round {number}: {reached}")


def _is_out(now: TournamentState, key: str) -> bool:
    return next(e for e in now.entries if e.key == key).status in ("failed", "cut")


def _speed(now: TournamentState, key: str) -> float:
    """Returns samples/s of all blocks of a trial's rounds that count; NaN without any."""
    runs = rounds_of(next(e for e in now.entries if e.key == key))
    blocks = np.concatenate([np.empty(0), *runs.values()])
    return float(len(blocks) / np.sum(1 / blocks)) if len(blocks) else float("nan")


def _again(view: TournamentView, spec: TournamentSpec, trial: PlannedTrial) -> Iterator[Next]:
    """Yields another round for each that other programs spoiled, at most as many as were planned."""
    for number in range(spec.repeats + 1, 2 * spec.repeats + 1):
        entry = next(e for e in view.look().entries if e.key == trial.key)
        counted = sum(o.status == "done" and len(o.blocks_per_s) > 0 for o in entry.outcomes) - len(spoiled(entry))
        if entry.status != "done" or not spoiled(entry) or counted >= spec.repeats:
            return
        yield number, trial
