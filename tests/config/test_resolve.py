"""Strategies: what can be chosen, and that it explains itself; and what `resolve` makes of a config. Every default is
filled in, every foreign knob refused, and the run has a name."""

from typing import Any

import pytest

from vitprof.config import KNOBS, PARTS, RunConfig
from vitprof.config.models import MODELS
from vitprof.config.parts import LOADERS, LOCATIONS, STORAGES, TRANSFERS, Combination, why_not
from vitprof.config.resolve import resolve, run_name
from vitprof.config.strategies import STRATEGIES, Strategy, strategy
from vitprof.datasets.catalog import DatasetInfo, dataset_info
from vitprof.errors import ConfigError

OTHER_VALUE: dict[str, Any] = {
    "workers": 3,
    "prefetch_factor": 7,
    "pin_memory": False,
    "persistent_workers": False,
    "start_method": "spawn",
    "decoder": "pil",
    "cache_mb": 3.0,
    "slow_drive": "mechanical-disk",
    "slow_mb_s": 12.0,
    "slow_latency_ms": 3.5,
}
EVERY = pytest.mark.parametrize("plan", STRATEGIES.values(), ids=lambda s: s.name)


def dataset_of(plan: Strategy) -> str:
    """A data set that the strategy can load."""
    return "digits" if "idx" in kinds_of(plan, dataset_info("digits")) else "photos"


def kinds_of(plan: Strategy, info: DatasetInfo) -> set[str]:
    """The kinds of data sets that both its loader and the storage that it has for this one know."""
    return set(LOADERS[plan.loader].kinds) & set(STORAGES[plan.combination(info).storage].kinds)


def knobs_of(plan: Strategy, name: str = "") -> dict[str, Any]:
    info = dataset_info(name or dataset_of(plan))
    return plan.knobs(plan.combination(info), info)


@EVERY
def test_resolve_fills_in_every_default(plan: Strategy) -> None:
    resolved = resolve(RunConfig(strategy=plan.name, dataset=dataset_of(plan)))
    assert resolve(RunConfig.from_dict(resolved.to_dict())) == resolved, (
        "the job resolves what the manager resolved"
    )
    takes = knobs_of(plan) | {k: v for k, v in plan.fixed.items() if v is not None}
    assert {knob: getattr(resolved, knob) for knob in KNOBS} == {k: takes.get(k) for k in KNOBS}
    assert (resolved.image_size, resolved.lr) == (28, 3e-3)


@EVERY
@pytest.mark.parametrize("knob", OTHER_VALUE)
def test_a_knob_is_kept_where_the_strategy_takes_it_and_refused_where_not(
    plan: Strategy, knob: str
) -> None:
    value, takes = OTHER_VALUE[knob], knobs_of(plan)
    config = RunConfig(strategy=plan.name, dataset=dataset_of(plan), **{knob: value})
    if knob in takes:
        assert value != takes[knob]
        resolved = resolve(config)
        assert {k: getattr(resolved, k) for k in takes} == {**takes, knob: value}
        return
    if plan.fixed.get(knob, ()) == value:  # what it is anyway
        assert getattr(resolve(config), knob) == value
        return
    with pytest.raises(ConfigError) as caught:
        resolve(config)
    assert (caught.value.field, caught.value.value) == (knob, value)
    assert f"strategy {plan.name} does not take it" in str(caught.value)
    assert all(name in caught.value.allowed for name in takes)


