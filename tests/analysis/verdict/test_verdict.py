"""The verdict on made traces whose answer is known: kind, cause, milliseconds, sentence."""

import dataclasses
import json
import math
import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.series import made_steps
from vitprof.analysis.timing.loading import find_exposure, synchronous
from vitprof.analysis.verdict.answer import answer_of
from vitprof.analysis.verdict.verdict import judge
from vitprof.config import RunConfig
from vitprof.config.own_script import own_config
from vitprof.config.resolve import resolve
from vitprof.recording.columns import STEP_COLUMNS, TELEMETRY_COLUMNS
from vitprof.recording.verdict import Verdict

GPU = {"device": "cuda:0", "cpu_count": 8, "memory_bytes": 32 * 2**30}
SIMULATED = GPU | {"device": "simulated:4,5"}
CPU = GPU | {"device": "cpu"}
HOGGED = {
    "cpu_pct": 100.0,
    "job_cpu_pct": 50.0,
    "job_cpu_wait_pct": 48.0,
    "workers_cpu_wait_pct": 48.0,
}
"""Other programs take half of the cores that the job wants."""
MS = 1e-3
PARTS = ("read", "decode", "transform", "collate")
MOST_WORDS = 20
"""The longest sentence, in words; a figure with its unit counts as two."""


def telemetry(steps: Mapping[str, np.ndarray], **known: float) -> dict[str, np.ndarray]:
    """30 samples over the run."""
    t = (
        np.linspace(steps["t_start_s"][0], steps["t_start_s"][-1], 30)
        if len(steps["step"])
        else np.empty(0)
    )
    return {
        c: t if c == "t_s" else np.full(len(t), known.get(c, math.nan)) for c in TELEMETRY_COLUMNS
    }


def run(
    n: int = 100,
    *,
    parts: Mapping[str, float] | None = None,
    compute: float = 5.0,
    h2d: float = 0.0,
    host: float = 0.5,
    hand_over: float = 0.0,
    rest: float = 0.0,
    workers: int = 0,
    noise: float = 0.0,
    warmup: int = 5,
    rng: int = 0,
    made_known: bool = True,
) -> dict[str, np.ndarray]:
    """Steps of an asynchronous device with one batch in its queue, all in ms: load, copy in line, compute. With
    workers, batches are ready every (sum of parts) / workers; without, the loop makes each one itself."""
    of = {p: (parts or {}).get(p, 0.0) * MS for p in PARTS}
    random, rows = np.random.default_rng(rng), []
    known = {"rank": 0, "epoch": 0, "samples": 32, "loss": 2.3}
    known |= {"h2d_s": h2d * MS, "compute_s": compute * MS, "host_s": host * MS}
    now, device, ready = 100.0, 100.0, 100.0
    for k in range(n):
        scale = math.exp(noise * random.standard_normal())
        took = {p: v * scale for p, v in of.items()}
        made = sum(took.values()) + rest * MS
        start = now
        ready = max(ready, start - made) + made / workers if workers else start + made
        got = max(start, ready) + hand_over * MS
        copy_start = max(device, got)
        begin = copy_start + h2d * MS
        gap, wait = begin - device, got - start
        row = known | {
            "step": k,
            "warmup": k < warmup,
            "t_start_s": start,
            "data_wait_s": wait,
            "gap_s": gap,
        }
        row |= {"exposed_wait_s": max(0.0, got - max(start, device)), "step_s": gap + compute * MS}
        row |= {
            "h2d_start_s": copy_start,
            "compute_start_s": begin,
            "worker": k % workers if workers else math.nan,
        }
        if made_known:
            row |= {"made_start_s": got - hand_over * MS - made, "made_end_s": got - hand_over * MS}
            row |= {"hand_over_s": min(hand_over * MS, wait)} | {f"{p}_s": took[p] for p in PARTS}
        rows.append(row)
        device = begin + compute * MS
        now = max(got + host * MS, device - compute * MS)  # one step may be queued
    return {
        name: np.array([row.get(name, math.nan) for row in rows], dtype=float)
        for name in STEP_COLUMNS
    }


def delayed(steps: dict[str, np.ndarray], extra_s: np.ndarray) -> dict[str, np.ndarray]:
    """Each step waits so much longer for its data while the device idles; all that follows moves."""
    moved = np.cumsum(extra_s)
    more = dict.fromkeys(("data_wait_s", "exposed_wait_s", "gap_s", "step_s"), extra_s)
    more |= dict.fromkeys(("compute_start_s", "h2d_start_s", "made_end_s"), moved) | {
        "t_start_s": moved - extra_s
    }
    return steps | {name: steps[name] + seconds for name, seconds in more.items()}


def verdict(
    steps: Mapping[str, np.ndarray], facts: Mapping[str, Any] = GPU, **kwargs: Any
) -> Verdict:
    extra = {k: kwargs.pop(k) for k in ("headroom", "possible", "cpu") if k in kwargs}
    seen = telemetry(steps, **extra.pop("cpu", {}))
    config = resolve(RunConfig(**({"strategy": "per-sample", "dataset": "photos"} | kwargs)))
    found = judge(config, steps, (), seen, facts, **extra)
    assert found.sentence.endswith(".")
    assert not re.search(r"\n|\bnan\b|n/a|None|  |\binf\b", found.sentence), found.sentence
    for said in re.split(r"\. (?=[A-Z0-9])", found.sentence):
        assert len(said.split()) <= MOST_WORDS, said
    text = json.dumps(found.to_dict(), allow_nan=False)
    assert (
        Verdict.from_dict(json.loads(text) | {"of a later version": 1}).to_dict() == found.to_dict()
    )
    return found


@pytest.mark.parametrize(
    ("wait_ms", "kind"),
    [
        (0.2, "not input-bound"),
        (0.41, "not input-bound"),
        (0.7, "moderately input-bound"),
        (3.0, "input-bound"),
    ],
)
def test_the_share_of_exposed_wait_decides(wait_ms: float, kind: str) -> None:
    """A device that computes for 8 ms while the loop waits for the next batch: what takes longer is exposed."""
    steps = run(parts={"decode": wait_ms + 8.0}, compute=8.0, host=0.0)
    v = verdict(steps)
    assert v.idle_frac == pytest.approx(wait_ms / (8 + wait_ms), abs=1e-3)
    assert (v.idle_frac_low, v.kind) == (pytest.approx(v.idle_frac, abs=1e-3), kind)
    assert v.sentence.startswith(kind[0].upper() + kind[1:])
    assert v.n_steps == 95


