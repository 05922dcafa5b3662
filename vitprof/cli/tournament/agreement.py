"""What a user agrees to before their own script is run, and before it is repeated."""

import contextlib
import sys

import typer

from vitprof import formats
from vitprof.cli.common import terminal
from vitprof.config.own_script import settings_of
from vitprof.experiments.tournament import duration, planning
from vitprof.store import RunStore, tournaments


def ask_to_run(store: RunStore, tournament_id: int, *, yes: bool) -> None:
    """Says what the first trial of a script will run and how long all trials take, and asks where it may
    overwrite the user's files.

    `yes`: whether that is agreed. Ends the program with status 2 if it is not, or nobody can be asked.
    """
    stored = tournaments.tournament(store, tournament_id)
    script = stored.spec.script
    if script is None or script.loader is not None:
        return
    words = planning.begin_words(script, stored.spec.base.steps)
    lines = [formats.sentence(words), *_length_lines(store, stored)]
    if len(script.links_out) > planning.MOST_NAMED:
        lines.append("All links through which it writes to files that stay:")
        lines += [f"  {link}" for link in script.links_out]
    terminal.show(*lines, console=terminal.err)
    if (not script.isolation or script.links_out) and not yes:
        _confirm("Run it?", tournament_id, "to run the script")


def ask_to_repeat(store: RunStore, tournament_id: int, *, yes: bool) -> bool:
    """Shows what the first trial of a script wrote and how long the others take, and asks whether to repeat
    it, unless that is agreed or `yes`.

    Returns whether it was agreed just now. Ends the program with status 2 if it is not, or nobody can be
    asked.
    """
    stored = tournaments.tournament(store, tournament_id)
    script = stored.spec.script
    if script is None or script.loader is None or script.agreed:
        return False
    words = planning.written_words(script)
    # without the names of the first files: all of them follow
    sentence, colon, _ = words.partition(": ")
    sentence = f"{formats.capitalised(sentence)}{':' if colon else '.'}"
    remarks = dict.fromkeys(remark for setting in settings_of(script) for remark in setting.remarks)
    paths = [f"  {path}" for path in script.writes]
    length = _length_lines(store, stored)
    terminal.show(*remarks, sentence, *paths, *length, console=terminal.err)
    if script.lasting and not yes:
        terminal.show(
            "Every trial runs the script again and writes these files again. To write elsewhere in each trial, use the "
            "number of the trial, which the script finds in the environment variable VITPROF_TRIAL.",
            console=terminal.err,
        )
        _confirm("Repeat it?", tournament_id, "to repeat the script")
    planning.agree(store, tournament_id)
    return True


def _length_lines(store: RunStore, stored: tournaments.StoredTournament) -> list[str]:
    words = duration.script_words(store, stored)
    return [formats.sentence(words)] if words else []


def _confirm(question: str, tournament_id: int, purpose: str) -> None:
    """Ends the program with status 2 unless the user, at a terminal, says yes."""
    with contextlib.suppress(typer.Abort):  # Ctrl-C or end of input
        if sys.stdin.isatty() and sys.stderr.isatty() and typer.confirm(question, err=True):
            return
    again = f"{planning.resume_command(tournament_id)} --yes"
    terminal.complain(
        f"tournament {tournament_id} is paused; {purpose}: {again}", terminal.EXIT_BAD_VALUE
    )
