"""One tournament: the answer first, then the leaderboard, then one section with charts and
details.
"""

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Literal

import streamlit as st

from vitprof import formats
from vitprof.analysis.faster_while_busy import WHILE_BUSY
from vitprof.analysis.tournament import blocks, entries, leaderboard
from vitprof.analysis.tournament.recommend import (
    Cost,
    Recommendation,
    break_even,
    cost_of,
    recommend,
    title,
)
from vitprof.analysis.verdict import answer as answers
from vitprof.charts import tournament as charts
from vitprof.charts.heat_map import article_heat
from vitprof.config import RunConfig, accelerators, models, own_script, strategies
from vitprof.experiments.answers import proof_of
from vitprof.experiments.tournament import planning
from vitprof.experiments.tournament.alike import all_failed_words
from vitprof.experiments.tournament.tournament_view import TournamentState
from vitprof.export.tournament import tournament_csv, tournament_object
from vitprof.store import StoredRun
from vitprof.ui import answer_card, live_chart, resources, tables, texts, widgets
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
from vitprof.ui.tournament.table import (
    COST_COLUMNS,
    STATUSES,
    best_run,
    draw_table,
    draw_ways_on,
)


@guarded
def draw_tournament(tournament_id: int) -> None:
    viewed = view(tournament_id)
    now = viewed.state()
    t = now.tournament
    _draw_title(now)
    draw_problem()
    # the answer comes first once nothing has to be done any more to have it
    is_over = t.status == "done" and not t.held and not t.note
    if not is_over:
        draw_state(now)
    answer = st.container()
    if is_over:
        draw_state(now)
    _draw_settings(now)
    row = st.container(horizontal=True, vertical_alignment="bottom")
    with row:
        base = _pick_baseline(viewed.board(now), now.baseline)
    board = viewed.board(dataclasses.replace(now, baseline=base))
    recommendation = recommend(board, keep=now.baseline, goes_on=now.goes_on)
    with answer.container(border=True, key="tournament-answer"):
        _draw_answer(now, board, recommendation)
    with row:
        _downloads(now, board, recommendation)
    key = recommendation.recommended if recommendation is not None else None
    draw_table(board, key, live=t.held)
    # what was dropped from settings or added to them, each once
    remarks: dict[str, None] = {}
    for trial in now.planned:
        if trial.setting is not None:
            remarks |= dict.fromkeys(trial.setting.remarks)
    for remark in remarks:
        st.caption(escaped(formats.sentence(remark)))
    _draw_reasons(board, t.note)
    if board.best is None:
        return
    names = {name: words for name, (words, _) in SECTIONS.items()}
    if now.tournament.spec.script is not None:
        names = {name: names[name] for name in OF_OWN_SCRIPTS}
    text = "Only the section shown is computed."
    section = widgets.choose(SECTION, "Show", names, default="speed", help=text, show_label=False)
    _, draw_section = SECTIONS[section]
    guarded(draw_section)(now, board)


def _draw_title(now: TournamentState) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.title(escaped(now.tournament.name), anchor=False, width="content")
        if now.tournament.spec.base.simulated:
            simulated_badge()
        about = "The list, and the form for a new one. This one keeps running."
        texts.act_button(
            "All tournaments", "tournament-back", "arrow_back", leave, about, type="tertiary"
        )


def _draw_settings(now: TournamentState) -> None:
    """Draws what the tournament runs, and for how long, in a line."""
    t = now.tournament
    spec = t.spec
    lasts = _length_words(spec.base)
    if spec.script is None:
        device = accelerators.device_in_words(spec.base.device)
        what = f"{spec.base.dataset}, {models.model_words(spec.base.model)} on {device}"
    else:
        what = title_words(spec.script, spec.base.steps)
        lasts = f"up to {lasts}"  # the script may end before
    cut = "; settings that are clearly too slow are cut short" if spec.early_stop else ""
    st.caption(
        escaped(f"Tournament {t.id}: {what}; each run {lasts}, {planning.rounds_words(spec)}{cut}")
    )


def _length_words(base: RunConfig) -> str:
    """Returns how long each run is: "5 seconds", "1 epoch"."""
    for unit in ("seconds", "steps", "epochs"):
        number = getattr(base, unit)
        if number:
            break
    if number == 1:
        unit = unit.removesuffix("s")
    return f"{number:g} {unit}"


def title_words(script: own_script.OwnScript, steps: int | None) -> str:
    given = "; ".join(
        f"{name} {', '.join(map(value_in_words, values))}" for name, values in script.vary
    )
    return f"{planning.begin_words(script, steps)}; {given}"


def _names(board: leaderboard.Leaderboard) -> dict[str, str]:
    return {row.key: entries.setting_in_words(row.entry) for row in board.rows}


