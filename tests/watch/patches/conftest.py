"""What the hooks find in this process must not depend on the tests that ran in it before."""

import math
import sys

import pytest

from vitprof.watch.patches import dataloader


@pytest.fixture(autouse=True)
def samplers_are_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where other programs have the core, any sampler takes a while, and so does freeing an iterator: both are
    recorded."""
    monkeypatch.setattr(dataloader, "LEAST_SAMPLING_S", math.inf)
    monkeypatch.setattr(dataloader, "LEAST_FREEING_S", math.inf)


@pytest.fixture(autouse=True)
def nothing_was_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where anything was compiled, hooks look at no model. A test of training may have compiled one in this process."""
    compiler = sys.modules.get("torch._dynamo.convert_frame")
    if compiler is not None:
        monkeypatch.setattr(compiler, "FRAME_COUNTER", 0)
