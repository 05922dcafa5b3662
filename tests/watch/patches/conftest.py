"""What the hooks find in this process must not depend on the tests that ran in it before."""

import sys

import pytest


@pytest.fixture(autouse=True)
def nothing_was_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where anything was compiled, hooks look at no model. A test of training may have compiled one in this process."""
    compiler = sys.modules.get("torch._dynamo.convert_frame")
    if compiler is not None:
        monkeypatch.setattr(compiler, "FRAME_COUNTER", 0)
