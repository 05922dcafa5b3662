"""Which steps are looked at for what a script does with a batch before the model gets it."""

import math
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vitprof.watch import preparation as preparation_module
from vitprof.watch.patching import Guard
from vitprof.watch.preparation import OFTEN, Preparation

STEP_S, PREPARED_S, ASLEEP_S = 0.01, 0.004, 0.003


def loop_on(device: SimpleNamespace, shares: list[dict[str, float]]) -> Any:
    steps = SimpleNamespace(confirmed=True, warming_up=False, facts=shares.append)
    return SimpleNamespace(steps=steps, step=None, copies=None, device=device)


@pytest.fixture(autouse=True)
def _not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        preparation_module, "compiled", lambda: False
    )  # as other tests do in this process


def test_steps_are_looked_at_often_and_then_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    preparation, shares, now = Preparation(Guard()), [], SimpleNamespace(s=0.0, n_taken=0)
    monkeypatch.setattr(preparation_module, "_used", lambda: (now.s, now.s / 2, now.n_taken))
    loop = loop_on(SimpleNamespace(immediate=True), shares)
    looked_at, model = [], torch.nn.Linear(2, 2)
    for step in range(2000):
        now_s = step * STEP_S
        preparation.ask(now_s)
        preparation.begin(loop, now_s, now_s)
        if preparation.is_on:
            looked_at.append(step)
            preparation.close_span(now_s + PREPARED_S * (1000 if len(looked_at) == 2 else 1))
            model(torch.zeros(2))
            now.s += 2 * ASLEEP_S if len(looked_at) % 2 else STEP_S
            now.n_taken += len(looked_at) % 2 == 0
        preparation.step(now_s + STEP_S)
    preparation.close(loop)
    often, rarely = looked_at[:OFTEN], looked_at[OFTEN:]
    assert often[-1] < 4 * OFTEN
    assert 2000 / 32 < len(rarely) < 2000 / 12
    assert (
        abs(shares[-1]["outside_next_frac"] - (PREPARED_S - 0.0003) / STEP_S) < 0.001
    )  # without the one long pause
    assert math.isclose(
        shares[-1]["asleep_frac"], ASLEEP_S / STEP_S
    )  # of steps in which others took no core
    assert not torch.nn.modules.module._global_forward_pre_hooks


@pytest.mark.parametrize("how", ["another thread steps", "no step", "a GPU"])
def test_sleep_is_not_known_where_it_was_not_measured_whole(how: str) -> None:
    preparation, shares = Preparation(Guard()), []
    device = {"mark": lambda: 1, "reached": bool, "seconds": float, "release": lambda *_: None}
    loop = loop_on(SimpleNamespace(immediate=how != "a GPU", **device), shares)
    for number in range(100):
        preparation.ask(number * STEP_S)
        preparation.begin(loop, number * STEP_S, number * STEP_S)
        torch.nn.Linear(2, 2)(torch.zeros(2))
        if how == "another thread steps":
            thread = threading.Thread(target=preparation.step, args=(number * STEP_S,))
            thread.start()
            thread.join()
        elif how == "a GPU":
            preparation.step(number * STEP_S)
    preparation.close(loop)
    assert shares[-1].keys() == {"outside_next_frac", "between_steps_frac"}