@pytest.mark.parametrize(
    ("low", "kind"), [(0.3, "not input-bound"), (2.5, "moderately input-bound")]
)
def test_the_lower_end_of_the_interval_decides(low: float, kind: str) -> None:
    """Noisy waits: the mean lies in a class above that of the lower end; a border case says what is not known."""
    rng = np.random.default_rng(1)
    steps = run(40, parts={"decode": 8.0}, compute=8.0, host=0.0)
    v = verdict(delayed(steps, rng.exponential(low, 40) * MS * (rng.random(40) < 0.5) * 1.9))
    assert v.idle_frac_low < (0.05 if kind == "not input-bound" else 0.2) < v.idle_frac_high
    assert v.kind == kind
    if kind == "not input-bound":
        assert "A faster loader may gain up to" in v.sentence
        assert v.sentence.endswith(": train for longer to find out.")
        assert "the time is in the model" not in v.sentence
        assert v.advice[0].settings == {"strategy": "threads"}


def test_what_the_data_do_not_carry_is_inconclusive() -> None:
    few = verdict(run(24, parts={"decode": 20.0}))
    starved = "Almost certainly starved. The GPU was idle for data 76% of the time. 24 steps "
    assert few.sentence.startswith(starved + "were recorded, 5 of them")
    assert "at least 25 steps" in few.sentence
    assert verdict(run(25, parts={"decode": 20.0})).kind == "input-bound"
    stopped = verdict(run(3, parts={"decode": 20.0}), warmup_steps=15)
    assert "at least 35 steps" in stopped.sentence  # all of the warm-up is still to come
    epochs = verdict(run(24, parts={"decode": 20.0}), n_images=48, batch_size=8, warmup_steps=5)
    assert (
        "at least 29 steps" in epochs.sentence
    )  # the first of each epoch of 6 do not count: 6, 12, 18 and 24
    for not_sure in (
        run(7, parts={"decode": 20.0}),
        run(24, parts={"decode": 5.0}),
        run(24, parts={"decode": 1.0}),
    ):
        assert (
            "starved" not in verdict(not_sure).sentence
        )  # two steps, less than half of the time, no wait at all
    none = verdict({name: values[:0] for name, values in run(1).items()})
    loading = verdict(run(parts={"decode": 20.0}), loader_only=True)
    for v, words in ((few, "24 steps"), (none, "No step was recorded"), (loading, "loader-only")):
        assert words in v.sentence
        assert (v.kind, v.cause, v.advice, math.isnan(v.cause_ms_per_batch)) == (
            "inconclusive",
            "",
            (),
            True,
        )


def epochs(start_ms: float, n_steps: int, **more: float) -> dict[str, np.ndarray]:
    """Epochs of `n_steps` steps of 8 ms, each beginning with a wait of `start_ms`."""
    steps = run(120, compute=8.0, **({"host": 0.0} | more))
    steps["epoch"] = steps["step"] // n_steps
    return delayed(steps, np.where(steps["step"] % n_steps == 0, start_ms * MS, 0.0))


def test_waits_that_come_in_long_runs_are_too_few_to_tell() -> None:
    """The first half of 60 steps waits, the second does not: nothing says what is usual."""
    quiet = run(65, parts={"read": 1.0}, compute=8.0, host=0.0)
    waits = run(65, parts={"read": 16.0}, compute=8.0, host=0.0)
    assert verdict(quiet).kind == "not input-bound"
    assert verdict(waits).kind == "input-bound"
    drifting = delayed(quiet, 0.008 * (quiet["step"] < 35))
    v = verdict(drifting)
    assert (v.kind, math.isnan(v.idle_frac)) == ("inconclusive", True)
    assert v.sentence == (
        "Inconclusive. Of its 60 steps slow and fast ones come in runs too long to tell what is "
        "usual. Train for longer."
    )


def test_the_headline_is_wall_clock_with_the_waits_as_epochs_begin() -> None:
    """30 steps of 8 ms after 300 ms of waiting, 8 of them behind queued work: the steady steps show nothing of it."""
    steps = epochs(300.0, 30)
    blocks = {
        str(n): {"steps": 10, "step_s": 0.08 - n % 2 * 0.002, "data_wait_s": 0.0} for n in range(12)
    }
    v = verdict(steps, GPU | {"replay": blocks})
    true = 3 * 0.292 / (3 * 0.3 + 115 * 0.008)
    assert (v.kind, v.cause, v.idle_frac) == (
        "input-bound",
        "epoch_start",
        pytest.approx(true, abs=1e-3),
    )
    assert (v.cause_frac, v.shares[0].name) == (pytest.approx(1.0), "epoch_start")
    assert v.gain.basis == "estimate"
    assert v.gain.times == pytest.approx(1 / (1 - true), rel=1e-3)
    assert (
        "The GPU was idle for data 48% of the time (38-58%, 115 steps). Longer waits as "
        in v.sentence
    )
    assert (
        "Longer waits as epochs begin took 48% of the time: 292 ms each, 3 were seen. In the steps between "
        "them the share is 0.0%, over whole epochs 54%. With free" in v.sentence
    )
    assert v.sentence.endswith(
        " about 1.93x as fast (1.62-2.38). For the steps between epoch starts 1.03x was measured."
    )
    assert verdict(epochs(10.0, 30)).kind == "not input-bound", "4% of the time"
    slow = verdict(epochs(300.0, 30, parts={"decode": 20.0}))
    assert (slow.kind, slow.cause == "epoch_start") == ("input-bound", False), (
        "with these waits too"
    )
    of_it = re.findall(r" (\d+)% of the wait between epoch starts", slow.sentence)
    between = [share.frac for share in slow.shares if share.name != "epoch_start"]
    assert list(map(int, of_it)) == pytest.approx([100 * between[0] / sum(between)], abs=1)
    once = verdict(epochs(300.0, 80))
    assert "took 24% of the time: 292 ms each, one was seen." in once.sentence
    assert "over whole epochs 31%." in once.sentence
    only = verdict(epochs(300.0, 120))
    assert only.kind == "not input-bound", "one epoch: its start is the job's"
    assert "No second epoch was seen" not in only.sentence
    assert "No second epoch was seen" in verdict(epochs(900.0, 120)).sentence


def test_where_each_batch_is_an_epoch_the_start_of_the_workers_is_no_stage_of_making_it() -> None:
    """A batch as large as the set, made in 8 ms by a worker that starts for 60 ms before: collating seemed to be 53 to
    59% of the wait, where it was 2%."""
    steps = made_steps([0.070] * 60, [0.020] * 60, warmup=5, epochs=range(60), h2d=0.0)
    begun_s = steps["t_start_s"] + 0.060
    steps |= {
        "read_s": np.full(60, 0.0064),
        "transform_s": np.zeros(60),
        "collate_s": np.full(60, 0.0016),
        "made_start_s": begun_s,
        "made_end_s": begun_s + 0.008,
        "hand_over_s": np.full(60, 0.002),
        "worker": np.zeros(60),
        "host_s": np.full(60, 0.020),
    }
    script = dataclasses.replace(own_config("train.py"), workers=2, persistent_workers=False)
    v = judge(script, steps, (), telemetry(steps), {"device": "cpu"})
    shares = {share.name: share.frac for share in v.shares}
    assert shares["epoch_start"] == pytest.approx(60 / 70, abs=1e-6)
    assert shares["read"] == pytest.approx(6.4 / 70, abs=1e-6)
    assert shares["collate"] == pytest.approx(1.6 / 70, abs=1e-6)
    assert shares["hand_over"] == pytest.approx(2 / 70, abs=1e-6)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert (v.kind, v.cause) == ("input-bound", "epoch_start")
    assert (
        " What begins an epoch, here for each batch (starting workers, a sampler), was 86% of that."
        in v.sentence
    )
    assert any("persistent_workers=True" in one.words for one in v.advice)


