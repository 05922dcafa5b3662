"""The leaderboard: the recommended setting on top, then by rank; and what can be done with a
setting.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal

import streamlit as st

from vitprof import formats
from vitprof.analysis.tournament.entries import RunOutcome, setting_in_words
from vitprof.analysis.tournament.leaderboard import Leaderboard, LeaderboardRow, runs_words
from vitprof.config import RunConfig
from vitprof.config.own_script import OwnScript, code_line, patch_command
from vitprof.experiments.tournament.tournament_view import TournamentState
from vitprof.export.code import script
from vitprof.ui import navigation, tables, texts, widgets
from vitprof.ui.profile.settings import offer
from vitprof.ui.tournament.state import SECTION, SETTING
from vitprof.ui.widgets import RUNS as RUNS_IN_URL

STATUSES = {
    "waiting": "waiting",
    "running": "waiting",
    "done": "done",
    "failed": "failed",
    "refused": "not possible here",
    "cut": "cut short",
    "stopped": "stopped",
}
"""A trial's status in words."""
TOO_FEW = "too few steps"
RECOMMENDED = "★ recommended"
USE_HELP = "Opens Profile with this setting in the sidebar. Nothing starts until you press Run."
COMPARE_HELP = "The best run of each, step by step, against the baseline's."
LONG_NAME = 29
"""Letters up to which a name has one line. So the table fits a laptop's screen (1366 px) beside the
sidebar."""
BUSY_PX = 124
"""Width of the column that says "faster while busy"."""
WRAPPED_PX = 170
"""Width of the column of names where they have two lines."""
TWO_LINES_PX = 65
"""Height of the rows then. Streamlit wraps text in rows that are higher than 4 rem."""
TINT = "background-color: rgba(46, 160, 67, 0.16)"
"""Style of the recommended row: visible in the light and the dark theme, with readable text in
both."""


def against_baseline(row: LeaderboardRow, board: Leaderboard) -> str:
    if row.key == board.baseline:
        return "baseline"
    if not math.isfinite(row.speed_up):
        return ""
    if row.too_few is not None and row.while_busy is None:
        return TOO_FEW
    return row.against_baseline


def standing(row: LeaderboardRow, board: Leaderboard, recommended: str | None) -> str:
    """Returns how a setting compares with the fastest of its page cache; its status if it has no
    place.
    """
    if row.key == recommended:
        return RECOMMENDED
    if row.entry.status in ("waiting", "running") and not row.n_runs:
        return "waiting"
    if row.rank is None or row.entry.status == "cut":
        return STATUSES[row.entry.status]
    if row.too_few is not None:
        return TOO_FEW
    word: str = row.standing
    if word == "equal":
        word = "as fast"
    elif word == "fastest" and recommended is None:
        word = "fastest so far"
    best = board.row(board.best or "")
    cache = row.entry.page_cache
    if best is not None and cache != best.entry.page_cache:
        word += f" ({cache})"
    return word


def with_interval(value: float, low: float, high: float, words: Callable[[float], str]) -> str:
    """Returns a figure with its interval where that is known; "" where the figure is not."""
    if not math.isfinite(value):
        return ""
    if not (math.isfinite(low) and math.isfinite(high)):
        return words(value)
    return f"{words(value)} ({formats.number(low)}-{formats.number(high)})"


def _speed_up(row: LeaderboardRow, board: Leaderboard) -> str:
    if row.while_busy is not None:
        return row.while_busy.words
    low = row.speed_up_low
    high = row.speed_up_high
    if row.key == board.baseline:  # which is 1 by definition
        low = math.nan
        high = math.nan
    return with_interval(row.speed_up, low, high, lambda ratio: f"{formats.number(ratio)}x")


def _mib(n_bytes: int) -> float:
    """Returns bytes in MiB; NaN for none, which the table shows as "–"."""
    return n_bytes / tables.MIB if n_bytes else math.nan


