"""Advice on every combination of parts: it can be run, is not in use yet, fits, and is about the cause."""

import contextlib
import dataclasses
import functools
import math
from typing import Any

import pytest

from tests.config.configs import legal_combinations
from vitprof.analysis.verdict.advice import MAX_ADVICE, advise, apply
from vitprof.analysis.verdict.advice_rules import (
    AUGMENTING_CORE_S,
    Situation,
    advice_of_rules,
)
from vitprof.config import RunConfig
from vitprof.config.own_script import own_config, with_loader
from vitprof.config.parts import LOADERS
from vitprof.config.resolve import resolve
from vitprof.config.strategies import STRATEGIES
from vitprof.datasets.catalog import DATASETS
from vitprof.errors import ConfigError
from vitprof.recording.verdict import Advice, Signature

CAUSES = (
    "read",
    "decode",
    "transform",
    "collate",
    "rest",
    "hand_over",
    "transfer",
    "loading",
    "slow_drive",
)
CAUSES += ("cpu_contention", "launches")
GIB = 2**30
MACHINE: dict[str, Any] = {"cpu_count": 8, "memory_bytes": 32 * GIB, "gpu_memory_bytes": 16 * GIB}
SAME_JOB = (
    "dataset",
    "n_images",
    "model",
    "image_size",
    "lr",
    "seed",
    "device",
    "steps",
    "epochs",
    "precision",
)


def of(cause: str, facts: dict[str, Any] = MACHINE, **config: Any) -> Situation:
    resolved = resolve(RunConfig(**config))
    kind = "launch-bound" if cause == "launches" else "input-bound"
    return Situation(
        config=resolved, cause=cause, kind=kind, facts=facts, free_cores=6.0, samples_per_s=1000.0
    )


def settings(advice: tuple[Advice, ...]) -> list[dict[str, Any]]:
    return [dict(a.settings) for a in advice]


