"""What is said of a batch on its way."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils.data._utils.pin_memory import pin_memory

from vitprof.watch.fetch_times import MARK, made_between, timed_fetch, unpacked


@pytest.mark.parametrize(
    ("ended", "worker", "expected"),
    [
        pytest.param(4.0, 0.0, 0.0, id="done before"),
        pytest.param(6.0, 1.0, 1.0, id="done meanwhile"),
        pytest.param(9.0, 0.0, 3.0, id="done after"),
        pytest.param(9.0, -1.0, 0.0, id="by the loop itself"),
    ],
)
def test_a_worker_makes_a_batch_while_we_are_busy(ended: float, worker: float, expected: float) -> None:
    assert made_between((0.0, 0.0, 0.0, 1.0, ended, worker, ()), 5.0, 8.0) == expected


class Batch:
    """A batch of a user's own class; it can be pinned."""

    pinned = False

    def pin_memory(self) -> Batch:
        self.pinned = True
        return self


def fetched(batch: Any, worker: int) -> Any:
    return timed_fetch(lambda _self, _index: batch)(SimpleNamespace(_vitprof_worker=worker), 0)


def test_a_batch_of_a_worker_brings_its_times_through_queue_and_pinning_thread() -> None:
    sent = pickle.loads(pickle.dumps(fetched(Batch(), 3)))
    batch, times = unpacked(pin_memory(sent))
    assert type(batch) is Batch
    assert batch.pinned
    assert times is not None
    assert (times[5], times[-1]) == (3, ())
    assert 0.0 <= times[0] <= times[4] - times[3]


def test_a_batch_made_in_the_loop_is_itself_and_its_times_are_taken_once() -> None:
    made = Batch()
    batch, times = unpacked(fetched(made, -1))
    assert batch is made
    assert times is not None
    assert times[5] == -1
    assert unpacked(made) == (made, None)


@pytest.mark.parametrize("batch", [(MARK, 1), [1, 2, 3], ("a", "b", "c"), {0: MARK}, None])
def test_any_other_batch_is_left_as_it_is(batch: Any) -> None:
    assert unpacked(batch) == (batch, None)
