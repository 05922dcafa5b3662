"""Facts about the machine, and the CPU time of a job and its workers."""

import json
import os
import sys
import time
from typing import Any

import psutil
import pytest
import torch

import vitprof
from vitprof.engine.train import CpuMeter, describe, process_tree_cpu_s

BURNED_S = 0.2
BURN = f"""
import time
while time.process_time() < {BURNED_S}: pass
"""


def burn_here(seconds: float) -> None:
    since = time.process_time()
    while time.process_time() - since < seconds:
        pass


def test_facts_are_plain_values() -> None:
    facts = describe()
    assert json.loads(json.dumps(facts)) == facts
    assert (facts["vitprof"], facts["torch"]) == (vitprof.__version__, torch.__version__)
    assert facts["torch_threads"] == torch.get_num_threads()
    assert facts["cpu_count"] == os.cpu_count()


def test_a_worker_that_has_ended_keeps_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers end with their epoch unless they persist; their CPU time must not vanish from the run's."""
    before = process_tree_cpu_s()
    worker: Any
    with psutil.Popen(
        [sys.executable, "-c", BURN + "print(flush=True); input()"], stdin=-1, stdout=-1
    ) as worker:
        worker.stdout.readline()
        alive = process_tree_cpu_s()
        worker.communicate(b"\n")
    assert alive - before >= BURNED_S * 0.9  # the kernel counts in hundredths of a second
    assert (
        process_tree_cpu_s() >= alive - 0.05
    )  # hundredths of a second, rounded once for each process
    monkeypatch.setattr(
        psutil.Process, "children", lambda *args, **kwargs: [worker]
    )  # it ends during the count
    assert process_tree_cpu_s() > 0


def test_the_meter_leaves_pauses_out() -> None:
    meter = CpuMeter()
    assert not meter.running
    meter.pause()  # nothing was running
    assert meter.cpu_s == 0
    meter.start()
    assert meter.running
    burn_here(0.1)
    meter.pause()
    counted = meter.cpu_s
    assert counted >= 0.07
    burn_here(0.1)
    assert meter.cpu_s == counted
    meter.start()
    meter.pause()
    assert counted <= meter.cpu_s < counted + 0.07
