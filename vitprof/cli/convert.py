"""`convert`: tries the samples of a user's own Dataset in other forms, and stores all of them in one."""

import math
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from vitprof import formats
from vitprof.analysis.faster_while_busy import WHILE_BUSY
from vitprof.analysis.tournament.leaderboard import Leaderboard, LeaderboardRow, runs_words
from vitprof.analysis.tournament.recommend import BreakEven, Recommendation
from vitprof.cli.common import options as reading
from vitprof.cli.common import progress, terminal
from vitprof.cli.tournament import options
from vitprof.cli.tournament.running import ResultOutput, Running, run_stored
from vitprof.cli.watch import COMMAND_HELP
from vitprof.config import bounds
from vitprof.config.forms import SAMPLES, check_form
from vitprof.config.own_script import UNCHANGED, settings_of
from vitprof.config.varied import STORAGE
from vitprof.errors import ConfigError
from vitprof.experiments.script_data import plans
from vitprof.experiments.script_data.first_step import begin_words
from vitprof.experiments.script_data.stored_forms import (
    LOSSES,
    Conversion,
    StoredForm,
    changed_words,
    order_words,
    what_words,
)
from vitprof.experiments.tournament import planning
from vitprof.experiments.tournament.tournament_view import TournamentState
from vitprof.export import write_text
from vitprof.export.code.forms import form_script
from vitprof.forms import FORMS
from vitprof.jobs.command import CommandRunner
from vitprof.program import program
from vitprof.store import tournaments

COUNTS = bounds.Bounds(20, 1_000_000)
SIDES = bounds.Bounds(8, 8192)
ROUNDS = bounds.TOURNAMENT_BOUNDS["repeats"]
PLAN_HELP = "store some samples in each form, run the script on each, and say which one pays"
OUT_HELP = "with --to: a folder for the samples, empty or with an earlier attempt"
SIDE_HELP = "shorter side of JPEG files in pixels; as the script's transforms need if not given"


OF_A_PLAN = (
    *("forms", "samples", "steps", "repeats", "until_decided", "code"),
    *("yes", "in_place", "anyway", "as_json"),
)
"""Options that do nothing where all samples are stored."""


