"""Descriptors that batches hold open on their way from workers."""

from typing import Any

import pytest

from vitprof.analysis.timing.hand_over import descriptors_of
from vitprof.config.own_script import own_config

OF_BATCH = {"storages": 100, "descriptor_limit": 1024, "sharing": "file_descriptor"}


def facts(device: str = "cpu", *, pin_memory: bool = False, **of_batch: Any) -> dict[str, Any]:
    watched = {"num_workers": 4, "prefetch_factor": 3, "pin_memory": pin_memory}
    return {"watched": watched, "device": device, "handed_over": {**OF_BATCH, **of_batch}}


def test_batches_that_are_ready_hold_theirs_in_the_process_that_trains() -> None:
    held = descriptors_of(facts(), own_config("train", workers=4))
    assert held is not None
    assert (held.most, held.batches, held.in_worker) == (1200, 12, False)
    assert held.frac == pytest.approx(1200 / 1024)


def test_a_pinning_thread_leaves_a_workers_own() -> None:
    config = own_config("train", workers=4)
    held = descriptors_of(facts("cuda:0", pin_memory=True), config)
    assert held is not None
    assert (held.most, held.batches, held.in_worker) == (300, 3, True)
    without_gpu = descriptors_of(facts("cpu", pin_memory=True), config)
    assert without_gpu is not None
    assert not without_gpu.in_worker, "without a GPU nothing is pinned"


def test_prefetch_factor_is_pytorchs_own_where_it_is_not_given() -> None:
    held = descriptors_of({"handed_over": OF_BATCH}, own_config("train", workers=4))
    assert held is not None
    assert held.batches == 8


@pytest.mark.parametrize(
    "of_batch",
    [{"sharing": "file_system"}, {"sharing": ""}, {"storages": 0}, {"descriptor_limit": None}],
)
def test_what_holds_none_or_is_not_known(of_batch: dict[str, Any]) -> None:
    assert descriptors_of(facts(**of_batch), own_config("train", workers=4)) is None


def test_without_workers_nothing_crosses() -> None:
    assert descriptors_of(facts(), own_config("train", workers=0)) is None
    assert descriptors_of({}, own_config("train", workers=4)) is None
