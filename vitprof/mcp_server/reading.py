"""Answers from the run store. Nothing here runs a command or writes a file of the user's."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from vitprof import formats
from vitprof.analysis.arrays import Interval
from vitprof.analysis.compare import answer as pairs
from vitprof.analysis.compare import comparison, guard
from vitprof.analysis.compare.differences import RunFacts
from vitprof.analysis.tournament import entries
from vitprof.analysis.tournament.leaderboard import LeaderboardRow
from vitprof.analysis.tournament.recommend import Recommendation, recommend
from vitprof.analysis.verdict import rendering
from vitprof.analysis.verdict.answer import (
    GAINLESS,
    Answer,
    Ceiling,
    Proof,
    cost_in_words,
    proof_conditions_in_words,
    then_in_words,
    times_in_words,
)
from vitprof.config import own_script
from vitprof.errors import ConfigError
from vitprof.experiments import answers
from vitprof.experiments.tournament import planning, proofs
from vitprof.experiments.tournament.tournament_view import TournamentState, TournamentView
from vitprof.export.markdown import is_to_be_watched_again, next_command
from vitprof.export.tables import figures_in_words
from vitprof.mcp_server.access import Access
from vitprof.mcp_server.results import (
    Advised,
    Compared,
    Figure,
    Gain,
    Part,
    Proven,
    RunAnswer,
    RunLine,
    RunList,
    Setting,
    TournamentAnswer,
)
from vitprof.program import program
from vitprof.recording.shared_machine import as_shown
from vitprof.store import RunQuery, RunStore, StoredRun, tournaments

MORE_ROUNDS = 3
"""Rounds that are named for a tournament that is undecided."""
MOST_LISTED = 200
"""Runs in one list, at most."""


@contextlib.contextmanager
def open_store() -> Iterator[RunStore]:
    with contextlib.closing(RunStore()) as store:
        yield store


def run_list(query: RunQuery, limit: int) -> RunList:
    """Returns the first `limit` runs of a search."""
    if not 1 <= limit <= MOST_LISTED:
        raise ConfigError("limit", limit, f"give a whole number from 1 to {MOST_LISTED}")
    with open_store() as store:
        rows = store.list_runs(query, limit=limit, offset=0)
        total = store.count_runs(query)
    lines = [
        RunLine(
            run_id=row.id,
            name=row.name,
            status=row.status,
            verdict=row.verdict_kind or "",
            samples_per_s=known(row.samples_per_s),
            idle_frac=known(row.idle_frac),
            simulated=bool(row.simulated),
            tags=list(row.tags),
            made=row.created_utc,
        )
        for row in rows
    ]
    return RunList(total, lines)


def run_answer(run_id: int) -> RunAnswer:
    """Returns the answer on a run. Raises `StoreError`."""
    with open_store() as store:
        run = store.run(run_id)
        return _run_answer(run, answers.answer_of_run(store, run))


def _run_answer(run: StoredRun, answer: Answer | None) -> RunAnswer:
    figures = [Figure(name=n, value=v, meaning=m) for n, v, m in figures_in_words(run)]
    about = RunAnswer(
        run_id=run.id,
        name=run.name,
        status=run.status,
        simulated=run.simulated,
        figures=figures,
        error=run.error,
        remarks=list(as_shown(run.notices)),
    )
    if answer is None:
        return about
    about.headline = answer.headline
    about.reason = answer.reason
    about.conclusive = answer.is_conclusive
    about.n_steps = answer.n_steps
    about.remarks = [
        words for words in (answer.details, answer.remark, *as_shown(run.notices)) if words
    ]
    if not answer.is_conclusive:
        return about
    about.waits_for = answer.waits_for
    about.idle_frac = known(answer.frac)
    about.idle_low = known(answer.low)
    about.idle_high = known(answer.high)
    about.causes = [Part(name=part.words, frac=part.frac) for part in answer.parts]
    about.gain_at_most = _gain(answer.ceiling)
    about.proven = _proven(answer.proof)
    about.fix = _fix_in_words(answer)
    about.cost = cost_in_words(answer)
    about.advice = [
        Advised(place=place, words=advice.words, why=_why_advised(answer, place))
        for place, advice in enumerate(answer.advice)
    ]
    about.remarks += [signature.sentence for signature in answer.signatures]
    about.next_tool, about.next_command = _to_do_next(run, answer)
    return about


def _why_advised(answer: Answer, place: int) -> str:
    """Returns why to follow an advice, or what runs of it have shown instead."""
    proof = answer.refuted.get(place)
    if proof is None:
        return rendering.why_advised(answer.advice[place])
    how = proof_conditions_in_words(proof)
    return f"No gain: it {GAINLESS[proof.relation]}: {times_in_words(proof)} ({how})."


def _fix_in_words(answer: Answer) -> str:
    """Returns what to change first, and what may gain more than a proven fix; "" where nothing is
    advised."""
    first = answer.fix.words if answer.fix is not None else ""
    return ", ".join(words for words in (first, then_in_words(answer)) if words)


def _to_do_next(run: StoredRun, answer: Answer) -> tuple[str, str]:
    """Returns the tool to call next, and what a person types for the same; "" and "" where nothing is left.

    A proof while other programs ran is none that a script should be changed for.
    """
    if answer.proof is not None and answer.proof.quiet:
        line = next_command(run, answer)
        return ("patch", line) if line else ("", "")
    unproven = replace(answer, proof=None)
    if own_script.is_own_script(run.config):
        line = next_command(run, unproven)
        if not line:
            return "", ""
        return ("watch" if is_to_be_watched_again(answer) else "prove"), line
    place = answer.fix.place if answer.fix is not None else None
    can_prove = place is not None and answer.advice[place].settings
    return ("prove", "") if can_prove else ("", "")


def _gain(ceiling: Ceiling | None) -> Gain | None:
    if ceiling is None:
        return None
    return Gain(
        times=known(ceiling.times),
        low=known(ceiling.low),
        high=known(ceiling.high),
        measured=ceiling.measured,
    )


def _proven(proof: Proof | None) -> Proven | None:
    if proof is None:
        return None
    return Proven(
        fix=proof.words,
        times=known(proof.times if proof.quiet else proof.low),
        low=known(proof.low),
        high=known(proof.high if proof.quiet else None),
        quiet=proof.quiet,
        tournament_id=proof.tournament_id,
        can_patch=proof.quiet and bool(proof.patch_command),
    )


def known(value: float | None) -> float | None:
    """Returns a figure; None where it is not known."""
    return None if value is None or not math.isfinite(value) else float(value)


# Tournaments


def tournament_answer(tournament_id: int, remarks: Sequence[str] = ()) -> TournamentAnswer:
    """Returns what a tournament has shown so far. Raises `StoreError`."""
    with open_store() as store:
        view = TournamentView(store, tournament_id)
        now = view.state()
        board = view.board(now)
    best = recommend(board, goes_on=now.goes_on)
    spec = now.tournament.spec
    chosen = best.recommended if best is not None else None
    code = ""
    patch = ""
    if spec.script is not None and chosen:
        code = own_script.code_line(spec.script, chosen)
        patch = own_script.patch_command(spec.script, chosen, tournament_id)
    asks = question_of(now)
    found = TournamentAnswer(
        tournament_id=tournament_id,
        name=now.tournament.name,
        status=now.tournament.status,
        recommendation=best.sentence if best is not None else "",
        decided=best is not None and best.is_firm,
        code=code,
        settings=[_setting(row, board.baseline, best) for row in board.rows],
        others_cores=answers.others_cores(board),
        note=now.tournament.note,
        question=asks,
        next_tool="",
        next_command="",
        remarks=list(remarks),
    )
    if now.tournament.status != "done":
        found.next_tool = "resume"
        found.next_command = planning.resume_command(tournament_id)
    elif best is not None and best.outcome in ("fastest while busy", "faster while busy"):
        # more rounds would not undo those
        found.next_tool = "tournament" if spec.of_run is None else "prove"
    elif not found.decided:
        found.next_tool = "resume"
        found.next_command = f"{planning.resume_command(tournament_id)} --more-rounds {MORE_ROUNDS}"
    elif patch and chosen != now.baseline:
        found.next_tool = "patch"
        found.next_command = patch
    return found


def question_of(now: TournamentState) -> str:
    """Returns what a person has to agree to before the trials of a script write to files that stay; "" where
    there is nothing to agree to."""
    spec = now.tournament.spec
    script = spec.script
    if script is None or script.agreed:
        return ""
    if script.loader is None:
        # before its first trial
        kept_apart = script.isolation and not script.links_out
        words = "" if kept_apart else planning.begin_words(script, spec.base.steps)
    else:
        words = planning.written_words(script) if script.lasting else ""
        words += "; every trial writes these files again" if words else ""
    return formats.sentence(words) if words else ""


def _setting(row: LeaderboardRow, baseline: str, best: Recommendation | None) -> Setting:
    has_run = bool(row.n_runs)
    return Setting(
        key=row.key,
        words=entries.setting_in_words(row.entry),
        status=row.entry.status,
        reason=row.entry.reason,
        recommended=best is not None and row.key == best.recommended,
        baseline=row.key == baseline,
        samples_per_s=known(row.samples_per_s) if has_run else None,
        speed_up=known(row.speed_up) if has_run else None,
        low=known(row.speed_up_low) if has_run else None,
        high=known(row.speed_up_high) if has_run else None,
        against_baseline=row.against_baseline or "",
        at_least=known(row.while_busy.times) if row.while_busy is not None else None,
        idle_frac=known(row.device_idle_frac) if has_run else None,
        n_runs=row.n_runs,
    )


def script_of(tournament_id: int) -> own_script.OwnScript | None:
    """Returns the script that a tournament runs; None where it runs jobs of vitprof's own."""
    with open_store() as store:
        return tournaments.tournament(store, tournament_id).spec.script


