"""The Compare page: the choice of runs and of the baseline, whether they compare fairly, their table, and one section
at a time. Fast however many runs there are: the database searches, and the browser gets one page of names.

Runs and baseline are kept in the URL by our own code, as run numbers. Streamlit would keep the labels there, such as
"3: a name", and drop runs that are not in the list at the moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import streamlit as st

from vitprof.analysis.compare.comparison import slowest
from vitprof.analysis.compare.differences import Caveat
from vitprof.analysis.compare.guard import comparability
from vitprof.config.bounds import MAX_SEARCH
from vitprof.errors import StoreError
from vitprof.recording.columns import ENDED_STATUSES
from vitprof.store import RunQuery, RunRow, StoredRun
from vitprof.ui import resources
from vitprof.ui.compare.charts import draw_device_time, draw_headroom, draw_settings, draw_steps, draw_waits
from vitprof.ui.compare.table import draw_table
from vitprof.ui.downloads import draw_downloads_many
from vitprof.ui.findings import facts_of
from vitprof.ui.texts import escaped, guarded
from vitprof.ui.widgets import RUNS, choose

MOST_WARNINGS = 3
"""Warnings shown in full; more than that are a count to open."""

SECTIONS: dict[str, str] = {
    "device": "Device time",
    "steps": "Every step",
    "waits": "Data waits",
    "headroom": "Headroom",
    "settings": "Settings that differ",
}


@guarded
def page() -> None:
    """Draws the whole page."""
    st.title("Compare runs", anchor=False)
    runs, baseline = pick_runs()
    if not runs:
        return
    if len({run.config.loader_only for run in runs}) > 1:
        st.warning("Some of these runs trained and some only loaded, so their speeds cannot be compared.")
    draw_caveats(runs)
    draw_table(runs, baseline)
    draw_downloads_many(runs)
    section = choose(
        "show",
        "Show",
        SECTIONS,
        default="device",
        help="Only the section shown is computed.",
        show_label=False,
    )
    drawn: dict[str, Callable[[], None]] = {
        "device": lambda: draw_device_time(runs),
        "steps": lambda: draw_steps(runs),
        "waits": lambda: draw_waits(runs),
        "headroom": lambda: draw_headroom(runs),
        "settings": lambda: draw_settings(runs, baseline),
    }
    guarded(drawn[section])()


def draw_caveats(runs: Sequence[StoredRun]) -> None:
    """Draws what makes the comparison unfair: a few warnings in full, everything else a click away."""
    differences = caveats(runs)
    warnings = [c for c in differences if c.level == "warning"]
    many = len(warnings) > MOST_WARNINGS
    rest = differences if many else [c for c in differences if c.level != "warning"]
    if not many:
        for caveat in warnings:
            st.warning(escaped(caveat.sentence), icon=":material/balance:")
    if rest:
        count = f":material/balance: {len(warnings)} warnings: this comparison is not fair"
        with st.expander(count if many else "What else differs"):
            for caveat in rest:
                st.markdown(f"- {escaped(caveat.sentence)}")


def caveats(runs: Sequence[StoredRun]) -> tuple[Caveat, ...]:
    """Returns what differs between runs besides the way they load their data, see `analysis.compare.guard`."""
    return comparability([facts_of(run.id) for run in runs])


OFFERED = 100
"""Runs in the list at a time; the others are found by typing."""
MAX_RUNS_IN_URL = 400
"""Run numbers that are read from a URL, at most; 2,000 characters hold about as many."""
KEY, CHOSEN = "compare-runs", "compare runs chosen"
BASELINE, BASELINE_KEY = "baseline", "compare-baseline"
GONE_NAMED = 5
"""Missing runs whose numbers are shown, at most."""
AUTOMATIC = 0
"""In place of a run's number: the slowest of the chosen runs."""


