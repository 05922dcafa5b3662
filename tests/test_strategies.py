"""The registry, and what `resolve` makes of a config: every default filled in, every foreign knob refused."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from vitprof.catalog import DATASETS, MODELS
from vitprof.errors import ConfigError
from vitprof.records import KNOBS, RunConfig
from vitprof.strategies import STRATEGIES, Strategy, resolve, strategy

OTHER_VALUE = {"workers": 3, "prefetch_factor": 7, "pin_memory": False, "persistent_workers": False}
EVERY = pytest.mark.parametrize("plan", STRATEGIES.values(), ids=lambda s: s.name)


def test_the_strategies_that_were_asked_for_are_there() -> None:
    assert set(STRATEGIES) >= {"per-sample", "workers", "memory", "device", "tensordataset"}
    assert STRATEGIES["tensordataset"].loader == STRATEGIES["per-sample"].loader == "dataloader"
    assert STRATEGIES["memory"].loader == "batches"
    assert STRATEGIES["device"].transfer == "resident"


@EVERY
def test_a_strategy_explains_itself_and_only_has_knobs_that_a_config_knows(plan: Strategy) -> None:
    assert strategy(plan.name) is plan
    assert all([plan.title, plan.storage, plan.location, plan.loader, plan.transfer])
    assert len(plan.what) > 40
    assert len(plan.when) > 40
    assert set(plan.defaults) <= set(KNOBS)


@EVERY
def test_resolve_fills_in_every_default(plan: Strategy) -> None:
    resolved = resolve(RunConfig(strategy=plan.name))
    assert {knob: getattr(resolved, knob) for knob in KNOBS} == {k: plan.defaults.get(k) for k in KNOBS}
    assert (resolved.image_size, resolved.lr) == (28, 3e-3)


@EVERY
@pytest.mark.parametrize("knob", KNOBS)
def test_a_knob_is_kept_where_the_strategy_takes_it_and_refused_where_not(plan: Strategy, knob: str) -> None:
    value = OTHER_VALUE[knob]
    config = RunConfig(strategy=plan.name, **{knob: value})
    if knob in plan.defaults:
        assert value != plan.defaults[knob]
        resolved = resolve(config)
        assert {k: getattr(resolved, k) for k in KNOBS} == {**plan.defaults, knob: value}
        return
    with pytest.raises(ConfigError) as caught:
        resolve(config)
    assert (caught.value.field, caught.value.value) == (knob, value)
    assert f"strategy {plan.name} does not take it" in str(caught.value)
    assert all(name in caught.value.allowed for name in plan.defaults)


@EVERY
def test_resolving_twice_changes_nothing_more(plan: Strategy) -> None:
    """The job manager resolves what a person asked for, and the job resolves what it is given."""
    once = resolve(RunConfig(strategy=plan.name, steps=3))
    assert resolve(once) == once
    assert resolve(RunConfig.from_dict(once.to_dict())) == once


@pytest.mark.parametrize("given", [{}, {"prefetch_factor": 4, "persistent_workers": True}])
def test_without_workers_there_is_nothing_to_prefetch_and_nothing_to_keep(given: dict[str, Any]) -> None:
    resolved = resolve(RunConfig(strategy="workers", workers=0, **given))  # PyTorch refuses both with 0 workers
    assert (resolved.workers, resolved.prefetch_factor, resolved.persistent_workers) == (0, None, False)
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
    ("values", "message"),
    [
        ({"dataset": "nothing"}, f"dataset: 'nothing' is not possible; choose one of {', '.join(DATASETS)}"),
        ({"model": "nothing"}, f"model: 'nothing' is not possible; choose one of {', '.join(MODELS)}"),
        ({"strategy": "nothing"}, f"strategy: 'nothing' is not possible; choose one of {', '.join(STRATEGIES)}"),
        ({"batch_size": 60_001}, "batch_size: 60001 is not possible; the training set of digits has 60000 samples"),
        (
            {"image_size": 30},
            "image_size: 30 is not possible; tiny cuts images into 7 px patches; give a multiple",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused_in_one_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(RunConfig(**values))
    assert str(caught.value) == message


def test_a_batch_may_be_the_whole_set() -> None:
    assert resolve(RunConfig(batch_size=60_000)).batch_size == 60_000


def test_nothing_else_of_the_config_is_touched() -> None:
    config = RunConfig(name="n", seconds=3.0, seed=7, device="cuda:1", precision="bf16", warmup_steps=0, evaluate=False)
    before, after = config.to_dict(), resolve(config).to_dict()
    assert {name for name in before if before[name] != after[name]} == {"image_size", "lr"}


def test_choosing_storing_and_drawing_need_no_torch_and_no_streamlit() -> None:
    modules = "catalog strategies store export charts formats home analysis.summary analysis.downsample"
    code = "import sys\n" + "".join(f"import vitprof.{m}\n" for m in modules.split())
    code += "print([m for m in ('torch', 'torchvision', 'streamlit') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
