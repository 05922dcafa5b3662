"""`vitprof watch --events` and `vitprof replay`."""

from pathlib import Path

import pytest

from tests.cli.json_objects import told
from tests.command_line import Call
from tests.watch.core.test_device_logs import LOGS as DEVICE_LOGS
from tests.watch.core.test_logs import LOGS
from tests.watch.core.written import TRAIN, Script
from vitprof.analysis.timing.compute_parts import divided_compute_of
from vitprof.store import RunStore
from vitprof.watch.event_log import EventLogWriter

SCRIPT = """
import torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for (x,) in DataLoader(TensorDataset(torch.ones(24, 4)), batch_size=2):
        model(x).sum().backward()
        optimizer.step()
"""


WATCHING_ITSELF = """
import torch, vitprof
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
class Batches:
    batch_size = 2
    def __iter__(self):
        return ((torch.ones(2, 4),) for _ in range(12))
batches = vitprof.watch(Batches())
for epoch in range(2):
    for (x,) in batches:
        with vitprof.step():
            model(x).sum().backward()
            optimizer.step()
"""


@pytest.mark.measured
@pytest.mark.parametrize(("source", "batch_sizes"), [(SCRIPT, [2, 2]), (WATCHING_ITSELF, [2])])
def test_it_says_what_watching_said(
    call: Call, mine: RunStore, tmp_path: Path, source: str, batch_sizes: list[int]
) -> None:
    script, log = tmp_path / "train.py", tmp_path / "log"
    script.write_text(source)
    status, _, watched = call("watch", "--events", str(log), "--", "python", str(script))
    assert status == 0, watched
    (run,) = mine.runs()
    assert run.summary is not None
    status, out, err = call("replay", str(log), "--json")
    assert (status, err) == (0, "")
    replayed = told("replay", out)
    assert (replayed["steps"], replayed["epochs"]) == (run.summary.n_steps, 2)
    assert replayed["samples"] == 48
    assert [each["batch_size"] for each in replayed["fed_by"]] == batch_sizes
    assert replayed["verdict"]["kind"] == (run.verdict and run.verdict.kind)
    divided = divided_compute_of(run.summary)
    assert divided is not None
    assert replayed["divided_compute"]["n"] == divided.n
    for of_log, of_run in zip(replayed["divided_compute"]["parts"], divided.parts, strict=True):
        assert of_log["name"] == of_run.name
        # a part lies between two times, and the file has whole microseconds
        assert of_log["median_s"] == pytest.approx(of_run.median_s, abs=1.1e-6)
    assert "Compute of a step (median " in watched
    assert "Compute of a step (median " in call("replay", str(log))[1]
    # a log is for a bug report: nothing in it says where the script lies
    assert str(tmp_path) not in log.read_text()


def test_people_get_lines(call: Call) -> None:
    status, out, err = call("replay", str(LOGS / "checked-within.jsonl"))
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("64 steps in 2 epochs, ")
    assert lines[1] == "fed by Quick (batches of 2, 0 workers)"
    assert lines[2].startswith("8 evaluations, ")


def test_futures_of_batches_are_counted(call: Call, tmp_path: Path) -> None:
    """Each batch had a line of its own."""
    status, out, _ = call("replay", str(LOGS / "elsewhere-future.jsonl"))
    assert status == 0
    fed_by = [line for line in out.splitlines() if line.startswith("fed by ")]
    assert len(fed_by) == 1
    assert fed_by[0].endswith(" of them")


def test_a_step_is_divided_into_forward_backward_optimizer_and_the_rest(
    call: Call, tmp_path: Path
) -> None:
    script = Script()
    for _ in range(30):
        script.fetch(TRAIN)
        script.passes(0.004)
        script.differentiates(0.005)
        script.updates(0.002)
        script.passes(0.001)
    with (tmp_path / "log").open("w") as file:
        writer = EventLogWriter(file)
        for description in script.log.descriptions.values():
            writer.described(description)
        for event in script.log.events:
            writer.event(event)
    lines = call("replay", str(tmp_path / "log"))[1].splitlines()
    shares = "forward 33%, backward 42%, optimizer 17%, rest 8.0%"
    assert lines[2] == f"Compute of a step (median 12.0 ms): {shares}"
    replayed = told("replay", call("replay", str(tmp_path / "log"), "--json")[1])
    # neither the 5 steps of the warm-up, nor the one that begins the epoch
    assert replayed["divided_compute"]["n"] == 25
    parts = {part["name"]: part["median_s"] for part in replayed["divided_compute"]["parts"]}
    taken_s = {"forward": 0.004, "backward": 0.005, "optimizer": 0.002, "other": 0.001}
    assert parts == pytest.approx(taken_s)


