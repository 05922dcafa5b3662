"""The guard warns of each difference that matters, and of nothing where there is none."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from tests.analysis.compare.simulated_runs import run
from tests.series import made_telemetry, of_columns
from vitprof.analysis.compare.differences import Caveat, RunFacts
from vitprof.analysis.compare.guard import (
    ALLOWED_TOPICS,
    UNDER_TEST,
    CheckedRun,
    comparability,
    comparable,
    run_facts,
    why_not_judged,
)
from vitprof.config import RunConfig
from vitprof.config.own_script import own_config, with_loader
from vitprof.config.resolve import resolve
from vitprof.recording.columns import STEP_COLUMNS, RunSummary

ENVIRONMENT = {
    "vitprof": "0.4",
    "python": "3.11.9",
    "torch": "2.15.0",
    "torchvision": "0.30.0",
    "torch_threads": 1,
}
ENVIRONMENT |= {
    "hostname": "here",
    "cpu_count": 8,
    "variables": "",
    "cuda_version": "13.0",
    "driver_version": "580.1",
}
ENVIRONMENT |= {"device": "cuda:0", "device_name": "NVIDIA A100", "gpu_power_limit_w": 400.0}
LOSSES = 2.3 * np.exp(-np.arange(20) / 50)


def made(run_id: int = 1, *, environment: dict[str, Any] | None = None, **changes: Any) -> RunFacts:
    known: dict[str, Any] = {
        "facts": {"page_cached_frac": 1.0},
        "loss_step": np.arange(20.0),
        "loss": LOSSES,
    }
    known |= {"sm_clock_mhz": 1410.0, "other_gpu_bytes": 3e8, "others_cores": 0.1}
    known |= {
        field.name: changes.pop(field.name)
        for field in dataclasses.fields(RunFacts)
        if field.name in changes
    }
    config = resolve(RunConfig(**changes))
    return RunFacts(
        id=run_id, config=config, environment=ENVIRONMENT | (environment or {}), **known
    )


def topics(*runs: RunFacts) -> list[str]:
    return [c.topic for c in comparability(runs)]


def only(*runs: RunFacts) -> Caveat:
    (found,) = comparability(runs)
    assert found.sentence.endswith(".")
    assert "nan" not in found.sentence
    return found


def test_strategies_may_differ_and_a_run_and_itself_can_be_compared() -> None:
    names = [
        "per-sample",
        "workers",
        "memory",
        "memory-ahead",
        "device",
        "preprocessed",
        "threads",
        "cache",
        "lmdb",
    ]
    runs = [made(i, strategy=name) for i, name in enumerate(names)]
    assert topics(*runs) == topics() == topics(runs[0]) == topics(runs[0], runs[0]) == []


@pytest.mark.parametrize(
    ("changes", "topic", "level", "said"),
    [
        (
            {"strategy": "hdf5-chunked"},
            "order",
            "warning",
            "shuffled blocks of neighbours in run 2",
        ),
        ({"strategy": "pt-whole"}, "order", "warning", "as stored in run 2"),
        ({"seed": 7}, "order", "note", "7 in run 2"),
        ({"model": "ti/16", "image_size": 32}, "model", "warning", "tiny in run 1; ti/16 in run 2"),
        ({"precision": "bf16"}, "model", "warning", "bf16"),
        (
            {"compile": True},
            "model",
            "warning",
            "torch.compile differs: off in run 1; on (default mode) in run 2",
        ),
        ({"fused_optimizer": True}, "model", "warning", "Adam in run 1; fused Adam in run 2"),
        ({"batch_size": 256}, "batch", "note", "128 in run 1; 256 in run 2"),
        ({"loader_only": True}, "device", "warning", "loading without training in run 2"),
        ({"isolation": "thread"}, "cpu", "note", "thread"),
        (
            {"environment": {"device_name": "NVIDIA H100"}},
            "device",
            "warning",
            "NVIDIA H100 in run 2",
        ),
        ({"environment": {"hostname": "there"}}, "machine", "warning", "there in run 2"),
        ({"environment": {"cpu_count": 4}}, "cpu", "warning", "8 in run 1; 4 in run 2"),
        ({"environment": {"torch_threads": 2}}, "cpu", "note", "threads"),
        ({"environment": {"torch": "2.16.0"}}, "versions", "warning", "PyTorch"),
        ({"environment": {"driver_version": "590"}}, "versions", "warning", "driver"),
        (
            {"environment": {"variables": "A=1"}},
            "variables",
            "warning",
            "none in run 1; A=1 in run 2",
        ),
        (
            {"environment": {"gpu_power_limit_w": 250.0}},
            "power",
            "warning",
            "400 W in run 1; 250 W in run 2",
        ),
        ({"sm_clock_mhz": 1300.0}, "clocks", "warning", "1300 MHz in run 2; 1410 MHz in run 1"),
        (
            {"facts": {"page_cached_frac": 0.02}},
            "page-cache",
            "warning",
            "page cache differs: 2.0% in run 2",
        ),
        ({"other_gpu_bytes": 2e9}, "gpu-processes", "warning", "1.86 GiB"),
        ({"others_cores": 1.5}, "cpu", "warning", "1.5 cores in run 2"),
        ({"loss": LOSSES * 1.01}, "losses", "warning", "do not agree"),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, dict) else "",
)
def test_each_difference_has_a_sentence(
    changes: dict[str, Any], topic: str, level: str, said: str
) -> None:
    other = made(2, **({"model": "tiny"} | changes))
    found = [c for c in comparability([made(1), other]) if c.topic == topic]
    assert [c.level for c in found] == [level] * len(found)
    assert any(said in c.sentence for c in found), found
    if topic != "model":  # another model has another image size too
        assert only(made(1), other) in found


def test_another_data_set_is_other_work_and_a_simulated_accelerator_no_real_one() -> None:
    found = comparability([made(1), made(2, dataset="photos")])
    assert found[0].topic == "data"
    assert "digits in run 1; photos with 10,000 images in run 2" in found[0].sentence
    assert "data" in topics(made(1, dataset="photos"), made(2, dataset="photos", n_images=500))
    simulated = made(2, environment={"device": "simulated:rtx2060-article"})
    said = [c.sentence for c in comparability([made(1), simulated]) if c.topic == "device"]
    assert "simulated in run 2" in said[0]
    assert "simulated:rtx2060-article in run 2" in said[1]
    assert topics(simulated, dataclasses.replace(simulated, id=3)) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"sm_clock_mhz": 1400.0},
        {"sm_clock_mhz": float("nan")},
        {"facts": {"page_cached_frac": 0.95}},
        {"facts": {"page_cached_frac": None}},
        {"other_gpu_bytes": 4e8},
        {"others_cores": 0.3},
        {"loss": LOSSES * 1.0002},
        {"loss": np.full(20, np.nan)},
        {"environment": {"driver_version": None, "gpu_power_limit_w": None}},
    ],
    ids=str,
)
def test_what_is_small_or_not_known_is_passed_over(changes: dict[str, Any]) -> None:
    assert topics(made(1), made(2, **changes)) == []


def test_runs_that_agree_or_shared_the_machine_are_named_together_and_warnings_come_first() -> None:
    runs = [made(3), made(4, batch_size=256), made(7, strategy="hdf5-chunked"), made(9)]
    found = comparability(runs)
    assert [c.level for c in found] == ["warning", "note"]
    assert (
        "shuffled samples in runs 3, 4 and 9; shuffled blocks of neighbours in run 7"
        in found[0].sentence
    )
    assert "128 in runs 3, 7 and 9" in found[1].sentence
    alone, beside = made(1), {"page_cached_frac": 1.0, "n_beside": 1}
    found = only(alone, made(2, facts=beside))
    assert (found.topic, found.level) == ("sharing", "warning")
    assert found.sentence.startswith(
        "Run 2 ran while another run was running on the same machine, which took CPU and"
    )
    assert only(made(2, facts=beside), made(3, facts=beside)).sentence.startswith(
        "Runs 2 and 3 ran while"
    )


@pytest.mark.parametrize(
    ("config", "advice"),
    [
        (RunConfig(share_machine=True), "Run again with share_machine off to compare."),
        (RunConfig(), "Run again while no other run is running to compare."),
        (own_config("cpu"), "End other runs, then watch again to compare."),
    ],
)
def test_what_shared_the_machine_is_run_alone_as_it_can_be(config: RunConfig, advice: str) -> None:
    facts = {"page_cached_frac": 1.0, "n_beside": 1}
    runs = [dataclasses.replace(made(n, facts=facts), config=config) for n in (1, 2)]
    assert only(*runs).sentence.endswith(f"loading may be slower than alone. {advice}")


def test_losses_are_compared_only_where_they_should_agree() -> None:
    wrong = LOSSES * 1.2
    others = (
        {"seed": 7},
        {"batch_size": 64},
        {"strategy": "pt-whole"},
        {"loader_only": True},
        {"lr": 0.1},
    )
    augmented = {"augment": "device"}  # by other random numbers where it is done elsewhere
    for changes in (*others, augmented):
        assert "losses" not in topics(made(1), made(2, loss=wrong, **changes))
    assert "losses" not in topics(made(1, **augmented), made(2, loss=wrong, **augmented))
    assert topics(made(1), made(2, loss=wrong, strategy="memory")) == ["losses"]


def test_losses_that_do_not_agree() -> None:
    drift = 1 + 1e-5 * np.exp(np.arange(20) / 1.5)  # 8 times as large every 3 steps
    assert topics(made(1), made(2, loss=LOSSES * drift)) == []
    assert topics(made(1), made(2, loss=LOSSES * (1 + 0.05 * (np.arange(20) > 0)))) == ["losses"]
    half = {"precision": "bf16"}
    assert topics(made(1, **half), made(2, loss=LOSSES * 1.02, **half)) == []
    assert topics(made(1, **half), made(2, loss=LOSSES * 1.1, **half)) == ["losses"]
    cpu = made(2, loss=LOSSES * 1.02, environment={"device": "cpu", "device_name": "Xeon"})
    assert topics(made(1), cpu) == ["device"]
    found = only(made(1), made(2, loss=LOSSES * 1.01), made(3, loss=LOSSES * 1.5))
    assert "2.3 in run 1 and 3.45 in run 3 at step 0" in found.sentence
    assert topics(made(1), made(2, loss=LOSSES * 2, loss_step=np.arange(20.0) + 5)) == []
    assert topics(made(1), made(2, loss=np.empty(0), loss_step=np.empty(0))) == []


def test_telemetry_counts_in_the_steady_state() -> None:
    known = {"t_start_s": [90, 100, 103, 106, 110], "epoch": 0, "warmup": [1, 0, 0, 0, 0]}
    steps = of_columns(STEP_COLUMNS, 5, dict.fromkeys(STEP_COLUMNS, np.arange(5)) | known)
    telemetry = made_telemetry(
        [90, 101, 102, 103, 120],
        gpu_sm_clock_mhz=[200, 1400, np.nan, 1420, 210],
        gpu_mem_used_bytes=3e9,
        gpu_mem_job_bytes=[0, 1e9, 1e9, 2e9, 0],
        cpu_pct=50,
        job_cpu_pct=100,
    )
    run = run_facts(3, RunConfig(), ENVIRONMENT, {}, None, steps, telemetry)
    assert (run.sm_clock_mhz, run.other_gpu_bytes, run.others_cores) == (1410, 2e9, 3.0)
    assert run.loss_step.tolist() == [0, 1, 2, 3, 4]
    empty = {name: values[:0] for name, values in steps.items()}
    nothing = run_facts(3, RunConfig(), {}, {}, None, empty, telemetry)
    assert np.isnan([nothing.sm_clock_mhz, nothing.other_gpu_bytes, nothing.others_cores]).all()
    assert comparability([nothing, run]) == ()


STEPS = run(np.random.default_rng(0), 30)


def checked(facts: RunFacts, /, **changes: Any) -> CheckedRun:
    one = CheckedRun(facts, "done", "", STEPS, (facts.source, facts.id))
    return dataclasses.replace(one, **changes)


def watched(run_id: int, *, n_samples: int = 600, mean: float = 32.0, **told: Any) -> RunFacts:
    environment = {
        "watched": {"dataset": "Samples", "batch_size": 32, "n_samples": n_samples} | told
    }
    config = with_loader(own_config("train.py"), environment)
    summary = RunSummary(n_steps=100, n_samples=round(mean * 100))
    return dataclasses.replace(
        made(run_id, environment=environment), config=config, summary=summary
    )


def refused(first: RunFacts, second: RunFacts, *allowed: str) -> tuple[str, ...]:
    return comparable([checked(first)], [checked(second)], allowed).refusals


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"status": "failed", "error": "out of memory"},
            "run 1 failed (out of memory); check a run",
        ),
        ({"status": "stopped"}, "run 1 was stopped; check a run"),
        ({"status": "running"}, "run 1 is still going on; check a run"),
        ({"steps": run(np.random.default_rng(0), 0)}, "run 1 has no steps in steady state"),
        ({"facts": made(1, facts={"n_beside": 1})}, "run 1 shared the machine with another run"),
        ({"facts": made(1)}, ""),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_a_run_that_says_nothing(changes: dict[str, Any], said: str) -> None:
    found = why_not_judged(checked(made(1), **changes))
    assert found.startswith(said)
    assert bool(found) == bool(said)
    if "shared" in said:
        assert why_not_judged(checked(made(1), **changes), ["sharing"]) == ""


@pytest.mark.parametrize(
    ("topic", "changes"),
    [
        ("data", {"dataset": "photos"}),
        ("batch", {"batch_size": 256}),
        ("machine", {"environment": {"hostname": "there"}}),
        ("cpu", {"others_cores": 2.0}),
    ],
)
def test_a_difference_is_refused_unless_it_is_allowed(topic: str, changes: dict[str, Any]) -> None:
    (said,) = refused(made(1), made(2, **changes))
    assert said.endswith(f"--allow {topic}")
    assert topic in ALLOWED_TOPICS
    assert refused(made(1), made(2, **changes), topic) == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"environment": {"torch": "2.16"}},
        {"loss": np.full(20, 9.0)},
        {"environment": {"variables": "A=1"}},
    ],
)
def test_what_a_change_under_test_may_be_is_only_told(changes: dict[str, Any]) -> None:
    found = comparable([checked(made(1))], [checked(made(2, **changes))], ())
    assert (found.refusals, len(found.remarks)) == ((), 1)
    assert not set(UNDER_TEST) & set(ALLOWED_TOPICS)


def test_sides_may_differ_and_are_not_the_same_run_and_runs_of_one_side_are_of_one_setting() -> (
    None
):
    found = comparable(
        [checked(made(1, strategy="workers", seed=3))], [checked(made(2, strategy="memory"))], ()
    )
    assert found.refusals == found.remarks == ()
    (said,) = refused(made(1), made(1))
    assert said.startswith("run 1 is on both sides")
    # a run of a file has the number that it had where it was made
    (said,) = refused(made(1), made(1, source="base.vitprof", environment={"hostname": "there"}))
    assert "here in run 1; there in run 1 of base.vitprof" in said
    repeated = [checked(made(1, seed=1, steps=50)), checked(made(2, seed=2, steps=60))]
    assert comparable(repeated, [], ()).refusals == ()
    mixed = [checked(made(n, strategy="workers", workers=n)) for n in (1, 2)]
    for found in (
        comparable(mixed, [], ()),
        comparable([checked(made(3, strategy="memory"))], mixed, ()),
    ):
        (said,) = found.refusals
        assert said.startswith("Runs 1 and 2 are not of one setting (workers 1, 2)")
    assert comparable(mixed, [], ["settings"]).refusals == ()


@pytest.mark.parametrize(
    ("changes", "topic"),
    [
        ({"n_samples": 601}, "data"),
        ({"dataset": "Others"}, "data"),
        ({"batch_size": 64}, "batch"),
        ({"mean": 48.0}, "batch"),
        ({}, ""),
        ({"mean": 31.5, "num_workers": 4}, ""),
    ],
)
def test_watched_runs(changes: dict[str, Any], topic: str) -> None:
    found = refused(watched(1), watched(2, **changes))
    assert [said.rpartition(" ")[2] for said in found] == [topic] * bool(topic)
