"""The proof of an advice's gain: the run's job and the advised one run alternately until decided."""

import math
from functools import partial
from typing import Literal

import streamlit as st

from vitprof import errors, formats
from vitprof.analysis.faster_while_busy import AtLeast
from vitprof.analysis.tournament import leaderboard
from vitprof.analysis.tournament.entries import setting_in_words
from vitprof.analysis.tournament.leaderboard import Leaderboard, LeaderboardRow
from vitprof.analysis.tournament.recommend import BOUND_TO_COME
from vitprof.analysis.verdict.answer import (
    GAINLESS,
    Proof,
    proof_conditions_in_words,
    proof_runs_in_words,
    times_in_words,
)
from vitprof.charts.tournament import throughput_bars
from vitprof.config import RunConfig
from vitprof.config.tournament_spec import TournamentSpec
from vitprof.experiments import answers
from vitprof.experiments.tournament import planning, tournament_view
from vitprof.store import StoredRun, tournaments
from vitprof.ui import findings, live_chart, resources
from vitprof.ui.profile.runs import start
from vitprof.ui.texts import act_button, escaped, guarded
from vitprof.ui.tournament import state
from vitprof.ui.widgets import RUN

PROVE_HELP = "Runs this job and the advised one alternately until it is decided which is faster: about a minute."
HOW_HELP = (
    "Compared by all samples over all time, without what other programs were seen to disturb."
)
Proofs = list[tournaments.StoredTournament]
ANCHOR = "what-to-try"
"""Anchor of the heading above the proofs of a run."""
NEXT = "run whose first advice is proven when it has ended"
ADVISED = 1
"""Position of the advised job in a proof's plan; the job as it is comes first."""


def demonstrate(config: RunConfig) -> None:
    """Starts a run whose first advice is proven as soon as it has ended."""
    start(config)
    st.session_state[NEXT] = st.query_params[RUN]


def spec_of(*configs: RunConfig, of_run: int | None = None) -> TournamentSpec | None:
    """Returns the tournament of these jobs, which run alternately; None where one of them cannot be repeated
    here.
    """
    try:
        return planning.in_turns(*configs, of_run=of_run)
    except errors.ConfigError:
        return None


def begun(run: StoredRun) -> Proofs:
    """Returns the proofs for a run, without those that could not begin."""
    of_run = tournaments.list_tournaments(resources.store(), of_run=run.id)
    return [t for t in of_run if t.held or t.status != "queued"]


def draw_button(spec: TournamentSpec, number: int, *, first: bool) -> None:
    kind: Literal["primary", "secondary"] = "primary" if first else "secondary"
    do = partial(state.start, spec, "")
    busy = state.busy()
    act_button("Prove it", f"prove-{number}", "balance", do, PROVE_HELP, type=kind, disabled=busy)
    if first and st.session_state.get(NEXT) == str(spec.of_run):
        del st.session_state[NEXT]
        if not busy:
            do()
            st.rerun()


def is_refuted(proof: tournaments.StoredTournament) -> bool:
    """Returns whether the proof has ended and shown that the advice gains nothing."""
    view = state.view(proof.id)
    now = view.state()
    board = view.board(now)
    advised = board.row(now.planned[ADVISED].key)
    if proof.held or advised is None:
        return False
    return answers.relation_of(advised, board) in GAINLESS


def draw_in_card(proof: tournaments.StoredTournament) -> None:
    """Draws that a proof runs, in the card of the run, where its button was: the proof itself is
    below the fold of a small screen."""
    with st.container(width="content", key="proof-in-card"):
        st.fragment(_draw_in_card, run_every=state.REFRESH_S)(proof.id)


@guarded
def _draw_in_card(tournament_id: int) -> None:
    now = state.view(tournament_id).state()
    st.markdown(f"{running_words(now)}, [see below](#{ANCHOR})", width="content")


def running_words(now: tournament_view.TournamentState) -> str:
    """Returns which round of a proof runs: "Proving it: round 2 of 3"."""
    number = max(tournament_view.rounds_of(now), 1)
    planned = now.tournament.spec.repeats
    if number > planned:
        return f"Proving it: round {number}, as it is not decided yet"
    return f"Proving it: round {number} of {planned}"