@pytest.mark.parametrize(("workers", "worker"), [(0, math.nan), (2, 0.0)])
def test_a_sampler_is_a_cause_of_its_own_and_no_number_of_workers_helps(
    workers: int, worker: float
) -> None:
    """20 ms in the sampler for each batch, which itself takes 1 ms: it was collating, or the hand-over with 0 workers
    advised, or the dataset with 1 worker for 3.8 times the speed, which by hand is 0.96 times."""
    n = 60
    steps = made_steps([0.022] * n, [0.010] * n, warmup=5, h2d=0.0)
    asked_s = steps["t_start_s"]
    made_s = asked_s + (0.0 if workers else 0.020)
    steps |= {
        "sampler_s": np.full(n, 0.020),
        "iterator_s": np.zeros(n),
        "read_s": np.full(n, 0.0008),
        "transform_s": np.zeros(n),
        "collate_s": np.full(n, 0.0002),
        "made_start_s": made_s,
        "made_end_s": made_s + 0.001,
        "hand_over_s": np.full(n, 0.001),
        "worker": np.full(n, worker),
        "host_s": np.full(n, 0.010),
    }
    script = dataclasses.replace(own_config("train.py"), workers=workers, prefetch_factor=2)
    making = {"made_s": 0.055, "cpu_s": 0.055, "opened": 0.0, "batches": 55}
    facts = {"device": "cpu", "cpu_count": 8, "making": making}
    v = judge(script, steps, (), telemetry(steps), facts)
    shares = {share.name: share.frac for share in v.shares}
    assert shares["sampler"] == pytest.approx(20 / 22, abs=1e-6)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert (v.kind, v.cause) == ("input-bound", "sampler")
    assert "The sampler, which gives the indices of each batch, was 91% of that." in v.sentence
    assert v.advice[0].words == "a sampler that draws the indices of many batches at once"
    assert not any(one.arguments for one in v.advice)


def test_what_a_sampler_does_while_workers_are_behind_costs_nothing() -> None:
    """One worker makes a batch in 50 ms, and the sampler takes 20 ms of that in the loop's process."""
    n = 60
    steps = made_steps([0.045] * n, [0.005] * n, warmup=5, h2d=0.0)
    begun_s = steps["t_start_s"] - 0.025
    steps |= {
        "sampler_s": np.full(n, 0.020),
        "read_s": np.full(n, 0.050),
        "transform_s": np.zeros(n),
        "collate_s": np.zeros(n),
        "made_start_s": begun_s,
        "made_end_s": begun_s + 0.050,
        "hand_over_s": np.zeros(n),
        "worker": np.zeros(n),
        "host_s": np.full(n, 0.005),
    }
    script = dataclasses.replace(own_config("train.py"), workers=1)
    making = {"made_s": 2.75, "cpu_s": 0.1, "opened": 0.0, "batches": 55}
    facts = {"device": "cpu", "cpu_count": 16, "making": making}
    v = judge(script, steps, (), telemetry(steps), facts)
    assert {share.name: share.frac for share in v.shares} == {"read": pytest.approx(1.0)}
    assert "num_workers" in v.advice[0].arguments
    assert v.advice[0].most_times == pytest.approx(50 / 25), "then the loop waits for the sampler"


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        (
            {"workers": 4, "persistent_workers": False, "start_method": "spawn"},
            "setting persistent_workers=True",
        ),
        ({"workers": 4, "persistent_workers": True}, "setting num_workers=2 in the DataLoader"),
        ({}, "doing once what iter(loader)"),
    ],
)
def test_long_epoch_starts_have_advice_of_their_own(changes: dict[str, Any], first: str) -> None:
    config = dataclasses.replace(own_config("train.py"), **changes)
    advice = judge(config, epochs(300.0, 30), (), telemetry(epochs(300.0, 30)), GPU).advice
    assert advice[0].words.startswith(first)
    assert any("forkserver" in one.words for one in advice) == ("start_method" in changes)
    fewer = any("num_workers=2" in one.words for one in advice)
    assert fewer == (changes.get("persistent_workers") is True), (
        "where they start anew, it is not their number"
    )


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"several_threads_train": True}, "Several threads of the script train"),
        (
            {"unclear_loaders_steps": 90},
            "After 90 of 100 steps the script iterated over another loader with gradients",
        ),
        ({"unclear_loaders_steps": 5}, ""),
        (
            {"side_stream_steps": 90},
            "The GPU works in another stream while that of the optimizer is idle",
        ),
        ({"side_stream_steps": 5}, ""),
    ],
)
def test_waits_that_are_not_those_of_the_training_leave_no_verdict(
    facts: Mapping[str, Any], reason: str
) -> None:
    for n in (100, 3 if "several_threads_train" in facts else 100):
        v = verdict(run(n, parts={"decode": 20.0}), GPU | facts)
        begins = f"Not measurable here. {reason}" if reason else "Input-bound."
        assert v.sentence.startswith(begins), v.sentence
        assert (v.advice == (), v.gain is None) == (bool(reason), bool(reason))


def test_training_in_a_forked_process_leaves_no_verdict_on_a_part() -> None:
    v = verdict(run(100, parts={"decode": 20.0}), GPU | {"forked_process_trains": True})
    assert v.sentence.startswith(
        "Partly watched. A process that the script forked while it trained has trained, too. Its "
        "steps are not among these 100."
    )
    assert (v.kind, v.advice, v.gain) == ("inconclusive", (), None)


def test_an_interval_over_all_classes_is_inconclusive() -> None:
    """One stall of 0.3 s among 40 steps: 3% to more than 20%, depending on whether such stalls come often."""
    steps = run(40, parts={"decode": 8.2}, compute=8.0, host=0.0)
    v = verdict(delayed(steps, 0.15 * (np.arange(40) == 30)))
    assert v.idle_frac_low < 0.05
    assert v.idle_frac_high > 0.2
    assert v.kind == "inconclusive"
    assert "Train for longer" in v.sentence


