"""The History page: search, order and filters, one page of the list at a time, and the import of
runs.

Only the rows of that page are read, and only the columns that the list shows. A widget's key is its
name in the URL, where it keeps its value by itself. Some are plural so that they differ from the
names of the sidebar's settings.
"""

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st
from streamlit import column_config as column

from vitprof import formats, program, store
from vitprof.charts import style
from vitprof.config.bounds import MAX_SEARCH
from vitprof.errors import VitprofError
from vitprof.export import bundle
from vitprof.store.nodes import PossiblePart
from vitprof.ui import history_actions, notifications, resources, tables, texts, widgets

CHECK_S = 3.0
"""Seconds between two checks whether the list has changed: a run may be started from a console."""


@texts.guarded
def page() -> None:
    st.title("History", anchor=False)
    texts.draw_problem()
    if not resources.store().count_runs(EVERY_RUN):
        _draw_nothing_yet()
        _draw_anew_when_changed(EVERY_RUN, Drawn())
        return
    with st.container(horizontal=True, vertical_alignment="bottom", key="history-head"):
        query = draw_search()
        draw_import()
        history_actions.draw_deleted()
    draw_joining()
    _draw_list(query)
    st.query_params.pop(widgets.RUNS, None)  # Compare's; the browser's Back leaves it in the URL


