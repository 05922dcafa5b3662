"""`patch`: the change of a user's own script that a tournament on it recommends."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitprof import names
from vitprof.analysis.tournament.recommend import Recommendation, recommend
from vitprof.cli.common import terminal
from vitprof.config.bounds import Bounds
from vitprof.config.own_script import OwnScript, code_line
from vitprof.errors import ConfigError
from vitprof.experiments.tournament.tournament_view import TournamentView
from vitprof.program import program

if TYPE_CHECKING:
    from vitprof.export.patch import Patch

TOURNAMENT_HELP = "number of the tournament, as `tournament --list` shows it"
LINE_HELP = "line in which the call of DataLoader to change begins, where several may be meant"
APPLY_HELP = "write the change to the file, too"
FORCE_HELP = "write it even if the file has changed since the tournament"
LINES = Bounds(1, 10_000_000, whole=True)


def patch(
    tournament_id: Annotated[
        int,
        typer.Argument(
            metavar=terminal.ID,
            help=TOURNAMENT_HELP,
            parser=terminal.reader(terminal.ID, int, "give a whole number"),
        ),
    ],
    line: Annotated[
        int | None, terminal.number("line", LINES, LINE_HELP, show_default=False)
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help=APPLY_HELP)] = False,
    force: Annotated[bool, typer.Option("--force", help=FORCE_HELP)] = False,
) -> None:
    """Print what a tournament on your own script recommends as a diff of that script, for `git apply -p0`.

    Comments and layout stay. Nothing is written without --apply. Where a patch would not be sure, it says what to
    do by hand.

    The exit status is 1 if there is no patch: nothing is decided yet, or it has to be done by hand. It is 0 if the
    script is best as it is.
    """
    if force and not apply:
        raise ConfigError("force", True, "it goes with --apply")
    with terminal.open_store() as store:
        view = TournamentView(store, tournament_id)
        now = view.state()
        best = recommend(view.board(now))
    script = now.tournament.spec.script
    if script is None:
        why = "it is on jobs of vitprof's own, whose script `code` prints"
        raise ConfigError(terminal.ID, tournament_id, why)
    if best is not None and best.recommended == now.baseline:
        terminal.remark(f"nothing to patch: {best.sentence}")
        return
    why = why_undecided(best)
    if why or best is None or best.key is None:
        terminal.complain(f"no patch: {why}", terminal.EXIT_FAILED)
    terminal.remark(best.sentence)
    _show(tournament_id, script, best.key, line, apply=apply, force=force)


def why_undecided(best: Recommendation | None) -> str:
    """Returns why it is not known what to change in the script; "" where it is."""
    if best is None:
        return "no setting has given a figure yet"
    if best.recommended is None:
        return best.sentence
    return ""


def _show(
    tournament_id: int, script: OwnScript, key: str, line: int | None, *, apply: bool, force: bool
) -> None:
    # LibCST may be missing; what is above does without it
    from vitprof.export.patch import apply_patch, make_patch
    from vitprof.export.patch.wanted import NoPatch

    try:
        made = make_patch(script, key, line)
    except NoPatch as reason:
        for each in reason.lines:
            terminal.remark(each)
        code = code_line(script, key).removeprefix("# ")
        if not any(code in each for each in reason.lines):
            terminal.remark(f"what it recommends, as code: {code}")
        raise SystemExit(terminal.EXIT_FAILED) from None
    for each in made.remarks:
        terminal.remark(each)
    if made.is_empty:
        terminal.remark(f"nothing to patch: line {made.line} of {made.file.path} has that already")
        return
    _print(made, script)
    doubt = _doubt(made)
    if not apply:
        if doubt:
            terminal.remark(f"{doubt}: see whether the change still fits")
        terminal.remark(f"nothing was written; {program()} patch {tournament_id} --apply does that")
        return
    if doubt and not force:
        terminal.complain(f"{doubt}: nothing was written; --force writes it", terminal.EXIT_FAILED)
    written = apply_patch(made)
    link = ""
    if written != Path(os.path.abspath(made.file.path)):
        link = f", to which {made.file.path} leads"
    terminal.remark(f"wrote {written}{link}")


def _doubt(made: Patch) -> str:
    """Returns that the file may not be the one that ran; "" where it is."""
    if made.file.changed is None:
        return f"whether {made.file.path} is as it was in the tournament is not known"
    if made.file.changed:
        return f"{made.file.path} has changed since the tournament"
    return ""


def _print(made: Patch, script: OwnScript) -> None:
    """Prints the diff, in bytes where it goes to a file or another program: the script may be in any encoding."""
    diff = made.diff(_name_in_diff(made.file.path, script))
    if sys.stdout.isatty():
        terminal.print_text(names.harmless(diff.decode(errors="backslashreplace")))
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(diff)
    sys.stdout.buffer.flush()


def _name_in_diff(path: Path, script: OwnScript) -> str:
    """Returns the file as it is called in the diff: from this folder, or else from the script's."""
    whole = os.path.abspath(path)
    for folder in (Path.cwd(), Path(script.directory)):
        if Path(whole).is_relative_to(folder):
            return os.path.relpath(whole, folder)
    return path.name
