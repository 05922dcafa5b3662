"""The result of a user's own training for people, whether it was watched or read from a trace."""

from __future__ import annotations

import math

from vitprof import formats
from vitprof.analysis.timing import loading
from vitprof.analysis.timing.compute_parts import divided_compute_of, divided_in_words
from vitprof.analysis.verdict import no_verdict
from vitprof.analysis.verdict.answer import answer_of
from vitprof.analysis.verdict.causal import causal_profile
from vitprof.analysis.verdict.headroom import own_headroom, own_headroom_sentence
from vitprof.cli import dashboard
from vitprof.cli.common import results
from vitprof.config.device_rate import rate_if_valid
from vitprof.experiments import answers
from vitprof.export.markdown import answer_markdown
from vitprof.program import program
from vitprof.recording.columns import RunSummary
from vitprof.store import RunStore, StoredRun


def result_lines(store: RunStore, run: StoredRun) -> list[str]:
    """Returns the lines on a run: the answer, and what that is based on; none without steps."""
    s = run.summary
    verdict = run.verdict
    if s is None or not s.n_steps or verdict is None:
        return []
    lines = [f"vitprof run {run.id}: {run.name}"]
    found = answers.proofs_of(store, run, verdict)
    answer = answer_of(verdict, found, summary=s, rate=rate_if_valid())
    lines += results.answer_lines(run, answer)
    lines.append(f"  based on {', '.join(_based_on(run, s))}")
    divided = divided_compute_of(s)
    if divided is not None:
        lines.append(f"  {divided_in_words(divided)}")
    lines += _transforms(run)
    lines += [f"  {sentence}" for sentence in results.on_ranks(run)]
    headroom = own_headroom(run.facts)
    if headroom is not None and verdict.is_conclusive:
        lines.append(own_headroom_sentence(headroom))
    causal = causal_profile(run.facts, run.environment)
    if causal is not None:
        lines += [f"  if faster: {sentence}" for sentence in causal.sentences]
    address = dashboard.address_of(run.id)
    if not address:
        address = f"type {program()} and open run {run.id} under History"
    lines.append(f"  its charts: {address}")
    return lines


def markdown_lines(store: RunStore, run: StoredRun) -> list[str]:
    """Returns the answer on a run as Markdown; nothing without steps."""
    answer = answers.answer_of_run(store, run)
    return [] if answer is None else [answer_markdown(run, answer)]


def _transforms(run: StoredRun) -> list[str]:
    """Returns the lines on the transforms of a run, if it has their times."""
    transforms = loading.transform_times(run.facts)
    shares = loading.shares_in_words(transforms)
    if not shares:
        return []
    why = loading.why_unreliable(transforms)
    return [f"  transforms: {shares}", *([f"  {why}"] if why else [])]


def _based_on(run: StoredRun, summary: RunSummary) -> list[str]:
    """Returns the figures that the answer rests on."""
    n_epoch_starts = run.verdict.n_epoch_starts if run.verdict is not None else 0
    steps = formats.steps(summary.n_steady_steps, n_epoch_starts)
    based = [f"{steps} of {summary.n_steps:,}"]
    if math.isfinite(summary.samples_per_s):
        speed = formats.number(summary.samples_per_s, "samples/s")
        if math.isfinite(summary.samples_per_s_low):
            low = formats.number(summary.samples_per_s_low)
            high = formats.number(summary.samples_per_s_high)
            speed += f" (95%: {low} to {high})"
        based.append(speed)
    elif math.isfinite(summary.step_ms_median):
        based.append(f"{formats.seconds(summary.step_ms_median / 1e3)} a step")
    waits_are_known = not no_verdict.not_measurable(run.facts, summary.n_steps)
    if math.isfinite(summary.data_wait_frac) and waits_are_known:
        based.append(f"data wait of the loop {formats.percent(summary.data_wait_frac)}")
    return based