@pytest.mark.parametrize("cause", PARTS)
@pytest.mark.parametrize("k_ms", [6.0, 20.0])
def test_a_known_wait_in_the_loop_is_given_back(cause: str, k_ms: float) -> None:
    """Injected: k ms into one part of a batch that takes 4 ms otherwise, under 9 ms of compute."""
    parts = dict.fromkeys(PARTS, 1.0)
    parts[cause] += k_ms
    v = verdict(run(parts=parts, compute=3.0, noise=0.05))
    assert (v.cause, v.cause_ms_per_batch) == (cause, pytest.approx(k_ms + 1, rel=0.1))
    assert v.cause_frac == pytest.approx((k_ms + 1) / (k_ms + 4), abs=0.02)
    assert sum(s.frac for s in v.shares) == pytest.approx(1)


def test_what_is_hidden_behind_compute_costs_nothing_and_waits_are_split_exactly() -> None:
    """10 ms of loading under 8 ms of compute: taking away all 6 ms of decoding saves the 2 ms that show."""
    v = verdict(run(parts={"decode": 6.0, "read": 4.0}, compute=8.0, host=0.0))
    shares = {s.name: s for s in v.shares}
    assert shares["decode"].frac == pytest.approx(0.6, abs=0.01)
    assert (shares["decode"].exposed_ms, shares["read"].exposed_ms) == pytest.approx(
        (2.0, 2.0), abs=0.05
    )
    assert (shares["decode"].own_ms, shares["read"].own_ms) == pytest.approx((6.0, 4.0))
    steps = run(parts={"decode": 7.0, "read": 3.0}, hand_over=2.0, h2d=1.0, compute=4.0, host=0.0)
    exposure = find_exposure(resolve(RunConfig(strategy="per-sample", dataset="photos")), steps, ())
    # 12 ms of waiting less 4 ms of compute behind it, and the copy
    assert exposure.idle_ms == pytest.approx(12 - 4 + 1, abs=0.02)
    exposed_ms = {s.name: s.frac * exposure.idle_ms for s in exposure.shares}
    assert exposed_ms == pytest.approx(
        {"decode": 4.2, "read": 1.8, "hand_over": 2.0, "transfer": 1.0}, abs=0.02
    )


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_with_workers_a_part_costs_its_time_over_the_number_of_workers(workers: int) -> None:
    parts = {"read": 8.0, "decode": 24.0, "collate": 8.0}
    v = verdict(
        run(200, parts=parts, compute=2.0, workers=workers), strategy="workers", workers=workers
    )
    assert (v.cause, v.cause_frac) == ("decode", pytest.approx(0.6, abs=0.01))
    assert v.cause_ms_per_batch == pytest.approx(min(24 / workers, 40 / workers - 2), rel=0.05)
    assert v.shares[0].own_ms == pytest.approx(24)
    assert v.idle_frac == pytest.approx(1 - 2 / (40 / workers), abs=0.03)


def test_hand_over_transfer_rest_and_loading_are_told_apart() -> None:
    v = verdict(
        run(parts={"decode": 1.0}, hand_over=9.0, compute=2.0, host=2.0), strategy="workers"
    )
    assert (v.cause, v.cause_ms_per_batch) == ("hand_over", pytest.approx(9.0, rel=0.05))
    v = verdict(run(parts={"decode": 0.1}, h2d=9.0, compute=2.0), strategy="memory")
    assert (v.cause, v.cause_ms_per_batch) == ("transfer", pytest.approx(9.0, rel=0.05))
    assert (v.cause_frac, v.shares[0].own_ms) == (pytest.approx(1, abs=0.1), pytest.approx(9.0))
    assert {"transfer": "stream"} in [dict(a.settings) for a in v.advice]
    v = verdict(run(parts={"read": 2.0}, rest=10.0, compute=2.0))
    assert (v.cause, v.cause_ms_per_batch) == ("rest", pytest.approx(10.0, rel=0.05))
    v = verdict(run(parts={"decode": 20.0}, made_known=False))
    assert (v.kind, v.cause, v.cause_frac) == ("input-bound", "loading", pytest.approx(1))
    v = verdict(run(parts={"read": 30.0, "decode": 5.0}), strategy="slow-drive", workers=1)
    assert (v.cause, v.advice[0].settings) == ("slow_drive", {"location": "staged"})
    assert "staging" in v.sentence


def test_the_way_from_a_busy_worker_is_not_the_cause() -> None:
    """Batches arrive 1.7 ms after they are made, while the next one is made: the worker's 6.35 ms are the pace."""
    steps = run(parts={"transform": 4.6, "decode": 1.75}, compute=4.64, host=0.0, workers=1)
    for name in ("made_start_s", "made_end_s"):
        steps[name] -= 1.7 * MS
    steps["hand_over_s"] += 1.7 * MS
    v = verdict(steps, SIMULATED, strategy="workers", workers=1)
    assert (v.idle_frac, v.cause) == (pytest.approx(1.71 / 6.35, abs=0.01), "transform")
    assert "hand_over" not in {s.name for s in v.shares}


@pytest.mark.parametrize(
    ("loader", "expected"), [("threads", "decode"), ("dataloader", "hand_over")]
)
def test_threads_share_each_batch(loader: str, expected: str) -> None:
    """12 ms of two threads' work in a batch every 6 ms; two workers that need 6 ms each would have time left."""
    steps = run(parts={"decode": 6.0}, hand_over=0.0, compute=2.0, host=0.0, workers=1)
    steps["hand_over_s"] += 5.0 * MS
    if loader == "threads":
        steps["decode_s"] *= 2
    assert verdict(steps, strategy="prefetch", loader=loader, workers=2).cause == expected


def test_what_the_device_decodes_is_decoding() -> None:
    """The loop has each batch at once; the device trains 4 ms and waits 16 ms for the decoder."""
    steps = run(parts={"read": 0.5}, compute=4.0, host=0.0)
    done = 100.0 + 20 * MS * np.arange(len(steps["step"]))  # the step before
    for name in ("decode_s", "transform_s", "collate_s", "hand_over_s"):
        steps[name][:] = math.nan
    for name, ms in {
        "data_wait_s": 16.5,
        "exposed_wait_s": 16.0,
        "decode_wait_s": 16.0,
        "gap_s": 16.0,
    }.items():
        steps[name][:] = ms * MS
    steps |= {"t_start_s": done - 0.5 * MS, "made_start_s": done - 20 * MS}
    steps |= dict.fromkeys(("h2d_start_s", "compute_start_s", "made_end_s"), done + 16 * MS)
    v = verdict(steps, strategy="dali")
    assert (v.kind, v.cause, v.idle_frac) == ("input-bound", "decode", pytest.approx(0.8, abs=0.01))
    assert "Decoding by NVIDIA DALI was" in v.sentence
    assert v.cause_ms_per_batch == pytest.approx(16.0, abs=0.1)
    assert "rest" not in {share.name for share in v.shares}


