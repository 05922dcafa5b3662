"""All ranks of a job in one run: a real one of torchrun's, processes that only send, and built-in jobs."""

import json
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests import ROOT
from tests.engine_fixtures import (
    N_PHOTOS,
    KeptLauncher,
    descendants,
    gone,
    photos_home,  # noqa: F401
    trained,
    wait_until,
)
from tests.jobs.test_command import recorded
from vitprof.analysis.timing.steady import stops_of
from vitprof.config import RunConfig
from vitprof.errors import DeviceError
from vitprof.jobs import finalise, nodes, rank_processes
from vitprof.jobs.command import CommandRunner
from vitprof.jobs.supervisor import JobRecorder
from vitprof.measure.wire import EventBuffer
from vitprof.recording.rank_facts import RankFacts
from vitprof.store import RunStore
from vitprof.store.stored_run import StoredRun
from vitprof.telemetry.visible import VisibleGpu

BUFFERS = """
import sys, time, torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

cause, slow, meeting = sys.argv[1], int(sys.argv[2]), sys.argv[3]

def main(rank):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=2)
    cuda = torch.cuda.is_available()
    where = torch.device("cuda", rank) if cuda else torch.device("cpu")

    def is_slow(here):
        return rank == slow and here == cause

    def work(s):
        torch.cuda._sleep(int(s * 1.41e9)) if cuda else time.sleep(s)

    class Data(Dataset):
        def __len__(self):
            return 4 * 17

        def __getitem__(self, index):
            time.sleep(0.004 if is_slow("input") else 0.0005)
            return torch.full((16,), float(index))

    class Model(torch.nn.Linear):
        def forward(self, x):
            work(0.016 if is_slow("compute") else 0.002)
            if cause == "gathers":
                dist.all_reduce(torch.ones(1))
            return super().forward(x)

    model = Model(16, 4)
    model.register_buffer("mean", torch.zeros(8))
    if cuda:
        torch.cuda.set_device(where)
    model = torch.nn.parallel.DistributedDataParallel(model.to(where))
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    loader = DataLoader(Data(), batch_size=4)
    for epoch in range(3):
        for batch in loader:
            loss = model(batch.to(where)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if is_slow("between steps"):
                loss.item()
                time.sleep(0.016)
        if is_slow("the end of an epoch"):
            time.sleep(0.5)
    dist.destroy_process_group()

# Forked: what starts anew loads PyTorch once more for each rank; that takes longer than training.
torch.multiprocessing.start_processes(main, nprocs=2, start_method="fork")
"""
SCRIPT = """
import json, os, signal, sys, time, torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
rank = dist.get_rank()

class Slow(Dataset):
    def __len__(self):
        return 4 * 40

    def __getitem__(self, index):
        time.sleep(0.008 if rank == 1 else 0.001)
        return torch.full((3, 16), float(index))

model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), 1e-6)
losses, waits, asked = [], [], time.perf_counter()
for batch in DataLoader(Slow(), batch_size=4):
    waits.append(time.perf_counter() - asked)
    loss = model(batch).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(float(loss))
    if rank == 1 and len(losses) == 20 and sys.argv[2:] == ["stops"]:
        os.kill(os.getpid(), signal.SIGSTOP)
    started_again = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    if rank == 1 and len(losses) == 25 and sys.argv[2:] == ["fails once"] and not started_again:
        raise RuntimeError("once")
    asked = time.perf_counter()
with open(f"{sys.argv[1]}-{rank}.json", "w") as file:
    json.dump([waits, losses], file)
dist.destroy_process_group()
"""


LAUNCHER = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def run_script(tmp_path: Path, name: str, *launcher: str) -> list[str]:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    return [sys.executable, *launcher, str(script), str(tmp_path / name)]


