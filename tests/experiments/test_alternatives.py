"""Other ways to run a profiled run's job."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine_fixtures import CHEAP, N_PHOTOS
from vitprof.config import KNOBS, RunConfig
from vitprof.config.availability import Machine
from vitprof.config.resolve import resolve
from vitprof.experiments.alternatives import USUAL, alternative, micro_config, usual_strategies
from vitprof.store import RunStore, StoredRun

QUICK: dict[str, Any] = CHEAP | {"strategy": "per-sample", "device": "simulated:4,5", "steps": 30, "evaluate": False}
ROOMY = Machine(gpus=(), ram_bytes=2**36, disk_bytes=2**40, tmpfs=None)


def stored(store: RunStore, **config: Any) -> StoredRun:
    """A run that never ran."""
    return store.run(store.create_run(resolve(RunConfig(**(QUICK | config)))))


def test_the_same_job_with_that_strategys_own_settings(store: RunStore) -> None:
    run = stored(store, strategy="workers", workers=7, lr=0.1, seed=3)
    other = alternative(run, "threads")
    own = resolve(RunConfig(**(QUICK | {"strategy": "threads", "lr": 0.1, "seed": 3})))
    assert other == own
    assert other.workers == 2
    memory = alternative(run, "memory")
    assert {n: getattr(memory, n) for n in KNOBS if getattr(memory, n) is not None} == {"shuffle": "full"}


@pytest.mark.parametrize(
    ("dataset", "asked", "strategy", "becomes"),
    [
        ("digits", "cpu", "device", "device"),
        ("digits", "cpu", "workers", "cpu"),
        ("digits", "off", "device", "off"),
        ("photos", "cpu", "device", "device"),
        ("photos", "off", "threads", "off"),
    ],
)
def test_augmentation_stays(store: RunStore, dataset: str, asked: str, strategy: str, becomes: str) -> None:
    size = {"n_images": N_PHOTOS} if dataset == "photos" else {}
    run = stored(store, strategy="per-sample", dataset=dataset, augment=asked, **size)
    assert alternative(run, strategy).augment == becomes


def test_page_cache_where_there_is_one(store: RunStore) -> None:
    run = stored(store, strategy="preprocessed", page_cache="cold")
    assert alternative(run, "hdf5").page_cache == "cold"
    assert alternative(run, "memory").page_cache == "as-is"


def test_the_micro_run(store: RunStore) -> None:
    config = micro_config(alternative(stored(store), "memory"), 1.5)
    assert (config.seconds, config.steps, config.epochs) == (1.5, None, None)
    assert (config.loader_only, config.evaluate) == (True, False)


def test_usual_ones(store: RunStore) -> None:
    run = stored(store, strategy="memory")
    names = usual_strategies(run, ROOMY)
    assert set(names) == set(USUAL) - {"memory"}
    store.update_run(run.id, environment={"device": "cpu"})
    assert "device" not in usual_strategies(store.run(run.id), ROOMY)
    small = Machine(gpus=(), ram_bytes=0, disk_bytes=2**40, tmpfs=None)
    assert not {"memory", "memory-ahead", "device"} & set(usual_strategies(run, small))