def test_parts_can_be_replaced_and_bring_their_own_settings() -> None:
    resolved = resolve(
        RunConfig(strategy="workers", storage="hdf5-chunked", location="staged", loader="ahead")
    )
    assert (resolved.storage, resolved.loader, resolved.transfer) == (
        "hdf5-chunked",
        "ahead",
        "pinned",
    )
    assert (resolved.shuffle, resolved.slow_drive, resolved.prefetch_factor) == (
        "block",
        "network-drive",
        1,
    )
    assert (resolved.workers, resolved.pin_memory) == (None, None)
    once = resolve(RunConfig(strategy="per-sample", storage="files", loader="threads"))
    assert (once.workers or 0) >= 1
    assert (resolve(once), resolve(RunConfig(strategy="per-sample")).workers) == (once, 0)
    assert (
        resolve(RunConfig(strategy="memory", replay="host", inject="transfer:5")).inject
        == "transfer:5"
    )
    config = RunConfig(
        name="n",
        seconds=3.0,
        seed=7,
        device="cuda:1",
        precision="bf16",
        warmup_steps=0,
        evaluate=False,
    )
    before, after = config.to_dict(), resolve(config).to_dict()
    filled = {"image_size", "lr", "augment", *PARTS, "workers", "pin_memory", "persistent_workers"}
    assert {name for name in before if before[name] != after[name]} == filled


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"loader": "threads"},
            "loader: 'threads' is not possible; it cannot read storage idx; choose one of ",
        ),
        ({"storage": "tape"}, "storage: 'tape' is not possible; choose one of idx, imagefolder, "),
        (
            {"storage": "files", "decoder": "simplejpeg"},
            "decoder: 'simplejpeg' is not possible; it cannot decode PNG",
        ),
        (
            {"storage": "files", "loader": "threads", "workers": 0},
            "workers: 0 is not possible; loader threads works ",
        ),
        (
            {"replay": "device", "inject": "transfer:5"},
            "inject: 'transfer:5' is not possible; batches are replayed",
        ),
        (
            {"replay": "host", "inject": "read:5"},
            "inject: 'read:5' is not possible; batches are replayed on the host",
        ),
        (
            {"strategy": "memory", "page_cache": "cold"},
            "page_cache: 'cold' is not possible; the samples are in memory",
        ),
        (
            {"strategy": "ram-disk", "page_cache": "warm"},
            "page_cache: 'warm' is not possible; the samples are in ",
        ),
        ({"n_images": 500}, "n_images: 500 is not possible; digits always has 60000; leave it out"),
        (
            {"strategy": "device", "augment": "cpu"},
            "augment: 'cpu' is not possible; these samples are not touched",
        ),
        (
            {"strategy": "nothing"},
            f"strategy: 'nothing' is not possible; choose one of {', '.join(STRATEGIES)}",
        ),
        (
            {"compile_mode": "reduce-overhead"},
            "compile_mode: 'reduce-overhead' is not possible; it goes with compile,",
        ),
        (
            {"batch_size": 60_001},
            "batch_size: 60001 is not possible; the training set of digits has 60000 samples",
        ),
        (
            {"image_size": 30},
            "image_size: 30 is not possible; tiny cuts images into 7 px patches; give a multiple",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(RunConfig(**({"strategy": "workers"} | values)))
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("dataset", "strategy", "augment"),
    [
        ("digits", "memory", "off"),
        ("photos", "per-sample", "cpu"),
        ("photos", "preprocessed", "device"),
    ],
)
def test_photos_are_augmented_unless_told_otherwise(
    dataset: str, strategy: str, augment: str
) -> None:
    """A random crop and a flip are part of training on photos; on the device where the pixels come in whole batches."""
    assert resolve(RunConfig(dataset=dataset, strategy=strategy)).augment == augment
    assert resolve(RunConfig(dataset=dataset, strategy=strategy, augment="off")).augment == "off"


@pytest.mark.parametrize("given", [{}, {"prefetch_factor": 4, "persistent_workers": True}])
def test_without_workers_there_is_nothing_to_prefetch_and_nothing_to_keep(
    given: dict[str, Any],
) -> None:
    resolved = resolve(
        RunConfig(strategy="workers", workers=0, **given)
    )  # PyTorch refuses both with 0 workers
    assert (resolved.workers, resolved.prefetch_factor, resolved.persistent_workers) == (
        0,
        None,
        False,
    )
    assert resolved.pin_memory is True
    assert resolve(resolved) == resolved