def test_other_programs_that_take_the_cpu_are_the_cause_and_the_ceiling_says_so() -> None:
    steps = run(parts={"decode": 20.0, "read": 1.0})
    v = verdict(steps, cpu=HOGGED)
    assert (v.cause, v.advice[0].settings) == ("cpu_contention", {})
    assert v.cause_ms_per_batch == pytest.approx(0.48 * 21.5, rel=0.05)  # of a step of 21.5 ms
    assert "Other programs, which kept the CPU busy, were about" in v.sentence
    # it gets the core when it wants to; it waits for its own threads; nobody counts
    for seen in ({"job_cpu_wait_pct": 5.0}, {"cpu_pct": 60.0}):
        assert verdict(steps, cpu=HOGGED | seen).cause == "decode"
    assert verdict(steps, cpu=HOGGED | {"job_cpu_wait_pct": math.nan}).cause == "unclear"
    assert (
        verdict(
            steps, cpu=HOGGED | {"workers_cpu_wait_pct": 5.0}, strategy="workers", workers=1
        ).cause
        == "decode"
    )
    assert (
        verdict(run(parts={"read": 20.0, "decode": 1.0}), cpu=HOGGED).cause == "read"
    )  # which waits, not works
    assert (
        verdict(steps, cpu=HOGGED, facts={"device": "cuda:0"}).cause == "decode"
    )  # cores not known
    steps = run(parts={"decode": 18.0}, compute=2.0, host=0.0)
    idle_ms, step_ms = 16.0, 18.0
    v = verdict(steps, SIMULATED, cpu=HOGGED)
    assert v.gain.times == pytest.approx(step_ms / (step_ms - idle_ms), rel=0.05)
    assert re.search(
        r"about 9\.?\d*x as fast\. On a quiet machine faster loading would gain up to about 4\.\d+x",
        v.sentence,
    ), v.sentence
    assert (
        "Without the other programs"
        not in verdict(steps, SIMULATED, cpu=HOGGED | {"cpu_pct": 60.0}).sentence
    )


@pytest.mark.parametrize(("decode_ms", "kind"), [(8.0, "inconclusive"), (20.0, "input-bound")])
def test_a_run_that_other_programs_alone_make_look_starved_is_disturbed(
    decode_ms: float, kind: str
) -> None:
    v = verdict(run(parts={"decode": decode_ms}), SIMULATED, cpu=HOGGED)
    assert (v.kind, v.cause) == (kind, "cpu_contention")
    assert v.idle_frac_low > 0.2
    if kind == "inconclusive":
        assert v.sentence.startswith(
            "Disturbed. The simulated GPU was idle for data 41% of the time. Without other programs, "
        )
        assert "perhaps only 0.0%. End them, and run again. Other programs used " in v.sentence
        assert (v.advice, v.gain) == ((), None)


def test_where_the_cpu_trains_other_programs_are_the_cause_and_nothing_else_is_advised() -> None:
    """The idle share is the same without them, as they slow training alike; which stage takes long is not
    known. "Handing over" was told of batches of 500 bytes, with advice against that.
    """
    steps = run(parts={"decode": 20.0, "read": 1.0}, compute=5.0)
    v = verdict(steps, cpu=HOGGED, facts=GPU | {"device": "cpu", "cuda_version": None})
    assert (v.kind, v.cause) == ("input-bound", "cpu_contention")
    assert [advice.words for advice in v.advice] == ["running again when quiet"]
    waits = verdict(
        run(parts={"read": 20.0, "decode": 1.0}, compute=5.0),
        cpu=HOGGED,
        facts=GPU | {"device": "cpu", "cuda_version": None},
    )
    assert waits.cause == "read", "that is no work which they slow down"
    assert "That was measured while other programs ran" in v.sentence
    assert any(signature.name == "other-programs" for signature in v.signatures)


USE = ("took_s", "cpu_s", "queued_s", "threads_queued_s")
"""What is known of a stage (`recording.StageUse`)."""


def beside_others(
    ms: Mapping[str, float],
    stages: Mapping[str, tuple[float, ...]],
    *,
    others_cores: float = 0.8,
    waits_pct: float = 120.0,
    looked_batches: int | None = None,
    **facts: Any,
) -> Verdict:
    """The verdict on a user's script without workers, with the milliseconds of its stages and what they used of two
    cores that are busy."""
    of_stages = {name: dict(zip(USE, used, strict=True)) for name, used in stages.items()}
    making = {"made_s": 1.0, "cpu_s": 0.5, "queued_s": 0.3, "opened": 0, "batches": 10}
    known: dict[str, Any] = {
        "device": "cpu",
        "cpu_count": 2,
        "making": making | {"stages": of_stages, "looked_batches": looked_batches},
        "watched": {"dataset": "Images", "num_workers": 0, "batch_size": 8},
        "other_programs": [{"name": "chrome", "pid": 312, "cores": others_cores}],
    }
    steps = run(parts=ms)
    seen = {
        "cpu_pct": 100.0,
        "job_cpu_pct": 200.0 - 100 * others_cores,
        "job_cpu_wait_pct": waits_pct,
        "workers_cpu_wait_pct": 0.0,
    }
    config = dataclasses.replace(own_config("train.py"), workers=0)
    return judge(config, steps, (), telemetry(steps, **seen), known | facts)


def test_few_waits_of_a_whole_batch_make_no_cause_unclear() -> None:
    """Of a run that was not looked at stage by stage: 2% of a batch cannot be more than 2% of all of its stages."""
    ms = {"read": 15.0, "transform": 16.0, "collate": 3.0, "decode": 5.0}
    few = beside_others(ms, {}, others_cores=0.2, waits_pct=2.0)
    assert (few.cause, few.cores_taken) == ("transform", None)
    many = beside_others(ms, {}, others_cores=0.2, waits_pct=40.0)
    assert many.cause == "unclear"


def test_a_stage_that_other_programs_make_the_largest_is_not_the_cause() -> None:
    """Transforms took 18 of 40 ms by wall time, in which their threads waited for cores for 12; the dataset, with one
    thread, hardly waited."""
    stages = {
        "read": (15.0, 14.0, 1.0, 0.0),
        "transform": (18.0, 16.0, 1.0, 11.0),
        "collate": (1.0, 1.0, 0.0, 0.0),
    }
    v = beside_others({"read": 15.0, "transform": 18.0, "collate": 1.0}, stages)
    assert (v.cause, v.kind) == ("unclear", "input-bound")
    assert [advice.words for advice in v.advice] == ["running again when quiet"]
    said = (
        "Other programs used 0.8 of 2 cores. Over the whole run: chrome 0.8 (process 312). "
        "Loading had no core for up to 38% of the wait."
    )
    assert said in v.sentence
    assert "What takes longest without them is not known. " in v.sentence
    answer = answer_of(v)
    assert answer.ceiling is None
    assert answer.parts[0].words == "loading (stage unclear)"


def test_the_same_times_are_told_where_nothing_else_runs() -> None:
    """Threads of the job's own wait for each other then: that is how long its stages take."""
    stages = {"read": (15.0, 14.0, 1.0, 0.0), "transform": (18.0, 16.0, 1.0, 11.0)}
    v = beside_others({"read": 15.0, "transform": 18.0}, stages, others_cores=0.05)
    assert (v.cause, v.cores_taken) == ("transform", None)