@functools.cache
def configs() -> list[dict[str, Any]]:
    """Some 20 of all strategies with their defaults and all legal combinations of parts, on digits and on photos."""
    found: list[dict[str, Any]] = []
    for dataset in ("digits", "photos"):
        parts = [dataclasses.asdict(one) for one in legal_combinations(DATASETS[dataset])]
        asked = [{"strategy": name} for name in STRATEGIES]
        asked += [
            {"strategy": "prefetch", **one} for one in parts if not LOADERS[one["loader"]].packages
        ]
        for config in asked:
            with contextlib.suppress(ConfigError):
                resolve(RunConfig(dataset=dataset, **config))
                found.append({"dataset": dataset, **config})
    assert len(found) > 200
    return found[:: len(found) // 20]


def test_every_advice_can_be_run_and_is_new() -> None:
    n = 0
    for config in configs():
        for cause in CAUSES:
            situation = of(
                cause, MACHINE | {"page_cached_frac": 0.1, "storage_bytes": 1e8}, steps=50, **config
            )
            given = advise(dataclasses.replace(situation, causes=("decode", "transfer")))
            assert len(given) <= MAX_ADVICE
            assert len({a.words for a in given}) == len(given)
            for advice in given:
                if not advice.settings:
                    assert cause == "cpu_contention"
                    continue
                n += 1
                before, new = situation.config, resolve(apply(situation.config, advice.settings))
                changed = {
                    f.name
                    for f in dataclasses.fields(new)
                    if getattr(new, f.name) != getattr(before, f.name)
                }
                assert changed - {"strategy", "name"}, (config, advice)
                for name, value in advice.settings.items():
                    assert getattr(before, name) != value, (config, advice)
                    assert getattr(new, name) == value
                assert not changed & set(SAME_JOB), (config, advice)
                assert (new.augment == "off") == (before.augment == "off")
                assert advice.reason.endswith(".")
                assert not LOADERS[new.loader or ""].packages
    assert n > 100


@pytest.mark.parametrize(
    ("cause", "config", "expected"),
    [
        ("decode", {"strategy": "per-sample"}, {"strategy": "memory"}),
        ("decode", {"strategy": "per-sample", "dataset": "photos"}, {"strategy": "threads"}),
        (
            "decode",
            {"strategy": "threads", "dataset": "photos", "decoder": "torchvision"},
            {"decoder": "simplejpeg"},
        ),
        ("decode", {"strategy": "prefetch", "dataset": "photos"}, {"loader": "threads"}),
        ("decode", {"strategy": "threads", "dataset": "photos"}, {"workers": 8}),
        ("transform", {"strategy": "threads", "augment": "cpu"}, {"augment": "device"}),
        ("slow_drive", {"strategy": "slow-drive", "dataset": "photos"}, {"location": "staged"}),
        ("hand_over", {"strategy": "workers", "dataset": "photos"}, {"strategy": "threads"}),
        ("hand_over", {"strategy": "hdf5"}, {"loader": "ahead"}),
        ("transfer", {"strategy": "memory", "transfer": "blocking"}, {"transfer": "pinned"}),
        ("transfer", {"strategy": "memory"}, {"transfer": "stream"}),
        ("launches", {"strategy": "device"}, {"batch_size": 256}),
    ],
)
def test_what_is_advised_first(
    cause: str, config: dict[str, Any], expected: dict[str, Any]
) -> None:
    candidates = settings(advise(of(cause, **config)))
    assert expected in candidates
    if cause != "decode" or config["strategy"] != "threads" or "decoder" in config:
        assert expected == candidates[0]


@pytest.mark.parametrize(("cached", "told"), [(0.02, True), (0.98, False), (None, False)])
def test_a_ram_disk_only_where_the_drive_was_read(cached: float | None, told: bool) -> None:
    """Over a warm page cache it gains nothing: 1.04 times."""
    found = advise(
        of("read", MACHINE | {"page_cached_frac": cached}, dataset="photos", strategy="prefetch")
    )
    assert ({"location": "ram-disk"} in settings(found)) == told


def test_what_does_not_fit_is_not_advised() -> None:
    """10,000 photos take 1.54 GiB as pixels."""
    photos = {"dataset": "photos", "strategy": "preprocessed"}
    assert {"strategy": "memory"} in settings(advise(of("read", **photos)))
    assert {"strategy": "memory"} not in settings(
        advise(of("read", {"memory_bytes": 2 * GIB}, **photos))
    )
    wait = {"dataset": "photos", "strategy": "memory", "transfer": "stream"}
    assert {"strategy": "device"} in settings(advise(of("transfer", **wait)))
    unknown = {"memory_bytes": 32 * GIB}
    for less in (
        MACHINE | {"gpu_memory_bytes": 2 * GIB},
        MACHINE | {"gpu_memory_free_bytes": 2 * GIB},
        unknown,
    ):
        assert {"strategy": "device"} not in settings(advise(of("transfer", less, **wait)))
    there = settings(advise(of("launches", unknown, strategy="device", device="cuda:0")))
    assert there[0] == {"batch_size": 256}, "the run itself had the set on the device"
    assert len(there) == 3


def test_workers_only_as_far_as_cores_are_free() -> None:
    situation = of("decode", dataset="photos", strategy="threads", workers=2)
    assert {"workers": 8} in settings(advise(situation))
    assert {"workers": 4} in settings(advise(dataclasses.replace(situation, free_cores=2.2)))
    for busy in (
        dataclasses.replace(situation, free_cores=0.3),
        dataclasses.replace(situation, facts={}),
    ):
        assert not [s for s in settings(advise(busy)) if "workers" in s]
    one = of("decode", {"cpu_count": 2}, dataset="photos", strategy="threads", workers=1)
    unknown = dataclasses.replace(one, free_cores=float("nan"))
    assert not [s for s in settings(advise(unknown)) if "workers" in s]
    # elsewhere the loop loads while the device computes; one worker would only add the way from it
    situation = of("read", strategy="per-sample")
    two, one = (dataclasses.replace(situation, free_cores=cores) for cores in (2.0, 1.4))
    assert {"strategy": "workers", "workers": 2} in settings(tuple(advice_of_rules(two)))
    assert not [s for s in settings(tuple(advice_of_rules(one))) if "workers" in s]
    on_cpu = dataclasses.replace(one, on_cpu=True)
    assert {"strategy": "workers", "workers": 1} in settings(tuple(advice_of_rules(on_cpu)))


def test_augmentation_moves_to_the_device_only_where_it_is_work_of_its_own() -> None:
    """On photos the random crop takes the place of the fixed one: proven at 0.82x."""
    moved = {"augment": "device"}
    for strategy in ("per-sample", "workers"):
        assert moved not in settings(advise(of("transform", dataset="photos", strategy=strategy)))
    digits = of("transform", strategy="threads", augment="cpu")
    assert moved in settings(advise(digits))


@pytest.mark.parametrize(
    ("exposed_ms", "is_advised"),
    [({"transform": 12.0}, True), ({"transform": 1.0}, False), ({}, False)],
)
def test_where_the_cpu_trains_augmentation_moves_only_if_the_step_gets_shorter(
    exposed_ms: dict[str, float], is_advised: bool
) -> None:
    """Four cores augment a batch of 128 digits in about 0.35 ms."""
    digits = of("transform", {"cpu_count": 4}, strategy="threads", augment="cpu", workers=2)
    known = {"step_ms": 20.0, "idle_ms": 14.0, "exposed_ms": exposed_ms, "free_cores": 1.0}
    on_cpu = dataclasses.replace(digits, on_cpu=True, **known)
    assert on_cpu.augmenting_ms == pytest.approx(1e3 * 128 * 28**2 * AUGMENTING_CORE_S / 4)
    found = [a for a in advice_of_rules(on_cpu) if a.settings == {"augment": "device"}]
    assert bool(found) is is_advised
    if found:
        left_ms = 20.0 - 12.0 + on_cpu.augmenting_ms
        assert found[0].most_times == pytest.approx(20.0 / left_ms)
        order = settings(tuple(advice_of_rules(on_cpu)))
        assert order.index({"workers": 3}) < order.index({"augment": "device"})


@pytest.mark.parametrize(("idle_ms", "is_advised"), [(60.0, True), (5.0, False)])
def test_where_the_cpu_trains_it_augments_prepared_samples_itself(
    idle_ms: float, is_advised: bool
) -> None:
    photos = of("decode", {"cpu_count": 2}, dataset="photos", strategy="per-sample", batch_size=16)
    known = {"step_ms": 100.0, "idle_ms": idle_ms}
    on_cpu = dataclasses.replace(photos, on_cpu=True, **known)
    prepared = ({"strategy": "preprocessed"}, {"strategy": "memory"})
    found = settings(tuple(advice_of_rules(on_cpu)))
    assert [one in found for one in prepared] == [is_advised, is_advised]
    for reason in [a.reason for a in advice_of_rules(on_cpu)]:
        assert "device" not in reason
    plain = of("decode", {"cpu_count": 2}, dataset="photos", strategy="per-sample", augment="off")
    not_random = settings(tuple(advice_of_rules(dataclasses.replace(plain, on_cpu=True, **known))))
    assert all(one in not_random for one in prepared)


def test_what_is_in_place_is_not_advised_again() -> None:
    for strategy in ("memory", "memory-ahead", "device"):
        for cause in ("read", "decode", "collate", "rest", "hand_over", "loading"):
            situation = of(
                cause, strategy=strategy, transfer="resident" if strategy == "device" else "stream"
            )
            assert not [s for s in settings(advise(situation)) if "strategy" in s]
    for config in configs():
        situation = dataclasses.replace(of("transfer", **config), on_cpu=True)
        assert not [
            s
            for s in settings(advise(situation))
            if "transfer" in s or s.get("strategy") == "device"
        ]
    for cause in ("", "read", "decode"):
        situation = dataclasses.replace(of(cause, strategy="per-sample"), kind="not input-bound")
        assert advise(situation) == ()
        assert (advise(dataclasses.replace(situation, sure=False)) == ()) == (cause == "")


def test_what_is_trained_and_what_was_chosen_stays() -> None:
    chosen = resolve(RunConfig(strategy="per-sample", transfer="stream"))
    assert resolve(apply(chosen, {"strategy": "memory"})).transfer == "stream"
    assert resolve(apply(chosen, {"strategy": "memory", "transfer": "pinned"})).transfer == "pinned"
    assert resolve(apply(chosen, {"strategy": "device"})).transfer == "resident"
    own = resolve(RunConfig(strategy="per-sample"))
    assert resolve(apply(own, {"strategy": "memory"})).transfer == "pinned"
    resident = resolve(RunConfig(strategy="memory", transfer="resident"))
    assert resolve(apply(resident, {"strategy": "threads"})).transfer == "pinned"
    # random augmentation goes on where samples are finished beforehand, and a cold cache is not asked of memory
    digits = resolve(RunConfig(strategy="threads", augment="cpu", page_cache="cold"))
    there = resolve(apply(digits, {"strategy": "memory"}))
    assert (there.augment, there.page_cache) == ("device", "as-is")
    assert resolve(apply(digits, {"strategy": "prefetch"})).augment == "cpu"
    photos = resolve(RunConfig(dataset="photos", strategy="per-sample"))
    assert resolve(apply(photos, {"strategy": "preprocessed"})).augment == "device"
    plain = resolve(RunConfig(dataset="photos", strategy="per-sample", augment="off"))
    assert resolve(apply(plain, {"strategy": "threads"})).augment == "off"
    situation = of("decode", strategy="per-sample", inject="decode:20")
    assert {"strategy": "memory"} in settings(advise(situation))  # which decodes nothing
    assert resolve(apply(situation.config, {"strategy": "memory"})).inject is None
    assert resolve(apply(situation.config, {"strategy": "threads"})).inject == "decode:20"


def test_the_gpu_decodes_only_where_it_is_known_to_run() -> None:
    situation, on_gpu = of("decode", dataset="photos", strategy="threads"), {"strategy": "dali"}

    def possible(config: RunConfig) -> bool:
        return config.loader == "dali"

    assert on_gpu in settings(advise(situation, possible=possible))
    assert on_gpu not in settings(advise(situation))
    assert on_gpu not in settings(
        advise(dataclasses.replace(situation, on_cpu=True), possible=possible)
    )


@pytest.mark.parametrize(
    ("steps_of_an_epoch", "first"), [(1.0, "one iterator for many"), (8.0, "setting persistent")]
)
def test_workers_that_start_anew_are_named_first_and_a_script_that_calls_iter_for_each_batch_is_told_so(
    steps_of_an_epoch: float, first: str
) -> None:
    found = Signature("epoch-start", "", 0.1, 0.8, {"steps_of_an_epoch": steps_of_an_epoch}, "")
    script = dataclasses.replace(own_config("train.py"), workers=2, persistent_workers=False)
    situation = dataclasses.replace(of("epoch_start"), config=script, signatures=(found,))
    assert advise(situation)[0].words.startswith(first)
    situation = of("decode", dataset="photos", strategy="workers", persistent_workers=False)
    advice = advise(dataclasses.replace(situation, signatures=(found,)))[0]
    assert (advice.settings, "80%" in advice.reason) == ({"persistent_workers": True}, True)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("epoch_batches", "first"), [(500, "one iterator for many"), (1, "one iteration for several")]
)
def test_of_an_iterator_for_each_batch_no_batch_is_made_ahead(
    workers: int, epoch_batches: int, first: str
) -> None:
    """`next(iter(loader))` beside another loader: `prefetch_factor=4` was advised for 2.8 times the speed, and steps
    of 30 ms took 53 ms with it; without workers one was, which is then started for each batch."""
    facts = {
        "batches_of_an_iterator": 1.0,
        "making": {"made_s": 8.0, "cpu_s": 1.0, "queued_s": 0.0, "opened": 0, "batches": 1000},
    }
    script = dataclasses.replace(own_config("train.py"), workers=workers, persistent_workers=True)
    known = {"step_ms": 30.0, "idle_ms": 20.0, "waiting_frac": 0.8, "on_cpu": True}
    situation = Situation(script, "read", "input-bound", facts=MACHINE | facts, **known)
    advice = advise(dataclasses.replace(situation, loader={"epoch_batches": epoch_batches}))
    assert advice[0].words.startswith(first)
    assert not any(one.arguments for one in advice)
    usual = dataclasses.replace(situation, facts=MACHINE | {"making": facts["making"]})
    assert any(one.arguments for one in advise(usual))


