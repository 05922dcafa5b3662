"""Thresholds that verdicts, signatures and caveats of comparisons rest on.

A number that only one rule uses is defined beside that rule.
"""

MIN_STEPS = 20
"""Steady steps below which nothing is concluded: no verdict, no signature, no interval in a
leaderboard. Of 20 independent steps 94% of the series have an interval, 2.4 times as wide as if the
noise were known (`analysis.intervals`); with fewer it says little."""

LEAST_STARVED_STEPS = 3
"""Steady steps, each mostly idle for data, from which a run too short for an interval is called
starved."""

MODERATE_FRAC = 0.05
"""Share of the time that the device idles for data from which a run is moderately input-bound. The
lower end of the 95% interval decides."""
INPUT_BOUND_FRAC = 0.20
"""Share of the time that the device idles for data from which a run is input-bound: without that
wait it would be 1 / (1 - 0.20) = 1.25 times as fast. The lower end of the 95% interval decides."""
EPOCH_STARTS_FRAC = 0.05
"""Share of the wall clock of training that is waited at epoch starts from which they are named
apart, and no gain is one that was measured over steady steps: as wide as the first class."""
OUTSIDE_NEXT_FRAC = 0.03
"""Share of the time from `next()` to the model above which the waits are not known."""
UNCLEAR_LOADERS_FRAC = 0.05
"""Share of the steps after which another loader's part is not clear, from which there is no
verdict. A look at a batch for a log, or a validation with gradients on, is in fewer steps."""
LAUNCH_BOUND_FRAC = 0.20
"""Share of the time that the device waits for Python and launches, between its steps and inside
them, from which a run is launch-bound: the same as for data. The lower end of the 95% interval
decides."""
HELD_UP_FRAC = 0.15
"""Share of launching off the CPU from which the loader is to blame. Measured: 2 to 6% without a
loader, 39 and 50% with two workers or threads on two cores."""
READING_STEPS_FRAC = 0.5
"""Share of the steps that read data after their batch has come, from which that is the loop's habit: a
checkpoint, or a file of settings, is read in few."""
OUTSIDE_TOLD_FRAC = 0.10
"""Share of the time outside of the steps, or asleep in them, from which the sentence names it."""

QUEUED_FRAC = 0.3
"""Other programs are the cause, not a stage's own work, if loading waited for a core for at least
this share of the largest stage. One other program on each core takes half of the time (CFS and
EEVDF share a core evenly)."""
WAITING_FRAC = 0.5
"""Share of the time of making a batch that is no CPU work, from which it mostly waits: two workers
then need a core."""
WORTH_ADVICE_FRAC = 0.20
"""A stage of loading with at least this share of the idle time gets advice after the cause's own.
Removing a smaller one would leave over four fifths of the idle time."""
BUBBLES_TOLD_FRAC = 0.01
"""Launch bubbles with at least this share of the time are named beside the idle time between
steps: the sentence rounds its own figures to a percent."""
COPIES_TOLD_FRAC = 0.01
"""Copies with at least this share of the idle time are named beside the data wait: less does not
change a percentage that is given with two digits and an interval."""
MOSTLY_CACHED_FRAC = 0.9
"""Share of the files in the page cache from which a RAM disk or another cache has nothing to add:
over a warm cache it was measured to gain 1.04 times."""

MIN_COST_FRAC = 0.01
"""Share of the time below which a signature is not reported: half of the 2% by which vitprof itself
may disturb what it measures."""
OTHERS_CORES = 0.25
"""Cores that other programs must take to be reported. An idle system with a dashboard open takes a
few percent of one."""
OTHERS_SEEN_CORES = 0.1
"""Cores that other programs must use, on average, for waits for a core to be theirs, and not the job's own: fewer
can hold up a batch for at most a tenth of its time."""
OTHERS_CORES_FRAC = 0.1
"""The same as a share of all cores; the larger of the two counts. With less taken, a loader could
gain at most about a tenth from having them back."""
BUSY_PCT = 90.0
"""Use of all cores, in percent, from which programs wait for each other. Schedulers' queues grow
without bound towards 100% (M/M/1: 10 times the service time at 90%)."""

EQUAL_FRAC = 0.05
"""Two settings are equal if they surely differ by less than this: nobody would change a setting for
it."""
CLOCK_FRAC = 0.05
"""Relative difference between two runs' GPU clocks that makes comparing them unfair. A clock that
is 5% lower makes compute-bound steps about 5% slower: as much as the verdict's first threshold."""
CACHED_FRAC = 0.1
"""Difference between two runs' shares of files in the page cache that makes comparing them unfair.
A cold read takes 4.5 to 14 times as long as a warm one (measured), so a tenth of the files read
cold already makes reading 1.4 to 2.3 times as slow."""
OTHER_MEMORY_BYTES = 256 * 2**20
"""Difference between two runs in device memory held by other processes that makes comparing them
unfair. A CUDA context of another process takes some 250 to 500 MiB; a desktop's changes stay
below."""
