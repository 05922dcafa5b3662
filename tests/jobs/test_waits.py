"""Waits of a rank for others outside the backward pass, in real jobs: no waits for data, and no work of its own."""

import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.jobs.test_command import recorded
from vitprof.jobs.command import CommandRunner
from vitprof.store import RunStore

SCRIPT = """
import json, multiprocessing, os, sys, time, torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, default_collate

where = sys.argv[1]

class Data(Dataset):
    def __len__(self):
        return 4 * 40

    def __getitem__(self, index):
        time.sleep(0.001)
        return torch.full((16,), float(index))

def collate(samples):
    if where == "loader":
        dist.barrier()
    return default_collate(samples)

def main(rank, barrier, out):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method="file://" + out + ".group", rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    losses, work = [], None
    for batch in DataLoader(Data(), batch_size=4, collate_fn=collate):
        loss = model(batch).pow(2).mean()
        if work is not None:
            work.wait()
        optimizer.zero_grad()
        loss.backward()
        time.sleep(0.03 * (rank == 1))
        optimizer.step()
        losses.append(loss.item().hex())
        if where == "later":
            work = dist.all_reduce(loss.detach().clone(), async_op=True)
        if where == "processes":
            barrier.wait()
    if work is not None:
        work.wait()  # one that is left would end the process as its group is destroyed
    with open(f"{out}.{rank}", "w") as file:
        json.dump(losses, file)
    dist.destroy_process_group()

# Forked: what starts anew loads PyTorch once more for each rank; that takes longer than training.
barrier = multiprocessing.get_context("fork").Barrier(2)
torch.multiprocessing.start_processes(main, (barrier, sys.argv[2]), nprocs=2, start_method="fork")
"""


@pytest.mark.measured
@pytest.mark.parametrize("where", ["loader", "later", "processes"])
def test_who_waits_for_a_late_rank_is_not_named_and_waits_are_not_for_data(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Rank 1 is late before the optimizer's step, where no rank is compared; rank 0 waits for it: in a barrier inside
    `next()`, in `wait()` on a collective of the step before, in a barrier of multiprocessing.
    """
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "train.py"), where]
    run = recorded(store, where, lambda: CommandRunner([*command, str(tmp_path / "watched")]))
    assert (run.status, run.error) == ("done", "")
    ranks, steps = run.facts["ranks"], store.steps_of_ranks(run.id)
    if ranks["straggler"] is None:
        assert (ranks["why_not"], ranks["waiting"][0]) == ("", 0)
        assert ranks["waiting"][1] > 0.2, "of 30 ms in some 45 for each step"
    else:  # on a busy machine it may be late before its backward pass as well
        assert ranks["straggler"] == 1
    assert ("loader_waits_for_ranks" in run.facts) is (where == "loader")
    waited = {rank: of["data_wait_s"][5:].mean() for rank, of in steps.items()}
    assert abs(waited[0] - waited[1]) < 0.015
    assert ranks["figures"][0]["data_wait_frac"] < 0.4