@pytest.mark.parametrize(("batches", "step_ms"), [(3.0, 20.0), (3.0, 400.0), (300.0, 20.0)])
def test_workers_are_not_advised_where_they_would_start_for_each_short_epoch(
    batches: float, step_ms: float
) -> None:
    """Epochs of three batches, each of a loader that is made anew: "num_workers=1, up to 1.7x"."""
    facts = {
        "batches_of_an_iterator": batches,
        "making": {"made_s": 8.0, "cpu_s": 1.0, "queued_s": 0.0, "opened": 0, "batches": 1000},
    }
    script = dataclasses.replace(own_config("train.py"), workers=0)
    known = {"step_ms": step_ms, "idle_ms": step_ms / 2, "waiting_frac": 0.8, "on_cpu": True}
    situation = Situation(script, "read", "input-bound", facts=MACHINE | facts, **known)
    first = advise(situation)[0]
    if batches * step_ms < 500:
        assert first.words == "longer epochs, or one loader for all of them whose workers stay"
        assert "60.0 ms" in first.reason
    else:
        assert "num_workers" in first.arguments


@pytest.mark.parametrize(("sampler_s", "persistent"), [(0.0, "80%"), (0.1, "70%"), (0.8, "0%")])
def test_a_sampler_that_takes_long_as_epochs_begin_is_no_start_of_workers(
    sampler_s: float, persistent: str
) -> None:
    evidence = {
        "epoch_start_s": 0.9,
        "usual_wait_s": 0.1,
        "steps_of_an_epoch": 8.0,
        "sampler_s": sampler_s,
    }
    found = Signature("epoch-start", "", 0.1, 0.8, evidence, "")
    script = dataclasses.replace(own_config("train.py"), workers=2, persistent_workers=False)
    advice = advise(dataclasses.replace(of("epoch_start"), config=script, signatures=(found,)))
    words = [one.words for one in advice]
    draws = "a sampler that draws indices as they are needed, or longer epochs"
    assert (draws in words) is (sampler_s > 0.4)
    restarting = [one.reason for one in advice if "persistent" in one.words]
    if persistent == "0%":
        assert not restarting
    else:
        assert restarting == [f"Starting the workers again takes {persistent} of each epoch."]


