"""Each signature on made traces with it and without it; and none of them in noise."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from tests.series import made_steps, made_telemetry
from vitprof.analysis.arrays import Series
from vitprof.analysis.signatures import find_signatures
from vitprof.analysis.signatures.resources import MIN_CPU_SAMPLES, others_cpu, programs_in_words
from vitprof.analysis.timing.steady import Trace
from vitprof.config import RunConfig
from vitprof.config.own_script import own_config
from vitprof.recording.columns import STEP_COLUMNS
from vitprof.recording.verdict import Program, Signature

MB = 2.0**20
FACTS = {"cpu_count": 4, "memory_bytes": 8 * 2**30}
IN_WORKERS = {
    "strategy": "workers",
    "storage": "imagefolder",
    "loader": "dataloader",
    "dataset": "photos",
}
IN_LOOP = {"strategy": "per-sample", "storage": "imagefolder", "loader": "dataloader", "workers": 0}
IN_LOOP |= {"dataset": "photos"}


def trace(
    wait: Sequence[float] | np.ndarray,
    host: float | np.ndarray = 0.01,
    *,
    epoch_steps: int | None = None,
    **columns: Any,
) -> dict[str, np.ndarray]:
    """Steps of a device that works while the host works: a wait and then host work, all of it exposed."""
    n = len(wait)
    known = {
        "epochs": np.arange(n) // (epoch_steps or max(n, 1)),
        "warmup": 2,
        "samples": 32,
        "host_s": host,
    }
    return made_steps(wait, host, **(known | {"loss": np.nan} | columns))


def found(
    steps: Mapping[str, np.ndarray],
    seen: Mapping[str, np.ndarray] | None = None,
    facts: Mapping[str, Any] = FACTS,
    **config: Any,
) -> dict[str, Signature]:
    what = find_signatures(
        Trace(steps, made_telemetry() if seen is None else seen, RunConfig(**config), facts)
    )
    assert len({s.name for s in what}) == len(what)
    return {s.name: s for s in what}


def noise(n: int, seed: int, mean: float = 0.01, spread: float = 0.2) -> np.ndarray:
    return mean * np.exp(spread * np.random.default_rng(seed).standard_normal(n))


@pytest.mark.parametrize("workers", [2, 8])
def test_a_stall_at_every_num_workers_th_batch(workers: int) -> None:
    wait = noise(160, seed=workers, mean=0.001)
    wait[::workers] += 0.05
    s = found(trace(wait), workers=workers, **IN_WORKERS)["worker-period"]
    assert (s.cost_s_per_step, s.evidence["period_steps"]) == (
        pytest.approx(0.05 / workers, rel=0.02),
        workers,
    )
    assert s.cost_frac == pytest.approx(0.05 / workers / (0.011 + 0.05 / workers), rel=0.05)
    assert "51." in s.sentence
    assert "in order" in s.sentence


def test_a_stall_of_the_worker_with_the_large_samples() -> None:
    """Half of its samples are large, so that the medians of both workers are alike."""
    wait = noise(160, seed=2, mean=0.001)
    wait[1::2] += 0.05
    worker = np.arange(160) % 2.0
    steps = trace(
        wait,
        worker=worker,
        made_start_s=0.0,
        made_end_s=noise(160, seed=4, mean=0.03) * (1 + 2 * worker),
    )
    medians = [{"worker": number, "timed": 1000, "median_s": 0.001} for number in (0, 1)]
    facts = {**FACTS, "slow_samples": {"workers": medians}}
    of_run = found(steps, facts=facts, workers=2, **IN_WORKERS)
    assert "slow-worker" not in of_run
    sentence = of_run["worker-period"].sentence
    assert re.search(
        r" It is worker 1's, whose batches take 3\.?\d* times as long as those of the other one \(2\.\d to 3\.\d\)\. ",
        sentence,
    )
    assert "finish together" not in sentence
    shifted = {**steps, "worker": np.where(np.arange(160) % 8 < 4, worker, 1 - worker)}
    shifted["made_end_s"] = noise(160, seed=4, mean=0.03) * (1 + 2 * shifted["worker"])
    of_run = found(shifted, facts=facts, workers=2, **IN_WORKERS)
    assert "worker-period" not in of_run, "the stalls are not those of the worker with long batches"


def test_the_period_begins_anew_with_each_epoch() -> None:
    wait = noise(210, seed=1, mean=0.001)
    wait[np.arange(210) % 21 % 4 == 3] += 0.05  # 21 batches an epoch: no multiple of the 4 workers
    s = found(trace(wait, epoch_steps=21), workers=4, **IN_WORKERS)["worker-period"]
    assert s.evidence["stall_s"] == pytest.approx(0.051, rel=0.02)


@pytest.mark.parametrize(
    "stalls",
    [
        np.zeros(160),
        np.where(np.arange(160) % 5 == 0, 0.05, 0.0),  # another period than that of the 4 workers
        np.linspace(0, 0.05, 160),  # a drift correlates at every lag
        np.where(np.arange(160) % 2 == 0, 0.05, 0.0),  # a period of 2 is no sign of 4 workers
        np.where(np.arange(160) == 80, 0.5, 0.0),
    ],
    ids=["none", "every fifth", "drift", "every second", "one"],
)
def test_no_stall_at_every_num_workers_th_batch(stalls: np.ndarray) -> None:
    wait = noise(160, seed=2, mean=0.001) + stalls
    assert "worker-period" not in found(trace(wait), workers=4, **IN_WORKERS)


def test_a_period_needs_workers_steps_and_a_cost() -> None:
    wait = noise(160, seed=3, mean=0.001)
    wait[::4] += 0.05
    assert "worker-period" not in found(trace(wait), **IN_LOOP)
    assert "worker-period" not in found(trace(wait[:24]), workers=4, **IN_WORKERS)
    tiny = noise(160, seed=3, mean=1e-6)
    tiny[::4] += 1e-5
    assert "worker-period" not in found(trace(tiny), workers=4, **IN_WORKERS)
    hidden = trace(wait)
    hidden["exposed_wait_s"] = np.zeros(160)  # queued device work covers it: it costs nothing
    assert "worker-period" not in found(hidden, workers=4, **IN_WORKERS)


def made(
    times: Sequence[float], n: int = 160, seed: int = 1, spread: float = 0.2
) -> dict[str, np.ndarray]:
    """The loader's columns of workers that take `times` for a batch, in turns."""
    worker = np.arange(n) % len(times)
    took = np.asarray(times)[worker] * noise(n, seed, 1.0, spread)
    end = 100 + np.arange(n) * 0.03
    return {"worker": worker.astype(float), "made_start_s": end - took, "made_end_s": end}