def draw_result(proof: tournaments.StoredTournament, number: int) -> None:
    """Draws what a proof has shown; it redraws itself while the proof runs."""
    refresh_s = state.REFRESH_S if proof.held else None
    with st.container(border=True, key=f"proof-{number}"):
        st.fragment(_draw, run_every=refresh_s)(proof.id, number, held=proof.held)


@guarded
def _draw(tournament_id: int, number: int, *, held: bool) -> None:
    view = state.view(tournament_id)
    now = view.state()
    if now.tournament.held != held:
        st.rerun(scope="app")
    board = view.board(now)
    st.markdown(gain_in_words(now, board), help=HOW_HELP)
    advised = board.row(now.planned[ADVISED].key)
    beyond = _beyond(now.tournament.spec.of_run, board, advised)
    names_a_gain = not held or _n_rounds(board) > 0 or _is_while_busy(advised)
    if beyond and names_a_gain:
        st.caption(beyond)
    if any(row.rank is not None for row in board.rows):
        live_chart.plot(throughput_bars(board), height=190, key=f"proof-bars-{number}")
    with st.container(horizontal=True, vertical_alignment="center"):
        if held:
            progress = now.progress
            words = f"{progress.done} of {progress.total} runs done"
            st.progress(progress.fraction, text=words, width="stretch")
            stop = partial(state.runners().stop, tournament_id)
            act_button(
                "Stop", f"proof-stop-{number}", "stop", stop, "Stops the run, and starts no more."
            )
        st.page_link(
            "pages/tournament.py",
            label="All figures",
            icon=":material/emoji_events:",
            query_params={state.CHOSEN: str(tournament_id)},
            help="Opens this comparison on *Try fixes*: every run, its costs, more rounds.",
        )


def _beyond(of_run: int | None, board: Leaderboard, advised: LeaderboardRow | None) -> str:
    """Returns what to say of a gain above what free data would gain by the run's verdict.

    "" where the gain is not above that.
    """
    base = board.row(board.baseline)
    if not of_run or advised is None or base is None:
        return ""
    run = resources.store().run(of_run)
    if run.summary is None:
        return ""
    gain = findings.verdict_of(run).gain
    if gain is None:
        return ""
    most = max(gain.times, gain.high)
    gained = advised.speed_up
    if advised.while_busy is not None:
        gained = advised.while_busy.times
    if not gained > most:  # also NaN
        return ""
    then = formats.number(run.summary.samples_per_s, "samples/s")
    now = formats.number(base.samples_per_s, "samples/s")
    return (
        f"That is more than the {formats.number(most)}x that free data would gain by run "
        f"{run.id}'s verdict: there the job reached {then}, here and now {now}."
    )


def gain_in_words(now: tournament_view.TournamentState, board: Leaderboard) -> str:
    """Returns what the proof shows so far: how much faster the advised job is, and how sure that is.

    Of a proof that has ended the card of the run says the same gain, in the same words.
    """
    if reason := _why_failed(board):
        return f"**Not proven:** {escaped(reason)}."
    advised = board.row(now.planned[ADVISED].key)
    if advised is None or not math.isfinite(advised.speed_up):
        if now.tournament.held:
            return "**Proving the gain:** the two jobs run alternately."
        return "**Not proven:** too few runs."
    name = escaped(setting_in_words(advised.entry))
    if now.tournament.held:
        return _so_far(advised, board, name)
    if advised.while_busy is not None:
        return _faster_while_busy(advised.while_busy, name, _another_batch_size(board))
    shown = answers.proof_of(advised, board, now.tournament.id)
    if shown is None:  # the baseline has no gain of its own
        return "**Not proven:** too few runs."
    words = _decided(shown, advised, name, formats.rough_time(now.spent_s))
    return words + _dropped(board) + _others(board, shown) + _another_batch_size(board)