def test_a_stage_that_stays_the_largest_is_the_cause_whatever_else_runs() -> None:
    stages = {"read": (4.0, 2.0, 1.5, 0.0), "transform": (30.0, 22.0, 6.0, 1.0)}
    v = beside_others({"read": 4.0, "transform": 30.0}, stages)
    assert (v.cause, v.is_of_other_programs) == ("transform", False)
    assert v.advice[-1].words.startswith("lighter transforms")


@pytest.mark.parametrize(
    ("seen", "kind"),
    [
        ({"decode": 20.0}, "input-bound"),
        ({"decode": 0.1}, "not input-bound"),
    ],
)
def test_what_other_programs_used_is_said_whatever_the_verdict(
    seen: dict[str, float], kind: str
) -> None:
    """It was said of runs alone of which they were the cause."""
    busy = {"cpu_pct": 60.0, "job_cpu_pct": 60.0}
    known = SIMULATED | {"cpu_count": 2}
    steps = run(parts=seen)
    v = verdict(steps, known, cpu=busy)
    assert (v.kind, v.is_of_other_programs) == (kind, False)
    assert v.cores_taken is not None
    assert v.cores_taken.cores == pytest.approx(0.6)
    said = "Other programs used 0.6 of 2 cores."
    assert said in v.sentence
    assert said in answer_of(v).details
    quiet = verdict(steps, known, cpu={"cpu_pct": 30.0, "job_cpu_pct": 40.0})
    assert quiet.cores_taken is None
    assert "Other programs" not in quiet.sentence


def test_other_programs_that_cost_less_than_the_largest_stage_are_not_the_cause() -> None:
    """ "Cause: other programs" was said where they cost 28%."""
    stages = {"read": (6.0, 4.5, 1.5, 0.0), "transform": (30.0, 21.5, 8.5, 0.0)}
    v = beside_others({"read": 6.0, "transform": 30.0}, stages)
    assert v.cause == "transform"


def test_other_programs_that_cost_most_are_the_cause_and_are_named() -> None:
    stages = {"read": (6.0, 1.5, 4.5, 0.0), "transform": (30.0, 8.0, 22.0, 0.0)}
    v = beside_others({"read": 6.0, "transform": 30.0}, stages)
    assert v.cause == "cpu_contention"
    assert v.cause_frac == pytest.approx(26.5 / 36, abs=0.03)
    assert (
        "Other programs used 0.8 of 2 cores. Over the whole run: chrome 0.8 (process 312)."
        in v.sentence
    )
    assert [advice.words for advice in v.advice] == ["running again when quiet"]


def test_a_stage_that_took_less_in_the_batches_that_were_looked_at_is_not_surely_the_cause() -> (
    None
):
    """Waits are rare and long, and the other batches may have had them."""
    stages = {"read": (0.15, 0.14, 0.005, 0.0), "transform": (0.10, 0.098, 0.001, 0.0)}
    ms = {"read": 15.0, "transform": 18.0}
    assert beside_others(ms, stages).cause == "transform"
    assert beside_others(ms, stages, looked_batches=10).cause == "unclear"


def test_a_dataset_that_waits_for_a_drive_is_the_cause_beside_other_programs() -> None:
    """It uses no CPU for a good reason: Linux says that it was not ready to run."""
    stages = {"read": (30.0, 1.0, 0.5, 0.0), "transform": (8.0, 3.0, 2.0, 3.0)}
    assert beside_others({"read": 30.0, "transform": 8.0}, stages).cause == "read"


def test_of_a_built_in_job_it_is_known_what_its_threads_waited_together() -> None:
    """Any part of that may be that of the largest stage. Two stages of like length can't be told apart, one of
    twice the length can."""
    seen = HOGGED | {"job_cpu_wait_pct": 20.0}
    close = verdict(run(parts={"decode": 11.0, "transform": 9.0}), cpu=seen)
    assert close.cause == "unclear"
    first, *others = close.advice
    assert first.words == "running again when quiet"
    assert others, "what helps whichever of the two is slow"
    of_each = []
    for stages in ({"decode": 20.0, "transform": 6.0}, {"decode": 6.0, "transform": 20.0}):
        advised = verdict(run(parts=stages)).advice
        of_each.append([advice.settings for advice in advised])
    assert all(advice.settings in settings for advice in others for settings in of_each)
    assert not any("workers" in advice.settings for advice in others), "cores may be taken"
    clear = verdict(run(parts={"decode": 20.0, "transform": 6.0}), cpu=seen)
    assert (clear.cause, clear.is_of_other_programs) == ("decode", False)


def test_a_built_in_job_whose_stages_were_looked_at_is_judged_as_a_script_is() -> None:
    """Two stages of like length, of which the shorter one waited for cores: the longer one is clear. By the wait of a
    whole batch it was not."""
    seen = HOGGED | {"job_cpu_wait_pct": 20.0}
    steps = run(parts={"decode": 11.0, "transform": 9.0})
    waits = {"decode": 0.001, "transform": 0.02}
    took = {"decode": 0.11, "transform": 0.09}
    making = {
        "stages": {name: made_use(took[name], queued_s) for name, queued_s in waits.items()},
        "looked_batches": 10,
        "looking_s": 0.001,
    }
    assert verdict(steps, cpu=seen).cause == "unclear"
    assert verdict(steps, GPU | {"making": making}, cpu=seen).cause == "decode"
    making["stages"]["decode"] = made_use(0.11, 0.04)
    assert verdict(steps, GPU | {"making": making}, cpu=seen).cause == "unclear"


def made_use(took_s: float, queued_s: float) -> dict[str, float]:
    return dict(zip(USE, (took_s, took_s - queued_s, queued_s, 0.0), strict=True))


def test_a_transform_that_cannot_be_told_is_in_no_advice() -> None:
    """The stage is clear, and which of its transforms takes longest is not."""
    blurred = {
        "Resize": {"s_per_sample": 0.005, "calls": 99, "queued_s_per_sample": 0.001},
        "GaussianBlur": {
            "s_per_sample": 0.012,
            "calls": 99,
            "queued_s_per_sample": 0.001,
            "threads_queued_s_per_sample": 0.009,
        },
    }
    stages = {"read": (1.0, 1.0, 0.0, 0.0), "transform": (30.0, 22.0, 4.0, 9.0)}
    v = beside_others({"read": 1.0, "transform": 30.0}, stages, transforms=blurred)
    assert v.cause == "transform"
    assert v.advice
    assert not any("GaussianBlur" in a.words + a.reason for a in v.advice)