@pytest.mark.parametrize(
    ("times", "worst"), [([0.1, 0.2], 1), ([0.1, 0.1, 0.15], 2), ([0.3, 0.1, 0.1, 0.1], 0)]
)
def test_one_slow_worker(times: list[float], worst: int) -> None:
    s = found(trace(noise(160, 1, 0.05), **made(times)), workers=len(times), **IN_WORKERS)[
        "slow-worker"
    ]
    usual = min(times)
    assert s.evidence["worker"] == worst
    assert s.evidence["times_slower"] == pytest.approx(times[worst] / usual, rel=0.15)
    assert s.cost_s_per_step == pytest.approx(
        min((times[worst] - usual) / len(times), 0.05), rel=0.25
    )


@pytest.mark.parametrize(
    ("times", "n"),
    [
        ([0.1, 0.1], 160),
        ([0.1, 0.11, 0.1], 160),
        ([0.2, 0.2, 0.1, 0.1], 160),
        ([0.1], 160),
        ([0.1, 0.1, 0.1, 0.3], 28),
    ],
)
def test_no_slow_worker_or_too_few_batches_to_tell_by(times: list[float], n: int) -> None:
    assert "slow-worker" not in found(
        trace(noise(n, 1, 0.05), **made(times, n)), workers=len(times), **IN_WORKERS
    )


@pytest.mark.parametrize("persistent", [True, False])
def test_the_start_of_each_epoch(persistent: bool) -> None:
    wait = noise(200, seed=4, mean=0.002)
    wait[::50] = 0.8
    s = found(trace(wait, epoch_steps=50), workers=2, persistent_workers=persistent, **IN_WORKERS)[
        "epoch-start"
    ]
    assert (s.evidence["n_epochs"], s.cost_s_per_step) == (3, pytest.approx(0.798 / 50, rel=0.01))
    assert s.cost_frac == pytest.approx(0.8 / (0.8 + 50 * 0.012), rel=0.03)
    assert ("persistent_workers is off" in s.sentence) is not persistent


def test_a_sampler_that_draws_for_long_as_an_epoch_begins_is_named() -> None:
    """2 million indices in epochs of 15 batches with two workers: they were told to stay, who take a tenth of that."""
    wait = noise(200, seed=4, mean=0.002)
    wait[::50] = 0.8
    sampler_s = np.where(np.arange(200) % 50 == 0, 0.7, 0.0)
    steps = trace(wait, epoch_steps=50, sampler_s=sampler_s)
    s = found(steps, workers=2, persistent_workers=False, **IN_WORKERS)["epoch-start"]
    assert s.evidence["sampler_s"] == pytest.approx(0.7)
    assert s.sentence.endswith("The sampler took 700 ms of it, in the process that trains.")


def test_two_loaders_that_begin_one_after_the_other_have_no_epochs_of_a_step() -> None:
    """Two loaders in turn, each with its update: that was "2484% of an epoch", and one iterator for many batches was
    advised."""
    wait = noise(120, seed=4, mean=0.002)
    wait[1] = 0.3
    steps = trace(wait, **made([0.001], 120))
    steps["epoch"] = np.where(np.arange(120) == 0, 0.0, 1.0)
    s = found(steps, **IN_LOOP)["epoch-start"]
    assert s.evidence["steps_of_an_epoch"] == 60.0
    assert s.cost_frac < 1


