"""The line on what idle time cost, below the answers, and what is said of a price that is none."""

import pytest

from tests.ui.dashboard import add_run, app, captions
from vitprof.config.device_rate import DEVICE_RATE
from vitprof.jobs.finalise import settle
from vitprof.store import RunStore


@pytest.fixture
def starved(store: RunStore) -> str:
    """A run that waits half of its time, as text."""
    run = add_run(store, n=60)
    store.update_run(run, **settle(store, run, 100.0, 101.0))
    return str(run)


def test_the_cost_stands_below_the_answers(starved: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DEVICE_RATE, "3600 EUR")
    said = captions(app(run=starved))
    assert (
        "of training: 275 ms compute, 275 ms waiting for data (recoverable: up to 275 ms)" in said
    )
    assert "That is up to 0.275 EUR at 3,600.00 EUR an hour of a device." in said


def test_a_price_that_is_none_costs_a_line_and_not_the_card(
    starved: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DEVICE_RATE, "cheap")
    said = captions(app(run=starved))
    assert "275 ms waiting for data" in said
    assert f"{DEVICE_RATE}: 'cheap' is no price of an hour of one device" in said