EVERY_RUN = store.RunQuery(helpers=True)


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a list was drawn of, as far as it may change by itself."""

    total: int = 0
    """Runs that match the query."""
    helpers: store.HelperCounts = store.HelperCounts(0, 0)
    """Runs made for others that match it, whether listed or not."""
    live: frozenset[tuple[int, str]] = frozenset()
    """Number and status of each run of the page that goes on."""
    listed: frozenset[int] = frozenset()
    """Numbers of the runs of the page."""


def _draw_anew_when_changed(query: store.RunQuery, drawn: Drawn) -> None:
    """Draws the page anew once another program has started, ended or deleted a run of this list.

    Not while a dialog is open: that would be closed, and what was typed lost.
    """
    dialog_open = bool(st.session_state.get(notifications.DIALOG_OPEN))
    if not dialog_open:
        st.fragment(_check, run_every=CHECK_S)(query, drawn)


def _check(query: store.RunQuery, drawn: Drawn) -> None:
    with contextlib.suppress(VitprofError):  # the store is away; the next draw says so
        if _as_of_now(query, drawn.listed) != drawn:
            st.rerun(scope="app")


def _as_of_now(query: store.RunQuery, listed: frozenset[int]) -> Drawn:
    """Returns what a list of the runs with these numbers would be drawn of now."""
    runs = resources.store()
    live = frozenset((run.id, run.status) for run in runs.live_runs() if run.id in listed)
    return Drawn(runs.count_runs(query), runs.count_helpers(query), live, listed)


@texts.guarded
def _draw_list(query: store.RunQuery) -> None:
    """Draws the runs found.

    The actions and the table are above the pager, but drawn after it: they depend on it.
    """
    total = resources.store().count_runs(query)
    helpers = resources.store().count_helpers(query)
    if not total:
        _draw_no_match(query, helpers)
        _draw_anew_when_changed(query, Drawn(total, helpers))
        return
    with st.container(key="history-list"):
        bar = st.container(key="history-actions")
        listed = st.container()
    before, size, more = draw_pager(total, helpers, helpers_listed=query.helpers)
    with listed:
        rows = resources.store().list_runs(query, limit=size, offset=before)
        ticked = draw_table(rows, more=more)
    with bar:
        history_actions.draw_actions(ticked)
    live = frozenset((row.id, row.status) for row in rows if row.live)
    numbers = frozenset(row.id for row in rows)
    _draw_anew_when_changed(query, Drawn(total, helpers, live, numbers))


def _draw_nothing_yet() -> None:
    st.info(
        f"No runs yet. Every run that you make, here or with `{program.program()} run`, is listed "
        "on this page. "
        "Open **Profile** and press **Run**, or import runs from another machine.",
        icon=":material/history:",
    )
    with st.container(horizontal=True):
        if st.button(
            "Open Profile",
            icon=":material/monitoring:",
            type="primary",
            help="To make the first run.",
        ):
            st.switch_page("pages/profile.py")
        draw_import()
        history_actions.draw_deleted()


def _draw_no_match(query: store.RunQuery, helpers: store.HelperCounts) -> None:
    text = query.text.strip()
    narrowed = bool(text) or any(query.filters.values())
    words = "No run of your own yet."
    if narrowed:
        sought = f"the search for **{texts.escaped(text)}**" if text else "these filters"
        words = f"No run matches {sought}."
    hidden = not query.helpers and helpers.total
    if hidden:
        words += f" There {'is' if helpers.total == 1 else 'are'} {helpers_in_words(helpers)}."
    st.info(words, icon=":material/search_off:")
    with st.container(horizontal=True):
        if narrowed:
            st.button(
                "Clear search and filters",
                key="history-clear",
                on_click=clear,
                icon=CLEAR_ICON,
                help="Shows every run again.",
            )
        if hidden:
            _draw_switch(helpers_listed=False)


HELPERS = "helpers"
"""Key of the switch for runs made for others, and its name in the URL."""
HELPERS_LABEL = "Also runs of tournaments and headroom"
HELPERS_HELP = "Runs made for another one: anchors of its headroom, and trials of tournaments."


def helpers_in_words(helpers: store.HelperCounts) -> str:
    """Returns how many runs were made for others: 38 of tournaments, 38 of tournaments and 2
    made for other runs.
    """
    parts = []
    if helpers.of_tournaments:
        parts.append(f"{helpers.of_tournaments:,} of tournaments")
    if helpers.of_runs:
        parts.append(f"{helpers.of_runs:,} made for other runs")
    return " and ".join(parts)


def _draw_switch(*, helpers_listed: bool) -> None:
    """Draws the button that shows the runs made for others, or hides them."""
    words = "Hide those" if helpers_listed else "Show those"
    st.button(
        words,
        key="history-switch-helpers",
        type="tertiary",
        on_click=_list_helpers,
        args=(not helpers_listed,),
        help=f"{HELPERS_HELP} The same as *{HELPERS_LABEL}* under *Filters*.",
    )


def _list_helpers(wanted: bool) -> None:
    st.session_state[HELPERS] = wanted
    show_first_page()


TURN = "history-import-turn"


def draw_import() -> None:
    """Draws an uploader that imports a file as soon as it is chosen."""
    turn = st.session_state.setdefault(TURN, 0)
    about = f"Runs that were exported on another machine, as a *{bundle.SUFFIX} file."
    with st.popover("Import", icon=":material/upload:", key="history-import", help=about):
        uploaded = st.file_uploader(
            "Runs from another machine",
            type=bundle.SUFFIX.removeprefix("."),
            key=f"history-upload-{turn}",
            max_upload_size=bundle.MAX_FILE_BYTES // 2**20,
            help=f"A {bundle.SUFFIX} file of at most {formats.size(bundle.MAX_FILE_BYTES)}, written by Export on "
            f"another machine's History page or by `{program.program()} bundle`. It is checked before it is stored.",
        )
        if uploaded is not None:
            with st.spinner("Checking and storing the runs..."):
                texts.act(lambda: _import(uploaded))
            # another uploader, which is empty: a rerun does not import the file again
            st.session_state[TURN] += 1
            st.rerun()


def _import(file: st.runtime.uploaded_file_manager.UploadedFile) -> None:
    came = bundle.import_bundle(resources.store(), file)
    notifications.say_there(formats.sentence(came.sentence), ":material/check:")
    st.session_state.setdefault(TO_JOIN, []).extend(came.possible)


TO_JOIN = "history-to-join"
"""Imported runs that may be parts of others' jobs, which a person is asked."""


def draw_joining() -> None:
    """Asks whether imported runs are of one job with others, where no id says so."""
    for part in st.session_state.get(TO_JOIN, ()):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.info(texts.escaped(formats.sentence(part.sentence)), icon=":material/device_hub:")
            texts.act_button(
                "Join",
                f"history-join-{part.run_id}",
                "merge",
                partial(_join, part),
                "Makes one run of them, with the ranks of both. It cannot be undone.",
            )
            texts.act_button(
                "Leave apart",
                f"history-apart-{part.run_id}",
                "call_split",
                partial(_leave_apart, part),
                "Keeps them as two runs.",
            )


def _leave_apart(part: PossiblePart) -> None:
    st.session_state[TO_JOIN].remove(part)


