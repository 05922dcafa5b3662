"""The answer on a stored run, made of the best evidence: its verdict, with headroom measured since,
and what tournaments have shown of fixes.
"""

import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from vitprof.analysis import thresholds
from vitprof.analysis.arrays import Series
from vitprof.analysis.timing.summary import StepSums
from vitprof.analysis.tournament.entries import setting_in_words
from vitprof.analysis.tournament.leaderboard import Leaderboard, LeaderboardRow
from vitprof.analysis.tournament.recommend import least_others, recommend
from vitprof.analysis.verdict.advice import apply
from vitprof.analysis.verdict.answer import Answer, Proof, Relation, answer_of, answer_so_far
from vitprof.analysis.verdict.evidence import device_kind
from vitprof.analysis.verdict.headroom import Headroom
from vitprof.analysis.verdict.verdict import judge
from vitprof.config import own_script
from vitprof.config.availability import Machine, can_run
from vitprof.config.device_rate import rate_if_valid
from vitprof.errors import ConfigError
from vitprof.experiments.headroom_runs import find_headroom
from vitprof.experiments.tournament.planning import PlannedTrial, in_turns
from vitprof.experiments.tournament.tournament_view import TournamentState, TournamentView
from vitprof.masking import masked_command
from vitprof.recording.verdict import Advice, Verdict, advised_workers
from vitprof.store import RunStore, StoredRun, tournaments

View = Callable[[int], TournamentView]
"""Returns the view of a tournament, by its number."""
MOST_LOOKED_AT = 200
"""Tournaments of a run, or of a script's directory, that are looked through for proofs, the newest first."""


def answer_of_run(store: RunStore, run: StoredRun, view: View | None = None) -> Answer | None:
    """Returns the answer on a run; None for one without a verdict. `view` is as in `proofs_of`."""
    verdict = verdict_now(store, run)
    if verdict is None:
        return None
    return answer_of(
        verdict,
        proofs_of(store, run, verdict, view),
        summary=run.summary,
        rate=rate_if_valid(),
    )


def answers_of(store: RunStore, runs: Iterable[StoredRun]) -> dict[int, Answer]:
    """Returns the answers on those runs that have one, by number."""
    found = {run.id: answer_of_run(store, run) for run in runs}
    return {number: answer for number, answer in found.items() if answer is not None}


def answer_of_live(run: StoredRun, so_far: StepSums) -> Answer | None:
    """Returns what is known of a run that goes on, by the sums over its steps so far; None where it
    has none, or their waits are not known."""
    waits_frac = so_far.share(so_far.exposed_wait_s)
    idle_frac = so_far.share(so_far.gap_s)
    if not so_far.steps or not math.isfinite(waits_frac) or not math.isfinite(idle_frac):
        return None
    return answer_so_far(
        so_far.steps,
        waits_frac,
        idle_frac,
        training_s=so_far.step_s,
        rate=rate_if_valid(),
        n_devices=_n_devices(run),
        simulated=run.simulated,
    )


def _n_devices(run: StoredRun) -> int:
    """Returns how many devices a run trains on: one for each rank, but one for all that the CPU trains."""
    if device_kind(run.config, run.environment) == "cpu":
        return 1
    return int(run.environment.get("world_size") or 1)


def verdict_now(store: RunStore, run: StoredRun) -> Verdict | None:
    """Returns the verdict stored with a run that has ended, or a new one where headroom was measured
    since, or none was stored; None for a run without steps.
    """
    measured = find_headroom(store, run)
    stored = stored_verdict(run, measured)
    if stored is not None:
        return stored
    if run.summary is None or not run.summary.n_steps:
        return None
    return judge_again(store, run, store.steps(run.id), measured)


def stored_verdict(run: StoredRun, measured: Headroom | None) -> Verdict | None:
    """Returns the verdict that was stored with a run, if it still holds; None where headroom was
    `measured` since, or none was stored."""
    return run.verdict if measured is None else None


