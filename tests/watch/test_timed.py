"""What is said of a batch on its way."""

from __future__ import annotations

import pytest

from vitprof.watch.timed import made_between


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
