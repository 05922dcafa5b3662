"""A sketch of many times: how many there are in each bucket. A factor of 2 has the same number of buckets everywhere.

Both sides of watching use it: who times samples, and who reads the sums.
"""

import math
from collections.abc import Mapping

SLOW = 4.0
"""A sample is slow from so many medians on. Chosen, not measured: files of one set often differ in size by a factor
of two or three, and nobody wants a list of those."""
PER_OCTAVE = 4
"""Buckets for each factor of 2: a median is known to 10%."""
LEAST_S = 1e-6
"""The bottom of bucket 0."""


def bucket_of(seconds: float) -> int:
    """Returns the number of the bucket for a time."""
    return max(0, math.floor(PER_OCTAVE * math.log2(max(seconds, LEAST_S) / LEAST_S)))


def quantile_s(buckets: Mapping[int, int], share: float) -> float:
    """Returns the time (s) that this share of the samples stay below: the middle of a bucket. NaN without any."""
    remaining = share * sum(buckets.values())
    for bucket in sorted(buckets):
        remaining -= buckets[bucket]
        if remaining <= 0:
            return middle_s(bucket)
    return math.nan


def middle_s(bucket: int) -> float:
    """Returns the time in the middle of a bucket."""
    return LEAST_S * math.exp2((bucket + 0.5) / PER_OCTAVE)


def median_within_s(buckets: Mapping[int, int]) -> float:
    """Returns the median time, as if the times in a bucket were spread evenly; NaN without any.

    For comparing sketches: two that are nearly alike may have their medians in neighbouring buckets.
    """
    remaining = sum(buckets.values()) / 2
    for bucket in sorted(buckets):
        if remaining <= buckets[bucket]:
            return LEAST_S * math.exp2((bucket + remaining / buckets[bucket]) / PER_OCTAVE)
        remaining -= buckets[bucket]
    return math.nan
