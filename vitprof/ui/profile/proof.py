"""The proof of an advice's gain: the run's job and the advised one in turns until decided."""

import math
from functools import partial
from typing import Literal

import streamlit as st

from vitprof import errors, formats
from vitprof.analysis import thresholds
from vitprof.analysis.tournament.entries import setting_in_words
from vitprof.analysis.tournament.leaderboard import Leaderboard, LeaderboardRow
from vitprof.analysis.tournament.recommend import least_others, recommend
from vitprof.charts.tournament import throughput_bars
from vitprof.config import RunConfig
from vitprof.config.tournament_spec import TournamentSpec
from vitprof.experiments.tournament import planning, tournament_view
from vitprof.store import StoredRun, tournaments
from vitprof.ui import findings, live_chart, resources
from vitprof.ui.profile.runs import start
from vitprof.ui.texts import act_button, escaped, guarded, rough_time
from vitprof.ui.tournament import state
from vitprof.ui.widgets import RUN

PROVE_HELP = "Runs this job and the advised one in turns until it is decided which is faster: about a minute."
HOW_HELP = "Compared by the fastest fifth of their time, which other programs disturb least."
Proofs = list[tournaments.StoredTournament]
GAINLESS = {
    "equal": "is as fast, within 5%",
    "slower": "is slower",
    "unneeded": "very likely gains at most 5%",
}
"""How an advised job compares that is not worth using -> in words."""
WIDE = 2.0
"""From this ratio of its ends an interval has no middle worth a name."""
NEXT = "run whose first advice is proven when it has ended"


def demonstrate(config: RunConfig) -> None:
    start(config)
    st.session_state[NEXT] = st.query_params[RUN]


def spec_of(*configs: RunConfig, of_run: int | None = None) -> TournamentSpec | None:
    """Returns None where one of the settings cannot be repeated here."""
    try:
        return planning.in_turns(*configs, of_run=of_run)
    except errors.ConfigError:
        return None


def begun(run: StoredRun) -> Proofs:
    """Returns the proofs for a run, without those that could not begin."""
    every = (t for t in tournaments.list_tournaments(resources.store()) if t.spec.of_run == run.id)
    return [t for t in every if t.held or t.status != "queued"]


def draw_button(spec: TournamentSpec, number: int, *, first: bool) -> None:
    look: Literal["primary", "secondary"] = "primary" if first else "secondary"
    do = partial(state.start, spec, "")
    busy = state.busy()
    act_button(
        "Prove the gain", f"prove-{number}", "balance", do, PROVE_HELP, type=look, disabled=busy
    )
    if first and st.session_state.get(NEXT) == str(spec.of_run):
        del st.session_state[NEXT]
        if not busy:
            do()
            st.rerun()


def is_refuted(proof: tournaments.StoredTournament) -> bool:
    """Returns whether the proof has ended and shown that the advice gains nothing."""
    follows = state.view(proof.id)
    board = follows.board(now := follows.look())
    advised = board.row(now.planned[1].key)
    return not proof.held and advised is not None and _against(advised, board) in GAINLESS


def _against(advised: LeaderboardRow, board: Leaderboard) -> str:
    best = recommend(board) if advised.against_baseline == "undecided" else None
    return (
        "unneeded" if best is not None and best.key == board.baseline else advised.against_baseline
    )


def draw_known(*configs: RunConfig) -> None:
    """Draws what the newest tournament of these jobs, which ran in turns, has shown."""
    spec = spec_of(*configs)
    every = tournaments.list_tournaments(resources.store()) if spec is not None else []
    if known := next(
        (t for t in every if spec and {*t.spec.jobs} == {*spec.jobs} and t.status == "done"), None
    ):
        st.caption("These settings in turns, which compares better than two single runs:")
        draw_result(known, 0)


def draw_result(proof: tournaments.StoredTournament, number: int) -> None:
    with st.container(border=True, key=f"proof-{number}"):
        st.fragment(_draw, run_every=state.REFRESH_S if proof.held else None)(
            proof.id, number, held=proof.held
        )