def test_a_device_that_waits_for_the_loop_itself() -> None:
    v = verdict(
        run(parts={"decode": 0.05}, host=6.0, compute=2.0), strategy="memory", dataset="digits"
    )
    assert (v.kind, v.cause, v.cause_ms_per_batch) == (
        "launch-bound",
        "launches",
        pytest.approx(4.0, abs=0.3),
    )
    assert math.isnan(
        v.launch_frac
    )  # what lies between steps is seen, what lies inside is not known
    assert v.sentence.endswith("Try a batch of 256.")
    assert len(v.advice) == 3


def test_bubbles_inside_steps_are_launches_not_the_model() -> None:
    """A step of 4 ms of launches for 1 ms of kernels was "not input-bound: the time is in the model"."""
    steps = run(parts={"decode": 0.05}, host=0.0, compute=4.0)
    before = verdict(steps, strategy="memory", dataset="digits")
    assert before.kind == "not input-bound"
    steps["launch_idle_s"][:] = 3.0 * MS
    v = verdict(steps, strategy="memory", dataset="digits")
    assert (v.kind, v.cause, v.launch_frac) == (
        "launch-bound",
        "launches",
        pytest.approx(0.75, abs=0.02),
    )
    assert v.cause_ms_per_batch == pytest.approx(3.0, abs=0.1)
    assert "inside the steps, where it looks busy" in v.sentence
    steps["launch_idle_s"][:] = 0.5 * MS
    assert verdict(steps, strategy="memory", dataset="digits").kind == "not input-bound"
    steps = run(parts={"decode": 12.0}, host=0.0, compute=4.0)
    steps["launch_idle_s"][:] = 3.0 * MS
    v = verdict(steps, SIMULATED)
    assert (v.kind, v.launch_frac) == ("input-bound", pytest.approx(3 / 12, abs=0.05))


@pytest.mark.parametrize(
    ("off_cpu", "kind", "cause", "words"),
    [
        (
            0.6,
            "input-bound",
            "held_up",
            "For another 59% the loader's 2 threads kept Python from launching",
        ),
        (
            0.3,
            "launch-bound",
            "launches",
            "For another 29% the loader's 2 threads kept Python from launching",
        ),
        (
            0.1,
            "launch-bound",
            "launches",
            "inside the steps, where it looks busy. An end of these waits would gain at most",
        ),
    ],
)
def test_a_loader_that_keeps_python_from_launching(
    off_cpu: float, kind: str, cause: str, words: str
) -> None:
    """On an H200, 15 threads idled it for data 4% of the time, and the same set in memory was 2.3 times as fast."""
    steps = run(parts={"decode": 8.2}, host=4.0, compute=4.0, workers=2)
    steps["launch_idle_s"][:] = 3.5 * MS
    settings = {"strategy": "threads", "workers": 2}
    v = verdict(steps, GPU | {"held_up_frac": off_cpu}, **settings)
    assert (v.kind, v.cause) == (kind, cause)
    assert words in v.sentence
    held_up = off_cpu * (1 - v.idle_frac) if off_cpu > 0.1 else 0.0
    assert v.gain.times == pytest.approx(1 / (1 - v.idle_frac - held_up), abs=0.01)
    if kind == "input-bound":
        assert "With free data this job would run about 2.5" in v.sentence
        assert v.advice[0].settings == {"strategy": "preprocessed"}
    for other in (
        {"strategy": "memory"},
        settings | {"isolation": "thread"},
        settings | {"replay": "host"},
    ):
        assert "kept Python" not in verdict(steps, GPU | {"held_up_frac": 0.6}, **other).sentence
    others = verdict(steps, GPU | {"held_up_frac": 0.6}, cpu=HOGGED, **settings)
    assert (others.kind, others.advice) == ("inconclusive", ())
    assert (
        "Disturbed. Python was kept from launching the model's work 59% of the time"
        in others.sentence
    )


@pytest.mark.parametrize(
    ("n_steps", "words"),
    [
        (
            600,
            "NVML saw a kernel run 80% of the time, so the GPU may idle inside them for about 20%.",
        ),
        (100, "For how long the GPU idles inside them is not known."),
    ],
    ids=["3 s", "as short as a counter's window"],
)
def test_nvml_says_for_how_long_the_gpu_idles_inside_steps(n_steps: int, words: str) -> None:
    steps = run(n_steps, parts={"read": 0.01}, compute=5.0, host=5.0)
    assert verdict(steps, cpu={"gpu_util_pct": 80.0}).sentence.endswith(words)


def test_which_loaders_make_batches_in_the_loop() -> None:
    in_loop = {"per-sample", "tensordataset", "memory", "device", "pt-whole", "generator"}
    for name in ("workers", "memory-ahead", "preprocessed", "prefetch", "threads", *in_loop):
        assert synchronous(resolve(RunConfig(strategy=name))) == (name in in_loop)


def test_the_gain_is_measured_or_estimated() -> None:
    steps = run(parts={"decode": 20.0}, compute=4.0, host=0.0)
    v = verdict(steps)
    assert (v.gain.times, v.gain.basis) == (pytest.approx(5.0, rel=0.02), "estimate")
    assert "about 5.0" in v.sentence
    measured = SimpleNamespace(speed_up=4.5, speed_up_low=4.4, speed_up_high=4.6)
    v = verdict(steps, headroom=measured)
    assert v.gain is not None
    assert (v.gain.times, v.gain.low, v.gain.high) == (4.5, 4.4, 4.6)
    assert v.gain.basis == "other runs"
    assert "runs 4.50x as fast (4.40-4.60, measured)." in v.sentence
    # of a device that is idle 80%?
    quieter = SimpleNamespace(speed_up=1.5, speed_up_low=1.4, speed_up_high=1.6)
    v = verdict(steps, headroom=quieter)
    assert v.gain.lost_less
    assert (
        "ran 1.50x as fast (1.40-1.60, measured). Loading was faster there than in this run"
        in v.sentence
    )
    slower = SimpleNamespace(speed_up=6.5, speed_up_low=6.4, speed_up_high=6.6)
    assert "about 5.0" in verdict(steps, headroom=slower).sentence, (
        "a gain that this run does not have"
    )
    replay = {n: {"steps": 10, "step_s": 1.5 - n % 2 * 0.5, "data_wait_s": 0.0} for n in range(8)}
    v = verdict(steps, GPU | {"replay": replay})
    assert (v.gain.times, v.gain.basis) == (pytest.approx(1.5), "this run")


def test_the_sentence_as_a_whole() -> None:
    v = verdict(run(parts={"decode": 15.0, "read": 5.0}, compute=4.0, host=0.0))
    assert v.sentence == (
        "Input-bound. The GPU was idle for data 80% of the time (80%, 95 steps). Decoding by PIL was "
        "75% of that. With free data this job would run about 5.00x as fast. Try strategy threads."
    )
    v = verdict(run(parts={"decode": 15.0, "read": 5.0}, compute=4.0, host=0.0), strategy="dali")
    assert ". Decoding by NVIDIA DALI was 75% of that. " in v.sentence
    v = verdict(run(parts={"decode": 8.2}, compute=8.0, host=0.0))
    assert v.sentence == (
        "Not input-bound. The GPU was idle for data 2.4% of the time (2.4%, 95 steps). A faster "
        "loader would gain at most 2.5%. The model takes the time, and loading keeps up."
    )