def test_an_iteration_that_begins_for_each_batch_and_an_epoch_that_begins_like_any_other_step() -> (
    None
):
    steps = trace(noise(60, seed=4, mean=0.1), epoch_steps=1, **made([0.01], 60))
    s = found(steps, workers=1, persistent_workers=False, **IN_WORKERS)["epoch-start"]
    assert s.cost_frac == pytest.approx(0.09 / 0.11, rel=0.1)
    assert "making a batch: " in s.sentence
    slow = trace(noise(60, 4, 0.1), epoch_steps=1, **made([0.1], 60))
    assert "epoch-start" not in found(slow, workers=1, **IN_WORKERS)
    assert not found(trace(noise(200, seed=5), epoch_steps=50), **IN_LOOP)
    wait = noise(200, seed=5, mean=0.002)
    wait[0] = 0.8  # the very first only
    assert "epoch-start" not in found(trace(wait, epoch_steps=50), workers=2, **IN_WORKERS)
    wait[50::50] = 0.004  # found, but it costs less than 1% of an epoch
    assert "epoch-start" not in found(trace(wait, epoch_steps=50), workers=2, **IN_WORKERS)


def test_the_first_batch() -> None:
    wait = noise(100, seed=6, mean=0.002)
    wait[0] = 3.0
    s = found(trace(wait), workers=2, start_method="spawn", **IN_WORKERS)["first-batch"]
    assert s.cost_s_per_step == pytest.approx(2.998 / 100, rel=0.01)
    assert "spawn" in s.sentence
    assert "opening the storage" in found(trace(wait), **IN_LOOP)["first-batch"].sentence
    samples = np.full(100, 32)
    samples[0] = 151 * 32  # as where an epoch is resumed in its middle
    skipped = found(trace(wait, samples=samples), workers=2, **IN_WORKERS)["first-batch"]
    assert "150 batches before it were skipped" in skipped.sentence
    assert "worker" not in skipped.sentence
    for mean, first in ((0.002, 0.1), (2.0, 5.0)):  # little, or 3 s more of steps of 2 s
        wait = noise(100, seed=6, mean=mean)
        wait[0] = first
        assert "first-batch" not in found(trace(wait), workers=2, **IN_WORKERS)


def test_lone_spikes_of_the_host_at_even_distances() -> None:
    host = noise(300, seed=7, mean=0.01, spread=0.05)
    host[20::35] += 0.08
    s = found(trace(noise(300, seed=8, mean=0.001), host), **IN_LOOP)["garbage-collection"]
    assert s.evidence["period_steps"] == pytest.approx(35)
    assert s.cost_s_per_step == pytest.approx(0.08 / 35, rel=0.08)
    assert "garbage collector" in s.sentence
    seen = Trace(
        trace(noise(300, seed=8, mean=0.001), host),
        made_telemetry(),
        own_config("script", workers=0),
        FACTS,
    )
    (own,) = (s for s in find_signatures(seen) if s.name == "garbage-collection")
    assert "logging or saving every so many steps looks like this" in own.sentence


@pytest.mark.parametrize(
    ("at", "host_s", "wait_s"),
    [
        (np.arange(34, 300, 35), 0.08, 0.0),
        (np.random.default_rng(3).choice(np.arange(5, 300), 9, replace=False), 0.08, 0.0),
        (np.arange(20, 300, 35)[:4], 0.08, 0.0),
        (np.arange(20, 300, 35), 0.08, 0.08),
        (np.arange(5, 300, 3), 0.08, 0.0),
        (np.arange(20, 300, 35), 0.001, 0.0),
    ],
    ids=["ends of epochs", "random", "few", "in the wait", "too many", "small"],
)
def test_spikes_that_are_not_the_collector(at: np.ndarray, host_s: float, wait_s: float) -> None:
    host, wait = noise(300, seed=9, mean=0.01, spread=0.05), noise(300, seed=10, mean=0.001)
    host[at] += host_s
    wait[at] += wait_s
    assert "garbage-collection" not in found(trace(wait, host, epoch_steps=35), **IN_LOOP)


def test_reads_that_fall_after_the_first_pass_or_within_the_only_one() -> None:
    read = noise(200, seed=11, mean=0.002)
    read[:50] *= 8
    steps = trace(read + 0.001, epoch_steps=50, read_s=read)
    s = found(steps, **IN_LOOP)["cold-to-warm"]
    assert s.evidence["times_faster"] == pytest.approx(8, rel=0.15)
    assert s.cost_s_per_step == pytest.approx(0.014, rel=0.1)
    assert s.sentence.startswith("Reading a batch")
    blind = trace(read + 0.001, epoch_steps=50)  # a loader that cannot tell: the waits do
    assert found(blind, **IN_LOOP)["cold-to-warm"].sentence.startswith("The wait for a batch")
    read = noise(200, seed=12, mean=0.002) * np.linspace(8, 1, 200)
    s = found(trace(read + 0.001, read_s=read), **IN_LOOP)["cold-to-warm"]
    assert s.evidence["within_first_epoch"] == 1
    assert s.evidence["times_faster"] > 3


