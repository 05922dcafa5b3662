"""The page of all machines: what is starved now, and what it cost."""

import re

import pandas as pd
import pytest

from tests.series import made_steps
from tests.ui.dashboard import add_run, app, read, said
from vitprof.config import RunConfig
from vitprof.config.device_rate import DEVICE_RATE
from vitprof.recording.columns import RunSummary
from vitprof.store import RunStore
from vitprof.store.chunks import chunks_of
from vitprof.store.database import now_utc
from vitprof.ui import tables
from vitprof.ui.machines import NOW, lasted


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
        (10, "under 30 s"),
        (30, "30 s"),
        (59, "30 s"),
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
    assert {"Name", "Processor", "Memory", "GPU", "PyTorch"} <= set(
        re.findall(r"\*\*(\w+)\*\*", said(at))
    )
    assert at.get("progress"), "what this machine does now"
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
    assert "The running job is not starved now." in said(at)
    at = app("machines", machine="gpu-02")
    assert at.dataframe[0].value["Run"].tolist() == [starved]


def test_a_job_on_a_simulated_device_is_listed_and_does_not_count(store: RunStore) -> None:
    """It was said that no job is running."""
    add_run(store, n=0, status="running", device="simulated:h100")
    at = app("machines")
    assert "No job is running on a real device; 1 job runs on a simulated one." in said(at)
    assert at.dataframe[0].value["Devices"].tolist() == ["1 x simulated H100"]


def test_what_is_not_known_of_the_only_job_is_not_said(store: RunStore) -> None:
    """A job without a step was said not to be starved."""
    add_run(store, n=0, status="running")
    assert "The running job has no steps yet." in said(app("machines"))


def ended(store: RunStore, user: str) -> None:
    summary = RunSummary(n_samples=7200, samples_per_s=2.0, exposed_wait_frac=0.25)
    run_id = add_run(store, device="cpu")
    store.update_run(run_id, created_utc=now_utc(), owner_user=user, summary=summary)


def test_costs_are_divided_only_by_what_tells_them_apart(store: RunStore) -> None:
    ended(store, "ada")
    at = app("machines")
    assert "in 1 run." in said(at)
    assert not at.dataframe, "one row would say the same again"
    ended(store, "bob")
    at = app("machines")
    (by,) = at.get("button_group")
    assert [option.content for option in by.proto.options] == ["User"]
    assert at.dataframe[0].value["Name"].tolist() == ["ada", "bob"]


def test_costs_are_in_money_where_an_hour_has_a_price(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(DEVICE_RATE, raising=False)
    for user in ("ada", "bob"):
        ended(store, user)
    at = app("machines")
    assert f"`{DEVICE_RATE}='2.50 USD'`" in said(at), "how to give it"
    monkeypatch.setenv(DEVICE_RATE, "2.50 USD")
    at.run()
    words = read(said(at))
    assert "25% of the time, 1.25 USD at 2.50 USD an hour of a device, in 2 runs." in words
    assert DEVICE_RATE not in words
    assert at.dataframe[0].value["Idle (USD)"].tolist() == [0.625, 0.625]
    monkeypatch.setenv(DEVICE_RATE, "cheap")
    assert "'cheap' is no price" in read(said(at.run()))


def test_a_share_fills_its_bar_at_a_hundred_percent() -> None:
    """The bar of the only running job was full at 7.8%."""
    (column,) = (column for column in NOW if column.name == "Idle for data (%)")
    config = tables.column_config([column], pd.DataFrame({column.name: [7.8]}))
    assert config[column.name]["type_config"]["max_value"] == 100
