"""Results for people: of a run and of a tournament."""

import math
from collections.abc import Sequence
from typing import Any

from vitprof import formats
from vitprof.analysis.tournament import entries, recommend
from vitprof.analysis.tournament.leaderboard import (
    Leaderboard,
    LeaderboardRow,
    runs_words,
    speed_up_words,
    spoiled_words,
)
from vitprof.analysis.verdict import answer as answers
from vitprof.analysis.verdict import rendering
from vitprof.analysis.verdict.answer import Answer, Proof
from vitprof.cli.common import terminal
from vitprof.config import own_script
from vitprof.config.device_rate import rate_if_valid
from vitprof.experiments.tournament.planning import rounds_words
from vitprof.experiments.tournament.tournament_view import TournamentState
from vitprof.export.markdown import meanwhile_command, next_command
from vitprof.export.tables import figures_in_words
from vitprof.recording.verdict import Advice, Verdict
from vitprof.store import StoredRun

MAX_REASONS_SHOWN = 6
"""The most settings whose break-even is shown; they are the fastest of each strategy."""


def show_run(run: StoredRun, verdict: Verdict | None = None, found: Sequence[Proof] = ()) -> None:
    """Prints the main figures of a run as a table, and the answer on it. Prints nothing for a run
    without steps.

    `verdict`: a newer one than that stored with the run; `found`: what proofs have shown.
    """
    if run.summary is None or not run.summary.n_steps:
        return
    terminal.show(title_of(run))
    terminal.show(*lines_on_run(run, verdict or run.verdict, found))
    figures = figures_in_words(run)
    if terminal.is_wide():
        terminal.show_table((), figures, "", show_header=False)
    else:
        terminal.show_table((), [figure[:2] for figure in figures], "", show_header=False)


def title_of(run: StoredRun) -> str:
    title = f"run {run.id}: {run.name}"
    if run.simulated:
        title += " (simulated device)"
    return title


def lines_on_run(run: StoredRun, verdict: Verdict | None, found: Sequence[Proof]) -> list[str]:
    """Returns the answer on a run, after an empty line, and what is to be said of its ranks."""
    lines: list[str] = []
    is_conclusive = verdict is not None and verdict.is_conclusive
    # of a run that failed early its error says more
    if verdict is not None and (is_conclusive or run.status != "failed"):
        answer = answers.answer_of(verdict, found, summary=run.summary, rate=rate_if_valid())
        lines += ["", *answer_lines(run, answer)]
    return lines + [f"  {sentence}" for sentence in on_ranks(run)]


def answer_lines(run: StoredRun, answer: Answer) -> list[str]:
    """Returns the lines of the answer on a run: starved or not, by what, what there is to gain, the
    fix and what to type next, then what else is advised and was seen."""
    lines = [f"{answer.headline}. {answer.reason}"]
    lines += [f"  {question:<9}{words}" for question, words in answers.lines(answer)]
    in_fix = answer.fix.place if answer.fix is not None else None
    if in_fix is not None:
        lines.append(f"  {'why:':<9}{_advised(answer.advice[in_fix], named=False)}")
    lines += next_lines(run, answer)
    others = answers.other_advice(answer)
    lines += [f"  {'or try:':<9}{_advised(advice, named=True)}" for advice in others]
    lines += [f"  {'no gain:':<9}{words}" for words in answers.refuted_in_words(answer)]
    lines += [f"  {words}" for words in (answer.details, answer.remark) if words]
    lines += [f"  {'seen:':<9}{signature.sentence}" for signature in answer.signatures]
    return lines


def _advised(advice: Advice, *, named: bool) -> str:
    """Returns why to follow an advice, after the advice itself if `named`, and what to type."""
    words = rendering.why_advised(advice)
    if named:
        words = f"{advice.words}. {words}"
    if advice.settings:
        options = [_typed(name, value) for name, value in advice.settings.items()]
        words += f" ({' '.join(options)})"
    return words


def on_ranks(run: StoredRun) -> list[str]:
    """Returns lines on the ranks of a distributed job; none of another one."""
    return [str(sentence) for sentence in run.facts.get("ranks", {}).get("sentences", ())]