@guarded
def _draw(tournament_id: int, number: int, *, held: bool) -> None:
    follows = state.view(tournament_id)
    now = follows.look()
    if now.tournament.held != held:
        st.rerun(scope="app")
    board = follows.board(now)
    st.markdown(gain_in_words(now, board), help=HOW_HELP)
    if beyond := _beyond(now.tournament.spec.of_run, board, board.row(now.planned[1].key)):
        st.caption(beyond)
    if any(row.rank is not None for row in board.rows):
        live_chart.plot(throughput_bars(board), height=190, key=f"proof-bars-{number}")
    with st.container(horizontal=True, vertical_alignment="center"):
        if held:
            p = now.progress
            st.progress(p.fraction, text=f"{p.done} of {p.total} runs done", width="stretch")
            stop = partial(state.runners().stop, tournament_id)
            act_button(
                "Stop", f"proof-stop-{number}", "stop", stop, "Stops the run, and starts no more."
            )
        st.page_link(
            "pages/tournament.py",
            label="All figures",
            icon=":material/emoji_events:",
            query_params={state.CHOSEN: str(tournament_id)},
            help="Opens this comparison on Tournament: every run, its costs, more rounds.",
        )


def _beyond(of_run: int | None, board: Leaderboard, advised: LeaderboardRow | None) -> str:
    """Returns what to say of a gain above what free data would gain by the run's verdict; "" where it is not."""
    run = of_run and resources.store().run(of_run)
    base = board.row(board.baseline)
    if not run or run.summary is None or advised is None or base is None:
        return ""
    verdict = findings.verdict_of(run)
    most = max(verdict.speed_up_if_free, verdict.speed_up_high)
    if not advised.speed_up > most:  # also NaN
        return ""
    then, now = (
        formats.number(speed, "samples/s")
        for speed in (run.summary.samples_per_s, base.samples_per_s)
    )
    return (
        f"That is more than the {formats.number(most)}x that free data would gain by run {run.id}'s verdict: there the "
        f"job reached {then}, here and now {now}."
    )


def gain_in_words(now: tournament_view.TournamentState, board: Leaderboard) -> str:
    """Returns what the proof shows so far: how much faster the second job is, its interval, and how sure that is."""
    advised = board.row(now.planned[1].key)
    rounds = formats.count(min((row.n_runs for row in board.rows), default=0), "round")
    if dropped := max((len(row.spoiled) for row in board.rows), default=0):
        rounds += f" ({formats.count(dropped, 'other')} not counted: other programs ran)"
    if reason := next(
        (row.entry.reason for row in board.rows if row.entry.status in ("failed", "refused")), ""
    ):
        return f"**Not proven:** {escaped(reason)}."
    if advised is None or not math.isfinite(advised.speed_up):
        return (
            "**Proving the gain:** the two jobs run in turns."
            if now.tournament.held
            else "**Not proven:** too few runs."
        )
    ran = [o.run_id for entry in now.entries for o in entry.outcomes]
    name = escaped(setting_in_words(advised.entry))
    times = f"{formats.number(advised.speed_up)}x"
    if advised.speed_up_high > WIDE * advised.speed_up_low > WIDE:
        times = f"At least {formats.number(advised.speed_up_low)}x"
    interval = f"{formats.number(advised.speed_up_low)} to {formats.number(advised.speed_up_high)}"
    spread = f" ({interval})" if math.isfinite(advised.speed_up_low) else ""
    if now.tournament.held:
        return f"**So far {formats.number(advised.speed_up)}x**{spread}: {name}, after {rounds} in turns."
    sure = f"{rounds} in turns (runs {min(ran)} to {max(ran)}), {rough_time(now.spent_s)}"
    taken = [cores for row in board.rows if (cores := least_others(row)) >= thresholds.OTHERS_CORES]
    where = f"beside other programs (at least {formats.number(min(taken, default=0))} cores, this page included)"
    proven = f"{where}, so not proven for a quiet machine" if taken else "proven"
    words = {
        "faster": f"**{times} as fast**{spread}, {proven}: {name}, {sure}.",
        **{
            against: f"**No gain:** {name} {how}: {times}{spread}, {sure}."
            for against, how in GAINLESS.items()
        },
    }.get(_against(advised, board), f"**Undecided:** {name}: {times}{spread}, {sure}.")
    if taken and "proven" not in words:
        words += f" It ran {where}: without them it may differ."
    if len({row.entry.batch_size for row in board.rows}) > 1:
        words += " Another batch size also changes how the model learns."
    return words