def judge_again(
    store: RunStore,
    run: StoredRun,
    steps: Series,
    measured: Headroom | None,
    machine: Machine | None = None,
) -> Verdict:
    """Returns a new verdict on a run, with the headroom that was `measured` since.

    `steps` are all its columns. `machine`: this one, if it was looked at already.
    """
    return judge(
        run.config,
        steps,
        run.phases,
        store.telemetry(run.id),
        run.environment | run.facts,
        headroom=measured,
        possible=lambda config: can_run(config, machine=machine),
    )


def proofs_of(
    store: RunStore,
    run: StoredRun,
    verdict: Verdict,
    view: View | None = None,
    looked_at: Sequence[tournaments.StoredTournament] | None = None,
) -> tuple[Proof, ...]:
    """Returns what tournaments that have ended show of fixes for a run, the newest first.

    These are the proofs that were started for the run, and tournaments on the same script, in the
    same directory. `view` reads a tournament; without it each is read anew. `looked_at`: those in
    which a proof may be (`may_prove`), if they were read already.
    """
    if not verdict.is_conclusive:
        return ()
    read = view or (lambda number: TournamentView(store, number))
    found: list[Proof] = []
    for tournament in may_prove(store, run) if looked_at is None else looked_at:
        if tournament.held or tournament.status == "queued":
            continue
        spec = tournament.spec
        of_run = spec.of_run == run.id and spec.jobs
        of_script = spec.script is not None and is_of_script(run, spec.script)
        if not of_run and not of_script:
            continue
        viewed = read(tournament.id)
        now = viewed.state()
        board = viewed.board(now)
        if of_run:
            found += _of_advised_jobs(run, verdict, now, board)
        else:
            found += _of_script(verdict, now, board)
    return tuple(found)


def tournament_of_workers(
    run: StoredRun, looked_at: Iterable[tournaments.StoredTournament]
) -> tournaments.StoredTournament | None:
    """Returns the first of these tournaments on a watched script that has compared the numbers of
    workers which are worth it (`own_script.workers_to_compare`); None where none has ended."""
    advised = advised_workers(run.verdict.advice) if run.verdict is not None else ()
    workers = run.config.workers or 0
    wanted = own_script.workers_to_compare(run.environment, workers, advised)
    for tournament in looked_at:
        script = tournament.spec.script
        has_ended = tournament.status == "done" and not tournament.held
        if script is None or not has_ended or not is_of_script(run, script):
            continue
        compared = dict(script.vary).get("workers", ())
        if set(wanted) <= set(compared):
            return tournament
    return None


def may_prove(store: RunStore, run: StoredRun) -> list[tournaments.StoredTournament]:
    """Returns the tournaments in which a proof of a fix for the run may be, the newest first."""
    if not own_script.is_own_script(run.config):
        return tournaments.list_tournaments(store, MOST_LOOKED_AT, of_run=run.id)
    directory = run.facts.get("directory")
    if not directory:  # a version before noted no directory
        return []
    return tournaments.list_tournaments(store, MOST_LOOKED_AT, directory=str(directory))


def is_of_script(run: StoredRun, script: own_script.OwnScript) -> bool:
    """Returns whether a watched run was made by the command that a tournament varies."""
    command = run.facts.get("command")
    directory = run.facts.get("directory")
    if not command or not directory:  # a version before noted no directory
        return False
    same_command = shlex.join(masked_command(list(script.command))) == command
    return same_command and script.directory == str(directory)


def _of_advised_jobs(
    run: StoredRun, verdict: Verdict, now: TournamentState, board: Leaderboard
) -> list[Proof]:
    """Returns what a proof shows of the jobs in it, which the run's advice names."""
    found = []
    for trial in now.planned[1:]:
        row = board.row(trial.key)
        if row is None:
            continue
        place = _place_of_job(run, verdict.advice, trial, now)
        found.append(proof_of(row, board, now.tournament.id, place))
    return [proof for proof in found if proof is not None]