@pytest.mark.parametrize("preset", MODELS.values(), ids=lambda p: p.name)
def test_image_size_and_learning_rate_come_from_the_model_unless_given(preset: Any) -> None:
    resolved = resolve(RunConfig(model=preset.name))
    assert (resolved.image_size, resolved.lr) == (preset.image_size, preset.lr)
    size = 3 * preset.patch_size
    resolved = resolve(RunConfig(model=preset.name, image_size=size, lr=0.5))
    assert (resolved.image_size, resolved.lr) == (size, 0.5)


@pytest.mark.parametrize(
    ("values", "label"),
    [
        ({"name": "mine", "strategy": "workers", "workers": 2}, "mine"),
        (
            {"name": "mine", "strategy": "slow-drive", "slow_drive": "network-drive"},
            "mine (throttled)",
        ),
        ({"strategy": "workers", "workers": 1}, "workers, batch 128, 1 worker"),
        (
            {"strategy": "workers", "workers": 4, "loader_only": True},
            "workers, batch 128, 4 workers, loader only",
        ),
        (
            {"strategy": "threads", "dataset": "photos", "workers": 2, "page_cache": "cold"},
            "threads, photos, batch 128, 2 threads, cold page cache",
        ),
        (
            {"strategy": "cache", "storage": "memmap", "cache_mb": 12.5, "augment": "cpu"},
            "cache, storage memmap, batch 128, cache 12.5 MB, augmented on cpu",
        ),
        (
            {"strategy": "staged", "slow_drive": "mechanical-disk", "workers": 0},
            "staged, batch 128, throttled as mechanical-disk",
        ),
        (
            {"model": "s/16", "precision": "bf16", "compile": True, "strategy": "device"},
            "device, batch 128, s/16, bf16, compiled",
        ),
    ],
)
def test_a_run_without_a_name_is_called_after_what_tells_runs_apart(
    values: dict[str, Any], label: str
) -> None:
    assert (run_name(RunConfig(**values)), run_name(resolve(RunConfig(**values)))) == (label, label)


def test_every_row_of_the_reference_can_be_chosen() -> None:
    """The feature table of the articles, rows 1 to 16; those that are settings are fields of the config."""
    assert set(STRATEGIES) >= {
        "per-sample",
        "workers",
        "memory",
        "device",
        "tensordataset",
    }  # 1, 2, 4
    assert set(STRATEGIES) >= {
        "cache",
        "preprocessed",
        "prefetch",
        "ram-disk",
        "dali",
    }  # 5, 6, 8, 9, 10
    assert set(STRATEGIES) >= {
        "pt",
        "pt-whole",
        "generator",
        "slow-drive",
        "staged",
        "hdf5",
        "lmdb",
    }  # 11, 12, 14-16
    assert {"augment", "cudnn_benchmark", "evaluate", "precision"} <= set(
        RunConfig().to_dict()
    )  # 3, 7, 8, 13
    used = {
        part for plan in STRATEGIES.values() for part in (plan.loader, plan.location, plan.transfer)
    }
    assert used == {*LOADERS, *LOCATIONS, *TRANSFERS}


@EVERY
def test_a_strategy_explains_itself(plan: Strategy) -> None:
    assert strategy(plan.name) is plan
    assert all(len(text) > 20 for text in (plan.what, plan.when, plan.costs, plan.origin))
    assert plan.what.count(". ") + plan.what.count("; ") >= 1, "two sentences"
    assert set(plan.defaults) | set(plan.fixed) <= set(KNOBS)


@EVERY
@pytest.mark.parametrize("name", ["digits", "mnist", "photos"])
def test_a_strategy_fits_every_data_set_that_its_parts_can_keep(plan: Strategy, name: str) -> None:
    info = dataset_info(name)
    asked = RunConfig(strategy=plan.name, dataset=name)
    if info.kind not in kinds_of(plan, info):
        refused = f"'{plan.name}' is not possible; it cannot load {name}; choose --dataset photos"
        with pytest.raises(ConfigError, match=refused):
            resolve(asked)
        return
    resolved = resolve(asked)
    parts = Combination(*(getattr(resolved, kind) or "" for kind in PARTS))
    assert why_not(info, parts) is None
    assert parts == plan.combination(info)
    assert resolved.n_images == (info.n_train if name == "photos" else None)