def next_lines(run: StoredRun, answer: Answer) -> list[str]:
    """Returns the lines with what to type next for a watched run: what proves the fix, or writes one that is
    proven; none where there is nothing to type."""
    command = next_command(run, answer)
    lines = [f"  {'Next:':<9}{command}"] if command else []
    meanwhile = meanwhile_command(run, answer)
    if meanwhile:
        lines.append(f"  {'or now:':<9}{meanwhile}    ({MEANWHILE})")
    return lines


MEANWHILE = "how much workers gain at least, while other programs run"
"""What a tournament says while other programs run."""


def _typed(name: str, value: Any) -> str:
    """Returns a setting as an option of `run`."""
    flag = name.replace("_", "-")
    if value is True:
        return f"--{flag}"
    if value is False:
        return f"--no-{flag}"
    return f"--{flag} {value}"


def running_words(now: TournamentState, board: Leaderboard) -> str:
    """Returns the progress of a tournament in one line."""
    p = now.progress
    spec = now.tournament.spec
    current = f"{entries.key_in_words(p.words)}, round {p.round}" if p.words else "between runs"
    rounds = rounds_words(spec)
    if p.round > spec.repeats:
        rounds = "added because it is not decided yet"
    words = f"{p.done} of {p.total} runs done; {current} ({rounds})"
    if board.fastest is not None:
        words += f"; fastest so far: {entries.key_in_words(board.fastest.key)}"
    elif board.why_no_fastest:
        words += f"; {board.why_no_fastest}"
    return words


def show_board(
    now: TournamentState,
    board: Leaderboard,
    pays: Sequence[recommend.BreakEven],
    best: recommend.Recommendation | None,
) -> None:
    """Prints the recommendation, the leaderboard, the settings that did not run and why, and
    break-even."""
    tournament = now.tournament
    simulated = ", simulated device" if tournament.spec.base.simulated else ""
    script = tournament.spec.script
    title = f"tournament {tournament.id}: {tournament.name}{simulated} ({tournament.status})"
    chosen = best.recommended if best is not None else None
    terminal.show(title)
    if best is not None:
        _show_answer(best, script, tournament.id)
    ranked = [row for row in board.rows if row.rank is not None]
    # the recommended one first
    ranked.sort(key=lambda row: row.key != chosen)
    if ranked:
        wide = terminal.is_wide()
        shown = [_cells(row, board, chosen) for row in ranked]
        header = list(BOARD_COLUMNS)
        if not wide:
            header = [name for name in header if name not in WIDE_COLUMNS]
        cells = ([row[name] for name in header] for row in shown)
        terminal.show_table(header, cells, "")
    else:
        terminal.out.print("no setting gave a figure")
    terminal.show(*_not_ranked(board, tournament.note))
    if script is None:
        worth_it = _worth_showing(ranked, pays)
        if worth_it:
            terminal.out.print(f"Against {entries.key_in_words(board.baseline)}:")
            terminal.show(*(f"  {line}" for line in _break_even_lines(worth_it)))
    if tournament.note:
        terminal.show(tournament.note, console=terminal.err)


def _break_even_lines(pays: Sequence[recommend.BreakEven]) -> list[str]:
    """Returns when settings pay for their preparation; those that the same is said of are one
    line."""
    of_sentence: dict[str, list[str]] = {}
    for pay in pays:
        of_sentence.setdefault(pay.sentence, []).append(entries.key_in_words(pay.key))
    return [f"{'; '.join(names)}: {sentence}" for sentence, names in of_sentence.items()]


def _show_answer(
    best: recommend.Recommendation, script: own_script.OwnScript | None, tournament_id: int
) -> None:
    """Prints a tournament's answer, and on a user's own script what to change in it."""
    terminal.show(best.sentence)
    if script is None:
        return
    key = best.recommended or ""
    line = own_script.code_line(script, key)
    if not line:
        return
    terminal.show(f"\n    {line}\n")
    as_patch = own_script.patch_command(script, key, tournament_id)
    if as_patch:
        terminal.show(f"to have it as a patch of your script type {as_patch}")