def _so_far(advised: LeaderboardRow, board: Leaderboard, name: str) -> str:
    """Returns the sentence on a proof that runs, once both jobs have run."""
    if advised.while_busy is not None:
        busy = advised.while_busy
        rounds = formats.count(busy.n_rounds, "round")
        return f"**So far {busy.words}**, {busy.others_words}: {name}, in each of {rounds}."
    n_rounds = _n_rounds(board)
    if not n_rounds:
        why = board.why_no_fastest or "no round counts yet"
        words = f"**Proving the gain:** {why}."
        if board.awaits_bound:
            words += f" {formats.capitalised(BOUND_TO_COME)}."
        return words
    times = leaderboard.speed_up_words(advised)
    after = formats.count(n_rounds, "round")
    words = f"**So far {times}**{_in_brackets(_interval(advised))}: {name}, after {after}."
    return words + _dropped(board)


def _n_rounds(board: Leaderboard) -> int:
    """Returns how many rounds count."""
    return min((row.n_runs for row in board.rows), default=0)


def _is_while_busy(advised: LeaderboardRow | None) -> bool:
    return advised is not None and advised.while_busy is not None


def _another_batch_size(board: Leaderboard) -> str:
    """Returns what a batch size changes besides the speed; "" where all have the same."""
    if len({row.entry.batch_size for row in board.rows}) < 2:
        return ""
    return " Another batch size also changes how the model learns."


def _faster_while_busy(found: AtLeast, name: str, more: str) -> str:
    """Returns the sentence on a proof whose rounds other programs disturbed."""
    rounds = formats.count(found.n_rounds, "round")
    times = f"{found.words[0].upper()}{found.words[1:]}"
    return (
        f"**{times} faster**, {found.others_words}: {name}, in each of {rounds}. Not proven for a quiet "
        f"machine: repeat it there for a firm number.{more}"
    )


def _why_failed(board: Leaderboard) -> str:
    """Returns why one of the two jobs did not run; "" if both did."""
    for row in board.rows:
        if row.entry.status in ("failed", "refused"):
            return row.entry.reason
    return ""


def _dropped(board: Leaderboard) -> str:
    """Returns a sentence on the rounds that do not count; "" where all do."""
    dropped = max((len(row.spoiled) for row in board.rows), default=0)
    if not dropped:
        return ""
    return f" Not counted, because other programs ran: {formats.count(dropped, 'other round')}."


def _others(board: Leaderboard, shown: Proof) -> str:
    """Returns a sentence on the other programs that ran meanwhile; "" where they took little."""
    cores = answers.others_cores(board)
    if not cores:
        return ""
    then = "without them it may differ"
    if shown.relation == "faster":
        then = "not proven for a quiet machine"
    return f" Other programs used at least {formats.cores(cores)} (this page included): {then}."


def _decided(shown: Proof, advised: LeaderboardRow, name: str, took: str) -> str:
    """Returns the sentence on a proof that has ended."""
    runs = proof_runs_in_words(shown)
    if shown.relation == "faster":
        times = formats.capitalised(times_in_words(shown))
        return f"**{times}**{_in_brackets(proof_conditions_in_words(shown), runs)}: {name}, {took}."
    times = f"{formats.number(shown.times)}x{_in_brackets(_interval(advised), runs)}"
    if shown.relation in GAINLESS:
        return f"**No gain:** {name} {GAINLESS[shown.relation]}: {times}, {took}."
    return f"**Undecided:** {name}: {times}, {took}."


def _interval(advised: LeaderboardRow) -> str:
    """Returns the interval of a speed-up: "95%: 2.4 to 5.9"; "" where there is none."""
    if advised.while_busy is not None or not math.isfinite(advised.speed_up_low):
        return ""
    low = formats.number(advised.speed_up_low)
    return f"95%: {low} to {formats.number(advised.speed_up_high)}"


def _in_brackets(*clauses: str) -> str:
    """Returns the clauses that are not empty as " (one; another)"; "" where all are."""
    said = "; ".join(clause for clause in clauses if clause)
    return f" ({said})" if said else ""