def test_iterators_that_are_open_at_once_are_not_to_be_made_one() -> None:
    """PyTorch keeps one iterator for a loader with persistent workers: of zip(loader, loader) with 120 steps 60 were
    left."""
    script = dataclasses.replace(own_config("train.py"), workers=2, persistent_workers=False)
    situation = dataclasses.replace(
        of("epoch_start"), config=script, facts={"iterators_at_once": True}
    )
    advice = advise(situation)
    assert not any(one.arguments for one in advice)
    assert advice[0].words == "a loader for each iterator, with persistent_workers=True"


@pytest.mark.parametrize(
    ("facts", "workers", "first", "advised"),
    [
        ({"divides": False}, 0, "giving each worker its part of the samples", None),
        ({"divides": True, "shards": 1}, 1, "storing the samples in more shards", None),
        ({"divides": True, "shards": 3}, 0, "setting num_workers=3", 3),
        ({"divides": True, "shards": None}, 0, "setting num_workers=6", 6),
    ],
)
def test_workers_of_an_iterable_dataset_are_advised_where_they_share_its_samples(
    facts: dict[str, Any], workers: int, first: str, advised: int | None
) -> None:
    """Else each gives all of them: 600 steps for 200."""
    watched = {"dataset": "Rows", "prefetch_factor": None, "iterable": True, **facts}
    script = dataclasses.replace(own_config("train.py"), workers=workers)
    situation = dataclasses.replace(
        of("read"), config=script, facts={**MACHINE, "watched": watched}, step_ms=20.0, idle_ms=18.0
    )
    advice = advise(situation)
    assert advice[0].words.startswith(first)
    assert advice[0].arguments.get("num_workers") == advised
    if advised is None:
        assert not any("num_workers" in one.arguments for one in advice)