def _with_interval(value: str, low: float, high: float) -> str:
    if not math.isfinite(low) or not math.isfinite(high):
        return value
    return f"{value} ({formats.number(low)}-{formats.number(high)})"


BOARD_COLUMNS = (
    "",
    "setting",
    "samples/s",
    "speed-up",
    "epoch",
    "GPU memory",
    "GPU-util",
    "idle",
    "runs",
    "remarks",
)
"""Columns of the leaderboard."""
WIDE_COLUMNS = ("epoch", "GPU memory", "GPU-util", "runs", "remarks")
"""Those of them that a narrow terminal does without."""


def _cells(row: LeaderboardRow, board: Leaderboard, chosen: str | None) -> dict[str, str]:
    """Returns the row of a setting in the leaderboard, by `BOARD_COLUMNS`."""
    speed_up = "baseline"
    if row.key != board.baseline:
        speed_up = speed_up_words(row)
    if row.key != board.baseline and row.while_busy is None:
        speed_up = _with_interval(speed_up, row.speed_up_low, row.speed_up_high)
    runs = runs_words(row)
    if row.n_runs:
        runs += f" x {round(row.n_steps / row.n_runs)} steady steps"
    return {
        "": "*" if row.key == chosen else str(row.rank),
        "setting": entries.setting_in_words(row.entry),
        "samples/s": _with_interval(formats.number(row.samples_per_s), row.low, row.high),
        "speed-up": speed_up,
        "epoch": formats.seconds(row.epoch_s),
        "GPU memory": _if_known(formats.size(row.gpu_mem_bytes)),
        "GPU-util": _if_known(formats.percent(row.gpu_util_pct / 100)),
        "idle": formats.percent(row.device_idle_frac),
        "runs": runs,
        "remarks": "; ".join(filter(None, _remarks(row, board, chosen))),
    }


def _if_known(figure: str) -> str:
    return "" if figure == formats.NOT_AVAILABLE else figure


def _remarks(row: LeaderboardRow, board: Leaderboard, chosen: str | None) -> list[str]:
    """Returns what to know of a setting besides its figures; some may be empty."""
    remarks = []
    if row.key == chosen:
        remarks.append("recommended")
    if row.key == board.baseline:
        remarks.append("baseline")
    if row.too_few is not None:
        remarks.append("too few steps")
    else:
        words = {"equal": "as fast as", "undecided": "undecided against"}
        if row.against_baseline in words:
            remarks.append(f"{words[row.against_baseline]} the baseline")
        if row.while_busy is not None:
            remarks.append("faster than the baseline while other programs ran")
        if row.standing in words:
            remarks.append(f"{words[row.standing]} the fastest")
    remarks += [spoiled_words(row), row.entry.pixels, row.entry.losses]
    if row.entry.status == "cut":
        remarks.append(row.entry.reason)
    elif row.entry.status != "done":
        remarks.append(row.entry.status)
    return remarks


def _not_ranked(board: Leaderboard, note: str) -> list[str]:
    """Returns why settings have no rank: a line for each reason but the tournament's own `note`."""
    of_reason: dict[tuple[str, str], list[str]] = {}
    for row in board.rows:
        if row.rank is None:
            name = entries.setting_in_words(row.entry)
            of_reason.setdefault((row.entry.status, row.entry.reason), []).append(name)
    lines = []
    for (status, reason), keys in of_reason.items():
        line = f"{status}: {'; '.join(keys[:2])}"
        if len(keys) > 2:
            line += f"; and {len(keys) - 2} more"
        if reason and reason != note:  # which is printed once, for all
            line += f": {reason}"
        lines.append(line)
    return lines


def _worth_showing(
    ranked: Sequence[LeaderboardRow], pays: Sequence[recommend.BreakEven]
) -> list[recommend.BreakEven]:
    """Returns the break-even of the fastest setting of each strategy."""
    by_key = {pay.key: pay for pay in pays}
    shown: set[str] = set()
    fastest = []
    for row in ranked:
        if row.entry.strategy not in shown and row.key in by_key:
            fastest.append(by_key[row.key])
        shown.add(row.entry.strategy)
    return fastest[:MAX_REASONS_SHOWN]
