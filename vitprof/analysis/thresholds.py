"""Thresholds of verdicts, signatures and caveats; a number that only one rule uses is defined beside that rule."""

MIN_STEPS = 20
"""Steady steps below which nothing is concluded: the block bootstrap draws up to 20 blocks (`analysis.arrays`)."""

LEAST_STARVED_STEPS = 3
"""Steady steps, each mostly idle for data, from which a run too short for an interval is called starved."""

MIN_SAMPLED_STEPS = 3
"""Steps timed by waiting for the device below which nothing is estimated from them (`watch.steps.SampledSteps`)."""

MODERATE_FRAC = 0.05
"""Share of time idle for data from which a run is moderately input-bound, by the lower end of the 95% interval."""
INPUT_BOUND_FRAC = 0.20
"""The same for input-bound: without that wait a run would be 1 / (1 - 0.20) = 1.25 times as fast."""
EPOCH_STARTS_FRAC = 0.05
"""Share of the wall clock of training waited at epoch starts from which they are named apart, and no gain is one that
was measured over steady steps."""
OUTSIDE_NEXT_FRAC = 0.03
"""More of the time than this from `next()` to the model, and the waits are not known."""
UNCLEAR_LOADERS_FRAC = 0.05
"""Share of the steps after which another loader's part is not clear, from which there is no verdict."""
LAUNCH_BOUND_FRAC = 0.20
"""Share of time that the device waits for Python and launches, from which a run is launch-bound: as for data."""
HELD_UP_FRAC = 0.15
"""Share of launching off the CPU from which the loader is to blame: 2 to 6% without one, 39 and 50% with two workers
or threads on two cores."""
OUTSIDE_TOLD_FRAC = 0.10
"""Time outside of the steps, or asleep in them, with at least this share is named in the sentence."""

QUEUED_FRAC = 0.3
"""Share of the largest stage waited for a core, from which other programs are the cause: one on each takes half."""
WAITING_FRAC = 0.5
"""Share of the time of making a batch that is no CPU work, from which it mostly waits: two workers then need a core."""
WORTH_ADVICE_FRAC = 0.20
"""Share of the idle time from which a stage gets advice after the cause's own: the rest would stay above 4/5."""
BUBBLES_TOLD_FRAC = 0.01
"""Share of time from which launch bubbles are named beside the idle time, which is rounded to a percent."""
COPIES_TOLD_FRAC = 0.01
"""Share of the idle time from which copies are named beside the data wait: less does not change two digits."""
MOSTLY_CACHED_FRAC = 0.9
"""Share of files in the page cache from which another cache adds nothing: over a warm one it gains 1.04 (measured)."""

MIN_COST_FRAC = 0.01
"""Share of time below which no signature is reported: half of the 2% by which vitprof may disturb what it measures."""
OTHERS_CORES = 0.25
"""Cores that other programs must take to be reported; an idle system with a dashboard takes a few percent of one."""
OTHERS_CORES_FRAC = 0.1
"""The same as a share of all cores, if larger: with less, a loader could gain at most about a tenth."""
BUSY_PCT = 90.0
"""Use of all cores, in percent, from which programs queue for each other (M/M/1: 10 times the service time at 90%)."""

EQUAL_FRAC = 0.05
"""Two settings are equal if they surely differ by less than this: nobody would change a setting for it."""
CLOCK_FRAC = 0.05
"""Relative difference of two GPU clocks that is unfair: a compute-bound step is then as much slower, 5%."""
CACHED_FRAC = 0.1
"""Difference of two shares of cached files that is unfair: reading is then 1.4 to 2.3 times as slow (measured)."""
OTHER_MEMORY_BYTES = 256 * 2**20
"""Difference of other processes' device memory that is unfair: a CUDA context takes 250 to 500 MiB, a desktop less."""