def _join(part: PossiblePart) -> None:
    _leave_apart(part)
    joined = bundle.join_imported(resources.store(), [part.run_id], unsure=True)
    notifications.say_there(formats.sentence(joined.line), ":material/check:")


SIZES = (25, 50, 100)
SORTS: dict[str, tuple[str, bool]] = {
    "Newest first": ("id", True),
    "Oldest first": ("id", False),
    "Name, A to Z": ("name", False),
    "Strategy, A to Z": ("strategy", False),
    "Fastest first": ("samples_per_s", True),
    "Slowest first": ("samples_per_s", False),
    "Most idle first": ("idle_frac", True),
    "Least idle first": ("idle_frac", False),
}
"""Label -> column to sort by, whether the largest comes first."""
FILTERS: dict[str, tuple[str, str, str]] = {
    "verdicts": (
        "Verdict",
        "verdict",
        "Whether loading held the device up, as the run's page says it.",
    ),
    "strategies": (
        "Strategy",
        "strategy",
        "How the samples were stored, loaded and brought to the device.",
    ),
    "datasets": ("Data set", "dataset", "What the run was trained on."),
    "devices": ("Device", "device", "As requested: auto, cpu, cuda:N or a simulated one."),
    "statuses": ("Status", "status", "How the run ended, or that it is still running."),
    "tags": ("Tag", "tag", "Runs with any of these tags."),
    "users": ("User", "user", "Who made the run."),
    "hosts": ("Machine", "host", "Where it was made."),
    "projects": ("Project", "project", "What VITPROF_PROJECT named when it was made."),
}
"""Key of the widget -> label, what `RunQuery` and `RunStore.choices` call it, help."""
OF_SEVERAL = ("users", "hosts", "projects")
"""Filters that are shown only where there are several values to choose from."""
SEARCH = "q"
PAGE = "page"
CLEAR_ICON = ":material/filter_alt_off:"


def show_first_page() -> None:
    """Goes to the first page, as another search needs."""
    st.session_state[PAGE] = 1


OF_SEARCH: dict[str, Any] = {"on_change": show_first_page, "bind": widgets.IN_URL}
"""What the widgets of a search have in common."""


@st.cache_data(ttl=60, show_spinner=False, refresh_mode="background")
def owners(field: str) -> list[str]:
    """Returns the values of a filter of `OF_SEVERAL`.

    They are kept: there is rarely a new one, and 10^5 runs take 0.1 s or more for each filter. They
    are read anew beside the page, which waits for them only after two minutes without anybody.
    """
    return resources.store().choices(field)


def draw_search() -> store.RunQuery:
    """Draws search, order and filters; returns the query that they make."""
    text = st.text_input(
        "Search",
        key=SEARCH,
        placeholder="name, note, tag, strategy, #12",
        help="Words; a run must have each of them in its name, note, tags, strategy, data set or device. "
        "A number finds the run with that number.",
        icon=":material/search:",
        max_chars=MAX_SEARCH,
        **OF_SEARCH,
    )
    sort = st.selectbox(
        "Sort by",
        list(SORTS),
        key="sort",
        help="The order of all runs, not only of this page. Runs without the figure come last.",
        width=170,
        **OF_SEARCH,
    )
    by, descending = SORTS[str(sort)]
    about = "By verdict, strategy, data set, device, status and tag."
    icon = ":material/filter_alt:"
    with st.popover("Filters", icon=icon, help=about, key="history-filters"):
        helpers = st.toggle(HELPERS_LABEL, key=HELPERS, help=HELPERS_HELP, **OF_SEARCH)
        about = "Shows every run again."
        st.button(
            "Clear filters",
            key="history-clear-filters",
            on_click=clear,
            icon=CLEAR_ICON,
            help=about,
        )
        chosen: dict[str, Any] = {}
        for name, (label, field, about) in FILTERS.items():
            named = [value for value in st.query_params.get_all(name) if value]
            choices = owners if name in OF_SEVERAL else resources.store().choices
            known = choices(field)
            options = sorted({*known, *named})  # a URL may name what no run has
            if name in OF_SEVERAL and len(options) < 2 and not named:
                continue
            chosen[field] = tuple(
                st.multiselect(label, options, key=name, help=about, placeholder="any", **OF_SEARCH)
            )
    n = sum(bool(values) for values in (*chosen.values(), helpers))
    if n:
        st.badge(f"{n} set", help="Filters that narrow or widen the list.")
    return store.RunQuery(
        text=text, filters=chosen, helpers=helpers, sort=by, descending=descending
    )


