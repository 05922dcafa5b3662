"""The Compare page: the choice of runs and of the baseline, whether they compare fairly, their
table, and one section at a time.

It is fast however many runs there are: the database searches, and the browser gets one page of
names. Runs and baseline are kept in the URL by our own code, as run numbers. Streamlit would keep
the labels there, such as "3: a name", and drop runs that are not in the list at the moment.
"""

import math
from collections.abc import Callable, Iterable, Sequence

import streamlit as st

from vitprof import errors, formats
from vitprof.analysis.compare import comparison, guard
from vitprof.analysis.compare.answer import CLOSE, ratio_in_words
from vitprof.analysis.compare.differences import Caveat
from vitprof.analysis.timing.utilisation import sm_activity
from vitprof.analysis.verdict.rendering import CLASSES, in_a_word
from vitprof.config.bounds import MAX_SEARCH
from vitprof.experiments.tournament.proofs import Decision
from vitprof.recording.columns import ENDED_STATUSES, RunSummary
from vitprof.store import RunQuery, RunRow, StoredRun
from vitprof.ui import (
    compare_answer,
    compare_sections,
    downloads,
    findings,
    resources,
    tables,
    talk,
    texts,
    widgets,
)

MOST_WARNINGS = 3
"""Warnings shown in full; more than that are a count to open."""
OFFERED = 100
"""Runs in the list at a time; the others are found by typing."""
MAX_RUNS_IN_URL = 400
"""Run numbers that are read from a URL, at most; 2,000 characters hold about as many."""
MOST_IN_SIGHT = 12
"""Chosen runs up to which all of their names are in sight; more would fill a screen."""
KEY = "compare-runs"
CHOSEN = talk.COMPARED
SUGGESTED = "compare runs suggested"
BASELINE = "baseline"
BASELINE_KEY = "compare-baseline"
AUTOMATIC = 0
"""In place of a run's number: the slowest of the chosen runs."""


@texts.guarded
def page() -> None:
    st.title("Compare runs", anchor=False)
    runs, baseline = pick_runs()
    if not runs:
        return
    facts = [findings.facts_of(run.id) for run in runs]
    trusts = guard.trusts_of(facts, baseline)
    differences = guard.comparability(facts)
    decision = None if baseline is None else compare_answer.decision_of(runs, baseline)
    other = _other(runs, baseline, trusts, decision)
    if baseline is not None and other is not None:
        may_alternate = not {c.topic for c in differences if c.level == "warning"} & OF_THE_SETTINGS
        compare_answer.draw(
            runs,
            baseline,
            other,
            facts,
            trusts[other],
            decision=decision,
            may_alternate=may_alternate,
        )
    draw_caveats(differences)
    if len(runs) == 2 and baseline is not None and trusts[1 - baseline] != "unlike":
        texts.guarded(compare_answer.draw_difference)(runs[baseline], runs[1 - baseline])
    draw_table(runs, baseline, trusts)
    downloads.draw_downloads_many(runs)
    drawn: dict[str, tuple[str, Callable[[], None]]] = {
        "device": ("Device time", lambda: compare_sections.draw_device_time(runs)),
        "steps": ("Every step", lambda: compare_sections.draw_steps(runs)),
        "waits": ("Data waits", lambda: compare_sections.draw_waits(runs)),
        "headroom": ("Headroom", lambda: compare_sections.draw_headroom(runs)),
        "settings": (
            "Settings that differ",
            lambda: compare_sections.draw_settings(runs, baseline),
        ),
        "talk": (
            "For a talk",
            lambda: compare_sections.draw_talk(runs, baseline),
        ),
    }
    words = {name: words for name, (words, _) in drawn.items()}
    only = "Only the section shown is computed."
    chosen = widgets.choose("show", "Show", words, default="device", help=only, show_label=False)
    _, draw_section = drawn[chosen]
    texts.guarded(draw_section)()


OF_THE_SETTINGS = frozenset({"data", "model", "batch", "device", "order"})
"""Topics of warnings that are of the settings themselves: run alternately they would differ, too."""


