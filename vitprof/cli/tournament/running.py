"""Runs what remains of a stored tournament, and shows what it came to."""

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import typer

from vitprof.analysis.tournament.leaderboard import Leaderboard
from vitprof.analysis.tournament.recommend import break_even, recommend
from vitprof.cli.common import progress, terminal
from vitprof.cli.common.results import running_words, show_board
from vitprof.cli.tournament import agreement
from vitprof.cli.tournament.options import Cluster
from vitprof.experiments.tournament import planning, tournament_runner
from vitprof.experiments.tournament.tournament_view import TournamentState, TournamentView
from vitprof.experiments.trials import job_manager
from vitprof.export import tournament, write_text
from vitprof.store import RunStore, tournaments

TOURNAMENT_EVERY_S = 0.2


@dataclass(frozen=True)
class ResultOutput:
    """How a tournament's results are shown."""

    csv: Path | None = None
    """A file for a row of each setting."""
    as_json: bool = False
    """Whether they are one JSON object."""
    markdown: bool = False
    """Whether they are the article's table."""


@dataclass(frozen=True)
class Running:
    """How a tournament is run."""

    anyway: bool = False
    """Whether it begins beside the jobs of other programs."""
    yes: bool = False
    """Whether a user's script is run and repeated without a question."""
    cluster: Cluster | None = None
    """The nodes that run its rounds; None: this machine."""


@dataclass(frozen=True)
class TournamentEnd:
    """How the work on a tournament ended."""

    error: str = ""
    """The error that ended it; "" if none."""
    stopped: bool = False
    """Whether a person stopped it."""


def run_stored(
    store: RunStore,
    tournament_id: int,
    how: Running,
    output: ResultOutput,
    show: Callable[..., None] = show_board,
) -> None:
    """Runs what remains of a tournament, and shows it by `show`; ends the program with a status where it
    failed.
    """
    view = TournamentView(store, tournament_id)
    ended = _run(store, view, tournament_id, how)
    now = view.state()
    board = view.board(now)
    _print(now, board, output, show)
    _complain(now, ended, how)
    if board.best is None:
        raise typer.Exit(terminal.EXIT_FAILED)


def _run(store: RunStore, view: TournamentView, tournament_id: int, how: Running) -> TournamentEnd:
    agreement.ask_to_run(store, tournament_id, yes=how.yes)
    # after its first trial in an earlier run, without agreement
    agreement.ask_to_repeat(store, tournament_id, yes=how.yes)
    ended = TournamentEnd()
    if tournaments.tournament(store, tournament_id).status != "done":
        if how.cluster is None:
            ended = _run_here(store, view, tournament_id, anyway=how.anyway)
        else:
            ended = _run_on_cluster(store, view, tournament_id, how.cluster)
    if ended != TournamentEnd():
        return ended
    # a script's first trial has ended: the others run once the user agrees
    agreed = agreement.ask_to_repeat(store, tournament_id, yes=how.yes)
    if agreed:
        ended = _run_here(store, view, tournament_id, anyway=how.anyway)
    return ended


def _run_here(
    store: RunStore, view: TournamentView, tournament_id: int, *, anyway: bool
) -> TournamentEnd:
    now = tournaments.tournament(store, tournament_id)
    with (
        job_manager(store, anyway=anyway, warm=now.spec.script is None) as manager,
        terminal.stop_requested() as stop,
        progress.progress() as show,
    ):
        runner = tournament_runner.TournamentRunner(manager, tournament_id)
        show_waiting = progress.run_progress(show)
        try:
            while not runner.join(TOURNAMENT_EVERY_S) and not stop():
                queued = store.runs(["queued"], limit=1, group_key=now.group_key)
                if queued:
                    show_waiting(queued[0])
                else:
                    _show_progress(view, show)
        finally:
            if stop():
                runner.shutdown(f"paused by {stop.by}")
            else:
                runner.shutdown()
        return TournamentEnd(runner.error, stop())


def _run_on_cluster(
    store: RunStore, view: TournamentView, tournament_id: int, cluster: Cluster
) -> TournamentEnd:
    from vitprof.experiments.cluster import controller, engines

    opened = engines.open_engine(cluster.engine, cluster.nodes or sys.maxsize, cluster.sbatch)
    with contextlib.closing(opened) as engine:
        rounds = controller.ClusterTournament(store, tournament_id, engine)
        with terminal.stop_requested() as stop, progress.progress() as show:
            error = rounds.run(stop, lambda: _show_progress(view, show))
            return TournamentEnd(error, stop())


def _show_progress(view: TournamentView, show: progress.Show) -> None:
    if show.is_due:
        now = view.state()
        show(running_words(now, view.board(now)), now.progress.fraction)


def _print(
    now: TournamentState, board: Leaderboard, output: ResultOutput, show: Callable[..., None]
) -> None:
    pays = break_even(board)
    best = recommend(board, goes_on=now.goes_on)
    if output.as_json:
        terminal.print_json(tournament.tournament_object(now.tournament, board, pays, best))
    elif output.markdown:
        table = tournament.tournament_markdown(now.tournament, board, best)
        terminal.out.print(table, soft_wrap=True, end="")
    else:
        show(now, board, pays, best)
    # after the result is shown, so that a full disk does not hide it
    if output.csv is not None:
        write_text(output.csv, tournament.tournament_csv(now.tournament, board, pays, best))


def _complain(now: TournamentState, ended: TournamentEnd, how: Running) -> None:
    """Ends the program with the line that says how to continue, where the tournament is not over."""
    this = f"tournament {now.tournament.id}"
    again = planning.resume_command(now.tournament.id)
    if how.cluster is not None:
        again += f" --on {how.cluster.engine}"
    if ended.stopped and now.tournament.status != "done":
        terminal.complain(f"{this} is paused; continue with {again}", terminal.EXIT_STOPPED)
    if ended.error:
        words = f"{this} stopped: {ended.error}; continue with {again}"
        terminal.complain(words, terminal.EXIT_FAILED)
