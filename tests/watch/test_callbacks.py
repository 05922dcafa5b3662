"""Another training framework is supported by one file: its callback (docs/layout.md tells how)."""

from __future__ import annotations

import numpy as np
import pytest

from tests.watch import scripts, toy_framework
from tests.watch.watching import Host

N_BATCHES = scripts.N_SAMPLES // scripts.BATCH


@pytest.mark.parametrize("workers", [0, 1])
def test_support_another_training_framework(host: Host, workers: int) -> None:
    told = host.running("tests.watch.toy_framework").ok(watched=False, workers=workers)
    steps, n = told.steps, 2 * N_BATCHES
    assert told.note("environment")[0]["watched"]["name"] == "toy"
    assert steps["step"].tolist() == list(range(n))
    assert steps["epoch"].tolist() == [0] * N_BATCHES + [1] * N_BATCHES
    assert set(steps["samples"]) == {scripts.BATCH}
    assert str([float(loss).hex() for loss in steps["loss"]]) == told.returned
    assert steps["compute_s"].min() >= scripts.BODY_S
    assert steps["outside_s"].min() >= toy_framework.BETWEEN_S, "what the framework does is in no step"
    assert np.isfinite(steps["collate_s"]).all()