def pick_runs() -> tuple[list[StoredRun], int | None]:
    """Draws the picker; returns the chosen runs in the order chosen, and the position of the baseline among them.

    No runs where there are none to choose, or none is chosen.
    """
    store = resources.store()
    if not store.count_runs(RunQuery(statuses=ENDED_STATUSES, helpers=True)):
        _draw_no_runs()
        return [], None
    above = st.container()
    left, right = st.columns([1, 2], vertical_alignment="bottom")
    text = left.text_input(
        "Find runs",
        key="compare-find",
        placeholder="memory photos, #12, …",
        help="Narrows the list above: words of the name, note, strategy, data set, device or a tag, or a number. "
        "Runs that are chosen already stay.",
        max_chars=MAX_SEARCH,
    )
    helpers = st.checkbox(
        "Also runs made for headroom, predictions and tournaments",
        key="compare-helpers",
        help="Anchors, loader-only runs and trials: short runs that another page made for its own figures.",
    )
    query = RunQuery(text=text, statuses=ENDED_STATUSES, helpers=helpers)
    rows = [row for row in store.list_runs(query, limit=OFFERED) if row.samples_per_s is not None]
    if RUNS in st.query_params:
        known, missing = _named(ids(st.query_params[RUNS]))
    else:  # the runs shown before: the browser's Back passes through a URL without a query
        known, missing = _named(st.session_state.get(CHOSEN, []))[0], []
        known = known or _named(sorted(row.id for row in rows[:2]))[0]
    st.session_state[CHOSEN] = list(known)
    if not missing:  # otherwise the URL and the warning about it stay until other runs are chosen
        write_numbers(RUNS, known)
    st.session_state[KEY] = list(known)
    labels = {row.id: _label(row) for row in rows} | {run.id: _label(run) for run in known.values()}
    chosen: list[int] = above.multiselect(
        "Runs",
        list(dict.fromkeys([*known, *(row.id for row in rows)])),
        format_func=lambda run_id: labels[run_id],
        help="Runs that have ended, the newest first. Any number of them.",
        placeholder="Choose runs",
        key=KEY,
        on_change=lambda: write_numbers(RUNS, st.session_state[KEY]),
    )
    if missing:
        _say_what_is_missing(missing)
    total = store.count_runs(query)
    if total > OFFERED:
        st.caption(f"The list shows the newest {OFFERED} of {total:,} runs; type in “Find runs” to find the others.")
    elif text and not rows:
        st.caption(f"No finished run has “{escaped(text)}” in its name, note, strategy, data set or tags.")
    if not labels and not text:
        _draw_no_runs()
    elif not chosen:
        st.info("Choose at least one run. With two or more you see what differs.", icon=":material/compare_arrows:")
    elif len(chosen) == 1:
        st.caption("Choose a second run above to compare this one with.")
    runs = [known[run_id] if run_id in known else store.run(run_id) for run_id in chosen]
    with right:
        return runs, pick_baseline(runs)


def write_numbers(name: str, run_ids: Iterable[int]) -> None:
    """Writes run numbers into the URL; no numbers replace others by an empty text."""
    text = ",".join(map(str, run_ids))
    if st.query_params.get(name, "") != text:
        st.query_params[name] = text


def ids(text: str) -> list[int]:
    """Returns the run numbers of "3,7,12", each once, in order; skips what is not a number."""
    parts = text.split(",")[:MAX_RUNS_IN_URL]
    return list(dict.fromkeys(int(p) for p in parts if p.isascii() and p.isdecimal() and len(p) < 11))


def _draw_no_runs() -> None:
    st.info("No finished runs yet. Open Profile, press Run, and come back.", icon=":material/compare_arrows:")
    st.page_link("pages/profile.py", label="Open Profile", icon=":material/monitoring:")


def _named(run_ids: Sequence[int]) -> tuple[dict[int, StoredRun], list[str]]:
    """Returns the runs that can be compared, and sentences about those that cannot."""
    known: dict[int, StoredRun] = {}
    gone: list[int] = []
    missing = []
    for run_id in run_ids:
        try:
            run = resources.store().run(run_id)
        except StoreError:
            gone.append(run_id)
            continue
        if run.live:
            missing.append(f"Run {run_id} is still running; compare it when it has ended.")
        elif run.summary is None or not run.summary.n_steps:
            missing.append(f"Run {run_id} ({run.status}) has no steps, so there is nothing to compare.")
        else:
            known[run_id] = run
    if gone:
        numbers = ", ".join(map(str, gone[:GONE_NAMED])) + (", ..." if len(gone) > GONE_NAMED else "")
        which = f"Run {numbers} is" if len(gone) == 1 else f"Runs {numbers} are"
        missing.insert(0, f"{which} not in this store: deleted, or from another machine.")
    return known, missing


def _say_what_is_missing(sentences: Sequence[str]) -> None:
    """Draws one line about the runs in the URL that are not shown, and a link to all runs."""
    with st.container(horizontal=True, vertical_alignment="center"):
        st.warning(escaped(" ".join(sentences)), icon=":material/link_off:", width="stretch")
        st.page_link("pages/history.py", label="See all runs", icon=":material/history:", width="content")


def _label(run: StoredRun | RunRow) -> str:
    return f"{run.id}: {run.name}" + ("" if run.status == "done" else f" ({run.status})")


def pick_baseline(runs: Sequence[StoredRun]) -> int | None:
    """Draws the choice of a baseline where there are two runs or more; returns its position among `runs`."""
    lowest = slowest([run.summary for run in runs])
    if len(runs) < 2:
        return lowest
    options = [AUTOMATIC, *(run.id for run in runs)]
    named = next(iter(ids(st.query_params.get(BASELINE, ""))), AUTOMATIC)
    st.session_state[BASELINE_KEY] = named if named in options else AUTOMATIC
    labels = {run.id: _label(run) for run in runs}
    labels[AUTOMATIC] = "The slowest" + (f" ({_label(runs[lowest])})" if lowest is not None else "")
    chosen = st.selectbox(
        "Baseline",
        options,
        format_func=lambda run_id: labels[run_id],
        key=BASELINE_KEY,
        on_change=_write_baseline,
        help="The run that speed-ups are measured against, and whose settings the others' are compared with. It is "
        "kept in the URL.",
    )
    return lowest if chosen == AUTOMATIC else next(at for at, run in enumerate(runs) if run.id == chosen)


def _write_baseline() -> None:
    chosen = st.session_state[BASELINE_KEY]
    if chosen == AUTOMATIC:
        st.query_params.pop(BASELINE, None)
    else:
        write_numbers(BASELINE, [chosen])