SETTING_COLUMN = tables.TableColumn(
    "Setting",
    "Strategy, batch size, workers, page cache.",
    lambda r, b: setting_in_words(r.entry),
    pinned=True,
)
AGAINST_COLUMN = tables.TableColumn(
    "vs baseline",
    "faster or slower: the interval of the speed-up excludes 1; equal: it is within 5% of 1; "
    "undecided: we cannot tell them apart yet; faster while busy: in every round, but other programs "
    "ran in them.",
    against_baseline,
    width=76,
)
COLUMNS: tuple[tables.TableColumn, ...] = (
    SETTING_COLUMN,
    tables.TableColumn(
        "Rank",
        "By samples/s. What is as fast as the fastest shares its rank.",
        lambda r, b: r.rank,
        width=44,
    ),
    tables.TableColumn(
        "Samples/s",
        "All samples over all time, without the time in which other programs were seen to disturb it: ranks and "
        "speed-ups compare it (docs/tournament.md). In brackets its 95% interval.",
        lambda r, b: with_interval(r.samples_per_s, r.low, r.high, formats.number),
        width=146,
    ),
    tables.TableColumn(
        "Speed-up",
        "Over the baseline, with its 95% interval; at least: a bound, while other programs ran.",
        _speed_up,
        width=112,
    ),
    AGAINST_COLUMN,
    tables.TableColumn(
        "Runs",
        "All runs of the setting. “2 of 3”: two count; the third failed, was stopped, was "
        "disturbed by other programs "
        "or is running.",
        lambda r, b: runs_words(r),
        width=56,
    ),
)
COST_COLUMNS: tuple[tables.TableColumn, ...] = (
    SETTING_COLUMN,
    tables.TableColumn(
        "Device idle (%)",
        "Share of the training time in which the device computed nothing.",
        lambda r, b: 100 * r.device_idle_frac,
        "%.1f",
    ),
    tables.TableColumn(
        "GPU-util (%)", "Mean of NVML's utilisation.", lambda r, b: r.gpu_util_pct, "%.0f"
    ),
    tables.TableColumn(
        "GPU memory (MiB)",
        "Highest device memory of any run: NVML's figure, or what PyTorch reserved.",
        lambda r, b: r.gpu_mem_bytes / tables.MIB,
    ),
    tables.TableColumn(
        "Memory (MiB)",
        "Highest resident memory of the job's processes.",
        lambda r, b: r.rss_bytes / tables.MIB,
    ),
    tables.TableColumn(
        "Kept in RAM (MiB)",
        "RAM disk, and samples kept in memory.",
        lambda r, b: _mib(r.entry.ram_bytes),
    ),
    tables.TableColumn(
        "Disk (MiB)",
        "Space of its prepared storage and copy.",
        lambda r, b: _mib(r.entry.disk_bytes),
    ),
    tables.TableColumn(
        "Preparation (s)",
        "Time to make its storage, once; 0: none is needed.",
        lambda r, b: r.entry.prepare_s,
    ),
    tables.TableColumn(
        "Steady steps", "Behind the figures, of runs that have ended.", lambda r, b: r.n_steps
    ),
)
"""What a setting costs, in the section of that name."""


def draw_table(board: Leaderboard, recommended: str | None, *, live: bool) -> None:
    """Draws a row for each setting, `recommended` first, then by rank."""
    rows = sorted(board.rows, key=lambda row: row.key != recommended)
    result = tables.TableColumn(
        "vs fastest",
        "★ recommended: the setting to use. Else against the fastest with the same page cache: as "
        "fast (within 5%), "
        "slower, or undecided; or why it has no place. Reasons are below the table.",
        lambda r, b: standing(r, b, recommended),
        width=112,
    )
    columns = [*COLUMNS, result]
    if any(row.while_busy is not None for row in rows):
        columns[columns.index(AGAINST_COLUMN)] = dataclasses.replace(AGAINST_COLUMN, width=BUSY_PX)
    shown = tables.frame(columns, [(row, board) for row in rows])
    wrapped = bool(shown["Setting"].str.len().max() > LONG_NAME)
    if wrapped:
        columns[0] = dataclasses.replace(SETTING_COLUMN, width=WRAPPED_PX)
    # a cell is a position: other rows, another table
    key = f"tournament-table-{hash(tuple(row.key for row in rows))}"

    def open_section() -> None:
        if cells := st.session_state[key]["selection"]["cells"]:
            row_clicked, _ = cells[0]
            st.session_state[SECTION] = "setting"
            st.session_state[SETTING] = rows[row_clicked].key

    def tint(line: Any) -> list[str]:
        colour = TINT if recommended and line.name == 0 else ""
        return [colour] * len(line)

    clicks: dict[str, Any] = {}
    if not live:  # a live table changes after each run: a click could meet another row
        clicks = {"on_select": open_section, "selection_mode": "single-cell"}
    with st.container(key="own-csv-tournament"):  # the page has a CSV button with numbers in full
        tables.show(
            shown.style.apply(tint, axis=1),
            height=tables.height_of(len(shown)),
            row_height=TWO_LINES_PX if wrapped else None,
            key=key,
            placeholder="–",
            column_config=tables.column_config(columns, shown),
            **clicks,
        )
    if not live:
        st.caption("Click a setting for its code, its runs and a comparison.")


