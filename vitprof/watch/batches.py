"""The batches that a step waits for: how long it waits, their samples, and the times of their making."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from torch import Tensor

from vitprof.measure.batch_times import BatchTimes
from vitprof.watch.copies import tensors
from vitprof.watch.fetch_times import FetchTimes


class Ahead(NamedTuple):
    """Batches that were fetched ahead for a step."""

    wait_s: float
    samples: int
    made: BatchTimes | None
    """The times of their stages, summed, from the first one's beginning to the last one's end; None if not known."""


NOTHING = Ahead(0.0, 0, None)


def batch_times(times: FetchTimes, queue_depth: float) -> BatchTimes:
    """Returns the times in which a batch was made, as far as they are known from outside its dataset: reading is the
    dataset's time without transforms, decoding is NaN.
    """
    dataset_s, transform_s, collate_s, start_s, end_s, worker, _ = times
    number = math.nan if worker < 0 else float(worker)
    read_s = max(0.0, dataset_s - transform_s)
    return BatchTimes(read_s, math.nan, transform_s, collate_s, start_s, end_s, number, queue_depth)


def together(first: BatchTimes | None, then: BatchTimes | None) -> BatchTimes | None:
    """Returns the sum of the stages of two batches, fetched one after the other, that one step has waited for."""
    if first is None or then is None:
        return first or then
    return BatchTimes(
        first.read_s + then.read_s,
        first.decode_s + then.decode_s,
        first.transform_s + then.transform_s,
        first.collate_s + then.collate_s,
        first.start_s,
        then.end_s,
        then.worker,
        then.queue_depth,
    )


def n_samples(batch: Any) -> int:
    """Returns the length of the first tensor in a batch that is not empty; 0 where there is none."""
    if type(batch) in (list, tuple) and batch and type(batch[0]) is Tensor and batch[0].dim() and batch[0].numel():
        return batch[0].size(0)  # most batches; the general way takes ten times as long
    for tensor in tensors(batch):
        if tensor.numel():
            return tensor.size(0) if tensor.dim() else 1  # `len(tensor)` would run PyTorch's Python code
    return 0