def check_patch(access: Access, tournament_id: int) -> Path:
    """Returns the folder of a tournament's script. Raises `ConfigError` where the client may not read that."""
    script = script_of(tournament_id)
    if script is None:
        why = f"it is on jobs of vitprof's own, whose script `{program()} code` prints"
        raise ConfigError("tournament_id", tournament_id, why)
    directory = access.directory(script.directory)
    access.check_command(script.command, directory)
    return directory


# Two runs


def compared(run_a: int, run_b: int) -> Compared:
    """Returns how run_b compares with run_a. Raises `StoreError` and `ConfigError`."""
    if run_a == run_b:
        raise ConfigError("run_b", run_b, "give two different runs")
    with open_store() as store:
        runs = [store.run(run_a), store.run(run_b)]
        facts = [_facts(store, run) for run in runs]
        listed = tournaments.list_tournaments(store)
        trust = guard.trust_of(facts)
        proof = None
        if trust != "unlike":
            proof = proofs.best_proof(listed, lambda n: TournamentView(store, n), *runs)
    for run in runs:
        if run.summary is None or not run.summary.samples_per_s > 0:
            raise ConfigError("run", run.id, f"its speed is not known: it is {run.status}")
    _, alone = comparison.against([run.summary for run in runs], 0, ["fair", trust])
    ratio = Interval(alone.speed_up, alone.low, alone.high)
    basis: pairs.Basis = trust
    at_least = False
    if proof is not None:
        ratio = proof.ratio
        basis = proof.basis
        at_least = proof.at_least
    found = pairs.answer(run_a, run_b, ratio, basis, at_least=at_least)
    return Compared(
        sentence=found.sentence,
        faster_run=found.fast if found.is_faster else None,
        ratio=known(ratio.value),
        low=known(ratio.low),
        high=known(ratio.high),
        trust=f"{pairs.LABELS[basis]}{_why(basis)}",
        firm=basis == "alternating, quiet" and found.is_faster,
        differences=[caveat.sentence for caveat in guard.comparability(facts)],
        tournament_id=proof.tournament_id if proof is not None else None,
    )