def _slowest_alike(runs: Sequence[StoredRun]) -> int | None:
    """Returns the position of the slowest of those runs that are most alike, so that one run of
    other data does not take the ratios from all others; None where no speed is known.
    """
    works = []
    for run in runs:
        config = run.config
        device = run.environment.get("device_name") or config.device
        works.append((config.dataset, config.n_images, config.model, config.image_size, device))
    most = max(works, key=works.count, default=None)
    alike = [run.summary if work == most else None for run, work in zip(runs, works, strict=True)]
    return comparison.slowest(alike)


def _other(
    runs: Sequence[StoredRun],
    baseline: int | None,
    trusts: Sequence[guard.Trust],
    decision: Decision | None,
) -> int | None:
    """Returns the position of the run that the answer is about; None where there is none.

    That is of two runs the other one, and of more the one whose setting their tournament recommends, or
    the fastest one that is like the baseline.
    """
    if baseline is None or len(runs) < 2:
        return None
    if len(runs) == 2:
        return 1 - baseline
    recommended = None if decision is None else decision.at
    if recommended is not None and recommended != baseline and trusts[recommended] != "unlike":
        return recommended
    rates = {}
    for at, run in enumerate(runs):
        alike = at != baseline and trusts[at] != "unlike"
        if alike and run.summary is not None and run.summary.samples_per_s > 0:
            rates[at] = run.summary.samples_per_s
    return max(rates, key=rates.__getitem__, default=None)


def draw_caveats(differences: Sequence[Caveat]) -> None:
    """Draws what makes the comparison unfair: a few warnings in full, everything else a click away."""
    warnings = [c for c in differences if c.level == "warning"]
    if len(warnings) > MOST_WARNINGS:
        folded = differences
        title = f":material/balance: This comparison is not fair: {len(folded)} differences"
    else:
        folded = tuple(c for c in differences if c.level != "warning")
        title = "What else differs"
        for caveat in warnings:
            st.warning(texts.escaped(caveat.sentence), icon=":material/balance:")
    if folded:
        with st.expander(title):
            st.markdown("\n".join(f"- {texts.escaped(c.sentence)}" for c in folded))


OPTIONS_HELP = "The baseline, and a search for runs that the list does not show."