def draw_pager(
    total: int, helpers: store.HelperCounts, *, helpers_listed: bool
) -> tuple[int, int, bool]:
    """Draws the choice of a page of `total` runs, and of more columns; returns how many runs come
    before the page, its size, and whether all columns are wanted.

    `helpers`: how many runs made for others match, which are among those listed if `helpers_listed`.
    """
    with st.container(horizontal=True, vertical_alignment="bottom", key="history-pager"):
        # shown before the size, drawn after it: it depends on it
        numbers = st.container(width="content")
        about = "How many runs are listed at a time."
        chosen = st.selectbox(
            "Runs per page", SIZES, key="size", help=about, width=120, **OF_SEARCH
        )
        size = chosen or SIZES[0]
        pages = math.ceil(total / size)
        page_shown = numbers.pagination(pages, key=PAGE, bind=widgets.IN_URL)
        before = size * (page_shown - 1)
        listed = formats.count(total, "run")
        if pages > 1:
            listed = f"{before + 1:,} to {min(before + size, total):,} of {listed}"
        if helpers.total:
            made = helpers_in_words(helpers)
            listed += f", with {made}" if helpers_listed else f", and {made}"
        with st.container(horizontal=True, vertical_alignment="center", width="content"):
            st.caption(listed, width="content")
            if helpers.total:
                _draw_switch(helpers_listed=helpers_listed)
        more = st.toggle(
            "More columns",
            **widgets.kept(MORE),
            help="Also a picture of the idle time over the run, strategy, data, batch size, device, tags, note, "
            "and all idle time.",
        )
    return before, size, more


def clear() -> None:
    """Clears search and filters."""
    st.session_state[SEARCH] = ""
    for name in FILTERS:
        st.session_state[name] = []
    show_first_page()


CHIPS: dict[str, str] = {
    **style.CHIPS,
    "almost certainly starved": style.CHIPS["input-bound"],
    "disturbed": style.NEUTRAL,
    "partly watched": style.NEUTRAL,
    "not measurable here": style.NEUTRAL,
    "queued": style.GPU_UTIL,
    "running": style.GPU_UTIL,
    "stopped": style.NEUTRAL,
    "failed": "#B3261E",
    "interrupted": "#B3261E",
    "simulated": "#4A5563",
}
"""Words of the verdict column -> colour: verdicts as in `style.CHIPS`; the other words are states.
The text is white, with a contrast of at least 4.5 to 1 (WCAG 2, 1.4.3)."""
TICKED = "runs ticked in History"
"""Key of their ids in the session: after opening or comparing them, the user finds them still
ticked."""


OPENED = "history-opened"
"""Key of the click on a run's button in the table."""


def chips(row: store.RunRow) -> list[str]:
    """Returns the words of the verdict column."""
    words = []
    if row.verdict_kind:
        words.append(row.verdict_kind)
    if row.status != "done":
        words.append(row.status)
    if row.simulated:
        words.append("simulated")
    return words


def sparkline(values: Sequence[float | None]) -> list[float]:
    """Returns the values, each unknown one replaced by the one before it.

    One is unknown where an evaluation took all of the time.
    """
    line = []
    last = 0.0
    for value in values:
        if value is not None:
            last = value
        line.append(last)
    return line