@pytest.mark.parametrize("fetched", ["by sample", "by_batch", "iterable"])
@pytest.mark.parametrize("cause", ["read", "collate"])
def test_getitems_is_advised_where_it_is_missing_and_would_be_called(
    cause: str, fetched: str
) -> None:
    """A dataset that has it was advised it, and so was an IterableDataset, which has no indices."""
    situation = dataclasses.replace(
        of(cause),
        config=dataclasses.replace(own_config("train.py"), workers=2),
        facts={"watched": {"dataset": "D", fetched: True}},
        waiting_frac=0.9,
    )
    words = [one.words for one in advise(situation)]
    assert any("__getitems__" in each for each in words) == (fetched == "by sample"), words
    assert any("collate function" in each or "waits for" in each for each in words)


def test_against_launches_each_setting_comes_in_its_turn() -> None:
    """What is in use already makes room for what comes after it."""
    gpu: dict[str, Any] = {"strategy": "memory", "device": "cuda:0"}
    graphs = {"compile": True, "compile_mode": "reduce-overhead"}
    assert settings(advise(of("launches", **gpu))) == [
        {"batch_size": 256},
        graphs,
        {"fused_optimizer": True},
    ]
    fused = settings(advise(of("launches", **gpu, fused_optimizer=True)))
    assert fused == [{"batch_size": 256}, graphs, {"compile": True}]
    assert settings(advise(of("launches", **gpu, fused_optimizer=True, **graphs))) == [
        {"batch_size": 256}
    ]
    simulated = dataclasses.replace(
        of("launches", strategy="memory", device="simulated:1,0"), simulated=True
    )
    assert settings(advise(simulated)) == [{"batch_size": 256}]


