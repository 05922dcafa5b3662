"""One tournament: the answer first, then the leaderboard, then one section with charts and details."""

import dataclasses
import json
import math
from collections.abc import Callable
from functools import partial
from typing import Literal

import streamlit as st

from vitprof import formats
from vitprof.analysis.tournament import entries, leaderboard
from vitprof.analysis.tournament.recommend import (
    DISTURBED,
    Cost,
    Recommendation,
    break_even,
    cost_of,
    recommend,
)
from vitprof.charts import tournament as charts
from vitprof.charts.heat_map import article_heat
from vitprof.config import catalog, own_script, strategies
from vitprof.experiments.tournament import planning
from vitprof.experiments.tournament.tournament_view import TournamentState
from vitprof.export.tournament import tournament_csv, tournament_object
from vitprof.store import StoredRun
from vitprof.ui import live_chart, resources, tables, texts, widgets
from vitprof.ui.texts import (
    draw_problem,
    escaped,
    file_stamp,
    guarded,
    simulated_badge,
    value_in_words,
)
from vitprof.ui.tournament.state import (
    AGAINST,
    COLOUR,
    COST,
    SECTION,
    SETTING,
    draw_state,
    leave,
    view,
)
from vitprof.ui.tournament.table import COST_COLUMNS, STATUSES, draw_table, draw_ways_on


@guarded
def draw_tournament(tournament_id: int) -> None:
    follows = view(tournament_id)
    now = follows.look()
    t = now.tournament
    is_own = now.tournament.spec.script is not None
    _draw_title(now)
    draw_problem()
    draw_state(now)
    answer = st.container()
    row = st.container(horizontal=True, vertical_alignment="bottom")
    with row:
        base = _pick_baseline(follows.board(now), now.baseline)
    board = follows.board(dataclasses.replace(now, baseline=base))
    recommendation = recommend(board, keep=now.baseline)
    with answer.container(border=True, key="tournament-answer"):
        _draw_answer(now, board, recommendation)
    with row:
        _downloads(now, board, recommendation)
    key = recommendation.key if recommendation is not None else None
    draw_table(board, key, live=t.held)
    # what was dropped from settings or added to them, each once
    for remark in dict.fromkeys(
        r for trial in now.planned if trial.setting is not None for r in trial.setting.remarks
    ):
        st.caption(escaped(f"{remark[0].upper()}{remark[1:]}."))
    _draw_reasons(board)
    if board.best is None:
        return
    names = {
        name: words for name, (words, _) in SECTIONS.items() if not is_own or name in OF_OWN_SCRIPTS
    }
    text = "Only the section shown is computed."
    section = widgets.choose(SECTION, "Show", names, default="speed", help=text, show_label=False)
    guarded(SECTIONS[section][1])(now, board)


def _draw_title(now: TournamentState) -> None:
    t = now.tournament
    spec = now.tournament.spec
    with st.container(horizontal=True, vertical_alignment="center"):
        st.title(escaped(t.name), anchor=False, width="content")
        if spec.base.simulated:
            simulated_badge()
        about = "The list, and the form for a new one. This one keeps running."
        texts.act_button(
            "All tournaments", "tournament-back", "arrow_back", leave, about, type="tertiary"
        )
    number, unit = next(
        (n, b) for b in ("seconds", "steps", "epochs") if (n := getattr(spec.base, b))
    )
    lasts = f"{number:g} {unit.removesuffix('s') if number == 1 else unit}"
    what = f"{spec.base.dataset}, {catalog.model_words(spec.base.model)} on {spec.base.device}"
    what = what if spec.script is None else title_words(spec.script, spec.base.steps)
    cut = "; settings that are clearly too slow are cut short" if spec.early_stop else ""
    st.caption(
        escaped(f"Tournament {t.id}: {what}; each run {lasts}, {planning.rounds_words(spec)}{cut}")
    )


def title_words(script: own_script.OwnScript, steps: int | None) -> str:
    given = "; ".join(
        f"{name} {', '.join(map(value_in_words, values))}" for name, values in script.vary
    )
    return f"{planning.begin_words(script, steps)}; {given}"


def _names(board: leaderboard.Leaderboard) -> dict[str, str]:
    return {row.key: entries.setting_in_words(row.entry) for row in board.rows}


def _pick_baseline(board: leaderboard.Leaderboard, own: str) -> str:
    names = {
        row.key: entries.setting_in_words(row.entry)
        for row in board.rows
        if row.n_runs or row.key == own
    }
    chosen: str | None = st.selectbox(
        "Baseline",
        list(names),
        index=list(names).index(own),
        format_func=names.__getitem__,
        **widgets.kept(AGAINST),
        help="The setting that speed-ups and break-even are measured against.",
        width=340,
    )
    return chosen or own


SURE_HELP = "How probable it is that no other setting here is faster by more than 5%."