def test_of_a_log_that_is_not_whole_there_is_no_verdict(call: Call, tmp_path: Path) -> None:
    whole = (LOGS / "zipped-sq.jsonl").read_text()
    failed = '["described",9999,"failure",{"error":"TypeError"}]\n'
    (tmp_path / "log").write_text(whole + failed)
    lines = call("replay", str(tmp_path / "log"))[1].splitlines()
    assert lines[0].startswith("no verdict: a hook of vitprof's failed (TypeError), ")
    assert told("replay", call("replay", str(tmp_path / "log"), "--json")[1])["verdict"] is None
    (tmp_path / "log").write_text(whole[: len(whole) * 2 // 3].rstrip("\n"))
    lines = call("replay", str(tmp_path / "log"))[1].splitlines()
    assert lines[0].startswith("no verdict: the file ends in the middle of a line, ")


def test_of_two_threads_that_train_there_is_no_advice(call: Call) -> None:
    replayed = told("replay", call("replay", str(LOGS / "two-threads.jsonl"), "--json")[1])
    assert replayed["several_threads_train"]
    assert replayed["verdict"]["kind"] == "inconclusive"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "loop-numbers-in-a-queue",
            "batches from no loader that vitprof knows. The waits of 11 of 16",
        ),
        ("zipped-sq", "of the wait was for the loader of "),
    ],
)
def test_the_verdict_rests_on_the_facts_that_watching_has(call: Call, name: str, said: str) -> None:
    """Without them it was "the device's times are not known", and named no loader."""
    assert said in " ".join(call("replay", str(LOGS / f"{name}.jsonl"))[1].split())


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_without_training_it_says_so(call: Call, as_json: list[str]) -> None:
    status, out, _ = call("replay", str(LOGS / "nobody-trains.jsonl"), *as_json)
    assert status == 0
    if as_json:
        assert told("replay", out)["steps"] == 0
    else:
        assert "no training is in it" in out


def test_a_file_that_is_no_log_is_one_line(call: Call, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("import torch\n")
    status, out, err = call("replay", str(tmp_path / "file"))
    assert (status, out) == (1, "")
    assert err.startswith(f"vitprof: {tmp_path / 'file'} is no event log")
    assert err.count("\n") == 1


def test_a_place_that_cannot_be_written_to_is_said_before_the_script_starts(
    call: Call, tmp_path: Path
) -> None:
    missing = tmp_path / "missing" / "log"
    status, _, err = call("watch", "--events", str(missing), "--", "python", "-c", "print(1)")
    assert status == 2
    assert str(missing.parent) in err
    assert err.count("\n") == 1


def test_a_script_that_fetches_nothing_leaves_no_file_and_a_line(
    call: Call, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    status, _, err = call("watch", "--events", str(log), "--", "python", "-c", "import torch")
    assert status == 0
    assert f"{log} was not written: no process fetched a batch, or trained" in err
    assert not log.exists()


@pytest.mark.measured
def test_a_child_that_trains_is_in_the_file_and_its_idle_parent_is_not(
    call: Call, tmp_path: Path
) -> None:
    script, log = tmp_path / "train.py", tmp_path / "log"
    forks = "import os, torch, torch.utils.data\nif os.fork():\n    os.wait()\n    os._exit(0)\n"
    script.write_text(forks + SCRIPT)
    assert call("watch", "--quiet", "--events", str(log), "--", "python", str(script))[0] == 0
    assert told("replay", call("replay", str(log), "--json")[1])["steps"] == 24
    assert sorted(path.name for path in tmp_path.glob("log*")) == ["log"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("quickstart", "The GPU was idle"),
        ("busy", "Not input-bound. The GPU was idle for data"),
        ("beside", "The GPU works in another stream while that of the optimizer is idle"),
    ],
)
def test_a_gpu_is_timed_by_its_own_marks(call: Call, name: str, said: str) -> None:
    status, out, err = call("replay", str(DEVICE_LOGS / f"{name}.jsonl"))
    assert (status, err) == (0, "")
    assert said in out
