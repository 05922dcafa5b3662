"""Whether a setting of a user's own script gives as many samples an epoch as the script as it is.

Each worker of an IterableDataset that does not ask which worker it is in gives all samples: three workers
make an epoch of 600 steps of one of 200, and nothing is faster.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vitprof.analysis.arrays import Series


@dataclass(frozen=True)
class EpochSamples:
    """The samples in the epochs of a run."""

    ended: tuple[float, ...] = ()
    """Of each epoch that another one followed."""
    last: float = 0.0
    """Of the last one, as far as it came."""


def epoch_samples(steps: Series) -> EpochSamples:
    """Returns the samples in the epochs of a run, by all its steps."""
    epochs = steps["epoch"]
    if not len(epochs):
        return EpochSamples()
    begins = np.flatnonzero(np.diff(epochs)) + 1
    sums = [float(np.nansum(part)) for part in np.split(steps["samples"], begins)]
    return EpochSamples(tuple(sums[:-1]), sums[-1])


def are_counted(as_it_is: Sequence[EpochSamples], of_setting: Sequence[EpochSamples]) -> bool:
    """Returns whether epochs ended both in runs of the unchanged script and in those of a setting."""
    return any(run.ended for run in as_it_is) and any(run.ended for run in of_setting)


def why_other_samples(
    as_it_is: Sequence[EpochSamples], of_setting: Sequence[EpochSamples], slack: float
) -> str:
    """Returns that a setting gives another number of samples an epoch; "" where it does not, or nobody
    knows.

    `slack`: samples by which epochs may differ, as each worker's last batch may not be full.
    """
    known = [samples for run in as_it_is for samples in run.ended]
    if not known:
        return ""
    least = min(known) - slack
    most = max(known) + slack
    usual = f"{known[0]:,.0f} with the unchanged script: it changes what is trained on"
    for run in of_setting:
        for samples in run.ended:
            if not least <= samples <= most:
                return f"an epoch has {samples:,.0f} samples with it, and {usual}"
        if run.last > most:
            return f"an epoch has {run.last:,.0f} samples with it and goes on, and {usual}"
    return ""
