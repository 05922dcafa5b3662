"""Other GPU: a job on the second GPU must leave the first one alone."""

from __future__ import annotations

import math

from vitprof.config import RunConfig
from vitprof.selftest.gpu.host import Host
from vitprof.selftest.gpu.outcome import Outcome, judged, not_run

FIRST, SECOND = "cuda:0", "cuda:1"
MOST_BYTES = 64 << 20
"""The most bytes that the first GPU's memory in use may grow: a CUDA context takes 100 MB or more, the driver less."""


def nothing_on_the_first(host: Host) -> Outcome:
    """Trains on the second GPU and watches the memory in use on both meanwhile."""
    if (gpus := host.facts.get("gpus", 0)) < 2:
        return not_run(f"there {'is' if gpus == 1 else 'are'} {gpus} GPU{'' if gpus == 1 else 's'} here; it needs two")
    before = {name: host.memory(name) for name in (FIRST, SECOND)}
    if any(math.isnan(used) for used in before.values()):
        return not_run("NVML does not report the memory in use")
    run_id = host.start(RunConfig(strategy="memory", device=SECOND, seconds=3, evaluate=False))
    most = dict(before)

    def look() -> bool:
        most.update({name: max(most[name], host.memory(name)) for name in most})
        return host.manager.wait(run_id, 0)

    host.until(look)
    run = host.wait(run_id)
    grown = {name: most[name] - before[name] for name in most}
    wrong = [] if run.status == "done" else [f"the job did not finish ({run.status}: {run.error})"]
    if grown[FIRST] > MOST_BYTES:
        wrong.append(f"{grown[FIRST] / 1e6:.0f} MB more were in use on the first GPU")
    if run.status == "done" and grown[SECOND] <= MOST_BYTES:
        wrong.append("nothing of the job was seen on the second GPU")
    return judged(
        f"{grown[FIRST] / 1e6:.0f} MB more on the first GPU, {grown[SECOND] / 1e6:.0f} MB on the second",
        wrong,
        grown_bytes=grown,
    )
