"""The page of all machines: what is starved now, and what it cost."""

import pytest

from tests.series import made_steps
from tests.ui.dashboard import add_run, app, said
from vitprof.config import RunConfig
from vitprof.recording.columns import RunSummary
from vitprof.store import RunStore
from vitprof.store.chunks import chunks_of
from vitprof.store.database import now_utc
from vitprof.ui.machines import lasted


def running(store: RunStore, wait_s: float, host: str, user: str) -> int:
    run_id = store.create_run(RunConfig(device="cpu", name=f"job of {user}"))
    steps = made_steps([wait_s] * 300, 1.0 - wait_s)
    values = {
        "status": "running",
        "environment": {"hostname": host, "world_size": 4, "device": "cuda:0"},
    }
    store.record(run_id, chunks_of("steps", steps), values | {"owner_user": user})
    return run_id


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, ""),
        (30, "30 s"),
        (60, "1 min"),
        (90, "1 min"),
        (3570, "59 min"),
        (3900, "1 h 05 min"),
    ],
)
def test_how_long_a_job_has_been_starved(seconds: float, words: str) -> None:
    """30.0 s was said of what is known by half minutes."""
    assert lasted(seconds) == words


def test_without_runs(store: RunStore) -> None:
    at = app("machines")
    assert "No job is running." in said(at)
    assert "No run on a real device ended in the days chosen" in said(at)


def test_what_is_starved_now_comes_first_and_filters_hold(store: RunStore) -> None:
    fed, starved = running(store, 0.01, "gpu-01", "ada"), running(store, 0.5, "gpu-02", "bob")
    ended = RunSummary(n_samples=7200, samples_per_s=2.0, exposed_wait_frac=0.25)
    store.update_run(
        add_run(store, device="cpu"), created_utc=now_utc(), owner_user="ada", summary=ended
    )
    at = app("machines")
    headline = "1 of 2 running jobs is starved now. Its 4 devices wait for data 50% of the time."
    assert headline in said(at)
    listed = at.dataframe[0].value
    assert listed["Run"].tolist() == [starved, fed]
    assert listed["Now"].tolist() == ["starved", "fed"]
    assert listed["Machine"].tolist() == ["gpu-02", "gpu-01"]
    assert listed["Idle for data (%)"].tolist() == pytest.approx([50, 1], rel=0.1)
    assert "**0.250 of 1.00 device-hours** passed idle, waiting for data: 25% of the time" in said(
        at
    )
    at = at.multiselect(key="user").set_value(["ada"]).run()
    assert at.dataframe[0].value["Run"].tolist() == [fed]
    assert "None of 1 running job is starved now." in said(at)
    at = app("machines", machine="gpu-02")
    assert at.dataframe[0].value["Run"].tolist() == [starved]