def _why(basis: pairs.Basis) -> str:
    """Returns what a ratio on this basis leaves open."""
    if basis == "alternating, quiet":
        return ""
    if basis == "unlike":
        return ": the ratio is no gain of one over the other"
    if basis == "fair":
        return ": how much runs differ from one to the next is not in the range"
    return ": not firm; run both alternately on a quiet machine"


def _facts(store: RunStore, run: StoredRun) -> RunFacts:
    steps = store.steps(run.id, names=guard.GUARDED_STEPS)
    telemetry = store.telemetry(run.id, names=("t_s", *guard.GUARDED_TELEMETRY))
    return guard.run_facts(
        run.id, run.config, run.environment, run.facts, run.summary, steps, telemetry
    )


# Progress


def newest_run() -> int:
    """Returns the number of the newest run; 0 without any."""
    with open_store() as store:
        return max((run.id for run in store.runs(limit=1)), default=0)


def steps_since(newest: int, directory: str) -> tuple[int, int]:
    """Returns the first run after `newest` that is watched in a folder, and how many steps it has made
    by now; 0 and 0 without any."""
    with open_store() as store:
        for run in store.runs(["running"], oldest_first=True):
            if run.id > newest and run.facts.get("directory") == directory:
                return run.id, len(store.steps(run.id, names=("step",))["step"])
    return 0, 0


def newest_tournament() -> int:
    """Returns the number of the newest tournament; 0 without any."""
    with open_store() as store:
        return max((each.id for each in tournaments.list_tournaments(store, 1)), default=0)


def tournament_since(newest: int) -> int:
    """Returns the first tournament after `newest`; 0 without any."""
    with open_store() as store:
        later = [each.id for each in tournaments.list_tournaments(store) if each.id > newest]
    return min(later, default=0)


def progress_of(tournament_id: int) -> tuple[float, str]:
    """Returns the share of a tournament that is done, and what it runs."""
    with open_store() as store:
        now = TournamentView(store, tournament_id).state()
    p = now.progress
    current = f": {entries.key_in_words(p.words)}" if p.words else ""
    return p.fraction, f"{formats.count(p.done, 'run')} of {p.total} done{current}"