def _draw_answer(
    now: TournamentState, board: leaderboard.Leaderboard, recommendation: Recommendation | None
) -> None:
    through = now.tournament.status == "done" and not now.tournament.held
    if recommendation is None:
        st.markdown(
            "**No setting gave a figure.** The reasons are below the table: give runs more time, or choose others."
            if through
            else "**No figures yet.** The first come when the first run has ended."
        )
        return
    row = board.row(recommendation.key or "")
    open_or_not = ("Undecided", "Recommended") if through else ("Not decided yet", "Best so far")
    with st.container(horizontal=True, vertical_alignment="center"):
        st.header(open_or_not[row is not None], anchor=False, width="content")
        if row is not None and row.against_baseline not in ("", "undecided"):
            interval = f"{formats.number(row.speed_up_low)} to {formats.number(row.speed_up_high)}"
            st.badge(f"{formats.number(row.speed_up)}x the baseline ({interval})", color="green")
        if (
            row is not None
            and row.against_baseline != "undecided"
            and math.isfinite(recommendation.probability)
        ):
            sure = f"{100 * min(recommendation.probability, 0.999):.3g}% sure"
            odd = DISTURBED in recommendation.sentence
            help_text = f"{sure}. {SURE_HELP}"
            st.badge(
                "beside other programs" if odd else sure,
                color="orange" if odd else "blue",
                help=help_text,
            )
    first, _, rest = recommendation.sentence.partition(". ")
    st.markdown(escaped(texts.sentence(first)))
    if row is not None and row.entry.strategy in strategies.STRATEGIES:
        st.caption(escaped(strategies.STRATEGIES[row.entry.strategy].what))
    if rest:
        with st.expander("What to mind"):
            st.markdown(escaped(rest))
    if row is not None:
        draw_ways_on(now, row, board, best=True)


def _draw_reasons(board: leaderboard.Leaderboard) -> None:
    names = _names(board)
    for row in board.rows:
        if row.spoiled:
            st.caption(escaped(f"{names[row.key]}: {leaderboard.spoiled_words(row)}."))
        if row.entry.losses:
            st.caption(f":material/warning: {escaped(f'{names[row.key]}: {row.entry.losses}.')}")
    if text := leaderboard.uneven_words(board):
        st.caption(escaped(text))
    explained = [row for row in board.rows if row.entry.reason]
    if not explained:
        return
    words = STATUSES | {"done": "not measured in full"}
    counts = {status: sum(row.entry.status == status for row in explained) for status in words}
    with st.expander(f"Why: {', '.join(f'{n} {words[s]}' for s, n in counts.items() if n)}"):
        lines = ((names[r.key], words[r.entry.status], r.entry.reason) for r in explained)
        st.markdown(
            "\n".join(
                f"- **{escaped(name)}**, {status}: {escaped(why)}" for name, status, why in lines
            )
        )


def _downloads(
    now: TournamentState, board: leaderboard.Leaderboard, recommendation: Recommendation | None
) -> None:
    t = now.tournament
    stamp = file_stamp()

    def csv() -> str:
        return tournament_csv(t, board, break_even(board), recommendation)

    def text() -> str:
        return json.dumps(tournament_object(t, board, break_even(board), recommendation), indent=2)

    for words, mime, make in (("CSV", "text/csv", csv), ("JSON", "application/json", text)):
        st.download_button(
            words,
            data=make,
            file_name=f"vitprof-tournament-{t.id}-{stamp}.{words.lower()}",
            mime=mime,
            on_click="ignore",
            key=f"tournament-{words.lower()}",
            icon=":material/download:",
            help=f"The leaderboard as {words}: one entry for each trial with figures, intervals, status and reason.",
        )


CHART_PX = 400


def _speed(now: TournamentState, board: leaderboard.Leaderboard) -> None:
    ranked = sum(row.rank is not None for row in board.rows)
    live_chart.plot(charts.throughput_bars(board), key="tournament-bars", height=140 + 34 * ranked)


Measure = Callable[[leaderboard.LeaderboardRow], float]
MEASURES: dict[str, Measure] = {
    "Epoch (s)": lambda c: c.epoch_s,
    "GPU memory (MiB)": lambda c: c.gpu_mem_bytes / tables.MIB,
    "GPU-util (%)": lambda c: c.gpu_util_pct,
}


def _article(now: TournamentState, board: leaderboard.Leaderboard) -> None:
    table = leaderboard.article_table(board)
    columns = [
        tables.Column(
            "Setting", "Strategy, workers, page cache.", lambda line: line.name, pinned=True
        )
    ]
    columns += [
        tables.Column(
            f"{name}, batch {batch:,}",
            "Empty: no figure, see its status.",
            partial(_figure, value, at),
        )
        for name, value in MEASURES.items()
        for at, batch in enumerate(table.batch_sizes)
    ]
    frame = tables.draw(
        columns, [(line,) for line in table.lines], key="tournament-article", placeholder="–"
    )
    how = "measured: every run saw a whole one"
    how = how if board.whole_epochs else "from the throughput: not every run saw a whole one"
    absent = [
        m for m in ("GPU memory", "GPU-util") if not any(c.startswith(m) for c in frame.columns)
    ]
    not_here = f" Not available here: {' and '.join(absent)} (NVML)." if absent else ""
    st.caption(f"Seconds for an epoch of {board.n_train:,} images, {how}.{not_here}")


