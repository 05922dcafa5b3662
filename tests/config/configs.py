"""Every config that validates, for property tests, and every combination of parts that can load a data set."""

import itertools
from typing import Any

from hypothesis import strategies as st

from vitprof.config import BUDGETS, CHOICES, RunConfig
from vitprof.config.bounds import RUN_BOUNDS
from vitprof.config.models import MODELS
from vitprof.config.own_script import OWN_SCRIPT
from vitprof.config.parts import PARTS_BY_KIND, Combination, why_not
from vitprof.config.strategies import STRATEGIES
from vitprof.datasets.catalog import DATASETS, DatasetInfo
from vitprof.names import tamed_name
from vitprof.recording.columns import DELAYED_STAGES


def numbers(field: str) -> st.SearchStrategy[Any]:
    """Returns every value that a number of `RunConfig` may have, None where it can be left out."""
    bounds = RUN_BOUNDS[field]
    whole = st.integers(int(bounds.least), int(bounds.most))
    within = (
        (whole | st.just(int(bounds.most)))
        if bounds.whole
        else st.floats(bounds.least, bounds.most)
    )
    return within if getattr(RunConfig, field) is not None else st.none() | within


def _named(field: str, names: Any) -> st.SearchStrategy[Any]:
    chosen = st.sampled_from(list(names))
    return chosen if getattr(RunConfig, field) is not None else st.none() | chosen


FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "name": st.text(max_size=30).map(tamed_name),
    "dataset": st.sampled_from(list(DATASETS)),
    "model": st.sampled_from([*MODELS, OWN_SCRIPT]),
    "strategy": st.sampled_from([*STRATEGIES, OWN_SCRIPT]),
    "device": st.sampled_from(
        ["auto", "cpu", "cuda:0", "cuda:999", "simulated:5,0", "simulated:60000,1000000"]
    ),
    "inject": st.none()
    | st.builds("{}:{}".format, st.sampled_from(DELAYED_STAGES), st.floats(0.001, 60_000)),
    "slow_rank": st.none() | st.builds("{}:{}".format, st.integers(0, 3), st.floats(0.001, 60_000)),
    **{name: numbers(name) for name in RUN_BOUNDS if name not in BUDGETS},
    **{name: _named(name, names) for name, names in {**CHOICES, **PARTS_BY_KIND}.items()},
    **{
        f.name: st.booleans() if f.type == "bool" else st.none() | st.booleans()
        for f in RunConfig.__dataclass_fields__.values()
        if str(f.type).partition(" | ")[0] == "bool"
    },
}
_BUDGET = st.sampled_from(BUDGETS).flatmap(
    lambda name: st.fixed_dictionaries({name: numbers(name)})
)
configs = st.builds(
    lambda fields, budget: RunConfig(**fields, **budget), st.fixed_dictionaries(FIELDS), _BUDGET
)
"""Any value of any field, each by itself: whether they go together, `resolve` says."""


def legal_combinations(info: DatasetInfo) -> list[Combination]:
    every = itertools.starmap(Combination, itertools.product(*PARTS_BY_KIND.values()))
    return [parts for parts in every if why_not(info, parts) is None]
