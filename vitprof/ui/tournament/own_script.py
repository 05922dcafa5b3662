"""A tournament on a user's own script: the page starts no command, but shows the line to type in place of buttons."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import streamlit as st

from vitprof.analysis.tournament import Leaderboard, LeaderboardRow
from vitprof.config.own_script_trials import OwnScript
from vitprof.config.own_script_words import code_line
from vitprof.experiments.tournament.own_script import resume_command
from vitprof.experiments.tournament.planning import PlannedTrial
from vitprof.store.tournaments import StoredTournament


def draw_line_to_type(found: StoredTournament, words: str, options: str = "") -> None:
    """Draws the command that continues a tournament in a terminal; `words` say what it does."""
    st.caption(words)
    st.code(f"{resume_command(found.id)}{options}", language="bash", wrap_lines=True)


def draw_way_on(found: StoredTournament, script: OwnScript) -> None:
    """Draws how to continue a tournament that is not running: more rounds, a yes after the first trial, or the rest."""
    if found.status == "done":
        draw_line_to_type(
            found, "To run more rounds of every setting that was not cut short, in a terminal:", " --more-rounds 3"
        )
        return
    if script.loader is None or script.agreed:
        draw_line_to_type(found, "To run the rest, in a terminal:")
        return
    if script.writes:
        st.markdown("Each trial runs the script again, which wrote these files:")
        st.code("\n".join(script.writes), language=None, height=min(300, 60 + 24 * len(script.writes)))
    draw_line_to_type(found, "If it may write them again, continue in a terminal:", " --yes")


def draw_code(script: OwnScript, row: LeaderboardRow) -> None:
    """Draws a setting as the line of code to paste."""
    if line := code_line(script, row.key):
        st.code(line, language="python", wrap_lines=True)


def title_words(script: OwnScript) -> str:
    """Returns what was run and varied, in a line."""
    given = "; ".join(f"{name} {', '.join(map(_written, values))}" for name, values in script.vary)
    return f"{shlex.join(script.command)} in {script.directory}; {given}"


def remarks_told(planned: Sequence[PlannedTrial]) -> tuple[str, ...]:
    """Returns the remarks on what was left out of settings or added to them, each once."""
    return tuple(dict.fromkeys(remark for t in planned if t.setting is not None for remark in t.setting.remarks))


def losses_told(board: Leaderboard) -> list[tuple[LeaderboardRow, str]]:
    """Returns the settings that have a remark about their losses, with the remark."""
    return [(row, row.entry.losses) for row in board.rows if row.entry.losses]


def _written(value: object) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value)