def test_a_replay_is_called_one() -> None:
    copied = run(h2d=6.0, compute=3.0, made_known=False)
    v = verdict(copied, strategy="memory", replay="host", transfer="blocking")
    assert (
        "This is a replay of batches kept in host memory. What remains is the copy (100% of that)"
        in v.sentence
    )
    assert [dict(a.settings) for a in v.advice] == [{"transfer": "pinned"}, {"transfer": "stream"}]
    for steps in (
        copied,
        run(parts={"decode": 0.1}, compute=8.0, host=0.0),
        run(parts={"decode": 9.0}, compute=2.0),
    ):
        v = verdict(steps, replay="device")
        assert (
            "batches kept on the device. What remains is the loop's own work, not loading."
            in v.sentence
        )
        assert not re.search("faster loader|free data", v.sentence)
        assert v.advice == ()


def test_small_parts_are_not_advised_about_and_copies_are_named_where_they_are_not_small() -> None:
    """A set in memory has no remedy for its reads; a tenth of the time for copies is not worth another way to copy."""
    steps = run(parts={"read": 18.0}, h2d=2.0, compute=2.0)
    assert verdict(steps, strategy="memory").advice == ()
    steps = run(parts={"read": 12.0}, h2d=8.0, compute=2.0)
    assert [dict(a.settings) for a in verdict(steps, strategy="memory").advice][:1] == [
        {"transfer": "stream"}
    ]
    with_copies = verdict(run(parts={"decode": 8.0}, h2d=2.0, compute=2.0)).sentence
    assert "was idle for data and copies " in with_copies
    few = verdict(run(parts={"decode": 60.0}, h2d=0.5, compute=2.0))
    assert (few.copies_included, "and copies" in few.sentence) == (False, False)


def test_the_device_is_called_what_it_is() -> None:
    steps = run(parts={"decode": 20.0})
    assert "The simulated GPU was idle" in verdict(steps, SIMULATED).sentence
    assert verdict(steps, SIMULATED).simulated
    assert "Training on the CPU was stalled" in verdict(steps, CPU).sentence
    assert (
        "share the CPU"
        in verdict(run(parts={"decode": 40.0}, workers=2), CPU, strategy="workers").sentence
    )
    assert "The GPU was idle" in verdict(steps, {"device": "cuda:1"}).sentence
    assert "Training on the CPU was stalled" in verdict(steps, {}, device="cpu").sentence
    untested = verdict(steps, GPU | {"untested_device": "ROCm"}).sentence
    assert untested.startswith(
        "Input-bound. The ROCm device (its timing is untested on hardware) was idle for data 76%"
    )


@pytest.mark.parametrize("share", [0.09, 0.4])
@pytest.mark.parametrize("is_sure", [True, False])
def test_much_time_outside_of_the_steps_of_a_run_that_keeps_up_may_be_loading(
    is_sure: bool, share: float
) -> None:
    """A callback after the step that reads the next batch: it was called logging, metrics, checkpoints."""
    steps = run(40, parts={"decode": 8.0}, compute=8.0, host=0.0)
    if not is_sure:
        rng = np.random.default_rng(1)
        steps = delayed(steps, rng.exponential(0.3, 40) * MS * (rng.random(40) < 0.5) * 1.9)
    judged = verdict(steps, CPU | {"between_steps_frac": share})
    assert judged.kind == "not input-bound"
    assert ("A faster loader would gain at most" in judged.sentence) is is_sure
    said = "40% of the time passed between the steps. It may be logging, metrics, checkpoints, or loading"
    assert (said in judged.sentence) == (share == 0.4)


@pytest.mark.parametrize("share", [0.09, 0.4])
def test_much_time_outside_of_the_steps_of_an_input_bound_run_may_be_loading_too(
    share: float,
) -> None:
    facts = {"device": "cpu", "between_steps_frac": share}
    sentence = verdict(run(parts={"read": 20}), facts=facts).sentence
    assert ("Another 40% of the time passed between the steps" in sentence) == (share == 0.4)


@pytest.mark.parametrize("share", [0.02, 0.4])
@pytest.mark.parametrize(
    ("read_ms", "kind"),
    [(0.1, "not input-bound"), (5.5, "moderately input-bound"), (20, "input-bound")],
)
def test_workers_that_end_where_a_loop_is_left_early_are_loading_too(
    read_ms: float, kind: str, share: float
) -> None:
    judged = verdict(run(parts={"read": read_ms}), CPU | {"left_early_frac": share})
    said = (
        "Another 40% of the time workers ended, because the loop over their loader was left early"
    )
    assert (said in judged.sentence) == (share == 0.4)
    if share == 0.02:
        assert judged.kind == kind
        return
    assert judged.gain is None
    assert judged.kind == ("input-bound" if kind == "input-bound" else "inconclusive")
    if judged.kind == "inconclusive":
        assert judged.sentence.startswith("Not measurable here.")
        assert not judged.advice


@pytest.mark.parametrize("read_ms", [0.1, 20.0])
def test_time_asleep_in_the_steps_may_be_loading_too(read_ms: float) -> None:
    """Where a core is free: else the script may wait for one."""
    steps, free = run(parts={"read": read_ms}), {"cpu_pct": 40.0, "job_cpu_pct": 300.0}
    cases = ((0.4, free), (0.09, free), (0.4, free | {"cpu_pct": 99.0}), (0.4, {}))
    of = [verdict(steps, facts=CPU | {"asleep_frac": frac}, cpu=cpu) for frac, cpu in cases]
    said = "The script slept 40% of the time after its batch had come"
    assert [said in each.sentence for each in of] == [True, False, False, False]
    busy = verdict(steps, facts=CPU | {"slept_frac": 0.4}, cpu=free | {"cpu_pct": 99.0})
    assert said in busy.sentence, "waits for a core are known, and not among them"
    assert "loading keeps up" not in of[0].sentence
    assert of[0].kind == of[1].kind


def test_of_a_device_without_times_the_waits_of_the_loop_are_told_and_no_advice() -> None:
    steps = run(parts={"read": 20.0}, compute=2.0)
    took_s = steps["t_start_s"][-1] - steps["t_start_s"][5]
    waited_frac = steps["data_wait_s"][5:-1].sum() / took_s
    of = verdict(steps, facts=GPU | {"device": "mps:0", "untimed_device": "mps"})
    waits = re.search(
        r"The loop waits for data ([\d.]+)% of the time. Whether the device idles meanwhile is not "
        r"known: vitprof cannot time mps",
        of.sentence,
    )
    assert float(waits[1]) / 100 == pytest.approx(waited_frac, abs=0.01)
    assert (of.kind, of.advice) == ("inconclusive", ())
