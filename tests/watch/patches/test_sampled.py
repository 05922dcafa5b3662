"""Of a device whose events have no times a few steps are timed by waiting for it at both ends."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from vitprof.watch.events import Kind, Row
from vitprof.watch.patches import sampled
from vitprof.watch.patches.sampled import (
    SAMPLED_EVERY,
    WARMUP_STEPS,
    SampledSteps,
    sampled_steps,
)

STEP_S = 0.5


class Script:
    """A loop on such a device, step by step, on a played clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.synchronized: list[int] = []
        """The steps that had ended where the script waited for the device."""
        self.rows: list[Row] = []
        self._n = 0
        monkeypatch.setattr(sampled, "perf_counter", lambda: self.now_s)
        self.steps = SampledSteps(SimpleNamespace(synchronize=self._synchronize))

    def _synchronize(self) -> None:
        self.synchronized.append(self._n)
        self.now_s += 0.25

    def requests(self) -> None:
        self.steps.requested(self.rows.append)

    def step(self) -> None:
        self.requests()
        self.now_s += 1.0
        self.steps.received(self.now_s)
        self.now_s += STEP_S
        self._n += 1


def test_one_step_of_many_is_timed_and_the_one_before_it_waits_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = Script(monkeypatch)
    for _ in range(2 * SAMPLED_EVERY + 5):
        script.step()
    pairs = [SAMPLED_EVERY - 1, SAMPLED_EVERY, 2 * SAMPLED_EVERY - 1, 2 * SAMPLED_EVERY]
    assert script.synchronized == pairs
    assert [row[0] for row in script.rows] == 2 * [Kind.SAMPLED]
    # from its batch to the end of the device's work; what the wait before it takes is in no step
    assert [row[4] for row in script.rows] == 2 * [STEP_S + 0.25]


def test_the_warm_up_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch)
    for _ in range(WARMUP_STEPS):
        script.step()
    assert script.synchronized == []


def test_another_thread_is_none_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch)
    for _ in range(SAMPLED_EVERY - 1):
        script.step()
    fetching = threading.Thread(target=script.requests)
    fetching.start()
    fetching.join()
    assert script.synchronized == []


@pytest.mark.parametrize("kind", ["cpu", "cuda", "xpu"])
def test_devices_that_are_timed_or_cannot_be_are_not_waited_for(kind: str) -> None:
    assert sampled_steps(SimpleNamespace(type=kind)) is None
