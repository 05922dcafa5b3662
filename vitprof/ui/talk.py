"""The picture for a talk: of a run, or of a run and of what it is compared with."""

from collections.abc import Callable, Sequence

import streamlit as st

from vitprof import errors
from vitprof.analysis.compare import comparison, guard
from vitprof.analysis.compare.comparison import RunComparison
from vitprof.analysis.verdict.answer import Proof
from vitprof.charts.talk import NARROW
from vitprof.export import talk
from vitprof.store import StoredRun
from vitprof.ui import findings, live_chart, resources, texts, widgets
from vitprof.ui.profile import runs
from vitprof.ui.tournament import state

HELP = (
    "What the device did: a stretch of steady training, typical of the run, and beneath it the "
    "whole run. Two runs have the same axes. Saved as shown, PNG with two pixels for each."
)
CHOICE_HELP = "Both on the same axes, or one."
KEPT = 8
"""Pictures that stay in memory."""
COMPARED = "compare runs chosen"
"""Key of the runs that were last chosen on Compare."""


@texts.guarded
def draw_of_run(run: StoredRun, find_proof: Callable[[], Proof | None]) -> None:
    """Draws the picture of a run, and with a choice the one of the run and its fix, if known.

    `find_proof` returns the proof that the answer card shows.
    """
    st.header("For a talk", anchor=False, help=HELP)
    pair = _proven(run, find_proof()) or _compared(run)
    if pair is None:
        draw([run], None)
        return
    both, gain = pair
    other = next(one for one in both if one.id != run.id)
    choices = {"pair": f"With run {other.id}", "alone": "This run alone"}
    chosen = widgets.choose(
        "talk", "What it shows", choices, default="pair", help=CHOICE_HELP, show_label=False
    )
    if chosen == "pair":
        draw(both, gain)
    else:
        draw([run], None)


@texts.guarded
def draw_of_pair(now: StoredRun, then: StoredRun) -> None:
    """Draws the picture of two runs."""
    st.header("For a talk", anchor=False, help=HELP)
    draw([now, then], _gain(now, then))


def draw(shown: Sequence[StoredRun], gain: RunComparison | None) -> None:
    """Draws the picture of these runs, with its buttons."""
    verdicts = [findings.verdict_of(run) for run in shown]
    known = tuple(
        (run.id, hash(verdict.sentence)) for run, verdict in zip(shown, verdicts, strict=True)
    )
    made = _made(known, repr(gain), gain)
    if made is None:
        st.caption(
            "Of these runs it is not known when the device computed, so there is no picture."
        )
        return
    wide = made.figure()
    numbers = "-".join(str(run.id) for run in shown)
    live_chart.picture(
        wide, made.figure(NARROW), key=f"talk-{numbers}", name=made.name, alt=made.alt
    )


@st.cache_resource(show_spinner=False, max_entries=KEPT)
def _made(
    known: tuple[tuple[int, int], ...], gain: str, _gain: RunComparison | None
) -> talk.Talk | None:
    """Returns the picture; `known`, ids and what their verdicts say, and `gain` are the key."""
    parts = []
    for run_id, _ in known:
        run = resources.store().run(run_id)
        parts.append(talk.Part(run, resources.store().steps(run_id), findings.verdict_of(run)))
    return talk.talk(parts, _gain)


Pair = tuple[tuple[StoredRun, StoredRun], RunComparison]
"""The run as it was and the other one, and how that compares."""


def _proven(run: StoredRun, proof: Proof | None) -> Pair | None:
    """Returns the run and one of the fix that the answer card names as proven: the one that shows the
    proven gain best. Where other programs ran meanwhile, the two have no ratio: it may be another
    one on a quiet machine.
    """
    if proof is None:
        return None
    relation: comparison.Relation = "faster" if proof.quiet else "not comparable"
    gain = RunComparison(proof.times, proof.low, proof.high, relation)
    view = state.view(proof.tournament_id)
    row = view.board(view.state()).row(proof.key)
    outcomes = row.entry.outcomes if row is not None else ()
    ended = [then for outcome in outcomes if (then := _ended(outcome.run_id)) is not None]
    if not ended:
        return None
    then = min(ended, key=lambda one: abs(_speed(one) - proof.times * _speed(run)))
    return (run, then), gain


def _speed(run: StoredRun) -> float:
    """Returns a run's samples a second; 0 where that is not known."""
    if run.summary is None or not run.summary.samples_per_s > 0:
        return 0.0
    return run.summary.samples_per_s


def _compared(run: StoredRun) -> Pair | None:
    """Returns the run and the one that it was compared with in this session: from which it was
    started, or the other one chosen on Compare.
    """
    before = runs.before(run)
    ids = [int(before), run.id] if before else list(st.session_state.get(COMPARED, []))
    if len(ids) != 2 or run.id not in ids:
        return None
    both = [_ended(run_id) for run_id in ids]
    now, then = both
    if now is None or then is None:
        return None
    if comparison.slowest([now.summary, then.summary]) == 1:
        now, then = then, now
    return (now, then), _gain(now, then)


def _gain(now: StoredRun, then: StoredRun) -> RunComparison:
    trust = guard.trust_of([findings.facts_of(one.id) for one in (now, then)])
    return comparison.against([now.summary, then.summary], 0, ["fair", trust])[1]


def _ended(run_id: int) -> StoredRun | None:
    """Returns a run that has ended and has steps; None where it is another one, or deleted."""
    try:
        run = resources.store().run(run_id)
    except errors.StoreError:
        return None
    if run.live or run.summary is None or not run.summary.n_steps:
        return None
    return run
