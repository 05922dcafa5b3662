"""Predictions in the store."""

import pytest

from vitprof.analysis.verdict.prediction import Prediction
from vitprof.config import RunConfig
from vitprof.errors import StoreError
from vitprof.store import RunStore, predictions

FOUND = Prediction(1000.0, 900.0, 1100.0)


def add(
    store: RunStore, profile: int, micro: int = 7, strategy: str = "memory", device: str = "cpu"
) -> int:
    config = RunConfig(strategy=strategy, device=device)
    return predictions.add_prediction(
        store, FOUND, config, profile_run_id=profile, micro_run_id=micro
    )


def test_kept_found_and_deleted_with_the_run(store: RunStore) -> None:
    run = store.create_run(RunConfig())
    first, other = add(store, run), add(store, run + 1, micro=8)
    assert [p.id for p in predictions.list_predictions(store)] == [first, other]
    (kept,) = predictions.list_predictions(store, run)
    assert kept == predictions.prediction(store, first)
    assert (kept.samples_per_s, kept.low, kept.high) == (1000.0, 900.0, 1100.0)
    assert kept.config == RunConfig(strategy="memory", device="cpu")
    assert (kept.verified_run_id, kept.measured_per_s, kept.error) == (None, None, None)
    assert kept.created_utc.endswith("Z")
    store.update_run(run, status="done")
    store.delete(run)
    assert [p.id for p in predictions.list_predictions(store)] == [other], (
        "deleted with the run it was made from"
    )


def test_one_of_each_strategy_the_checked_one_first(store: RunStore) -> None:
    checked, again, other = (
        add(store, 1, micro, name) for micro, name in ((7, "memory"), (8, "memory"), (9, "cache"))
    )
    for number, newest in ((checked, checked), (again, again)):
        predictions.update_prediction(store, number, measured_per_s=900.0)
        kept = predictions.latest_of_each(predictions.list_predictions(store))
        assert {p.id for p in kept} == {newest, other}


def test_one_for_each_loader_only_run(store: RunStore) -> None:
    assert add(store, 1) == add(store, 1)
    assert len(predictions.list_predictions(store)) == 1
    for number in (0, -1, 5, 2**40):
        with pytest.raises(StoreError, match=f"no prediction {number}"):
            predictions.prediction(store, number)


def test_errors_of_a_machine_and_device(store: RunStore) -> None:
    run = store.create_run(RunConfig())
    host = store.run(run).owner_host
    for micro, (device, measured) in enumerate(
        [("cpu", 800.0), ("cpu", 1000.0), ("cuda:0", 2000.0), ("cpu", None)]
    ):
        number = add(store, run, micro, device=device)
        predictions.update_prediction(store, number, measured_per_s=measured)
    every = predictions.calibrate(store)
    assert (every.n, every.median_abs_error, every.inside_frac) == (3, 0.25, pytest.approx(1 / 3))
    cpu = predictions.calibrate(store, host=host, device="cpu")
    assert (cpu.n, cpu.median_abs_error, cpu.inside_frac) == (2, 0.125, 0.5)
    assert predictions.calibrate(store, host="elsewhere").n == 0
    assert predictions.prediction(store, 1).error == pytest.approx(0.25)


def test_one_that_cannot_be_read_is_left_out_and_hides_no_other(store: RunStore) -> None:
    bad, good = add(store, 1, 7), add(store, 1, 8)
    later = RunConfig().to_dict() | {"warmup_steps": 10**12}
    predictions.update_prediction(store, bad, config=later, measured_per_s=900.0)
    assert [p.id for p in predictions.list_predictions(store)] == [good]
    with pytest.raises(
        StoreError, match=rf"^prediction {bad} was written by another version .*from 0 to 1,000,000"
    ):
        predictions.prediction(store, bad)
    run = store.create_run(RunConfig())
    predictions.update_prediction(store, bad, profile_run_id=run)
    assert predictions.calibrate(store).n == 1