def _place_of_job(
    run: StoredRun, advice: Sequence[Advice], trial: PlannedTrial, now: TournamentState
) -> int | None:
    """Returns which advice a job of a proof follows; None where it is none of them any more."""
    for place, each in enumerate(advice):
        if not each.settings:
            continue
        try:
            jobs = in_turns(run.config, apply(run.config, each.settings), of_run=run.id).jobs
        except ConfigError:  # of a part that is not here any more
            continue
        if jobs == now.tournament.spec.jobs:
            return place
    return None


def _of_script(verdict: Verdict, now: TournamentState, board: Leaderboard) -> list[Proof]:
    """Returns what a tournament on the script shows: of the setting that it recommends, or that was
    faster while other programs ran, and of those that the verdict advises."""
    script = now.tournament.spec.script
    if script is None:
        return []
    best = recommend(board, keep=now.baseline)
    named = () if best is None else (best.key, best.while_busy)
    found = []
    for trial in now.planned:
        row = board.row(trial.key)
        if row is None or trial.setting is None or trial.key == board.baseline:
            continue
        place = _place_of_arguments(verdict.advice, trial.setting.arguments)
        if place is None and trial.key not in named:
            continue
        proof = proof_of(row, board, now.tournament.id, place)
        if proof is not None:
            command = own_script.patch_command(script, trial.key, now.tournament.id)
            found.append(replace(proof, patch_command=command))
    return found


def _place_of_arguments(advice: Sequence[Advice], arguments: Mapping[str, Any]) -> int | None:
    """Returns which advice changes these arguments of the DataLoader, and no others."""
    for place, each in enumerate(advice):
        if each.arguments and dict(each.arguments) == dict(arguments):
            return place
    return None


def proof_of(
    row: LeaderboardRow, board: Leaderboard, tournament_id: int, place: int | None = None
) -> Proof | None:
    """Returns what the runs of a setting show; None where they gave no figure, and for the baseline.

    `place`: its place among the advice of the run that is asked about.
    """
    if not row.against_baseline or not math.isfinite(row.speed_up):
        return None
    proof = Proof(
        words=setting_in_words(row.entry),
        key=row.key,
        place=place,
        relation=relation_of(row, board),
        times=row.speed_up,
        low=row.speed_up_low,
        high=row.speed_up_high,
        others_cores=others_cores(board),
        tournament_id=tournament_id,
        n_rounds=len(_rounds_of_both(row, board)),
        run_ids=_runs_of_both(row, board),
    )
    busy = row.while_busy
    if busy is None:
        return proof
    return replace(
        proof, times=busy.times, low=busy.times, high=math.nan, others_cores=busy.others_cores
    )


def _rounds_of_both(row: LeaderboardRow, board: Leaderboard) -> set[int]:
    """Returns the numbers of the rounds that count in which a setting and the baseline ran."""
    base = board.row(board.baseline)
    if base is None:
        return set()
    return _counted_rounds(row) & _counted_rounds(base)


def _counted_rounds(row: LeaderboardRow) -> set[int]:
    ended = {outcome.round for outcome in row.entry.outcomes if outcome.status in ("done", "cut")}
    return ended - set(row.spoiled)


def _runs_of_both(row: LeaderboardRow, board: Leaderboard) -> tuple[int, ...]:
    """Returns the numbers of the runs of a setting and of the baseline in those rounds."""
    rounds = _rounds_of_both(row, board)
    base = board.row(board.baseline)
    outcomes = [*row.entry.outcomes, *(base.entry.outcomes if base is not None else ())]
    return tuple(sorted(outcome.run_id for outcome in outcomes if outcome.round in rounds))


def relation_of(row: LeaderboardRow, board: Leaderboard) -> Relation:
    """Returns how a setting compares with the baseline, or "unneeded": it is undecided, but the
    baseline is recommended all the same.
    """
    relation = row.against_baseline or "undecided"
    if relation == "undecided":
        best = recommend(board)
        if best is not None and best.key == board.baseline:
            return "unneeded"
    return relation


def others_cores(board: Leaderboard) -> float:
    """Returns the CPU cores that other programs used at least in all runs of a setting; 0 where they
    used next to none."""
    taken = [least_others(row) for row in board.rows]
    return min((cores for cores in taken if cores >= thresholds.OTHERS_CORES), default=0.0)