def pick_runs() -> tuple[list[StoredRun], int | None]:
    """Draws the picker; returns the chosen runs, and the position of the baseline among them.

    They are in the order chosen. There are none where there are none to choose, or none is chosen.
    """
    store = resources.store()
    if not store.count_runs(RunQuery(filters={"status": ENDED_STATUSES}, helpers=True)):
        _draw_no_runs()
        return [], None
    above, beside = st.columns([5, 1], vertical_alignment="bottom")
    with beside.popover(
        "Options", icon=":material/tune:", key="compare-options", help=OPTIONS_HELP
    ):
        text = st.text_input(
            "Find runs",
            key="compare-find",
            placeholder="memory photos, #12, …",
            help="Narrows the list of runs: words of the name, note, strategy, data set, device or a tag, or a number.",
            max_chars=MAX_SEARCH,
        )
        helpers = st.checkbox(
            "Also runs made for headroom and tournaments",
            key="compare-helpers",
            help="Anchors and trials: short runs that another page made for its own figures.",
        )
        right = st.container()
    query = RunQuery(text=text, filters={"status": ENDED_STATUSES}, helpers=helpers)
    rows = [row for row in store.list_runs(query, limit=OFFERED) if row.samples_per_s is not None]
    if widgets.RUNS in st.query_params:
        known, missing = _named(ids(st.query_params[widgets.RUNS]))
    else:
        # the runs shown before: the browser's Back passes through a URL without a query
        known, _ = _named(st.session_state.get(CHOSEN, []))
        missing = []
        if not known:
            known, _ = _named(_suggested(rows))
            st.session_state[SUGGESTED] = list(known)
    st.session_state[CHOSEN] = list(known)
    # What nobody chose stays out of the URL: the browser's Back would need another press.
    was_chosen = widgets.RUNS in st.query_params or st.session_state.get(SUGGESTED) != list(known)
    if was_chosen and not missing:
        # where some are missing, the URL and the warning stay until other runs are chosen
        write_numbers(widgets.RUNS, known)
    # set by hand each time: what was chosen stays, also when the list of options is another one
    st.session_state[KEY] = list(known)
    labels = {row.id: _label(row) for row in rows}
    labels |= {run.id: _label(run) for run in known.values()}
    chosen: list[int] = above.multiselect(
        "Runs",
        list(dict.fromkeys([*known, *(row.id for row in rows)])),
        format_func=lambda run_id: labels[run_id],
        help="Runs that have ended, the newest first. Any number of them.",
        placeholder="Choose runs",
        key=KEY,
        wrap=len(known) <= MOST_IN_SIGHT,
        on_change=lambda: write_numbers(widgets.RUNS, st.session_state[KEY]),
    )
    if missing:
        with st.container(horizontal=True, vertical_alignment="center"):
            st.warning(
                texts.escaped(" ".join(missing)), icon=":material/link_off:", width="stretch"
            )
            st.page_link(
                "pages/history.py", label="See all runs", icon=":material/history:", width="content"
            )
    total = store.count_runs(query)
    if total > OFFERED:
        st.caption(
            f"The list shows the newest {OFFERED} of {total:,} runs; use *Find runs* in Options to find "
            "the others."
        )
    elif text and not rows:
        st.caption(
            f"No finished run has “{texts.escaped(text)}” in its name, note, strategy, data set or "
            "tags."
        )
    if not labels and not text:
        _draw_no_runs()
    elif not chosen:
        st.info(
            "Choose at least one run. With two or more you see what differs.",
            icon=":material/compare_arrows:",
        )
    elif len(chosen) == 1:
        st.caption("Choose a second run above to compare this one with.")
    runs = [known[run_id] if run_id in known else store.run(run_id) for run_id in chosen]
    with right:
        return runs, pick_baseline(runs)


def _suggested(rows: Sequence[RunRow]) -> list[int]:
    """Returns two runs to begin with: the newest two like the newest one, or the newest two."""
    alike = [row for row in rows if (row.dataset, row.device) == (rows[0].dataset, rows[0].device)]
    if len(alike) < 2:
        alike = list(rows)
    return sorted(row.id for row in alike[:2])


def write_numbers(name: str, run_ids: Iterable[int]) -> None:
    """Writes run numbers into the URL; no numbers replace others by an empty text."""
    text = ",".join(map(str, run_ids))
    if st.query_params.get(name) != text:
        st.query_params[name] = text


def ids(text: str) -> list[int]:
    """Returns the run numbers of "3,7,12", each once, in order; skips what is not a number."""
    numbers: dict[int, None] = {}
    for part in text.split(",")[:MAX_RUNS_IN_URL]:
        # isdecimal() alone takes other scripts' digits; no run has a number of 11 digits
        if part.isascii() and part.isdecimal() and len(part) < 11:
            numbers[int(part)] = None
    return list(numbers)


def _draw_no_runs() -> None:
    st.info(
        "No finished runs yet. Open Profile, press Run, and come back.",
        icon=":material/compare_arrows:",
    )
    st.page_link("pages/profile.py", label="Open Profile", icon=":material/monitoring:")


def _named(run_ids: Sequence[int]) -> tuple[dict[int, StoredRun], list[str]]:
    """Returns those runs that can be compared, and a sentence for each reason why others cannot."""
    known: dict[int, StoredRun] = {}
    others: dict[str, list[int]] = {}
    for run_id in run_ids:
        try:
            run = resources.store().run(run_id)
        except errors.StoreError:
            gone = "Not in this store (deleted, or from another machine)"
            others.setdefault(gone, []).append(run_id)
            continue
        if run.live:
            others.setdefault("Still running; compare when it has ended", []).append(run_id)
        elif run.summary is None or not run.summary.n_steps:
            others.setdefault("Without steps, so there is nothing to compare", []).append(run_id)
        else:
            known[run_id] = run
    return known, [f"{reason}: {texts.numbers_of(numbers)}." for reason, numbers in others.items()]