COLUMNS: dict[str, tuple[Callable[[store.RunRow], Any], Any]] = {
    "run": (
        lambda r: r.id,
        column.NumberColumn("Run", help="Number of the run.", format="%d", pinned=True, width=46),
    ),
    "open": (
        lambda r: "Open",
        # a click on a cell would do it, too, but so would the keyboard's arrows and the tab key
        column.ButtonColumn(
            "Open", type="tertiary", help="Its verdict, charts and figures.", width=60, key=OPENED
        ),
    ),
    "idle": (
        lambda r: tables.in_percent(r.idle_frac),
        column.NumberColumn("Idle", help=tables.IDLE_HELP, format="%g%%", width=60),
    ),
    "name": (
        lambda r: r.name,
        column.TextColumn(
            "Name",
            help="Its name; Edit changes it. A double click shows all of a long one.",
            width=344,
        ),
    ),
    "verdict": (
        chips,
        column.MultiselectColumn(
            "Verdict",
            help="Whether loading held the device up. A run that failed or was stopped says so; simulated: no real "
            "device was used.",
            options=list(CHIPS),
            color=list(CHIPS.values()),
            width=240,
        ),
    ),
    "spark": (
        # without a figure there was no device work, as in a loader-only run, and nothing that could
        # idle
        lambda r: [] if r.device_idle_frac is None else sparkline(r.spark),
        column.AreaChartColumn(
            "Over the run",
            help="Share of the time in which the device computed nothing, for whatever reason, from the run's first "
            "step to its last. Full height: idle all the time.",
            y_min=0,
            y_max=1,
            color=style.NEUTRAL,
            width=100,
        ),
    ),
    "speed": (
        lambda r: None if r.samples_per_s is None else tables.rounded(r.samples_per_s),
        column.NumberColumn(
            "Samples/s", help=tables.help_of("samples_per_s"), format="localized", width=84
        ),
    ),
    "device_idle": (
        lambda r: tables.in_percent(r.device_idle_frac),
        column.NumberColumn(
            "Device idle, any reason", help=tables.DEVICE_IDLE_HELP, format="%g%%", width=160
        ),
    ),
    "strategy": (
        lambda r: r.strategy,
        column.TextColumn("Strategy", help=FILTERS["strategies"][2]),
    ),
    "dataset": (
        lambda r: r.dataset,
        column.TextColumn("Data", help=FILTERS["datasets"][2], width=80),
    ),
    "batch": (
        lambda r: r.batch_size,
        column.NumberColumn("Batch", help="Samples for each step.", format="%d", width=70),
    ),
    "device": (lambda r: r.device, column.TextColumn("Device", help="As requested.")),
    "tags": (
        lambda r: list(r.tags),
        column.ListColumn("Tags", help="Words of your own; Edit changes them."),
    ),
    "by": (
        lambda r: f"{r.owner_user}@{r.owner_host}",
        column.TextColumn("By", help="Who made it, and where."),
    ),
    "note": (
        lambda r: r.note,
        column.TextColumn("Note", help="What you wrote about it; Edit changes it."),
    ),
}
"""Name of a column -> its value for a run, and how it is shown."""
FIRST = ("run", "open", "idle", "name", "verdict", "speed", "created")
"""The columns that are always shown, which fit a window of 1366 px; the others come on request."""
MORE = "more"
"""Whether the other columns are shown, in the URL."""


def draw_table(rows: Sequence[store.RunRow], *, more: bool) -> list[store.RunRow]:
    """Draws the table; returns the rows that are ticked, in the order of the table."""
    zone = st.context.timezone
    # Ticks are positions, so a page with other runs needs another key.
    key = f"history-table-{hash((more, *(row.id for row in rows)))}"
    if key not in st.session_state:  # another page was shown meanwhile, or other runs
        ticked_before = st.session_state.get(TICKED, ())
        at = [at for at, row in enumerate(rows) if row.id in ticked_before]
        st.session_state[key] = {"selection": {"rows": at, "columns": [], "cells": []}}
    data = {name: [value(row) for row in rows] for name, (value, _) in COLUMNS.items()}
    if len({*data["by"]}) == 1:
        del data["by"]
    data["created"] = pd.to_datetime([row.created_utc for row in rows], utc=True, errors="coerce")
    config = {name: config for name, (_, config) in COLUMNS.items()}
    about_zone = f"your time zone ({zone})" if zone else "UTC"
    config["created"] = column.DatetimeColumn(
        "Made",
        help=f"When it was queued, in {about_zone}.",
        format="YYYY-MM-DD HH:mm",
        timezone=zone or "UTC",
        width=118,
    )
    select: dict[str, Any] = {"on_select": "rerun", "selection_mode": "multi-row"}
    order = list(FIRST)
    if more:
        order += [name for name in data if name not in FIRST]
    shown = tables.show(
        pd.DataFrame(data)[order], key=key, placeholder="", column_config=config, **select
    )
    ticked = [rows[at] for at in shown["selection"]["rows"] if at < len(rows)]
    st.session_state[TICKED] = {row.id for row in ticked}
    clicked = st.session_state.get(OPENED)
    if clicked is not None and clicked["row"] < len(rows):
        history_actions.open_in_profile(rows[clicked["row"]].id)
    return ticked