COMPARED = 4
"""Settings that Compare opens with: the first of the leaderboard."""


def draw_ways_on(
    now: TournamentState, row: LeaderboardRow, board: Leaderboard, *, best: bool
) -> None:
    """Draws what can be done with the setting that is recommended (`best`), or with one that was
    chosen.
    """
    key = "best" if best else "setting"
    own_script = now.tournament.spec.script
    if own_script is not None:
        _draw_change(own_script, row, now.tournament.id, best=best)
    compared_rows = [row]
    if best:
        compared_rows = [r for r in board.rows if r.rank is not None][:COMPARED]
    code = False
    with st.container(horizontal=True, vertical_alignment="center"):
        if own_script is None and use_button(f"tournament-use-{key}", primary=best):
            use_setting(config_of(now, row), f"tournament {now.tournament.id}")
        ids = compared(board, compared_rows)
        words = "Compare the fastest" if best else "Compare with baseline"
        icon = ":material/compare_arrows:"
        off = len(ids) < 2
        if st.button(words, f"tournament-compare-{key}", COMPARE_HELP, icon=icon, disabled=off):
            _open_compare(ids, board)
        if own_script is None:
            code = st.toggle(
                "Copy as code",
                key=f"tournament-code-{key}",
                help="A short script of this loader with these settings, for your own training; it does not need "
                "vitprof.",
            )
    if code:
        _code(config_of(now, row), row)


def _draw_change(script: OwnScript, row: LeaderboardRow, tournament_id: int, *, best: bool) -> None:
    """Draws what a setting changes in a user's own script; of the recommended one the command, too, that
    makes it a patch.
    """
    line = code_line(script, row.key)
    if line:
        st.code(line, language="python", wrap_lines=True)
    as_patch = patch_command(script, row.key, tournament_id)
    if best and as_patch:
        st.caption(
            f"As a patch of your script: type `{as_patch}`, and with `--apply` it is written."
        )


def config_of(now: TournamentState, row: LeaderboardRow) -> RunConfig:
    return next(trial.config for trial in now.planned if trial.key == row.key)


def use_button(key: str, *, primary: bool = True) -> bool:
    icon = ":material/tune:"
    look: Literal["primary", "secondary"] = "primary" if primary else "secondary"
    return st.button("Use these settings", key, USE_HELP, icon=icon, type=look)


def use_setting(config: RunConfig, whose: str) -> None:
    """Opens Profile with these settings in the sidebar; starts nothing."""
    offer(
        dataclasses.replace(config, name=""),
        f"The settings of {whose} are in the sidebar. Press Run to start.",
    )
    # with the settings in the URL, which Profile would put there: so one press of Back leads here
    # again
    navigation.leave_for("pages/profile.py", widgets.changed_settings(widgets.settings()))


def compared(board: Leaderboard, rows: list[LeaderboardRow]) -> list[int]:
    """Returns the best run of each of `rows` and of the baseline, each once."""
    base = board.row(board.baseline)
    run_ids = [best_run(row) for row in (*rows, base) if row is not None]
    return list(dict.fromkeys(run_id for run_id in run_ids if run_id is not None))


def _open_compare(ids: list[int], board: Leaderboard) -> None:
    query = {RUNS_IN_URL: ",".join(map(str, ids))}
    base = board.row(board.baseline)
    of_baseline = None if base is None else best_run(base)
    if of_baseline is not None:  # else Compare takes the slowest
        query["baseline"] = str(of_baseline)
    navigation.leave_for("pages/compare.py", query)


def best_run(row: LeaderboardRow) -> int | None:
    """Returns the fastest run of a setting that counts, else the fastest that ended; None without
    any.
    """
    ended = [o for o in row.entry.outcomes if o.summary is not None and o.status in ("done", "cut")]
    counted = [o for o in ended if o.round not in row.spoiled]

    def samples_per_s(outcome: RunOutcome) -> float:
        return 0.0 if outcome.summary is None else outcome.summary.samples_per_s

    best = max(counted or ended, key=samples_per_s, default=None)
    return None if best is None else best.run_id


@texts.guarded
def _code(config: RunConfig, row: LeaderboardRow) -> None:
    speed = formats.number(row.samples_per_s, "samples/s")
    reached = f"{speed} in a tournament ({setting_in_words(row.entry)})"
    st.code(script(config, reached), language="python", height=420)
