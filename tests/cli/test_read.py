"""`vitprof read`: what people and programs get of a trace, and of a file that is none."""

from pathlib import Path

import pytest

from tests.cli.json_objects import not_described, told
from tests.clock import Clock
from tests.command_line import Call, one_line, succeeds
from tests.traces.written import WrittenTrace, trained_on_cpu, trained_on_gpu
from vitprof.cli.read import SAY_EVERY_S, said_now_and_then
from vitprof.store import RunStore
from vitprof.traces.trace_file import Progress


@pytest.fixture
def path(tmp_path: Path) -> Path:
    trace = trained_on_gpu(
        40, wait_ms=10.0, copy_ms=1.0, work_ms=4.0, launch_ms=0.4, waits_for_work=True
    )
    return trace.write(tmp_path / "worker0.pt.trace.json.gz")


def test_people_get_the_answer_and_what_to_know_of_it(call: Call, path: Path) -> None:
    status, out, err = call("read", str(path))
    assert status == 0
    lines = out.splitlines()
    assert lines[0] == "vitprof run 1: worker0.pt.trace.json.gz"
    assert lines[1].startswith("Input-bound. The GPU was idle for data and copies 73% of the time")
    assert any(line.startswith("  Fix?     watching the script") for line in lines)
    assert "based on 39 steady steps of 40, 15.0 ms a step, data wait of the loop 67%" in out
    first, second = err.splitlines()
    assert first.startswith("read from a trace of torch.profiler, worker0.pt.trace.json.gz: ")
    assert second.startswith("not in the trace: stages of making a batch in workers; ")


def test_programs_get_the_run(call: Call, path: Path, mine: RunStore) -> None:
    options = ("--json", "--name", "mine", "--batch-size", "64", "--workers", "4")
    found = told("read", succeeds(call, "read", str(path), *options))
    assert (found["name"], found["run_id"], found["status"]) == ("mine", 1, "done")
    assert found["verdict"]["kind"] == "input-bound"
    assert found["environment"]["watched"]["num_workers"] == 4
    assert found["config"]["workers"] == 4
    assert found["facts"]["trace"]["steps_by"] == "Optimizer.step"
    assert not not_described("read", found)
    assert told("runs-one", succeeds(call, "runs", "1", "--json"))["facts"] == found["facts"]
    assert [run.id for run in mine.runs()] == [1]


def test_as_markdown(call: Call, path: Path) -> None:
    status, out, _ = call("read", str(path), "--markdown")
    assert status == 0
    assert out.startswith("**Input-bound.** The GPU was idle for data and copies 73%")


def test_the_cpu(call: Call, tmp_path: Path) -> None:
    path = trained_on_cpu(40, wait_ms=7.0, work_ms=3.0).write(tmp_path / "trace.json")
    status, out, err = call("read", str(path))
    assert status == 0
    assert "Training on the CPU was stalled for data 70% of the time" in out
    assert "it is read as training on the CPU" in err


def test_too_few_steps_say_nothing(call: Call, tmp_path: Path) -> None:
    path = trained_on_gpu(12, wait_ms=0.5, work_ms=6.0).write(tmp_path / "trace.json")
    status, out, _ = call("read", str(path))
    assert status == 0
    assert "Inconclusive. 12 steps were recorded" in out


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"import torch\n", "is no trace of torch.profiler: it is not JSON; give what"),
        (b"\x1f\x8b\x08\x00\x00\x00", "ends in the middle"),
        (WrittenTrace().text().encode(), "cannot be read as a training: no step of a training"),
    ],
)
def test_what_is_no_trace_of_a_training_is_one_line(
    call: Call, tmp_path: Path, mine: RunStore, data: bytes, said: str
) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(data)
    err = one_line(call, "read", str(path), status=1)
    assert err.startswith(f"vitprof: {path} {said}")
    assert not mine.runs()


def test_a_file_that_is_not_there_and_a_number_out_of_bounds(call: Call, tmp_path: Path) -> None:
    missing = tmp_path / "missing.json"
    assert f"{missing} cannot be read" in one_line(call, "read", str(missing), status=1)
    assert "--batch-size 0" in one_line(call, "read", str(missing), "--batch-size", "0")


def test_without_a_terminal_there_is_a_line_now_and_then() -> None:
    said = list[str]()
    clock = Clock()
    tell = said_now_and_then(said.append, clock)
    for step in range(1, 41):
        clock.now += SAY_EVERY_S / 10
        tell(Progress(step << 20, 40 << 20, step * 1000))
    assert said == [
        "read 25% of 40.0 MiB, 10,000 events",
        "read 50% of 40.0 MiB, 20,000 events",
        "read 75% of 40.0 MiB, 30,000 events",
        "read 100% of 40.0 MiB, 40,000 events",
    ]