def _label(run: StoredRun | RunRow) -> str:
    if run.status == "done":
        return f"{run.id}: {run.name}"
    return f"{run.id}: {run.name} ({run.status})"


def pick_baseline(runs: Sequence[StoredRun]) -> int | None:
    """Draws the choice of a baseline where there are two runs or more; returns its position among
    `runs`.
    """
    lowest = _slowest_alike(runs)
    if len(runs) < 2:
        return lowest
    options = [AUTOMATIC, *(run.id for run in runs)]
    named = next(iter(ids(st.query_params.get(BASELINE, ""))), AUTOMATIC)
    st.session_state[BASELINE_KEY] = named if named in options else AUTOMATIC
    labels = {run.id: _label(run) for run in runs}
    labels[AUTOMATIC] = "The slowest that is like others"
    if lowest is not None:
        labels[AUTOMATIC] += f" ({_label(runs[lowest])})"
    chosen = st.selectbox(
        "Baseline",
        options,
        format_func=lambda run_id: labels[run_id],
        key=BASELINE_KEY,
        on_change=lambda: write_numbers(BASELINE, filter(None, [st.session_state[BASELINE_KEY]])),
        help="The run that speed-ups are measured against, and whose settings the others' are compared with.",
    )
    return lowest if chosen == AUTOMATIC else options.index(chosen) - 1


UNTOLD = ("Copied", "GPU", "SM")
"""First words of columns that most runs have no value for, such as those without a GPU: they are
not listed as missing."""


def _range(_: StoredRun, gain: comparison.RunComparison) -> str:
    if gain.relation == "baseline":
        return ""
    if not (math.isfinite(gain.low) and math.isfinite(gain.high)):
        return formats.NOT_AVAILABLE
    return f"{ratio_in_words(gain.low)} to {ratio_in_words(gain.high)}"


def _speed_up(_: StoredRun, gain: comparison.RunComparison) -> float:
    if abs(gain.speed_up - 1) < CLOSE:
        return round(gain.speed_up, 3)
    return tables.rounded(gain.speed_up)


def _epoch_from(run: StoredRun, _: comparison.RunComparison) -> str:
    summary = run.summary or RunSummary()
    if not math.isfinite(summary.epoch_s):
        return formats.NOT_AVAILABLE
    if not summary.n_epochs_measured:
        return "extrapolated"
    return f"measured, {formats.count(summary.n_epochs_measured, 'epoch')}"


