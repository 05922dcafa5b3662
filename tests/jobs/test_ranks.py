"""All ranks of a distributed job in one run: a real one of torchrun's, and processes that only send."""

import json
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests import ROOT
from tests.jobs.test_command import recorded
from vitprof.jobs import finalise, nodes
from vitprof.jobs.command import CommandRunner
from vitprof.store import RunStore
from vitprof.store.stored_run import StoredRun

pytestmark = pytest.mark.slow

SCRIPT = """
import json, os, sys, time, torch, torch.distributed as dist
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
    asked = time.perf_counter()
with open(f"{sys.argv[1]}-{rank}.json", "w") as file:
    json.dump([waits, losses], file)
dist.destroy_process_group()
"""


def run_script(tmp_path: Path, name: str) -> list[str]:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return [*launcher, str(script), str(tmp_path / name)]


def test_two_nodes_commands_make_one_run_of_all_ranks(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    *launcher, _, _, script, out = run_script(tmp_path, "two")
    launcher.remove("--standalone")
    place = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", str(free_port())]

    def of_node(number: str) -> StoredRun:
        command = [*launcher, *place, "--node-rank", number, script, out]
        return recorded(store, number, lambda: CommandRunner(command))

    with ThreadPoolExecutor(2) as at_once:
        first, second = at_once.map(of_node, "01")
    assert (first.environment["rank"], second.environment["rank"]) == (0, 1)
    assert first.verdict is not None
    assert "1 rank of the job trained on other nodes" in first.verdict.sentence, "what rank 1 waits for is not known"
    whole, line = nodes.join(store, second, finalise.settle)
    assert (whole.id, line) == (first.id, f"run {first.id} has the ranks of 2 commands")
    assert {rank: len(of["step"]) for rank, of in store.steps_of_ranks(whole.id).items()} == {0: 40, 1: 40}
    assert (whole.facts["ranks"]["straggler"], whole.facts["ranks"]["cause"]) == (1, "input")
    assert whole.verdict is not None
    assert whole.verdict.sentence.startswith("Almost certainly starved: the job waits for data")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def test_both_ranks_are_in_one_run_and_the_slow_one_is_named(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    run = recorded(store, "two", lambda: CommandRunner(run_script(tmp_path, "watched")))
    assert (run.status, run.error, run.notices, run.environment["world_size"]) == ("done", "", (), 2)
    steps = store.steps_of_ranks(run.id)
    assert {rank: len(of["step"]) for rank, of in steps.items()} == {0: 40, 1: 40}
    assert set(steps[1]["rank"]) == {1.0}
    assert store.n_steps(run.id) == 40, "the run's own steps are those of rank 0"
    for rank, of in steps.items():
        waits, losses = json.loads((tmp_path / f"watched-{rank}.json").read_text())
        whole_s = float(of["step_s"][5:].sum())
        assert abs(sum(waits[5:]) - float(of["data_wait_s"][5:].sum())) < 0.02 * whole_s, "against the script's timer"
        np.testing.assert_allclose(of["loss"], losses, rtol=1e-6)
        assert set(of["batch_values"]) == {4 * 3 * 16}
    ranks = run.facts["ranks"]
    assert (ranks["straggler"], ranks["cause"], ranks["n_steps"]) == (1, "input", 35)
    assert run.verdict is not None
    assert run.verdict.kind == "inconclusive", "the figures of rank 0 say too little"
    assert run.verdict.sentence.startswith("Almost certainly starved: the job waits for data")
    assert not run.verdict.advice
    store.compact(run.id)
    assert len(store.steps_of_ranks(run.id, names=("step",))[1]["step"]) == 40


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
    assert {rank: len(of["step"]) for rank, of in store.steps_of_ranks(run.id).items()} == {0: 50, 1: 40, 2: 30}
    assert run.notices == ("another process of the command trained, too: this is the run of the first one",)
    assert run.facts["ranks"]["n_steps"] == 30