def convert(
    context: typer.Context,
    command: Annotated[
        list[str], typer.Argument(help=COMMAND_HELP, metavar="-- COMMAND...", show_default=False)
    ],
    plan: Annotated[bool, typer.Option("--plan", help=PLAN_HELP)] = False,
    to: Annotated[
        str, typer.Option(help=f"store all samples in this form: {', '.join(FORMS)}")
    ] = "",
    out: Annotated[Path | None, typer.Option(help=OUT_HELP)] = None,
    forms: Annotated[
        str, typer.Option(help="with --plan: forms to try, separated by commas")
    ] = ",".join(FORMS),
    samples: Annotated[
        int, terminal.number("samples", COUNTS, "with --plan: samples to store")
    ] = SAMPLES,
    steps: Annotated[
        int, terminal.number("steps", bounds.WATCHED_STEPS, "with --plan: steps of a run")
    ] = options.TRIAL_STEPS,
    repeats: Annotated[
        int, terminal.number("repeats", ROUNDS, "with --plan: rounds; each form runs once in each")
    ] = 3,
    until_decided: Annotated[
        bool,
        typer.Option(
            "--until-decided/--no-until-decided",
            help=f"with --plan: {options.UNTIL_DECIDED_HELP}",
        ),
    ] = True,
    jpeg_side: Annotated[int | None, terminal.number("jpeg_side", SIDES, SIDE_HELP)] = None,
    code: Annotated[
        Path | None,
        typer.Option(help="with --plan: write a script with the best form to this file"),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help=options.YES_HELP)] = False,
    in_place: Annotated[bool, typer.Option("--in-place", help=options.IN_PLACE_HELP)] = False,
    anyway: reading.Anyway = False,
    as_json: terminal.AsJson = False,
) -> None:
    """Find out whether your data are worth converting, and convert them. The script itself is not changed.

    --plan stores some samples of its Dataset in each form and runs the script on each, alternately. --to FORM --out
    FOLDER stores all of them, and writes a script that reads them. Samples are stored before the first random
    transform.

    To store samples, the script runs up to its first step. What it writes until then stays. Runs of --plan say what
    becomes of the files that they write.
    """
    if plan == bool(to):
        raise ConfigError(
            "plan", True, "give --plan to compare forms, or --to FORM --out FOLDER to convert"
        )
    if to:
        terminal.refuse_given(context, OF_A_PLAN, "it goes with --plan")
        check_form("to", to)
        if out is None:
            raise ConfigError("out", True, f"say where the samples go: --to {to} --out FOLDER")
        _convert(command, to, out.absolute(), jpeg_side)
        return
    terminal.refuse_given(context, ["out"], "it goes with --to FORM, which stores all samples")
    names = list(dict.fromkeys(reading.texts("forms", forms)))
    terminal.check_output(code, "code")
    if code is not None and code.stem in {form.package for form in FORMS.values()}:
        raise ConfigError(
            "code",
            str(code),
            f"it would be imported in place of the package {code.stem}; rename it",
        )
    for name in names:
        check_form("forms", name)
    with terminal.open_store() as store:
        plans.clear_plans(store)
        folder, made = _with_script(
            command,
            lambda started, show: plans.store_samples(
                command,
                names,
                samples,
                jpeg_side,
                started,
                lambda n: show(f"form {n} of {len(names)}", n / len(names)),
            ),
        )
        terminal.show(*_summary(made), console=terminal.err)
        if not made.stored:
            terminal.complain("no form fits the samples", terminal.EXIT_FAILED)
        kept = planning.keep_command(command)
        rounds = {"repeats": repeats, "until_decided": until_decided}
        spec = plans.plan_spec(
            command, kept, folder, made, steps=steps, in_place=in_place, **rounds
        )
        number = planning.create_tournament(store, spec)
        run_stored(
            store,
            number,
            Running(anyway=anyway, yes=yes),
            ResultOutput(as_json=as_json),
            lambda *results: _show(command, made, code, *results),
        )
        if tournaments.tournament(store, number).status == "done":
            plans.clear_plans(store)


def _with_script(command: Sequence[str], run: Callable[..., Any]) -> Any:
    """Calls `run` with a function that receives the script as it runs, and one that shows progress.

    Says first what the script may write. Passes signals on to it. Returns what `run` returns.
    """
    with terminal.signals_relayed() as signals, progress.progress() as show:

        def started(runner: CommandRunner) -> None:
            signals.to(runner.signalled)
            terminal.show(begin_words(command), console=terminal.err)

        return run(started, show)


def _summary(made: Conversion) -> list[str]:
    """Returns lines on what was stored, and what was not."""
    words = f"{made.n} of {formats.count(made.samples, 'sample')}, stored {made.cut}"
    other_cuts = {form.cut for form in made.stored.values() if form.cut not in ("", made.cut)}
    for cut in other_cuts:
        words += f"; image files {cut}"
    lines = [words, *made.not_stored()]
    order = order_words(made.stored)
    if order:
        lines.append(order)
    return lines


