"""The price of a device: what commands say of one that is none, and when."""

import json

import pytest

from tests.cli.json_objects import told
from tests.command_line import Call, one_line, succeeds
from tests.ui.dashboard import add_run
from vitprof.cli import watch
from vitprof.config.device_rate import DEVICE_RATE
from vitprof.jobs.finalise import settle
from vitprof.store import RunStore

LINE = f"vitprof: {DEVICE_RATE}: 'cheap' is no price of an hour of one device; "


@pytest.mark.parametrize(
    "command",
    [
        ("run", "--strategy", "memory", "--steps", "9"),
        ("runs", "1"),
        ("export", "1", "--format", "json"),
        ("demo", "--no-browser"),
        ("--no-browser",),
    ],
)
def test_what_is_no_price_is_refused_before_anything_is_done(
    call: Call, mine: RunStore, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setenv(DEVICE_RATE, "cheap")
    assert one_line(call, *command).startswith(LINE)
    assert not list(mine.runs())


def test_a_list_of_runs_needs_no_price(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DEVICE_RATE, "cheap")
    assert "no runs" in succeeds(call, "runs")


def test_a_script_is_watched_whatever_the_price_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(DEVICE_RATE, "cheap")
    watch._check_rate()
    assert LINE in capsys.readouterr().err.replace("\n", " ")
    monkeypatch.setenv(DEVICE_RATE, "2.50 USD")
    watch._check_rate()
    assert capsys.readouterr().err == ""


def test_json_has_the_cost_where_it_has_an_answer(
    call: Call, mine: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DEVICE_RATE, "3.6 EUR")
    run = add_run(mine, n=60)
    mine.update_run(run, **settle(mine, run, 100.0, 101.0))
    one = told("runs-one", call("runs", str(run), "--json")[1])
    (exported,) = told("export", call("export", str(run), "--format", "json")[1])["runs"]
    assert exported["idle_cost"] == one["idle_cost"]
    cost = one["idle_cost"]
    assert (cost["currency"], cost["rate_per_hour"], cost["n_devices"]) == ("EUR", 3.6, 1)
    whole = cost["so_far"]["whole"]
    assert whole["seconds"] == pytest.approx(one["summary"]["training_s"])
    assert whole["money"] == pytest.approx(whole["seconds"] / 1000)
    assert whole["joules"] is None
    assert sum(part["seconds"] for part in cost["so_far"]["parts"]) == pytest.approx(
        whole["seconds"]
    )
    (listed,) = json.loads(call("runs", "--json")[1])["runs"]
    assert listed["idle_cost"] is None
