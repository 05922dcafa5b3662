"""`check`: its lines, its exit statuses, and the files that it reads and writes."""

import dataclasses
import math
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from tests.cli.json_objects import told as read_json
from tests.command_line import Call, one_line
from tests.recording.archives import changed
from tests.ui.dashboard import add_run
from vitprof.config.own_script import own_config, with_loader
from vitprof.datasets.own import registry
from vitprof.datasets.own.registry import OwnSet
from vitprof.export.bundle import bundle_bytes, write_bundle
from vitprof.recording.columns import SCHEMA_VERSION
from vitprof.store import RunStore

OWN = {"device": "cpu", "watched": {"dataset": "Samples", "batch_size": 128, "n_samples": 640}}


def add(store: RunStore, wait_s: float = 0.005, **more: object) -> int:
    """A run of a user's own script: 12,800 samples/s with 5 ms of wait and 5 ms of compute in a step."""
    run_id = add_run(store, wait_s=wait_s, **more)  # type: ignore[arg-type]
    store.update_run(run_id, config=with_loader(own_config("train.py"), OWN), environment=OWN)
    return run_id


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (
            "1",
            "there is nothing to check: give at least one of --max-idle, --max-data-wait, --min-samples-per-s, ",
        ),
        ("7 --max-idle 1%", "there is no run 7"),
        ("1,x --max-idle 1%", "RUN x: there is no such file; give run numbers"),
        ("1 --max-idle 10", "--max-idle 10: give a share such as 10% or 0.1, from 0% to 100%"),
        ("1 --max-idle nan%", "--max-idle nan%: give a share"),
        ("1 --max-data-wait ten", "--max-data-wait ten: give a share such as 10% or 0.1"),
        (
            "1 --min-samples-per-s 0",
            "--min-samples-per-s 0.0: give a number from 1e-06 to 1,000,000,000,000",
        ),
        ("1 --max-slowdown 5%", "--max-slowdown 5%: give --against too"),
        ("1 --against 1", "--against 1: give --max-slowdown too"),
        ("1 --max-idle 5% --allow versions", "--allow versions: choose one of order, data"),
        (
            "1 --max-idle 5% --junit /no/such/x.xml",
            "--junit /no/such/x.xml: there is no directory /no/such",
        ),
        ("1 --max-slowdown 5% --against no.vitprof", "--against no.vitprof: there is no such file"),
        ("1 --max-slowdown 5% --against 99", "there is no run 99"),
        ("1 --max-slowdown 5% --against /", "/ cannot be read: Is a directory"),
    ],
)
def test_a_bad_value_is_one_line_and_no_regression(
    call: Call, mine: RunStore, line: str, complaint: str
) -> None:
    add(mine)
    assert one_line(call, "check", *line.split()).startswith(f"vitprof: {complaint}")


def outcomes(out: str) -> str:
    return " ".join(line.split()[0] for line in out.splitlines())


@pytest.mark.parametrize(
    ("line", "status", "found"),
    [
        ("1 --max-idle 50% --max-data-wait 0.51 --min-samples-per-s 12.7e3", 0, "met met met"),
        ("1 --max-idle 49.9% --min-samples-per-s 12000", 1, "missed met"),
        ("1 --max-idle 60% --against 2 --max-slowdown 5%", 2, "met refused"),
        ("1 --max-idle 40% --against 2 --max-slowdown 5%", 1, "missed refused"),
        ("1 --max-idle 60% --against 3 --max-slowdown 5%", 2, "met undecided"),
        ("1 --against 4 --max-slowdown 40%", 1, "missed"),
        ("1 --against 4,5 --max-slowdown 0.5", 0, "met"),
        ("6 --max-idle 60% --min-samples-per-s 100", 2, "refused met"),
    ],
)
def test_exit_statuses(call: Call, mine: RunStore, line: str, status: int, found: str) -> None:
    for more in ({}, {"status": "failed"}, {"n": 15}, {"wait_s": 0.0}, {"wait_s": 0.0}):
        add(mine, **more)
    add_run(mine, loader_only=True)  # has no device to idle
    got, out, err = call("check", *line.split())
    assert (got, err, outcomes(out)) == (status, "", found)


def test_json_and_junit_have_every_bound(call: Call, mine: RunStore, tmp_path: Path) -> None:
    for device in ("cpu", "cpu", "simulated:5,0"):
        add_run(mine, device=device)
    report = tmp_path / "report.xml"
    bounds = ["--max-idle", "40%", "--against", "2", "--max-slowdown", "5%", "--junit", str(report)]
    status, out, err = call("check", "1", *bounds, "--json")
    told = read_json("check", out)
    assert (status, err, told["schema_version"]) == (1, "", SCHEMA_VERSION)
    assert (told["exit_status"], told["runs"], told["baseline"]) == (1, ["1"], ["2"])
    idle, slowdown = told["bounds"]
    assert (idle["bound"], idle["outcome"], idle["limit"], idle["n_steps"]) == (
        "max_idle",
        "missed",
        0.4,
        35,
    )
    assert idle["low"] == pytest.approx(0.5)
    assert (slowdown["outcome"], slowdown["n_runs"], slowdown["between_runs"]) == ("met", 2, False)
    (suite,) = ET.parse(report).getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("2", "1", "0")
    status, out, _ = call("check", "3", "--max-idle", "60%")
    assert (status, out.count("(simulated device)")) == (0, 1)
    status, out, _ = call("check", "3", "--against", "1", "--max-slowdown", "60%", "--json")
    (slowdown,) = read_json("check", out)["bounds"]
    assert (status, slowdown["value"], slowdown["n_steps"]) == (2, None, None)
    assert "simulated" in slowdown["reason"]


