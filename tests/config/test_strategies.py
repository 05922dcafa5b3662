"""The registry: what can be chosen, and that it explains itself."""

import pytest

from vitprof.config import KNOBS, PARTS, RunConfig
from vitprof.config.catalog import dataset_info
from vitprof.config.parts import LOADERS, LOCATIONS, TRANSFERS, Combination, why_not
from vitprof.config.resolve import resolve
from vitprof.config.strategies import STRATEGIES, Strategy, strategy
from vitprof.errors import ConfigError

EVERY = pytest.mark.parametrize("plan", STRATEGIES.values(), ids=lambda s: s.name)


def test_every_row_of_the_reference_can_be_chosen() -> None:
    """The feature table of the articles, rows 1 to 16; those that are settings are fields of the config."""
    assert set(STRATEGIES) >= {"per-sample", "workers", "memory", "device", "tensordataset"}  # 1, 2, 4
    assert set(STRATEGIES) >= {"cache", "preprocessed", "prefetch", "ram-disk", "dali"}  # 5, 6, 8, 9, 10
    assert set(STRATEGIES) >= {"pt", "pt-whole", "generator", "slow-drive", "staged", "hdf5", "lmdb"}  # 11, 12, 14-16
    assert {"augment", "cudnn_benchmark", "evaluate", "precision"} <= set(RunConfig().to_dict())  # 3, 7, 8, 13
    used = {part for plan in STRATEGIES.values() for part in (plan.loader, plan.location, plan.transfer)}
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
    if info.kind not in LOADERS[plan.loader].kinds:
        with pytest.raises(
            ConfigError, match=f"'{plan.name}' is not possible; it cannot load {name}; choose --dataset photos"
        ):
            resolve(RunConfig(strategy=plan.name, dataset=name))
        return
    resolved = resolve(RunConfig(strategy=plan.name, dataset=name))
    parts = Combination(*(getattr(resolved, kind) or "" for kind in PARTS))
    assert why_not(info, parts) is None
    assert parts == plan.combination(info)
    assert resolved.n_images == (info.n_train if name == "photos" else None)
