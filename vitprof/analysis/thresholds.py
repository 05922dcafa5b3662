"""Where the lines are drawn: each threshold that a verdict, a signature or a caveat of a comparison rests on.

A number that tunes a single rule stands beside that rule.
"""

from __future__ import annotations

MIN_STEPS = 20
"""Steady steps below which nothing is concluded: no verdict, no signature, no interval in a leaderboard (DESIGN.md
section 5). The block bootstrap draws up to 20 blocks (`analysis.bootstrap`): with fewer steps each is a block."""

MODERATE_FRAC = 0.05
"""Share of the time that the device idles for data from which a run is moderately input-bound (DESIGN.md section 5).
The lower end of the 95% interval decides."""
INPUT_BOUND_FRAC = 0.20
"""Share of the time that the device idles for data from which a run is input-bound: without that wait it would be
1 / (1 - 0.20) = 1.25 times as fast. The lower end of the 95% interval decides (DESIGN.md section 5)."""
LAUNCH_BOUND_FRAC = 0.20
"""Share of the time that the device waits for Python and launches, between its steps and inside them, from which a run
is launch-bound: the same as for data. The lower end of the 95% interval decides."""

QUEUED_FRAC = 0.3
"""Share of the largest stage of loading from which waiting for a core is the cause rather than the work itself. One
other program on each core takes half of the time (CFS and EEVDF share a core evenly)."""
WORTH_ADVICE_FRAC = 0.20
"""Share of the idle time from which a stage of loading is advised about where the cause has no remedy left: without all
of a smaller one four fifths of the idle time remain."""
BUBBLES_TOLD_FRAC = 0.01
"""Share of the time from which launch bubbles are named beside the idle time between steps: a percent is what the
sentence's own figures are rounded to."""
COPIES_TOLD_FRAC = 0.10
"""Share of the idle time from which copies are named beside the waits: what is less does not change a percentage that
is told with two digits and an interval."""
MOSTLY_CACHED_FRAC = 0.9
"""Share of the files in the page cache from which a RAM disk or another cache has nothing to add: 1.04 times was
measured over a warm cache (DESIGN.md section 6)."""

MIN_COST_FRAC = 0.01
"""Share of the time below which a signature is not worth a sentence: half of the 2% by which vitprof itself may disturb
what it measures (DESIGN.md section 1)."""
OTHERS_CORES = 0.25
"""Cores that other programs have to take to be told of. An idle system with a dashboard open takes a few percent of
one."""
OTHERS_CORES_FRAC = 0.1
"""Share of all cores, likewise. With less taken, a loader could gain at most about a tenth from having them back."""
BUSY_PCT = 90.0
"""Use of all cores from which programs have to wait for each other: schedulers' queues grow without bound towards 100%
(M/M/1: 10 times the service time at 90%)."""

EQUAL_FRAC = 0.05
"""Two settings are equal where it is sure that they differ by less: nobody would change a setting for it."""
CLOCK_FRAC = 0.05
"""Difference of two runs' GPU clocks that makes comparing them unfair. A clock that is 5% lower makes compute-bound
steps about 5% slower: as much as the first class of the verdict."""
CACHED_FRAC = 0.1
"""Difference of two runs' shares of the files in the page cache that does. A cold read takes 4.5 to 14 times as long as
a warm one (DESIGN.md section 6), so a tenth of the files read cold already makes reading 1.4 to 2.3 times as slow."""
OTHER_MEMORY_BYTES = 256 * 2**20
"""Difference of the device memory that others held that does. A CUDA context of another process takes some 250 to 500
MiB; a desktop's changes stay below."""