def _pick_baseline(board: leaderboard.Leaderboard, own: str) -> str:
    offered = [row for row in board.rows if row.n_runs or row.key == own]
    names = {row.key: entries.setting_in_words(row.entry) for row in offered}
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
SUREST = 0.999
"""No probability above this one is shown: it would be read as certainty."""


def _draw_answer(
    now: TournamentState, board: leaderboard.Leaderboard, recommendation: Recommendation | None
) -> None:
    """Draws the answer on top: the recommended setting, how much faster it is, and how sure that
    is.
    """
    done = now.tournament.status == "done" and not now.tournament.held
    failed = all_failed_words(now)
    if recommendation is None and failed and not now.tournament.note:  # else that is above
        st.markdown(f"**{escaped(formats.sentence(failed))}**")
        return
    if recommendation is None and failed:
        st.markdown("**No setting gave a figure.** The reasons are above, and below the table.")
        return
    if recommendation is None and done:
        st.markdown(
            "**No setting gave a figure.** The reasons are below the table: give runs more time, "
            "or choose others."
        )
        return
    if recommendation is None:
        st.markdown("**No figures yet.** The first come when the first run has ended.")
        return
    row = board.row(recommendation.while_busy or recommendation.key or "")
    with st.container(horizontal=True, vertical_alignment="center"):
        st.header(title(recommendation, ended=done), anchor=False, width="content")
        if recommendation.is_firm or recommendation.outcome == "fastest while busy":
            _draw_badges(recommendation)
    if row is not None:
        _draw_card(now, board, row)
    first, *rest = recommendation.sentences
    if recommendation.while_busy is not None:
        # what it does not say of a quiet machine is no detail
        first = f"{first} {rest.pop(0)}"
    st.markdown(escaped(first))
    if row is not None and row.entry.strategy in strategies.STRATEGIES:
        st.caption(escaped(strategies.STRATEGIES[row.entry.strategy].what))
    if rest:
        with st.expander("Details"):
            st.markdown(escaped(" ".join(rest)))
    if row is not None and recommendation.is_firm:
        draw_ways_on(now, row, board, best=True)


NO_FIX = {
    "faster": "",
    WHILE_BUSY: "",
    "equal": "none: the baseline is as fast",
    "unneeded": "none: the baseline is as fast, as far as can be seen",
    "slower": "none: the baseline is faster",
    "undecided": "not proven: undecided against the baseline",
}
"""How the recommended setting compares with the baseline -> what is said where that is no fix."""


def _draw_card(
    now: TournamentState, board: leaderboard.Leaderboard, row: leaderboard.LeaderboardRow
) -> None:
    """Draws the four answers: how the baseline was starved, and what the recommended setting
    gains."""
    base = board.row(board.baseline)
    base_run = None if base is None else best_run(base)
    if base_run is None:
        return
    verdict = resources.store().run(base_run).verdict
    if verdict is None or not verdict.is_conclusive:
        return
    found = proof_of(row, board, now.tournament.id)
    same_batch = base is not None and base.entry.batch_size == row.entry.batch_size
    answer = answers.answer_of_tournament(verdict, found, same_batch=same_batch)
    no_fix = NO_FIX["equal"]
    if row.key != board.baseline:
        no_fix = NO_FIX["undecided" if found is None else found.relation]
    answer_card.draw_answer(answer, no_fix=no_fix, starved_of="the baseline")


def _draw_badges(recommendation: Recommendation) -> None:
    """Draws how sure it is that the setting that was chosen is the fastest."""
    if not math.isfinite(recommendation.probability):
        return
    sure = f"{100 * min(recommendation.probability, SUREST):.3g}% sure"
    about = f"{sure}. {SURE_HELP}"
    if recommendation.disturbed:
        st.badge("other programs ran", color="orange", help=about)
    else:
        st.badge(sure, color="blue", help=about)


def _draw_reasons(board: leaderboard.Leaderboard, note: str) -> None:
    """Draws why settings have no figure, or one that is not of all of their runs. The tournament's own
    `note` is above, once for all.
    """
    names = _names(board)
    for row in board.rows:
        if row.spoiled:
            st.caption(escaped(f"{names[row.key]}: {leaderboard.spoiled_words(row)}."))
        if row.entry.pixels:
            st.caption(escaped(f"{names[row.key]}: {row.entry.pixels}."))
        if row.entry.losses:
            st.caption(f":material/warning: {escaped(f'{names[row.key]}: {row.entry.losses}.')}")
    explained = [row for row in board.rows if row.entry.reason and row.entry.reason != note]
    if not explained:
        return
    words = STATUSES | {"done": "not measured in full"}
    counts = Counter[str](row.entry.status for row in explained)
    counted = [f"{counts[status]} {words[status]}" for status in words if counts[status]]
    lines = []
    for row in explained:
        name = escaped(names[row.key])
        lines.append(f"- **{name}**, {words[row.entry.status]}: {escaped(row.entry.reason)}")
    with st.expander(f"Why: {', '.join(counted)}"):
        st.markdown("\n".join(lines))


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
"""The three figures of the article that vitprof follows."""


