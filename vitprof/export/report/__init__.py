"""One or several runs as one HTML file that needs nothing else: charts, figures, settings; opens without a network.

Plotly's own bundle travels inside, compressed, and is inflated in the browser. The file's content security policy
forbids every request and every script but the two it came with. Without JavaScript all figures stand in tables.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

from vitprof.analysis.compare.guard import comparability, run_facts
from vitprof.analysis.verdict.headroom import Headroom
from vitprof.analysis.verdict.verdict import Verdict
from vitprof.errors import VitprofError
from vitprof.export.report.contents import Contents, contents
from vitprof.export.report.page import whole_page
from vitprof.program import program
from vitprof.store import RunStore, StoredRun

MOST_RUNS = 100
"""Runs in a report: each takes about 25 kB of tables, and the file stays below 5 MB."""
MOST_CHARTED = 20
"""Runs of a report that have charts, about 60 kB each; those after them have their figures."""


def html_report(
    store: RunStore,
    runs: Sequence[StoredRun],
    *,
    headrooms: Mapping[int, Headroom] | None = None,
    verdicts: Mapping[int, Verdict] | None = None,
    now: dt.datetime | None = None,
) -> str:
    """Returns the whole file as text. Raises `VitprofError` for no runs or too many.

    `headrooms` and `verdicts` are by id of the run; without a verdict of its own a run has the stored one, or what
    its headroom makes of it. `now` (with a time zone) is when the report was made.
    """
    if not runs:
        raise VitprofError(f"a report needs at least one run; {program()} runs lists them")
    if len(runs) > MOST_RUNS:
        raise VitprofError(f"a report holds at most {MOST_RUNS} runs, not {len(runs)}; choose fewer, or export CSV")
    found: list[Contents] = []
    facts = []
    for run in runs:
        steps, telemetry = store.steps(run.id), store.telemetry(run.id)
        verdict, headroom = (verdicts or {}).get(run.id), (headrooms or {}).get(run.id)
        found.append(contents(run, steps, telemetry, verdict, headroom, charted=len(found) < MOST_CHARTED))
        if len(runs) > 1:
            about = (run.id, run.name, run.config, run.environment, run.facts, run.summary)
            facts.append(run_facts(*about, steps, telemetry))
    made = now or dt.datetime.now(dt.UTC)
    return whole_page(found, [c.sentence for c in comparability(facts)], made)