def _figure(value: Measure, at: int, line: leaderboard.ArticleLine) -> float | None:
    row = line.cells[at]
    return None if row is None else value(row)


def _heat(now: TournamentState, board: leaderboard.Leaderboard) -> None:
    values: dict[Literal["epoch_s", "speed_up"], str] = {
        "epoch_s": "Seconds for an epoch",
        "speed_up": "Speed-up",
    }
    value = widgets.choose(
        COLOUR, "Colour", values, default="epoch_s", help="What the cells show.", show_label=False
    )
    table = leaderboard.article_table(board)
    live_chart.plot(
        article_heat(table, value), key="tournament-heat", height=150 + 40 * len(table.lines)
    )
    st.caption(
        "Seconds count all of the time; speed-ups compare the fastest fifth of it, as the leaderboard does."
    )


def _costs(now: TournamentState, board: leaderboard.Leaderboard) -> None:
    ranked = [row for row in board.rows if row.rank is not None]
    costs = charts.COSTS
    known = [c for c in costs if any(math.isfinite(cost_of(row, c)) for row in ranked)]
    if not known:
        st.info("No cost is known yet: nothing has ended.")
        return
    against: Cost | None = st.selectbox(
        "Against",
        known,
        format_func=lambda c: costs[c].capitalize(),
        **widgets.kept(COST),
        help="What throughput is weighed against. On the dotted line no other setting is better in both.",
        width=320,
    )
    live_chart.plot(
        charts.pareto_chart(board, against or known[0]), key="tournament-pareto", height=CHART_PX
    )
    tables.draw(
        COST_COLUMNS, [(row, board) for row in board.rows], key="tournament-costs", placeholder="–"
    )


def _break_even(now: TournamentState, board: leaderboard.Leaderboard) -> None:
    crossings = break_even(board)
    base = board.row(board.baseline)
    if not crossings or base is None:
        st.info("Needs figures of the baseline and of one more setting.")
        return
    names = _names(board)
    st.markdown(
        f"Against **{escaped(names[base.key])}**, its preparation included:",
        help="The number of epochs from which a setting's total time is below the baseline's. In brackets: what the "
        "95% interval of its speed-up allows.",
    )
    st.markdown(
        "\n".join(f"- **{escaped(names[b.key])}**: {escaped(b.sentence)}" for b in crossings)
    )
    live_chart.plot(charts.break_even_chart(board), key="tournament-break-even", height=CHART_PX)


def _setting(now: TournamentState, board: leaderboard.Leaderboard) -> None:
    names = _names(board)
    key = st.selectbox(
        "Setting",
        list(names),
        format_func=names.__getitem__,
        **widgets.kept(SETTING),
        help="In the order of the leaderboard.",
    )
    row = board.row(key or "")
    if row is None:
        return
    if row.entry.reason:
        st.info(f"{STATUSES[row.entry.status].capitalize()}: {escaped(row.entry.reason)}")
    if row.entry.status != "refused":
        draw_ways_on(now, row, board, best=False)
    if not row.entry.outcomes:
        return
    runs = [
        (resources.store().run(outcome.run_id), outcome.round) for outcome in row.entry.outcomes
    ]
    tables.draw(RUN_COLUMNS, runs, key="tournament-runs", placeholder="–")
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown("Every step of it:", width="content")
        for outcome in row.entry.outcomes:
            st.page_link(
                "pages/profile.py",
                label=f"run {outcome.run_id} (round {outcome.round})",
                icon=":material/monitoring:",
                query_params={"run": str(outcome.run_id)},
                width="content",
                help="Opens it on Profile: verdict, charts, headroom.",
            )


RUN_COLUMNS: tuple[tables.Column, ...] = (
    tables.Column("Round", "Every setting runs once in each.", lambda run, number: number),
    tables.Column("Run", "Its number in History.", lambda run, _: run.id, "%d"),
    tables.Column("Status", "How it ended, or that it has not.", lambda run, _: run.status),
    tables.of_summary("Samples/s", "samples_per_s"),
    tables.of_summary("Device idle (%)", "device_idle_frac", 100),
    tables.of_summary("Steps", "n_steady_steps"),
    tables.of_summary("Took (s)", "wall_s"),
    tables.Column("Remark", "What went wrong, or what it did first.", lambda run, _: _remark(run)),
)


def _remark(run: StoredRun) -> str:
    stage_s = run.summary.stage_s if run.summary else 0
    return run.error or (f"{formats.seconds(stage_s)} of copying first" if stage_s > 0 else "")


SECTIONS: dict[str, tuple[str, Callable[[TournamentState, leaderboard.Leaderboard], None]]] = {
    "speed": ("Throughput", _speed),
    "table": ("Epochs by batch size", _article),
    "heat": ("Heat map", _heat),
    "costs": ("What it costs", _costs),
    "break-even": ("Break-even", _break_even),
    "setting": ("One setting", _setting),
}
"""Name in the URL -> label, and the function that draws it."""
OF_OWN_SCRIPTS = ("speed", "costs", "setting")
"""Those that mean something for a user's own script: its epochs are not counted, and nothing of it is prepared."""
