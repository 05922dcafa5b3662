"""Steps on their way from one thread to another, and the rows that are made of them."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest

from vitprof.measure.devices.cpu import CpuDevice
from vitprof.measure.recorder import StepMarks, StepRecorder
from vitprof.recording.columns import STEP_COLUMNS
from vitprof.watch.batches import batch_times
from vitprof.watch.fast_path import fetched
from vitprof.watch.plain_block import PlainBlock


def test_steps_are_taken_while_others_are_added() -> None:
    block, n, taken = PlainBlock(7, 2), 20_000, []
    adding = threading.Thread(
        target=lambda: [block.add((*map(float, range(i, i + 10)), -1.0, i / 2)) for i in range(n)]
    )
    adding.start()
    while len(taken) < n:
        if (columns := block.take()) is not None:
            taken += zip(columns.step, columns.epoch, columns.t_start, columns.queue_depth, columns.loss, strict=True)
    adding.join()
    assert block.take() is None
    assert taken == [(7 + i, 2, i, i + 3, i / 2) for i in range(n)]


@pytest.mark.parametrize("worker", [-1, 2])
def test_rows_are_those_that_the_recorder_makes_one_by_one(worker: int) -> None:
    """To the bit, for batches that were made before, while and without that the loop waited for them."""
    device, by_one, at_once = CpuDevice(lambda: 5.0), [], []
    one, many = StepRecorder(device, by_one.append), StepRecorder(device, at_once.append)
    block, end = PlainBlock(3, 1), 5.0
    random = np.random.default_rng(0)
    for recorder in (one, many):
        recorder.resume()
    for number in range(3, 40):
        asked, got = end, end + random.uniform(0, 0.1)
        end = got + random.uniform(0, 0.1)
        made = asked + random.uniform(-0.1, 0.15)
        times = (0.3, random.uniform(0, 0.4), 0.05, made - 0.2, made, worker, ()) if number % 5 else None
        batch, loss = fetched(asked, got, 8, 2.0, times), random.normal()
        block.add((*batch, end, loss))
        marks = StepMarks()
        marks.step, marks.epoch, marks.warmup, marks.samples = number, 1, False, 8
        marks.t_start, marks.t_got, marks.t_launched, marks.compute_end = asked, got, end, end
        marks.copy_start = marks.copy_end = marks.compute_start = got
        marks.decoded = marks.prepared = None
        marks.loss, marks.outside_s = lambda loss=loss: loss, math.nan
        marks.made = None if times is None else batch_times(times, 2.0)
        one.step(marks)
    columns = block.take()
    assert columns is not None
    rows = many.plain_rows(columns)
    assert rows.shape == (37, len(STEP_COLUMNS))
    for name, expected, found in zip(STEP_COLUMNS, np.array(by_one).T, rows.T, strict=True):
        np.testing.assert_array_equal(found, expected, err_msg=name)
    assert not at_once