def _article(now: TournamentState, board: leaderboard.Leaderboard) -> None:
    table = leaderboard.article_table(board)
    columns = [
        tables.TableColumn(
            "Setting", "Strategy, workers, page cache.", lambda line: line.name, pinned=True
        )
    ]
    about = "Empty: no figure, see its status."
    for name, value in MEASURES.items():
        for at, batch in enumerate(table.batch_sizes):
            figure = partial(_figure, value, at)
            columns.append(tables.TableColumn(f"{name}, batch {batch:,}", about, figure))
    frame = tables.draw(
        columns, [(line,) for line in table.lines], key="tournament-article", placeholder="–"
    )
    how = "from the throughput: not every run saw a whole one"
    if board.whole_epochs:
        how = "measured: every run saw a whole one"
    words = f"Seconds for an epoch of {board.n_train:,} images, {how}."
    if not board.n_train:
        words = "How long an epoch takes is not known: no run saw a whole one, and its length was not said."
    absent = []
    for measure in ("GPU memory", "GPU-util"):
        if not any(column.startswith(measure) for column in frame.columns):
            absent.append(measure)
    if absent:
        words += f" Not available here: {' and '.join(absent)} (NVML)."
    st.caption(words)


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
    st.caption("Speed-ups leave out the time in which other programs were seen to disturb a run.")


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
    runs = [(resources.store().run(outcome.run_id), outcome) for outcome in row.entry.outcomes]
    tables.draw(RUN_COLUMNS, runs, key="tournament-runs", placeholder="–")
    if words := _figure_words(row):
        st.caption(escaped(words))
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


ROUNDING = 1e-6
"""Share by which a figure may be off as it was calculated in another order."""


def _figure_words(row: leaderboard.LeaderboardRow) -> str:
    """Returns how the figure of a setting follows from its runs, in words; "" without one."""
    if not math.isfinite(row.samples_per_s):
        return ""
    figure = formats.number(row.samples_per_s, "samples/s")
    if not row.n_runs:
        return f"The {figure} of this setting are those of all of its time: no round counts."
    words = f"The {figure} of this setting are all samples over all time that counts in these runs"
    counted = [blocks.counted_speed(outcome).per_s for outcome in row.entry.outcomes]
    known = [per_s for per_s in counted if math.isfinite(per_s)]
    if not (1 - ROUNDING) * min(known) <= row.samples_per_s <= (1 + ROUNDING) * max(known):
        words += ", brought to the mean of all rounds, as not each setting ran in the same ones"
    return f"{words}. Profile and Compare show the whole run, also what other programs disturbed."


def _counted(_: StoredRun, outcome: entries.RunOutcome) -> float:
    return blocks.counted_speed(outcome).per_s


def _left_out_pct(_: StoredRun, outcome: entries.RunOutcome) -> float:
    return 100 * blocks.counted_speed(outcome).left_out_frac


def _remark(run: StoredRun, outcome: entries.RunOutcome) -> str:
    if run.error:
        return run.error
    if blocks.counts(outcome) and blocks.is_spoiled(outcome):
        return "does not count: other programs ran"
    if run.summary is not None and run.summary.stage_s > 0:
        return f"{formats.seconds(run.summary.stage_s)} of copying first"
    return ""


RUN_COLUMNS: tuple[tables.TableColumn, ...] = (
    tables.TableColumn(
        "Round", "Every setting runs once in each.", lambda run, outcome: outcome.round
    ),
    tables.TableColumn("Run", "Its number in History.", lambda run, _: run.id, "%d"),
    tables.TableColumn("Status", "How it ended, or that it has not.", lambda run, _: run.status),
    tables.TableColumn(
        "Samples/s",
        "By the time that counts: without what other programs disturbed, and with the waits as epochs begin "
        "as often as whole epochs have them.",
        _counted,
    ),
    tables.TableColumn(
        "Left out (%)", "Time of the run that other programs disturbed.", _left_out_pct, "%.0f"
    ),
    tables.TableColumn(
        "Whole run (samples/s)",
        f"{tables.help_of('samples_per_s')} This is the figure on Profile, History and Compare.",
        lambda run, _: (run.summary or tables.NO_FIGURES).samples_per_s,
    ),
    tables.of_summary("Device idle (%)", "device_idle_frac", 100),
    tables.of_summary("Steady steps", "n_steady_steps"),
    tables.of_summary("Took (s)", "wall_s"),
    tables.TableColumn("Remark", "What went wrong, or what it did first.", _remark),
)
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
"""The sections for a user's own script. Its epochs are not counted, and nothing of it is
prepared."""
