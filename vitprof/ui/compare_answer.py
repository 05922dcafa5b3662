"""The answer on the Compare page: which run is faster, by how much, how far to trust that, and where
the difference comes from.
"""

import contextlib
import math
from collections.abc import Sequence
from typing import Literal

import streamlit as st

from vitprof import formats
from vitprof.analysis.arrays import Interval
from vitprof.analysis.compare import answer, comparison
from vitprof.analysis.compare.differences import RunFacts
from vitprof.analysis.compare.guard import Trust
from vitprof.analysis.thresholds import OTHERS_CORES
from vitprof.charts import comparison as charts
from vitprof.charts import style
from vitprof.config import own_script
from vitprof.errors import StoreError
from vitprof.experiments.tournament import proofs
from vitprof.store import RunGroup, StoredRun, tournaments
from vitprof.ui import findings, live_chart, resources, texts
from vitprof.ui.profile import proof
from vitprof.ui.tournament import state

LOOKS: dict[answer.Basis, tuple[str, str]] = {
    "alternating, quiet": (":material/verified:", "green"),
    "alternating, busy": (":material/balance:", "orange"),
    "alternating": (":material/balance:", "blue"),
    "fair": (":material/looks_one:", "blue"),
    "disturbed": (":material/warning:", "orange"),
    "other conditions": (":material/warning:", "orange"),
    "unlike": (":material/block:", "red"),
}
"""What a ratio rests on -> icon and colour of its badge."""
BADGE_HELP = "How far to trust the ratio: what it was measured with, and what else ran meanwhile."
FAIR_HELP = "Runs both settings alternately until it is decided which is faster: about a minute."
ALTERNATE = "Run both alternately"
ROW_PX = 36
AROUND_PX = 96


def draw(
    runs: Sequence[StoredRun],
    baseline: int,
    other: int,
    facts: Sequence[RunFacts],
    trust: Trust,
    *,
    decision: proofs.Decision | None,
    may_alternate: bool,
) -> None:
    """Draws how much faster the run at position `other` is than the one at `baseline`.

    `decision`: what their tournament recommends, if one does. `may_alternate`: whether to offer to run
    the two alternately.
    """
    pair = [runs[baseline], runs[other]]
    _, alone = comparison.against([run.summary for run in pair], 0, ["fair", trust])
    single = Interval(alone.speed_up, alone.low, alone.high)
    known = None
    if trust != "unlike":
        known = proofs.best_proof(
            tournaments.list_tournaments(resources.store()), state.view, *pair
        )
    found = answer.answer(pair[0].id, pair[1].id, single, trust)
    if known is not None:
        found = answer.answer(
            pair[0].id, pair[1].id, known.ratio, known.basis, at_least=known.at_least
        )
    elif trust != "unlike" and not math.isfinite(single.value):
        return
    icon, colour = LOOKS[found.basis]
    with st.container(border=True, key="compare-answer"):
        st.header(texts.escaped(found.sentence), anchor=False)
        with st.container(horizontal=True, vertical_alignment="center"):
            label = answer.LABELS[found.basis].capitalize()
            st.badge(label, icon=icon, color=colour, help=BADGE_HELP)  # type: ignore[arg-type]
            if known is not None:
                st.page_link(
                    "pages/tournament.py",
                    label="All figures",
                    icon=":material/emoji_events:",
                    query_params={state.CHOSEN: str(known.tournament_id)},
                    help="Opens the tournament that ran both settings alternately.",
                    width="content",
                )
        lines = [] if decision is None else [_of_decision(decision, runs)]
        if known is not None:
            lines.append(_of_proof(known, single, pair))
        if known is None:
            lines.append(_of_single_runs(trust, pair, [facts[baseline], facts[other]]))
        st.caption(texts.escaped(" ".join(line for line in lines if line)))
        is_proven = known is not None and known.basis == "alternating, quiet"
        if may_alternate and not is_proven:
            _draw_alternate(pair)


def decision_of(runs: Sequence[StoredRun], baseline: int) -> proofs.Decision | None:
    """Returns what the tournament recommends that made the baseline and another one of these runs; None
    without one.
    """
    group = RunGroup.parse(runs[baseline].group_key)
    if group is None or group.kind != "tournament":
        return None
    # it may be deleted while its runs are kept, or of another version
    with contextlib.suppress(StoreError):
        of_baseline = tournaments.tournament(resources.store(), group.of)
        return proofs.decision_of(of_baseline, state.view, runs, baseline)
    return None


def _of_decision(decision: proofs.Decision, runs: Sequence[StoredRun]) -> str:
    """Returns what their tournament recommends, and which of the runs are as fast as that."""
    setting = decision.setting
    if decision.at is None:
        which = f"{setting}, and none of these runs has that setting"
    else:
        which = f"the setting of run {runs[decision.at].id}: {setting}"
    words = f"Tournament {decision.tournament_id} recommends {which}."
    if decision.as_fast:
        as_fast = [runs[at].id for at in decision.as_fast]
        are = "is" if len(as_fast) == 1 else "are"
        numbers = texts.numbers_of(as_fast)
        words += f" {formats.capitalised(numbers)} {are} as fast, within 5%."
    return words