@pytest.mark.parametrize(("on_cpu", "n"), [(False, 3), (True, 1)])
def test_an_own_script_that_launches_too_slowly_is_not_told_of_its_loader(
    on_cpu: bool, n: int
) -> None:
    config = own_config("train.py", device="cuda:0", workers=2, prefetch_factor=2)
    found = advise(dataclasses.replace(of("launches"), config=config, on_cpu=on_cpu))
    assert (len(found), found[0].words) == (n, "a larger batch")
    assert not any("DataLoader" in advice.words for advice in found)


@pytest.mark.parametrize(
    ("on_cpu", "free_cores", "told"),
    [
        (False, 1.2, True),
        (True, 1.2, True),
        (False, math.nan, True),
        (True, math.nan, False),
        (True, 0.4, False),
    ],
)
def test_an_own_script_on_two_cores_is_told_of_one_worker_for_a_free_core(
    on_cpu: bool, free_cores: float, told: bool
) -> None:
    facts = {"cpu_count": 2}
    known = {"facts": facts, "on_cpu": on_cpu, "free_cores": free_cores}
    situation = Situation(own_config("x", workers=0), "transform", "input-bound", **known)
    assert any("num_workers=1" in advice.words for advice in advise(situation)) is told


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize(("mine", "words"), [(4, "4 of 64 cores are yours"), (64, ""), (None, "")])
def test_advice_on_workers_names_the_cores_that_it_rests_on(
    own: bool, mine: int | None, words: str
) -> None:
    config = (
        own_config("x", workers=0)
        if own
        else resolve(RunConfig(dataset="photos", strategy="per-sample"))
    )
    facts = {"cpu_count": 64, "job_cpu_count": mine}
    found = advise(Situation(config, "transform", "input-bound", facts=facts))
    chosen = [advice.words for advice in found if "worker" in advice.words]
    assert chosen
    assert all(("cores are yours" in line) is bool(words) and words in line for line in chosen)


WORK = {"made_s": 4.0, "cpu_s": 0.2, "opened": 0.0, "batches": 100}
READ = {"cause": "read", "idle_ms": 38.0, "step_ms": 42.0, "waiting_frac": 0.95}
CPU_BOUND = {"cause": "read", "idle_ms": 38.0, "waiting_frac": 0.0, "free_cores": 63.0}
DECODED = {"made_s": 4.0, "cpu_s": 4.0, "opened": 1600.0, "batches": 100}