def test_reads_of_a_script_that_fall_are_told_without_settings_that_it_does_not_have() -> None:
    read = noise(200, seed=11, mean=0.002)
    read[:50] *= 8
    steps = trace(read + 0.001, epoch_steps=50, read_s=read)
    own = Trace(steps, made_telemetry(), own_config("train.py"), FACTS)
    (sentence,) = [s.sentence for s in find_signatures(own) if s.name == "cold-to-warm"]
    assert sentence.endswith("find their samples in memory. Steady figures mix both.")


def test_reads_that_fall_beside_other_programs_may_have_got_a_core_later() -> None:
    read = noise(200, seed=11, mean=0.002)
    read[:50] *= 8
    steps = trace(read + 0.001, epoch_steps=50, read_s=read)
    assert "cold-to-warm" in found(steps, cpu(steps, 60, 100), **IN_LOOP)
    assert "cold-to-warm" not in found(steps, cpu(steps, 99, 196), **IN_LOOP)


def test_reads_that_stay_what_they_were() -> None:
    read = noise(200, seed=13, mean=0.002)
    assert "cold-to-warm" not in found(trace(read + 0.001, epoch_steps=50, read_s=read), **IN_LOOP)
    decode = noise(200, seed=13, mean=0.002)
    decode[:50] *= 8  # something else got faster
    assert "cold-to-warm" not in found(trace(read + decode, epoch_steps=50, read_s=read), **IN_LOOP)
    cheap = read * np.where(np.arange(200) < 50, 8, 1) / 1e3  # costs nothing
    assert "cold-to-warm" not in found(
        trace(decode * 0 + 0.001, epoch_steps=50, read_s=cheap), **IN_LOOP
    )
    falling = trace(decode, epoch_steps=50)
    for where in ({"storage": "memory"}, {"location": "ram-disk"}):
        assert "cold-to-warm" not in found(falling, **IN_LOOP | where)


def grown(steps: Mapping[str, np.ndarray], rss: Any) -> dict[str, np.ndarray]:
    """200 samples of memory over the run, and three of evaluation after it."""
    t = np.linspace(steps["t_start_s"][0] - 1, steps["t_start_s"][-1], 200)
    wobble = 2 * MB * np.random.default_rng(1).standard_normal(200)
    return made_telemetry(t, job_rss_bytes=rss(np.linspace(0, 1, 200)) + wobble)


def test_memory_that_grows_for_longer_than_the_first_seconds() -> None:
    steps = trace(noise(3000, seed=14, mean=0.03))
    seen = grown(steps, lambda x: 500 * MB + 400 * MB * x)
    s = found(steps, seen, workers=2, **IN_WORKERS)["memory-growth"]
    rate = 400 * MB / (seen["t_s"][-1] - seen["t_s"][0])
    assert s.evidence["bytes_per_s"] == pytest.approx(rate, rel=0.02)
    assert s.evidence["bytes_per_s_low"] < rate < s.evidence["bytes_per_s_high"]
    assert np.isnan(s.cost_s_per_step)
    assert re.search("8.00 GiB are full in .*Workers", s.sentence)
    assert "Workers" not in found(steps, seen, **IN_LOOP)["memory-growth"].sentence
    # seen on a real run of 8 s: workers that started, 124 MiB to 4.74 GiB a minute
    steps = trace(noise(800, seed=14, mean=0.03))
    seen = grown(steps, lambda x: 500 * MB + 400 * MB * x)
    assert seen["t_s"][-1] - seen["t_s"][0] > 30
    assert "memory-growth" not in found(steps, seen, workers=2, **IN_WORKERS)


@pytest.mark.parametrize(
    "rss",
    [
        lambda x: 500 * MB + 0 * x,
        lambda x: 500 * MB + 400 * MB * np.minimum(x, 0.2),  # a queue that fills once
        lambda x: 900 * MB - 400 * MB * x,
        lambda x: 500 * MB + 20 * MB * x,
        lambda x: 500 * MB + 300 * MB * (x > 0.5),  # a step
    ],
    ids=["flat", "levels off", "falls", "little", "a step"],
)
def test_memory_that_does_not_grow(rss: Any) -> None:
    steps = trace(noise(3000, seed=15, mean=0.03))
    assert "memory-growth" not in found(steps, grown(steps, rss), workers=2, **IN_WORKERS)


def test_pages_of_a_mapped_file_are_no_leak() -> None:
    """They count as the job's memory as they are touched, until the first pass is over."""
    mapped = {"strategy": "preprocessed", "storage": "memmap", "loader": "ahead"}
    one = trace(noise(3000, seed=16, mean=0.03))
    assert "memory-growth" not in found(one, grown(one, lambda x: MB * (500 + 400 * x)), **mapped)
    four = trace(noise(3000, seed=16, mean=0.03), epoch_steps=750)
    assert "memory-growth" not in found(
        four, grown(four, lambda x: MB * (500 + 400 * np.minimum(x, 0.25))), **mapped
    )
    assert "memory-growth" in found(four, grown(four, lambda x: MB * (500 + 400 * x)), **mapped)


