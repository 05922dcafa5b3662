"""What workers say of themselves, and what the process that trains knows of them."""

from __future__ import annotations

import json
import resource
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.watch.watching import Host
from vitprof.watch import worker_facts
from vitprof.watch.worker_facts import descriptor_limit, processes_of, said_at_first


@pytest.mark.parametrize("sharing", ["file_descriptor", "file_system"])
def test_a_run_says_how_its_workers_hand_batches_over(host: Host, sharing: str) -> None:
    """A script may set its strategy in the workers alone, where the process that trains does not see it."""
    told = host.running("tests.watch.handing_script").ok("train", sharing=sharing)
    of_batch = told.facts()["handed_over"]
    unpickle_s = of_batch.pop("unpickle_s")
    assert 0 < unpickle_s < 1
    assert 0 < of_batch.pop("unpickle_cpu_s") < unpickle_s + 0.001
    # The thread of a worker's queue has its own CPU time; a clock may be coarser than the other.
    assert 0 < of_batch.pop("pickle_cpu_s") < of_batch.pop("pickle_s") + 0.001 < 1
    assert of_batch == {
        "tensors": 16,
        "bytes": 4 * (16 + 8 + 8),
        "dtypes": {"float32": 12, "int64": 4},
        "storages": 8,
        "descriptor_limit": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "sharing": sharing,
        "torch_threads": 2 if sharing == "file_system" else 1,
        "start_method": "fork",
        "unpickled_in": "training",
    }
    returned = json.loads(told.returned)
    held = returned["batches"] * of_batch["storages"]
    if sharing == "file_descriptor":
        assert held <= returned["open"] < held + 8
    else:
        assert returned["open"] < 8


def test_a_worker_says_it_once_for_each_fetcher(monkeypatch: pytest.MonkeyPatch) -> None:
    fetcher = SimpleNamespace()
    strategy = torch.multiprocessing.get_sharing_strategy()
    assert said_at_first(fetcher) == (strategy, torch.get_num_threads())
    assert said_at_first(fetcher) is None

    def fail() -> Any:
        raise RuntimeError("a strategy of the script's own")

    monkeypatch.setattr(torch.multiprocessing, "get_sharing_strategy", fail)
    assert said_at_first(SimpleNamespace()) is None, "the batch is sent anyway"


def test_the_processes_of_an_iterator() -> None:
    workers = [SimpleNamespace(pid=n, _popen=SimpleNamespace(method="spawn")) for n in (7, 8)]
    assert processes_of(SimpleNamespace(_workers=workers)) == {
        "pids": [7, 8],
        "start_method": "spawn",
    }
    for without in (SimpleNamespace(), SimpleNamespace(_workers=[]), SimpleNamespace(_workers=3)):
        assert processes_of(without) == {}


def test_no_limit_of_descriptors_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: Any = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(worker_facts.resource, "getrlimit", lambda _kind: limits)
    assert descriptor_limit() is None
