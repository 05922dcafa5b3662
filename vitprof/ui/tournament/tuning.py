"""Tuning one strategy: workers, prefetch and batch size found within a given time, and the gain
checked.
"""

import streamlit as st

from vitprof import errors, formats
from vitprof.analysis.tournament.tuning import importances
from vitprof.charts import tournament as charts
from vitprof.config import PARTS, RunConfig, availability, bounds, estimates, strategies
from vitprof.experiments import tuning as search
from vitprof.recording.columns import LIVE_STATUSES
from vitprof.ui import live_chart, resources, tables, texts, widgets
from vitprof.ui.tournament import fields, state, table

POLL_S = 1.0
LEAST_TIME_S = 10.0
"""Less is too short for two runs of each of two settings."""
TUNED_AT_FIRST = "workers"
CHART_PX = 340


def draw_tuning() -> None:
    texts.draw_problem()
    running = state.work().running
    if not running:
        with st.container(border=True):
            _draw_form()
    st.fragment(_draw_work, run_every=POLL_S if running else None)(running)


def _draw_form() -> None:
    st.header("Find workers, prefetch and batch size for one strategy", anchor=False)
    rejected = fields.reject_unusable()
    fields.draw_job()
    left, middle, right = st.columns(3, vertical_alignment="bottom")
    strategy: str | None = left.selectbox(
        "Strategy",
        list(strategies.STRATEGIES),
        index=list(strategies.STRATEGIES).index(TUNED_AT_FIRST),
        **widgets.kept("tune_strategy"),
        help="The strategy to tune.",
    )
    seconds = middle.number_input(
        "Time (s)",
        min_value=LEAST_TIME_S,
        max_value=float(bounds.TUNING_S.most),
        value=search.DEFAULT_S,
        step=10.0,
        format="%g",
        **widgets.kept("tune_seconds"),
        help="For all of it, including the start of each run. More time tries more settings, each for longer.",
    )
    same_batch = right.toggle(
        "Keep the batch size",
        **widgets.kept("tune_same_batch"),
        help=f"Leave it at {widgets.settings()['batch_size']}, as in the settings of Profile: another one also "
        "changes how the model learns.",
    )
    plan = strategies.STRATEGIES[strategy or TUNED_AT_FIRST]
    problem = ""
    base: RunConfig | None = None
    try:
        info = widgets.data_set()
        base = widgets.job(plan, info, "name", "replay", *PARTS, "workers", "prefetch_factor")
        if reason := availability.why_unavailable(plan, info, resources.machine()):
            problem = f"Not possible here: {reason}"
    except errors.ConfigError as error:
        problem = widgets.wrong(error)
    for text in (rejected, problem):
        if text:
            st.error(texts.escaped(text))
    if base is not None and not problem:
        st.markdown(f":material/schedule: **{_forecast(base, seconds, same_batch)}**")
    widgets.say_settings()
    busy = state.running_tournament() is not None or bool(resources.store().runs(LIVE_STATUSES))
    texts.act_button(
        "Start tuning",
        "tune-start",
        "tune",
        lambda: state.start_tuning(base, seconds, same_batch),
        "Tries many settings for a short time, the best third of them for longer, and so on "
        "(successive halving). "
        "Then runs the winner and the strategy's own setting in turns to check the gain.",
        type="primary",
        disabled=bool(problem) or busy,
    )
    if busy:
        st.caption(
            "A tournament or other runs are running or waiting; they would disturb it. Start it "
            "after them."
        )


def _forecast(base: RunConfig, seconds: float, same_batch: bool) -> str:
    """Returns how many settings the time is enough for, and how much would be enough, in words."""
    batch_sizes = (base.batch_size,) if same_batch else None
    n = len(search.candidates(base, batch_sizes))
    a_run_s = search.OVERHEAD_S[base.isolation] + search.LEAST_S
    enough = search.enough_of(n)
    tried = search.settings_within(seconds, n, a_run_s)
    words = f"Time for about {tried} of {formats.count(n, 'setting')}"
    if tried >= enough:
        return f"{words}."
    longer = estimates.about(search.seconds_for(enough, n, a_run_s))
    return f"{words}: too few to say anything. Give it about {longer}."


@texts.guarded
def _draw_work(was_running: bool) -> None:
    tuning = state.work()
    if tuning.running != was_running:
        if was_running:
            st.toast("Tuning is done.", icon=":material/tune:")
        st.rerun(scope="app")
    if tuning.running:
        tuning.draw_progress("tune", help="Ends the tuning; the best setting so far is the result.")
        return
    if tuning.error:
        st.error(f"Nothing was tuned: {texts.escaped(tuning.error)}")
    if tuning.result is not None:
        _draw_found(tuning.result)


def _draw_found(tuning: search.Tuning) -> None:
    with st.container(border=True):
        st.header("Found", anchor=False)
        st.markdown(f"{texts.escaped(tuning.sentence)}.")
        if tuning.gains:
            if table.use_button("tune-use"):
                table.use_setting(tuning.config, "the tuning")
            st.code(search.run_command(tuning.config), language="bash", wrap_lines=True)
    names = [search.candidate_in_words(t.candidate) for t in tuning.tried]
    left, right = st.columns(2)
    with left:
        live_chart.plot(
            charts.optimization_history(tuning.tried, names), key="tune-history", height=CHART_PX
        )
    with right:
        mattered = importances(tuning.tried)
        if mattered.shares:
            live_chart.plot(
                charts.importance_bars(mattered), key="tune-importances", height=CHART_PX - 60
            )
        else:
            st.header("Hyperparameter importances", anchor=False)
        st.caption(texts.escaped(mattered.sentence))
    tables.draw(COLUMNS, list(enumerate(tuning.tried, 1)), key="tune-table", placeholder="–")
    st.caption(
        "Kept until the dashboard ends. Its runs stay in History, among the helper runs (see "
        "Filters there)."
    )


COLUMNS: tuple[tables.Column, ...] = (
    tables.Column("Trial", "In the order in which they ran.", lambda n, t: n),
    tables.Column(
        "Setting", "What was tried.", lambda n, t: search.candidate_in_words(t.candidate)
    ),
    tables.Column(
        "Stage",
        "Each rung trains fewer settings for longer. check: the winner and the strategy's own setting, run again.",
        lambda n, t: f"rung {t.rung}" if t.rung else "check",
    ),
    tables.Column("Samples/s", "Steady-state throughput.", lambda n, t: t.samples_per_s),
    tables.Column("Run", "Its number in History.", lambda n, t: t.run_id, "%d"),
    tables.Column("Remark", "Why it has no figure.", lambda n, t: t.error),
)