@pytest.mark.parametrize(
    ("device", "launch_idle_s", "limit", "outcome"),
    [
        ("cuda:0", math.nan, "60%", "undecided"),
        ("cuda:0", math.nan, "40%", "missed"),
        ("cuda:0", 0.0, "60%", "met"),
        ("cpu", math.nan, "60%", "met"),
    ],
)
def test_a_gpu_may_idle_inside_steps_that_end_as_they_were_launched(
    call: Call, mine: RunStore, device: str, launch_idle_s: float, limit: str, outcome: str
) -> None:
    add(mine, launch_idle_s=launch_idle_s)
    mine.update_run(1, environment=OWN | {"device": device})
    status, out, _ = call("check", "1", "--max-idle", limit, "--max-data-wait", "60%")
    assert (outcomes(out), status) == (
        f"{outcome} met",
        {"met": 0, "missed": 1, "undecided": 2}[outcome],
    )
    assert ("is idle inside them is not known" in out) is (outcome == "undecided")


def test_what_passes_between_loader_and_model_may_be_loading(call: Call, mine: RunStore) -> None:
    add(mine)
    mine.update_run(1, facts={"outside_next_frac": 0.2})
    status, out, _ = call(
        "check", "1", "--max-data-wait", "60%", "--max-idle", "40%", "--min-samples-per-s", "1"
    )
    assert (status, outcomes(out)) == (1, "missed undecided met")
    assert "20% of the time passed between the loader and the model" in out


def test_workers_that_end_where_a_loop_is_left_early_are_loading(
    call: Call, mine: RunStore
) -> None:
    add(mine)
    mine.update_run(1, facts={"left_early_frac": 0.2})
    status, out, _ = call("check", "1", "--max-data-wait", "60%", "--min-samples-per-s", "1")
    assert (status, outcomes(out)) == (2, "undecided met")
    assert "20% of the time workers ended" in out


def test_what_the_loop_reads_itself_may_be_loading(call: Call, mine: RunStore) -> None:
    add(mine)
    mine.update_run(1, facts={"reading_steps_frac": 0.9, "step_read_bytes": 2e7})
    status, out, _ = call("check", "1", "--max-data-wait", "60%", "--min-samples-per-s", "1")
    assert (status, outcomes(out)) == (2, "undecided met")
    assert "the loop itself read data in 90% of the steps" in out


def test_a_baseline_from_another_store(call: Call, mine: RunStore, tmp_path: Path) -> None:
    other, file = (
        RunStore(f"sqlite:///{tmp_path / 'other.sqlite'}"),
        tmp_path / "base, of May.vitprof",
    )
    made = [add(other), add(other)]
    for number, run_id in enumerate(made):  # else they are this machine's run 1 of the same second
        other.update_run(run_id, t_origin_s=50.0 + number)
    write_bundle(other, made, file)
    other.close()
    add(mine, wait_s=0.02)
    against = ["--against", str(file), "--max-slowdown", "10%"]
    status, out, err = call("check", "1", *against)
    assert (status, err) == (1, "")
    assert "60.0% slower" in out
    write_bundle(mine, [1], file)
    status, out, _ = call("check", "1", *against)
    assert status == 2
    assert "run 1 is on both sides" in out
    file.write_bytes(b"PK")
    assert "base, of May.vitprof was not read: " in one_line(call, "check", "1", *against)
    assert len(mine.runs()) == 1, "nothing of the file is stored"


def test_files_are_checked_where_nothing_can_be_written(
    call: Call, store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also runs on a data set of their sender's, which is described in them."""
    pets = OwnSet("pets", "folder:/d", 60_000, 10, 3, 96, 5_000, "a")

    def on_pets(values: dict[str, Any]) -> None:
        values["config"] |= {"dataset": "pets", "strategy": "workers"}
        values["facts"]["own_set"] = dataclasses.asdict(pets)

    file = tmp_path / "of-pets.vitprof"
    file.write_bytes(changed(bundle_bytes(store, [add_run(store)]), on_pets))
    # where root cannot make a folder either
    monkeypatch.setenv("VITPROF_HOME", "/proc/no-home")
    status, out, err = call("check", str(file), "--max-idle", "60%")
    assert (status, err, outcomes(out)) == (0, "", "met")
    assert registry.everything() == {}
    assert "/proc/no-home" in one_line(call, "check", "1", "--max-idle", "60%")


def test_what_xml_cannot_hold_is_replaced(call: Call, mine: RunStore, tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    for name in ("of mine", "other"):
        add(mine, name=name)
    mine.update_run(1, facts={"several_threads_train": True}, name="\x1b[1m & bold")
    assert call("check", "1", "--max-idle", "10%", "--junit", str(report))[0] == 2
    (suite,) = ET.parse(report).getroot()
    error = suite.find("testcase/error")
    assert error is not None
    assert (error.get("type"), error.get("message")) == ("refused", error.text)