def ranks_with_buffers(store: RunStore, tmp_path: Path, cause: str, slow: int) -> RankFacts:
    """The ranks of a job whose model has buffers: rank 0's are sent to the others before each forward pass."""
    script = tmp_path / "buffers.py"
    script.write_text(BUFFERS)
    meeting = tmp_path / "meeting"
    command = [sys.executable, str(script), cause, str(slow), str(meeting)]
    run = recorded(store, "buffers", lambda: CommandRunner(command))
    assert (run.status, run.error) == ("done", "")
    return run.facts["ranks"]


@pytest.mark.measured
@pytest.mark.parametrize(
    ("cause", "slow"), [("input", 0), ("gathers", 0), ("the end of an epoch", 0)]
)
def test_what_is_a_rank_s_own_of_a_job_with_buffers_and_several_epochs(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: str, slow: int
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    ranks = ranks_with_buffers(store, tmp_path, cause, slow)
    if cause == "gathers":
        assert (ranks["straggler"], ranks["waits_alone"]) == (None, True)
    elif cause == "the end of an epoch":
        assert (ranks["one_off"][0], ranks["one_off_ranks"], ranks["not_between"]) == (2, [slow], 0)
    else:
        assert (ranks["straggler"], ranks["cause"], ranks["waits_alone"]) == (slow, cause, False)


@pytest.mark.measured
def test_two_nodes_commands_make_one_run_of_all_ranks(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the variables that a launcher gives them: it would load PyTorch for each node once more."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    command = run_script(tmp_path, "two")
    place = {
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }

    def of_node(number: str) -> StoredRun:
        variables = place | {"RANK": number, "GROUP_RANK": number}
        return recorded(store, number, lambda: CommandRunner(command, variables=variables))

    with ThreadPoolExecutor(2) as at_once:
        first, second = at_once.map(of_node, "01")
    assert (first.environment["rank"], second.environment["rank"]) == (0, 1)
    assert first.verdict is not None
    assert "1 rank of the job trained on other nodes" in first.verdict.sentence, (
        "what rank 1 waits for is not known"
    )
    whole, line = nodes.join(store, second, finalise.settle)
    assert (whole.id, line) == (first.id, f"run {first.id} has the ranks of 2 commands")
    assert {rank: len(of["step"]) for rank, of in store.steps_of_ranks(whole.id).items()} == {
        0: 40,
        1: 40,
    }
    assert (first.facts["missing_ranks"], whole.facts["missing_ranks"]) == (1, 0)
    assert (whole.facts["ranks"]["straggler"], whole.facts["ranks"]["cause"]) == (1, "input")
    assert whole.verdict is not None
    assert whole.verdict.sentence.startswith("Almost certainly starved. The job waits for data")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@pytest.mark.measured
def test_both_ranks_are_in_one_run_and_the_slow_one_is_named(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    run = recorded(store, "two", lambda: CommandRunner(run_script(tmp_path, "watched", *LAUNCHER)))
    assert (run.status, run.error, run.notices, run.environment["world_size"]) == (
        "done",
        "",
        (),
        2,
    )
    steps = store.steps_of_ranks(run.id)
    assert {rank: len(of["step"]) for rank, of in steps.items()} == {0: 40, 1: 40}
    assert set(steps[1]["rank"]) == {1.0}
    assert store.n_steps(run.id) == 40, "the run's own steps are those of rank 0"
    for rank, of in steps.items():
        waits, losses = json.loads((tmp_path / f"watched-{rank}.json").read_text())
        whole_s = float(of["step_s"][5:].sum())
        assert abs(sum(waits[5:]) - float(of["data_wait_s"][5:].sum())) < 0.02 * whole_s, (
            "against the script's timer"
        )
        np.testing.assert_allclose(of["loss"], losses, rtol=1e-6)
        assert set(of["batch_values"]) == {4 * 3 * 16}
    ranks = run.facts["ranks"]
    assert (ranks["straggler"], ranks["cause"], ranks["n_steps"]) == (1, "input", 35)
    assert run.verdict is not None
    assert run.verdict.kind == "inconclusive", "the figures of rank 0 say too little"
    assert run.verdict.sentence.startswith("Almost certainly starved. The job waits for data")
    assert not run.verdict.advice
    store.compact(run.id)
    assert len(store.steps_of_ranks(run.id, names=("step",))[1]["step"]) == 40


@pytest.mark.measured
def test_a_rank_that_is_stopped_is_seen_and_left_out(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first rank's process was looked at: of 20 s in which the second was stopped nothing was said."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    command = [*run_script(tmp_path, "stopped", *LAUNCHER), "stops"]

    def stopped() -> list[psutil.Process]:
        return [each for each in descendants() if each.status() == psutil.STATUS_STOPPED]

    with ThreadPoolExecutor(1) as at_once:
        recording = at_once.submit(recorded, store, "two", lambda: CommandRunner(command))
        wait_until(lambda: bool(stopped()), "the stop")
        (process,) = stopped()
        time.sleep(3.0)  # the fault itself
        process.send_signal(signal.SIGCONT)
        run = recording.result()
    assert run.status == "done"
    (stop,) = stops_of(run.facts)
    assert (stop.kind, stop.rank) == ("stopped", 1)
    assert stop.seconds == pytest.approx(3.0, abs=1.0)
    (notice,) = run.notices
    assert "in which rank 1 was stopped (by a signal or a debugger) are left out" in notice
    steps = store.steps(run.id)
    stalled = int(steps["step_s"].argmax())
    assert steps["step_s"][stalled] > 2.0
    assert np.flatnonzero(steps["warmup"])[5:].tolist() == [stalled]


@pytest.mark.measured
def test_a_training_that_torchrun_starts_again_is_one_run(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 65 steps those of the first start were in the run, which was done, and had a verdict."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    # else torchrun keeps the store, and gloo may read the addresses of before in it, and hang
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    launcher = [*LAUNCHER, "--max-restarts", "1"]
    command = [*run_script(tmp_path, "again", *launcher), "fails once"]
    run = recorded(store, "again", lambda: CommandRunner(command))
    assert (run.status, run.error) == ("done", "")
    assert "partly_watched" not in run.facts
    (notice,) = run.notices
    assert notice.startswith("its launcher started the training again 1 time: step ")
    (start,) = run.facts["restarted_at"]
    # torchrun may end rank 0 by a signal, which takes what it has not sent; and it had begun its 26th step
    assert 20 <= start["step"] <= 26
    for rank, steps in store.steps_of_ranks(run.id).items():
        assert len(steps["step"]) >= 40 + 20, rank
        assert (steps["step"] >= start["step"]).sum() == 40
        assert (np.diff(steps["step"]) > 0).all()
        assert (np.diff(steps["t_start_s"]) > 0).all()


def test_ranks_that_come_late_die_or_are_started_again_leave_the_run_as_it_is(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    source = """
import os
from tests.jobs.sending import columns, waiting, watched
for rank, n in (2, 30), (0, 50), (1, 40), (0, 60), (1, 60):
    with watched(rank=rank, world_size=3) as send:
        send(columns(n, step=range(n), epoch=0, samples=4, **waiting(0.0, 0.001, 0.1)))
"""
    run = recorded(store, "three", lambda: CommandRunner([sys.executable, "-c", source]))
    assert run.status == "done"
    assert {rank: len(of["step"]) for rank, of in store.steps_of_ranks(run.id).items()} == {
        0: 50,
        1: 40,
        2: 30,
    }
    assert run.notices == (
        "another process of the command trained, too: this is the run of the first one",
    )
    assert run.facts["ranks"]["n_steps"] == 30


PHOTOS = {
    "dataset": "photos",
    "n_images": N_PHOTOS,
    "strategy": "per-sample",
    "augment": "off",
    "image_size": 28,
    "threads": 1,
}


@pytest.mark.measured
def test_two_ranks_train_as_one_with_batches_of_both(
    store: RunStore,
    tmp_path: Path,
    photos_home: Path,  # noqa: F811
    launcher: KeptLauncher,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VITPROF_HOME", str(photos_home))
    job = RunConfig(**PHOTOS, device="cpu", ranks=2, batch_size=20, steps=7)
    run_id = store.create_run(job)
    JobRecorder(store, run_id, threading.Event(), logs=tmp_path, launcher=launcher).run()
    run, steps = store.run(run_id), store.steps_of_ranks(run_id)
    assert (run.status, run.error, run.notices) == ("done", "", ())
    assert (run.environment["world_size"], run.environment["torch_threads"]) == (2, 1)
    assert {rank: of["samples"].tolist() for rank, of in steps.items()} == dict.fromkeys(
        (0, 1), [20.0] * 7
    )
    assert steps[1]["batch_values"].tolist() == [20 * 3 * 224 * 224] * 7
    assert (steps[1]["forward_s"] < steps[1]["compute_s"]).all()
    one = trained(**PHOTOS, batch_size=40, steps=7)
    together = (steps[0]["loss"] + steps[1]["loss"]) / 2
    np.testing.assert_allclose(together, one["loss"], rtol=1e-3)
    assert abs(steps[0]["loss"] - steps[1]["loss"]).max() > 1e-2, "each has samples of its own"
    assert run.facts["test_loss"] == pytest.approx(one.values["test_loss"], rel=1e-3)
    assert run.facts["n_train"] == N_PHOTOS // 2


@pytest.mark.measured
def test_the_slow_rank_is_named_and_where_a_rank_dies_the_run_fails_with_that(
    store: RunStore,
    tmp_path: Path,
    photos_home: Path,  # noqa: F811
    launcher: KeptLauncher,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VITPROF_HOME", str(photos_home))
    config = {"device": "simulated:5,0", "batch_size": 2, "seconds": 600, "slow_rank": "1:40"}
    run_id = store.create_run(RunConfig(**PHOTOS, **config, ranks=2))
    recorder = JobRecorder(store, run_id, threading.Event(), logs=tmp_path, launcher=launcher)
    thread = threading.Thread(target=recorder.run)
    thread.start()
    wait_until(
        lambda: len(store.steps_of_ranks(run_id, names=("step",)).get(1, {}).get("step", ())) > 60,
        "steps",
    )
    every = descendants()
    (victim,) = (p for p in every if rank_processes.RANK in p.environ())
    victim.kill()
    thread.join()
    assert gone(every)
    run = store.run(run_id)
    assert (run.status, run.error) == ("failed", "rank 1: its process was ended by SIGKILL")
    assert (run.facts["ranks"]["straggler"], run.facts["ranks"]["cause"]) == (1, "input")
    assert run.notices == ("rank 1 waits 40 ms before it reads each batch, on purpose",)


def test_each_rank_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [VisibleGpu(i, "NVIDIA L4", "", 24e9) for i in range(2)]
    monkeypatch.setattr(rank_processes, "visible_gpus", lambda: gpus)
    for device in ("auto", "cuda:0"):
        assert rank_processes.settled(RunConfig(ranks=2, device=device)).device == "cuda:0"
    for device, n in (("auto", 3), ("cuda:1", 2)):
        with pytest.raises(
            DeviceError, match=rf"^{n} ranks take a GPU each .* there are 2 \(cuda:0 .*choose fewer"
        ):
            rank_processes.settled(RunConfig(ranks=n, device=device))
    gpus.clear()
    assert rank_processes.settled(RunConfig(ranks=2)).device == "cpu"


def test_the_first_rank_that_failed_by_itself_is_named() -> None:
    others = rank_processes.RankProcesses(RunConfig(), EventBuffer(), 0, 0)
    assert others.why() == ""
    others._over.set()
    others._fail(3, rank_processes.LOST)
    assert others.why() == f"rank 3: {rank_processes.LOST}"
    others._fail(2, "no such file")
    others._fail(1, "no room")
    assert others.why() == "rank 2: no such file"