@pytest.mark.parametrize(
    ("workers", "facts", "changes", "first"),
    [
        (0, {"making": WORK}, READ, "setting num_workers=10 in the DataLoader"),
        (
            0,
            {"making": WORK, "loader_waits_for_ranks": 9},
            READ,
            "taking the collectives out of the loader",
        ),
        (
            2,
            {"making": WORK},
            READ | {"idle_ms": 16.0, "step_ms": 20.0},
            "setting num_workers=10 in the DataLoader",
        ),
        (
            0,
            {"making": WORK},
            READ | {"waiting_frac": 0.1},
            "less work in the dataset for each sample",
        ),
        (0, {"making": DECODED}, READ | {"waiting_frac": 0.0}, "less work in the dataset"),
        (
            0,
            {"making": DECODED, "transforms": {"Crop": {"s_per_sample": 0.001, "calls": 9}}},
            READ | {"waiting_frac": 0.0},
            "a faster decoder, smaller files",
        ),
        (
            0,
            {"making": DECODED},
            READ | {"waiting_frac": 0.0, "free_cores": 0.7},
            "setting num_workers=1 in",
        ),
        (
            0,
            {"making": DECODED, "cpu_count": 64},
            CPU_BOUND | {"step_ms": 42.0},
            "setting num_workers=13 in",
        ),
        (
            0,
            {"making": DECODED, "cpu_count": 64},
            CPU_BOUND | {"step_ms": 78.0},
            "setting num_workers=2 in",
        ),
        (
            0,
            {"making": WORK, "watched": {"dataset": "L"}},
            READ,
            "more workers or threads in L, or a DataLoader",
        ),
        (
            2,
            {"making": WORK},
            {"cause": "hand_over", "idle_ms": 90.0, "step_ms": 95.0},
            "setting num_workers=0 in",
        ),
        (
            4,
            {"making": WORK},
            {"cause": "hand_over", "idle_ms": 9.0, "step_ms": 15.0},
            "setting num_workers=2 in",
        ),
        (
            2,
            {"making": WORK},
            {"cause": "hand_over", "idle_ms": 9.0, "step_ms": 15.0},
            "batches of few large tensors",
        ),
        (
            2,
            {"making": WORK, "handed_over": {"tensors": 2, "bytes": 576}},
            {"cause": "hand_over", "idle_ms": 9.0, "step_ms": 15.0},
            "larger batches",
        ),
        (
            2,
            {"making": WORK, "handed_over": {"tensors": 2, "bytes": 50 << 20}},
            {"cause": "hand_over", "idle_ms": 9.0, "step_ms": 15.0},
            "batches of few large tensors",
        ),
    ],
)
def test_an_own_script_is_first_advised_what_helps_its_loader(
    workers: int, facts: dict[str, Any], changes: dict[str, Any], first: str
) -> None:
    situation = Situation(
        own_config("x", workers=workers), "", "input-bound", on_cpu=True, free_cores=0.0
    )
    found = advise(dataclasses.replace(situation, facts={"cpu_count": 2, **facts}, **changes))
    assert found[0].words.startswith(first)
    assert (found[0].most_times > 1) is ("Batches are made" in found[0].reason)
    assert ("num_workers" in found[0].arguments) is ("num_workers" in found[0].words)
    words = " ".join(a.words for a in found)
    assert ("decoder" in words) is (facts["making"] is DECODED)
    assert "prefetch" not in words, "the workers are slower than training"


def test_workers_for_a_dataset_that_uses_several_cores_itself_share_these() -> None:
    """OpenMP in a transform has four cores at work already: eight workers were advised, with eight times the speed."""
    making = {"made_s": 4.0, "cpu_s": 16.0, "opened": 0.0, "batches": 100}
    facts = {"making": making, "cpu_count": 8}
    busy = CPU_BOUND | {"free_cores": 8.0, "step_ms": 42.0}
    situation = Situation(own_config("x", workers=0), "", "input-bound", facts=facts, on_cpu=True)
    (advice,) = (
        a for a in advise(dataclasses.replace(situation, **busy)) if "num_workers" in a.arguments
    )
    assert advice.arguments == {"num_workers": 2}
    assert advice.most_times == pytest.approx(42 / (160 / 8))


@pytest.mark.parametrize(
    ("framework", "words"),
    [
        ("transformers", "dataloader_num_workers=10 in TrainingArguments"),
        ("ultralytics", "workers=10 in YOLO(...).train"),
        ("fastai", "num_workers=10 in DataLoaders"),
        ("lightning", "num_workers=10 in the DataLoader"),
    ],
)
def test_an_argument_is_named_as_the_framework_has_it(framework: str, words: str) -> None:
    watched = {"dataset": "D", "prefetch_factor": None, "framework": framework}
    facts = {"watched": watched, "making": WORK}
    situation = Situation(own_config("x"), kind="input-bound", on_cpu=True, facts=facts, **READ)
    assert words in advise(situation)[0].words