def cpu(steps: Mapping[str, np.ndarray], machine: float, job: float) -> dict[str, np.ndarray]:
    t = np.linspace(steps["t_start_s"][0], steps["t_start_s"][-1], 40)
    wobble = np.random.default_rng(2).standard_normal((2, 40))
    return made_telemetry(t, cpu_pct=machine + wobble[0], job_cpu_pct=job + wobble[1])


def test_cpu_that_other_programs_take() -> None:
    steps = trace(noise(200, seed=17))
    s = found(steps, cpu(steps, 99, 196), **IN_LOOP)["other-programs"]
    assert s.evidence["others_cores"] == pytest.approx(2, abs=0.05)
    assert "All cores were busy: end those programs" in s.sentence
    for waited, words in (
        (80.0, "and the job waited for them: end"),
        (2.0, "but the job hardly waited for one"),
    ):
        queues = cpu(steps, 99, 196) | {"job_cpu_wait_pct": np.full(40, waited)}
        assert words in found(steps, queues, **IN_LOOP)["other-programs"].sentence
    assert "still free" in found(steps, cpu(steps, 60, 100), **IN_LOOP)["other-programs"].sentence
    for machine, job, facts in (
        (99, 390, FACTS),
        (30, 115, FACTS),
        (99, 196, {}),
    ):  # of the last, cores are not known
        assert "other-programs" not in found(steps, cpu(steps, machine, job), facts, **IN_LOOP)