FIRST: tuple[tables.TableColumn, ...] = (
    # the run stays in sight, and leaves room on a phone for two columns of numbers
    tables.TableColumn(
        "Run",
        "Number and strategy.",
        lambda run, _: f"{run.id}: {run.config.strategy}",
        pinned=True,
        width=130,
    ),
    tables.TableColumn(
        "Samples/s",
        f"{tables.help_of('samples_per_s')} Of the whole run, also of what other programs disturbed.",
        lambda run, _: run.summary.samples_per_s,
        width=90,
    ),
    tables.TableColumn(
        "Speed-up (x)", "Throughput over the baseline's.", _speed_up, exact=True, width=100
    ),
    tables.TableColumn(
        "95% range", "The speed-ups that both runs' 95% intervals allow.", _range, width=120
    ),
    tables.TableColumn(
        "vs baseline",
        "faster, slower: the two 95% intervals do not overlap; equal: surely less than 5% apart; "
        "undecided: may be noise; unknown: an interval is missing; not firm: other programs ran, or conditions "
        "differed; not comparable: the runs are not alike.",
        lambda _, gain: gain.relation,
        width=115,
    ),
    tables.TableColumn(
        "Idle (%)",
        tables.IDLE_HELP,
        lambda run, _: tables.in_percent(findings.verdict_of(run).stated_idle_frac),
        "%g",
        exact=True,
        width=75,
    ),
    tables.TableColumn(
        "Verdict",
        f"Whether loading held the device up: {CLASSES}; the lower end of the 95% interval decides.",
        lambda run, _: in_a_word(findings.verdict_of(run)),
        width=165,
    ),
    tables.TableColumn(
        "Name", "Of the run; History changes it.", lambda run, _: run.name, width=180
    ),
)
"""The columns that are always shown, which fit a window of 1366 px."""
MORE = "more"
"""Whether the other columns are shown, in the URL."""
OTHERS: tuple[tables.TableColumn, ...] = (
    tables.of_summary("Device idle, any reason (%)", "device_idle_frac", 100, "%.1f"),
    tables.of_summary("Data wait (%)", "data_wait_frac", 100, "%.1f"),
    tables.of_summary("Epoch (s)", "epoch_s"),
    tables.TableColumn(
        "Epoch is",
        "Measured over so many whole epochs, or extrapolated from the throughput.",
        _epoch_from,
    ),
    tables.of_summary("Step, median (ms)", "step_ms_median"),
    tables.of_summary("Step, p95 (ms)", "step_ms_p95"),
    tables.of_summary("Steady steps", "n_steady_steps"),
    tables.of_summary("Accuracy (%)", "test_accuracy", 100, "%.1f"),
    tables.TableColumn(
        "Copied first (s)",
        tables.help_of("stage_s"),
        lambda run, _: run.summary.stage_s or math.nan,
    ),
    tables.of_summary("GPU-util (%)", "gpu_util_pct_mean", form="%.0f"),
    tables.of_summary("SM activity (%)", "gpu_sm_active_pct_mean", form="%.0f"),
    tables.of_summary("SM occupancy (%)", "gpu_sm_occupancy_pct_mean", form="%.0f"),
    tables.of_summary("GPU memory (MiB)", "gpu_mem_peak_bytes", 1 / tables.MIB),
    tables.of_summary("Reserved (MiB)", "gpu_mem_reserved_peak_bytes", 1 / tables.MIB),
    tables.of_summary("Allocated (MiB)", "gpu_mem_allocated_peak_bytes", 1 / tables.MIB),
    tables.of_summary("Memory (MiB)", "rss_peak_bytes", 1 / tables.MIB),
)


def draw_table(
    runs: Sequence[StoredRun], baseline: int | None, trusts: Sequence[guard.Trust]
) -> None:
    """Draws a row for each run, and says which figures none of the runs has."""
    summaries = [run.summary or RunSummary() for run in runs]
    gains = comparison.against(summaries, baseline, trusts)
    rows = list(zip(runs, gains, strict=True))
    drawn = st.container(key="own-csv-compare")  # the page has a CSV button with numbers in full
    about = "Also epochs, steps, memory, what GPU counters say, and all idle time."
    more = st.toggle("More columns", **widgets.kept(MORE), help=about)
    columns = (*FIRST, *OTHERS) if more else FIRST
    with drawn:
        shown = tables.draw(columns, rows, key=f"compare-table-{more:d}")
    notes = ["Click a header to sort by its numbers."]
    missing = [c.name for c in columns if c.name not in shown and not c.name.startswith(UNTOLD)]
    absent = [name.partition(" (")[0] for name in missing]  # without the unit
    if absent:
        notes.append(f"Not available for these runs: {', '.join(absent)}.")
    if more:
        notes += _without_sm_activity(runs, summaries)
    st.caption(" ".join(notes))


def _without_sm_activity(runs: Sequence[StoredRun], summaries: Sequence[RunSummary]) -> list[str]:
    """Returns for each reason why SM activity is not available the runs with that reason."""
    without: dict[str, list[int]] = {}
    for run, summary in zip(runs, summaries, strict=True):
        if reason := sm_activity(summary, run.environment).why_not:
            without.setdefault(reason, []).append(run.id)
    return [
        texts.escaped(f"SM activity of {texts.numbers_of(numbers)} is not available: {reason}.")
        for reason, numbers in without.items()
    ]