def test_an_own_script_is_told_its_heaviest_transform() -> None:
    facts = {
        "transforms": {
            name: {"s_per_sample": s, "calls": 9} for name, s in (("Crop", 0.003), ("Norm", 0.001))
        }
    }
    situation = Situation(own_config("x"), "transform", "input-bound", facts=facts)
    (advice,) = [a for a in advise(situation) if "on the device" in a.words]
    assert advice.words == "Crop on the device, and the non-random transforms done once, in advance"
    assert advice.reason == "Training time goes into transforms, 75% of that into Crop."
    assert math.isnan(advice.most_times)
    timed = dataclasses.replace(
        situation,
        step_ms=20.0,
        exposed_ms={"transform": 10.0},
        waited_fracs={"transform": 0.5},
    )
    (known,) = [a for a in advise(timed) if "on the device" in a.words]
    assert known.reason == "50% of the training time goes into transforms, 75% of that into Crop."
    assert known.most_times == pytest.approx(20 / 12.5), "without Crop, not without all transforms"
    assert known.in_short == "Crop on the device", "that of its words which the gain is of"
    (on_cpu,) = [
        a for a in advise(dataclasses.replace(situation, on_cpu=True)) if "Crop" in a.reason
    ]
    assert on_cpu.words == "a lighter Crop, or the non-random transforms done once, in advance"
    assert on_cpu.in_short == "a lighter Crop"
    (unknown,) = [
        a for a in advise(dataclasses.replace(situation, facts={})) if "on the device" in a.words
    ]
    assert unknown.words == "transforms on the device, or the non-random ones done once, in advance"


@pytest.mark.parametrize(
    ("made_ms", "idle_ms", "cause", "is_advised"),
    [
        (12.0, 2.0, "read", True),  # of two workers one each 6 ms, for 8 ms of work
        (17.0, 2.0, "read", False),  # one each 8.5 ms: they are too slow
        (
            17.0,
            8.8,
            "read",
            False,
        ),  # and in a step of 10 ms that is mostly a wait they are much too slow
        (12.0, 2.0, "hand_over", False),  # the batch is made by then
    ],
)
def test_more_batches_are_kept_ready_where_the_workers_keep_up_with_the_work(
    made_ms: float, idle_ms: float, cause: str, is_advised: bool
) -> None:
    watched = {"dataset": "Images", "batch_size": 8, "num_workers": 2, "prefetch_factor": 2}
    facts = {"watched": watched, "making": {"made_s": made_ms, "batches": 1000, "opened": 0}}
    situation = Situation(
        with_loader(own_config("script"), facts),
        cause,
        "input-bound",
        facts=facts,
        idle_ms=idle_ms,
        step_ms=10.0,
    )
    found = [advice for advice in advise(situation) if "prefetch_factor" in advice.arguments]
    assert bool(found) == is_advised
    if found:
        assert found[0].most_times == pytest.approx(10 / 8)


@pytest.mark.parametrize(
    ("threads", "waited_s", "workers", "is_advised"),
    [(2, 6.0, 0, True), (2, 1.0, 0, False), (1, 6.0, 0, False), (2, 6.0, 2, False)],
)
def test_one_thread_is_advised_where_threads_wait_for_cores_that_others_have(
    threads: int, waited_s: float, workers: int, is_advised: bool
) -> None:
    """Beside other programs a script was told only to be watched again, and ran four times as fast with one thread."""
    use = {"took_s": 10.0, "cpu_s": 6.0, "queued_s": 3.0, "threads_queued_s": waited_s}
    facts = {"torch_threads": threads, "making": {"stages": {"transform": use}}}
    situation = Situation(
        own_config("x", workers=workers),
        "unclear",
        "input-bound",
        facts=facts,
        is_unclear=True,
    )
    first, *others = advise(situation)
    assert first.words == "running again when quiet"
    assert bool(others) is is_advised
    if is_advised:
        assert others[0].words.endswith("OMP_NUM_THREADS=1")
        assert "had no core for 60% of that time" in others[0].reason