def _of_proof(known: proofs.Proof, single: Interval, pair: Sequence[StoredRun]) -> str:
    """Returns what the ratio of a proof rests on, and what the two runs alone would have said."""
    rounds = formats.count(known.n_rounds, "round")
    words = f"Tournament {known.tournament_id} ran the settings of both in {rounds}."
    if known.per_s is not None:
        base_per_s, per_s = map(formats.number, known.per_s)
        words += " Without the time that other programs disturbed,"
        words += f" that of run {pair[1].id} makes {per_s} samples/s and that of run {pair[0].id} {base_per_s}."
    if known.basis == "alternating, busy":
        cores = f"at least {formats.cores(known.others_cores)}"
        if known.at_least:
            cores = f"{formats.cores(known.others_cores)} on average"
        words += f" Other programs used {cores}; repeat on a quiet machine for a firm number."
    if not math.isfinite(single.value):
        return words
    alone = answer.answer(pair[0].id, pair[1].id, single, "fair")
    ratio = f"{answer.ratio_in_words(alone.ratio.value)}x"
    return f"{words} Of these two runs alone, run {alone.fast} was {ratio} as fast as run {alone.slow}."


def _of_single_runs(trust: Trust, pair: Sequence[StoredRun], facts: Sequence[RunFacts]) -> str:
    """Returns why the ratio of two single runs may be off."""
    if trust == "unlike":
        speeds = []
        for run in pair:
            assert run.summary is not None
            per_s = formats.number(run.summary.samples_per_s, "samples/s")
            speeds.append(f"{per_s} in run {run.id}")
        return f"What differs is below. They ran at {' and '.join(speeds)}."
    if trust == "fair":
        return (
            "The range is from within each run. What one run differs by from the next is not in "
            "it: to know that, run both alternately."
        )
    busy = []
    for known in facts:
        if known.others_cores >= OTHERS_CORES:
            of_cores = float(known.environment.get("cpu_count") or math.nan)
            used = formats.cores(known.others_cores, of_cores)
            busy.append(f"{used} during run {known.id}")
    if busy:
        during = f"Other programs used {' and '.join(busy)}."
        return f"{during} Repeat on a quiet machine for a firm number."
    return "What differs is below. The ratio may come from that."


def _draw_alternate(pair: Sequence[StoredRun]) -> None:
    """Draws the button that runs both settings alternately, where they can be run again here."""
    if any(own_script.is_own_script(run.config) for run in pair):
        return
    spec = proof.spec_of(*(run.config for run in pair))
    if spec is None or len(spec.jobs) < 2:
        return
    if st.button(ALTERNATE, icon=":material/balance:", help=FAIR_HELP, key="compare-alternate"):
        started = state.start(spec, "")
        st.switch_page("pages/tournament.py", query_params={state.CHOSEN: str(started)})


def draw_difference(base: StoredRun, other: StoredRun) -> None:
    """Draws what a step of `other` takes more or less time for than one of `base`, as bars.

    Nothing where one of the two has no device times.
    """
    of_base = findings.mean_step_of(base.id)
    of_other = findings.mean_step_of(other.id)
    if of_base is None or of_other is None:
        return
    same_batch = abs(of_base.samples - of_other.samples) < SAME_SAMPLES * of_base.samples
    unit: Literal["step", "sample"] = "step" if same_batch else "sample"
    st.header(
        "Where does the difference come from?",
        anchor=False,
        help="Mean times while training, on the device: what it computed, and what it waited for. A bar to the left "
        "is time saved. After ± is half of the 95% interval, from within the two runs.",
    )
    whole = [
        time.whole_s if same_batch else time.whole_s / time.samples for time in (of_base, of_other)
    ]
    less_or_more = "less" if whole[1] <= whole[0] else "more"
    apart = formats.seconds(abs(whole[1] - whole[0]))
    was, now = (formats.seconds(value) for value in whole)
    st.caption(
        f"A {unit} takes {now} in run {other.id} and {was} in run {base.id}: {apart} {less_or_more}."
    )
    bars = []
    for change in comparison.changes(of_base, of_other, unit):
        words, colour = style.DEVICE_TIME[change.cause]
        bars.append((words, colour, change.by))
    suffix = "ms" if same_batch else "µs"
    live_chart.plot(
        charts.changes(bars, x_title=f"change of a {unit}'s mean time ({suffix})", unit=suffix),
        height=AROUND_PX + ROW_PX * len(bars),
        key="compare-difference",
    )


SAME_SAMPLES = 0.01
"""Relative difference of the samples a step up to which steps are compared, not samples: the last
batch of an epoch may be smaller."""
