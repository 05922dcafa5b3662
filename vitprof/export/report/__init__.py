"""One or several runs as one self-contained HTML file with charts, figures and settings; it opens without a network.

Plotly's own bundle is inside, compressed, and is unpacked in the browser. The file's content security policy forbids
every request and every script but its own two. Without JavaScript all figures are still in tables.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

from vitprof.analysis.compare.guard import comparability, run_facts
from vitprof.analysis.verdict.headroom import Headroom
from vitprof.errors import VitprofError
from vitprof.export.report.contents import Contents, contents
from vitprof.export.report.page import whole_page
from vitprof.program import program
from vitprof.recording.verdict import Verdict
from vitprof.store import RunStore, StoredRun

MOST_RUNS = 100
"""The most runs in a report: each takes about 25 kB of tables, and the file stays below 5 MB."""
MOST_CHARTED = 20
"""The most runs of a report that have charts, about 60 kB each; those after them have only tables."""


def html_report(
    store: RunStore,
    runs: Sequence[StoredRun],
    *,
    headrooms: Mapping[int, Headroom] | None = None,
    verdicts: Mapping[int, Verdict] | None = None,
    now: dt.datetime | None = None,
) -> str:
    """Returns the text of the HTML file. Raises `VitprofError` for no runs or too many.

    `headrooms` and `verdicts` are by run id. A run without an entry in `verdicts` has the stored verdict; with an entry
    in `headrooms` it is judged again. `now` (with a time zone) is when the report was made.
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