@pytest.mark.parametrize("workers", [0, 4])
def test_no_false_alarm_in_noise(workers: int) -> None:
    """200 steady traces with independent noise, some heavy-tailed, some slowly wandering; 1 to 4 epochs."""
    alarms = []
    config = IN_LOOP if not workers else {"workers": workers, **IN_WORKERS}
    for seed in range(200):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(25, 300))
        wait = noise(
            n,
            seed,
            mean=float(rng.choice([0.0005, 0.005, 0.05])),
            spread=float(rng.uniform(0.05, 0.5)),
        )
        host = noise(n, seed + 1000, spread=float(rng.uniform(0.02, 0.3)))
        if seed % 3 == 0:
            tail = rng.random(n) < 0.03
            wait = wait + tail * rng.exponential(0.05, n)
            host = host + (rng.random(n) < 0.03) * rng.exponential(0.05, n)
        if seed % 3 == 1:
            walk = np.convolve(rng.standard_normal(n + 9), np.full(10, 1 / 10), "valid")
            wait = wait * np.exp(0.5 * walk)
        columns = {"read_s": wait * rng.uniform(0.2, 0.4)}
        if workers:
            columns |= made([0.02] * workers, n, seed)
        steps = trace(wait, host, epoch_steps=n // int(rng.integers(1, 5)) + 1, **columns)
        t = np.linspace(steps["t_start_s"][0], steps["t_start_s"][-1], 60)
        seen = made_telemetry(
            t,
            cpu_pct=50 + rng.standard_normal(60),
            job_cpu_pct=195 + 5 * rng.standard_normal(60),
            job_rss_bytes=MB * (500 + 10 * rng.standard_normal(60)),
        )
        alarms += [(seed, name) for name in found(steps, seen, **config)]
    assert not alarms


def test_too_few_steps_and_older_runs_say_nothing() -> None:
    for n in range(0, 12):
        wait = np.full(n, 0.001)
        wait[::2] = 5.0
        assert not found(trace(wait, epoch_steps=4), workers=2, **IN_WORKERS)
    steps = trace(noise(100, seed=18))
    old = {
        name: steps[name]
        for name in STEP_COLUMNS
        if name not in ("host_s", "made_start_s", "made_end_s", "worker")
    }
    assert not found(old, workers=2, **IN_WORKERS)


HANDED = {"handed_over": {"tensors": 113, "bytes": 900_000, "dtypes": {"float32": 33, "int64": 80}}}


def test_batches_of_many_tensors_that_cross_one_by_one() -> None:
    steps = trace(noise(100, seed=5, mean=0.006), hand_over_s=0.005)
    s = found(steps, facts=FACTS | HANDED, workers=2, **IN_WORKERS)["many-tensors"]
    assert s.cost_s_per_step == pytest.approx(0.005)
    assert s.evidence["tensors"] == 113
    assert s.sentence.startswith(
        "A batch has 113 tensors (879 KiB), and each crosses from its worker by itself: the loop waits "
        "5.00 ms for a batch that is made, "
    )
    assert s.sentence.endswith(" tournament --vary pack=on.")
    quick = trace(noise(100, seed=5, mean=0.006), hand_over_s=0.0005)
    few = {"handed_over": {"tensors": 4, "bytes": 900_000, "dtypes": {"float32": 4}}}
    assert "many-tensors" not in found(quick, facts=FACTS | HANDED, workers=2, **IN_WORKERS)
    assert "many-tensors" not in found(steps, facts=FACTS | few, workers=2, **IN_WORKERS)
    assert "many-tensors" not in found(steps, facts=FACTS | HANDED, **IN_LOOP)


def test_what_unpickling_is_of_a_wait_is_said_where_the_loop_does_it() -> None:
    steps = trace(noise(100, seed=5, mean=0.006), hand_over_s=0.005)
    for thread, is_said in (("training", True), ("pinning", False)):
        timed = {**HANDED["handed_over"], "unpickle_s": 0.003, "unpickled_in": thread}
        facts = {**FACTS, "handed_over": timed}
        s = found(steps, facts=facts, workers=2, **IN_WORKERS)["many-tensors"]
        assert ("(unpickling one takes 3.00 ms)" in s.sentence) == is_said


PICKLED = {"pickle_s": 0.030, "pickle_cpu_s": 0.020}


def test_workers_that_pickle_for_long_where_the_loop_waits_for_them() -> None:
    made = {"made_start_s": 0.0, "made_end_s": 0.04}
    steps = trace(noise(100, seed=5, mean=0.02), **made)
    of_batch = {**HANDED["handed_over"], **PICKLED}
    facts = {**FACTS, "handed_over": of_batch}
    s = found(steps, facts=facts, workers=2, **IN_WORKERS)["pickling"]
    assert s.sentence.startswith(
        "A worker takes 40.0 ms to make a batch, and 20.0 ms of CPU to pickle it. It pickles while it makes "
        "the next one, which then waits for Python's lock or for a core: where cores are free that costs at most "
        "10.0 ms, "
    )
    assert " of a step with 2 workers. To try its 113 tensors packed: " in s.sentence
    assert s.cost_s_per_step == pytest.approx(0.010)
    assert s.evidence["made_s"] == pytest.approx(0.04)
    few = {**FACTS, "handed_over": {**of_batch, "tensors": 2}}
    other = found(steps, facts=few, workers=1, **IN_WORKERS)["pickling"]
    assert " of a step. What collate has not put into shared memory" in other.sentence
    assert other.cost_s_per_step == pytest.approx(0.020, rel=0.05)


def test_pickling_costs_nothing_where_no_batch_is_waited_for() -> None:
    made = {"made_start_s": 0.0, "made_end_s": 0.04}
    facts = {**FACTS, "handed_over": {**HANDED["handed_over"], **PICKLED}}
    fed = trace(noise(100, seed=5, mean=0.0004), **made)
    assert "pickling" not in found(fed, facts=facts, workers=2, **IN_WORKERS)
    steps = trace(noise(100, seed=5, mean=0.02), **made)
    ready = trace(noise(100, seed=5, mean=0.02), hand_over_s=0.0197, **made)
    assert "pickling" not in found(ready, facts=facts, workers=64, **IN_WORKERS)
    assert "pickling" not in found(steps, facts=facts, **IN_LOOP)
    quick = {**HANDED["handed_over"], "pickle_s": 0.002, "pickle_cpu_s": 0.001}
    assert "pickling" not in found(
        steps, facts={**FACTS, "handed_over": quick}, workers=2, **IN_WORKERS
    )
    assert "pickling" not in found(steps, facts=FACTS | HANDED, workers=2, **IN_WORKERS)
    unknown = {**steps, "exposed_wait_s": np.full(100, np.nan)}
    assert "pickling" not in found(unknown, facts=facts, workers=2, **IN_WORKERS)


PINNED = {
    "unpickle_s": 0.009,
    "unpickle_cpu_s": 0.005,
    "unpickled_in": "pinning",
    "pinning_cpu_s": 0.006,
    "pinning_queued_s": 0.001,
}


def test_a_thread_that_pins_and_holds_the_lock() -> None:
    steps = trace(noise(100, seed=5, mean=0.001), host=0.02)
    facts = {**FACTS, "handed_over": {**HANDED["handed_over"], **PINNED}}
    s = found(steps, facts=facts, workers=2, **IN_WORKERS)["pinning-lock"]
    assert s.sentence.startswith(
        "The thread that pins batches takes 5.00 ms of CPU to unpickle one, and holds Python's lock for most of that: "
        "the training cannot launch work meanwhile. It runs for 6.00 ms of a step's work, and waits for a core for "
        "1.00 ms: that costs at most 7.00 ms, "
    )
    assert s.sentence.endswith(
        " To try its 113 tensors packed: python -m vitprof tournament --vary pack=on."
    )
    assert s.cost_s_per_step == pytest.approx(0.007)
    short = trace(noise(100, seed=5, mean=0.03), host=0.004)
    s = found(short, facts=facts, workers=2, **IN_WORKERS)["pinning-lock"]
    assert s.cost_s_per_step == pytest.approx(0.004, rel=0.01), "no longer than the loop works"
    few = {**FACTS, "handed_over": {**HANDED["handed_over"], **PINNED, "tensors": 3}}
    s = found(steps, facts=few, workers=2, **IN_WORKERS)["pinning-lock"]
    assert s.sentence.endswith(" Fewer tensors take less.")


@pytest.mark.parametrize(
    "other",
    [
        {"unpickled_in": "training"},
        {"unpickle_cpu_s": 0.0005},
        {"pinning_cpu_s": None},
        {"pinning_cpu_s": 0.0005},
        {"unpickle_cpu_s": None},
    ],
)
def test_a_thread_that_copies_batches_leaves_the_lock_alone(other: dict[str, Any]) -> None:
    steps = trace(noise(100, seed=5, mean=0.001), host=0.02)
    facts = {**FACTS, "handed_over": {**HANDED["handed_over"], **PINNED, **other}}
    assert "pinning-lock" not in found(steps, facts=facts, workers=2, **IN_WORKERS)


def test_batches_that_hold_most_of_the_descriptors_open() -> None:
    steps = trace(noise(100, seed=5))
    of_batch = {"storages": 150, "descriptor_limit": 1024, "sharing": "file_descriptor"}
    facts = {**FACTS, "handed_over": of_batch}
    s = found(steps, facts=facts, workers=2, **IN_WORKERS)["open-descriptors"]
    assert s.sentence.startswith(
        "Batches that are ready can hold 600 descriptors open in the process that trains (4 batches of 150 "
        "tensors), 59% of the 1,024 that it may have: at the limit "
    )
    assert s.evidence["descriptors_most"] == 600
    assert math.isnan(s.cost_frac)
    few = {**FACTS, "handed_over": {**of_batch, "storages": 128}}
    assert "open-descriptors" not in found(steps, facts=few, workers=2, **IN_WORKERS), "half of it"
    assert "open-descriptors" not in found(steps, facts=facts, **IN_LOOP)


def test_shared_memory_that_is_nearly_full() -> None:
    steps = trace(noise(100, seed=5))
    used = MB * np.array([10.0, 52.0, 40.0])
    seen = made_telemetry([100.0, 100.5, 101.0], shm_used_bytes=used, shm_free_bytes=64 * MB - used)
    s = found(steps, seen, workers=2, **IN_WORKERS)["shared-memory-full"]
    assert s.sentence.startswith(
        "/dev/shm was 81% full at its peak (52.0 MiB of 64.0 MiB, all programs together). Batches cross from "
    )
    assert math.isnan(s.cost_frac)
    assert "shared-memory-full" not in found(steps, seen, **IN_LOOP)
    larger = {**seen, "shm_free_bytes": 66 * MB - used}
    assert "shared-memory-full" not in found(steps, larger, workers=2, **IN_WORKERS)


def own_memory(mb_each: float, *, rss_mb_each: float = 0.0, n: int = 41) -> Series:
    """Memory of workers, which grows by so much from one sample to the next."""
    number = np.arange(n)
    wobble = 0.2 * MB * np.random.default_rng(3).standard_normal(n)
    wobble[[0, -1]] = 0.0
    return made_telemetry(
        100 + 15.0 * number,
        worker_private_bytes=MB * (20 + mb_each * number) + wobble,
        worker_pss_bytes=100 * MB,
        worker_rss_bytes=MB * (700 + rss_mb_each * number) + wobble,
        workers_age_s=15.0 * number,
        memory_available_bytes=8192 * MB,
    )


FORKED = {**FACTS, "handed_over": {"start_method": "fork"}}


def test_workers_that_copy_what_they_share() -> None:
    steps = trace(noise(100, seed=5))
    s = found(steps, own_memory(2.0), FORKED, workers=4, **IN_WORKERS)["worker-memory"]
    assert s.sentence.startswith("Each of the 4 workers' private memory grows by 480 MiB an hour (")
    assert "80.0 MiB so far. The total memory of a worker does not grow: it copies" in s.sentence
    assert "(copy-on-write, pytorch issue 13246)" in s.sentence
    assert s.sentence.endswith("more can be copied by each, and there is room for that.")
    assert s.evidence["full_in_s"] == pytest.approx(8192 / 4 / (2 / 15), rel=0.01)
    assert math.isnan(s.cost_frac)
    scarce = {**own_memory(2.0), "memory_available_bytes": np.full(41, 800 * MB)}
    s = found(steps, scarce, FORKED, workers=4, **IN_WORKERS)["worker-memory"]
    assert s.sentence.endswith(" At this rate memory is full in 25 min 0 s.")


def test_workers_that_keep_what_they_make() -> None:
    steps = trace(noise(100, seed=5))
    kept = own_memory(2.0, rss_mb_each=2.0)
    s = found(steps, kept, FORKED, workers=1, **IN_WORKERS)["worker-memory"]
    assert s.sentence.startswith("Its one worker's private memory grows by 480 MiB an hour (")
    assert (
        "it keeps some of what it makes. At this rate memory is full in 17 h 04 min." in s.sentence
    )
    spawned = {**FACTS, "handed_over": {"start_method": "spawn"}}
    s = found(steps, own_memory(2.0), spawned, workers=4, **IN_WORKERS)["worker-memory"]
    assert "so far. At this rate memory" in s.sentence, "no cause that is not known"


def test_memory_of_workers_that_does_not_grow_enough() -> None:
    steps = trace(noise(100, seed=5))
    for seen in (own_memory(1.2), own_memory(2.0, n=9), own_memory(0.0), made_telemetry()):
        assert "worker-memory" not in found(steps, seen, FORKED, workers=4, **IN_WORKERS)
    assert "worker-memory" not in found(steps, own_memory(2.0), FORKED, **IN_LOOP)


def test_workers_with_more_threads_than_cores() -> None:
    steps = trace(noise(100, seed=5))
    t = np.linspace(steps["t_start_s"][0], steps["t_start_s"][-1], 40)

    def seen(**changes: float) -> Series:
        usual = {"worker_threads": 7.0, "worker_cpu_pct": 140.0, "workers_cpu_wait_pct": 260.0}
        return made_telemetry(t, **(usual | changes))

    facts = {**FACTS, "handed_over": {"torch_threads": 1}}
    s = found(steps, seen(), facts, workers=2, **IN_WORKERS)["worker-threads"]
    assert s.sentence.startswith(
        "Each of the 2 workers has 7 threads and keeps 1.40 cores busy, and 2.60 of their threads wait for one "
        "of the 4 cores at any time. PyTorch has one of them: the others are a library's. To try: "
    )
    set_to = {**FACTS, "handed_over": {"torch_threads": 4}}
    s = found(steps, seen(), set_to, workers=2, **IN_WORKERS)["worker-threads"]
    assert "PyTorch is set to 4 there." in s.sentence
    for changes in (
        {"worker_threads": 2.0},
        {"worker_threads": 3.0},
        {"worker_cpu_pct": 105.0},
        {"workers_cpu_wait_pct": 20.0},
        {"workers_cpu_wait_pct": math.nan},
    ):
        assert "worker-threads" not in found(steps, seen(**changes), facts, workers=2, **IN_WORKERS)
    many = {**facts, "cpu_count": 64}
    assert "worker-threads" not in found(steps, seen(), many, workers=2, **IN_WORKERS)


def test_the_costliest_comes_first_and_every_one_says_what_it_is_based_on() -> None:
    wait = noise(200, seed=19, mean=0.001)
    wait[::4] += 0.02
    wait[::50] = 1.5
    steps = trace(wait, epoch_steps=50)
    signatures = find_signatures(
        Trace(steps, cpu(steps, 99, 196), RunConfig(workers=4, **IN_WORKERS), FACTS)
    )
    assert [s.name for s in signatures] == [
        "epoch-start",
        "first-batch",
        "worker-period",
        "other-programs",
    ]
    for s in signatures:
        assert s.based_on
        assert s.evidence
        assert not re.search("nan|n/a", s.sentence)


STEPS = {
    "t_start_s": np.linspace(90, 110, 21),
    "epoch": np.zeros(21),
    "warmup": np.repeat([1.0, 0.0], [10, 11]),
}
"""Steady from 100 to 110 s."""
FOUR = {"cpu_count": 4}


def seen(machine: np.ndarray, job: float = 100.0) -> Series:
    """Telemetry over the steady state, with a busy machine in the warm-up and after the last step."""
    t = np.concatenate([[95.0], np.linspace(100, 110, len(machine)), [120.0]])
    return {
        "t_s": t,
        "cpu_pct": np.concatenate([[100.0], machine, [100.0]]),
        "job_cpu_pct": np.full(len(t), job),
    }


@pytest.mark.parametrize(("n", "lasting", "median"), [(3, 0, 25), (13, 2, 75)])
def test_others_count_by_their_time_and_a_burst_does_not_last(
    n: int, lasting: float, median: float
) -> None:
    """Of four cores the job takes one, another program two in `n` of sixteen samples."""
    found = others_cpu(STEPS, seen(np.array([75.0] * n + [25.0] * (16 - n))), FOUR)
    assert (found.cores, found.lasting_cores, found.machine_pct) == (
        pytest.approx(2 * n / 16),
        lasting,
        median,
    )


def test_what_is_not_known_is_passed_over() -> None:
    few = others_cpu(STEPS, seen(np.array([50.0, math.nan])), FOUR)
    assert few.cores == 1
    assert math.isnan(few.lasting_cores), f"{MIN_CPU_SAMPLES} samples are needed"
    nothing = {name: values[:0] for name, values in STEPS.items()}
    for steps, environment in ((STEPS, {}), (nothing, FOUR)):
        found = others_cpu(steps, seen(np.full(20, 50.0)), environment)
        assert np.isnan([found.cores, found.lasting_cores]).all()


def test_programs_of_several_processes_are_named_once() -> None:
    programs = [
        Program("chromium-headless-shell", 11, 0.34, 3),
        Program("train.py", 12, 0.26),
        Program("python -m http.server", 13, 0.1),
        Program("not named", 14, 0.1),
    ]
    assert programs_in_words(programs) == (
        "chromium-headless-shell 0.3 (3 processes), train.py 0.3 (process 12), "
        "python -m http.server 0.1 (process 13)"
    )
