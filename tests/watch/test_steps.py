"""Steps on their way from the thread that trains to the one that sends."""

import math
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vitprof.measure.devices import CpuDevice
from vitprof.measure.recorder import StepRecorder
from vitprof.measure.step_columns import UNKNOWN_TIMES, StepMarks, derive, gather
from vitprof.watch.batches import Step, batch_times
from vitprof.watch.fetch_times import UNKNOWN
from vitprof.watch.patching import Guard
from vitprof.watch.steps import NOTED, PlainBlock, Steps, TransformSums
from vitprof.watch.watcher import Watcher


def test_steps_are_taken_while_others_are_added() -> None:
    block, n, taken = PlainBlock(7, 2, 0.0), 20_000, []
    adding = threading.Thread(
        target=lambda: [
            block.add((*map(float, range(i, i + 10)), *[math.nan] * 5, -1.0, i / 2))
            for i in range(n)
        ]
    )
    adding.start()
    while len(taken) < n:
        if (marks := block.take()) is not None:
            names = ("step", "epoch", "t_start", "queue_depth", "loss")
            taken += zip(*(marks[name].tolist() for name in names), strict=True)
    adding.join()
    assert block.take() is None
    assert taken == [(7 + i, 2, i, i + 3, i / 2) for i in range(n)]


def marks_of(**known: Any) -> StepMarks:
    marks = StepMarks()
    for name, value in {
        "decoded": None,
        "prepared": None,
        "backward_start": None,
        "optimizer_start": None,
        "outside_s": math.nan,
        "made": None,
        **known,
    }.items():
        setattr(marks, name, value)
    return marks


def test_steps_are_sent_while_others_end() -> None:
    steps, n, sent = Steps(CpuDevice(lambda: 5.0), Watcher(Guard())), 20_000, list[float]()
    facts: dict[str, Any] = {}
    steps._session = SimpleNamespace(
        steps=lambda columns: sent.extend(columns["step"].tolist()), facts=facts.update
    )  # type: ignore[assignment]
    times = dict.fromkeys(("t_start", "t_got", "copy_start", "copy_end", "compute_start"), 5.0)

    def end() -> None:
        for _ in range(n):
            marks = marks_of(epoch=0, samples=8, loss=lambda: 0.0, **times)
            steps.step(Step(marks, (), last=False), 5.0, 5.0)

    ending = threading.Thread(target=end)
    ending.start()
    while len(sent) < n:
        steps._send()
    ending.join()
    assert sent == list(range(n))


@pytest.mark.parametrize("worker", [-1, 2])
def test_columns_of_a_plain_loop_are_those_of_any_loop(worker: int) -> None:
    """To the bit, for batches that were made before, while and without that the loop waited for them."""
    steps: list[StepMarks] = []
    recorder, end = StepRecorder(CpuDevice(lambda: 5.0), steps.append), 5.0
    recorder.resume()
    block = PlainBlock(3, 1, recorder.previous_end)
    random = np.random.default_rng(0)
    parts = []
    for number in range(3, 40):
        asked, got = end, end + random.uniform(0, 0.1)
        end = got + random.uniform(0, 0.1)
        made = asked + random.uniform(-0.1, 0.15)
        times = (
            (0.3, random.uniform(0, 0.4), 0.05, made - 0.2, made, worker, ())
            if number % 5
            else None
        )
        loss = random.normal()
        given = {name: random.normal() for name in NOTED[-7:-2]}
        block.add(
            (asked, got, 8, *((2.0, *times[:6]) if times else UNKNOWN), *given.values(), end, loss)
        )
        if number == 20:
            parts.append(block.take())
        known = {
            "step": number,
            "epoch": 1,
            "warmup": False,
            "samples": 8,
            "loss": lambda loss=loss: loss,
        }
        known |= {"t_start": asked, "t_got": got, "t_launched": end, "compute_end": end}
        known |= dict.fromkeys(("copy_start", "copy_end", "compute_start"), got)
        made_in = UNKNOWN_TIMES if times is None else batch_times(times, 2.0)
        recorder.step(marks_of(**known, made=made_in._replace(**given)))
    parts.append(block.take())
    expected = derive(gather(steps))
    plain = [derive(part) for part in parts if part is not None]
    assert [len(part["step"]) for part in plain] == [18, 19]
    for name, column in expected.items():
        np.testing.assert_array_equal(
            np.concatenate([part[name] for part in plain]), column, err_msg=name
        )


def test_sums_are_sent_for_each_sample_and_now_and_then() -> None:
    sent: list[dict[str, Any]] = []
    sums = TransformSums()
    sums.send(sent.append)
    assert not sent, "nothing is known"
    batch = ((("Crop", "Normalize", "Normalize"), 4, (4.0, 2.0, 0.5)), (("Normalize",), 4, (1.0,)))
    for now in (0.0, 1.0, 2.9, 3.0):
        sums.add((batch, 4))
        sums.send(sent.append, now)
    assert len(sent) == 2
    sums.add((batch, 4))
    sums.add(((), 5))
    sums.send(sent.append)
    assert list(sent[-1]["transforms"].items()) == [
        ("Crop", {"s_per_sample": 0.8, "calls": 20}),
        ("Normalize", {"s_per_sample": 0.4, "calls": 20}),
        ("Normalize (2)", {"s_per_sample": 0.1, "calls": 20}),
        ("Normalize (3)", {"s_per_sample": 0.2, "calls": 20}),
    ]