def _show(
    command: Sequence[str],
    made: Conversion,
    code: Path | None,
    now: TournamentState,
    board: Leaderboard,
    pays: Sequence[BreakEven],
    best: Recommendation | None,
) -> None:
    assert now.tournament.spec.script is not None
    settings = settings_of(now.tournament.spec.script)
    form_of = {setting.key: str(setting.changes.get(STORAGE, "")) for setting in settings}
    by_key = {pay.key: pay for pay in pays}
    rows = [row for row in board.rows if row.rank is not None]
    header = (
        "",
        "form",
        "samples/s",
        "gain",
        "disk, all",
        "to convert all",
        "pays off",
        "pixels",
        "losses",
        "runs",
    )
    cells = [_cells(row, form_of[row.key], made, by_key.get(row.key)) for row in rows]
    n_forms = formats.count(len(made.stored), "form")
    terminal.show_table(header, cells, f"{formats.count(made.samples, 'sample')}, {n_forms}")
    for row in rows:
        if row.entry.losses:
            terminal.show(f"{form_of[row.key]}: {row.entry.losses}")
    for row in board.rows:
        if row.rank is None:
            terminal.show(f"{form_of[row.key]}: {row.entry.status}, {row.entry.reason}")
    if best is None:
        return
    terminal.show(best.sentence)
    form = form_of.get(best.recommended or "", "")
    if form:
        terminal.show(
            f"\n    {program()} convert --to {form} --out FOLDER -- {shlex.join(command)}\n"
        )
        if code is not None:
            write_text(code, form_script(form, made.forms[form].cut))
    elif best.recommended == UNCHANGED:
        terminal.show("No form is worth its conversion here: keep the data unchanged.")


def _cells(row: LeaderboardRow, form: str, made: Conversion, pay: BreakEven | None) -> list[str]:
    """Returns the row of a form, "" for the data as they are."""
    speed = f"{formats.number(row.samples_per_s)} ({_span(row.low, row.high)})"
    runs = runs_words(row)
    if row.n_runs:
        runs += f" x {round(row.n_steps / row.n_runs)} steps"
    rank = str(row.rank)
    if not form:
        return [rank, "unchanged", speed, "", formats.size(made.file_bytes), "", "", "", "", runs]
    stored = made.forms[form]
    gain = f"{formats.number(row.speed_up)}x ({_span(row.speed_up_low, row.speed_up_high)})"
    if row.while_busy is not None:
        gain = row.while_busy.words
    took, low, high = (formats.seconds(each) for each in made.convert_s(stored))
    if math.isfinite(stored.sample_s.low):
        took += f" ({low}-{high})"
    pays_off = ""
    if pay is not None:
        pays_off = _epochs(pay, row.against_baseline or "")
    return [
        rank,
        what_words(form, stored),
        speed,
        gain,
        formats.size(made.scaled(stored.bytes)),
        took,
        pays_off,
        changed_words(stored),
        LOSSES.get(row.entry.effect, "not known"),
        runs,
    ]


def _span(low: float, high: float) -> str:
    return f"{formats.number(low)}-{formats.number(high)}"


def _epochs(pay: BreakEven, against: str) -> str:
    """Returns after how many epochs a conversion pays off; `against`: how the form compares with the data
    as they are.
    """
    if math.isnan(pay.epochs) or against in ("undecided", WHILE_BUSY):
        return "undecided"
    if math.isinf(pay.epochs) or against == "equal":
        return "never"
    return f"after {_whole(pay.epochs)} epochs ({_whole(pay.low)}-{_whole(pay.high)})"


def _whole(epochs: float) -> str:
    return f"{math.ceil(epochs):,}" if math.isfinite(epochs) else "never"


def _convert(command: Sequence[str], to: str, out: Path, side: int | None) -> None:
    made = _with_script(
        command,
        lambda started, show: plans.convert_all(
            command, to, out, side, started, lambda done: show("storing samples", done)
        ),
    )
    script = out / "dataset.py"
    form = made.forms[to]
    write_text(script, form_script(to, form.cut))
    terminal.show(
        f"{formats.count(made.samples, 'sample')}, stored {form.cut}, in {out}: {formats.size(form.bytes)}",
        _checked(form, made.samples),
        f"{script} reads them.",
    )


def _checked(form: StoredForm, samples: int) -> str:
    """Returns what was checked of stored samples."""
    if not form.earlier:
        return "checked: their number, and samples that were read back."
    which = f"{form.earlier:,} of them" if form.earlier < samples else "all of them"
    return (
        f"{which} were stored before: a spread of these is as the Dataset has it now. "
        "After changes of single samples choose a new folder."
    )
