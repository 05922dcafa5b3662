"""The watching inside a training process: steps, stages and losses of a script with stalls of known length."""

import json
import re
from typing import Any

import numpy as np
import pytest

from tests.watch import scripts
from tests.watch.watching import Host, Told
from vitprof.formats import percent
from vitprof.watch.connection import GONE

N_STEPS = 2 * scripts.N_SAMPLES // scripts.BATCH


@pytest.fixture(scope="module")
def plain(host: Host) -> str:
    """The script's losses without anybody watching."""
    return host.run(watched=False).returned


@pytest.fixture(scope="module")
def in_the_loop(host: Host) -> Told:
    return host.run("train")


def test_training_is_the_same_to_the_bit_and_each_step_has_its_loss(
    in_the_loop: Told, plain: str
) -> None:
    assert (in_the_loop.status, in_the_loop.returned, in_the_loop.complaint) == (0, plain, "")
    assert str([float(loss).hex() for loss in in_the_loop.steps["loss"]]) == plain


def test_every_training_step_is_told_and_its_wait_is_idle_time_and_its_body_compute(
    in_the_loop: Told,
) -> None:
    steps = in_the_loop.steps
    assert steps["step"].tolist() == list(range(N_STEPS))
    assert steps["epoch"].tolist() == [0] * (N_STEPS // 2) + [1] * (N_STEPS // 2)
    assert set(steps["samples"]) == {scripts.BATCH}
    assert steps["warmup"].tolist() == [1] * 5 + [0] * (N_STEPS - 5)
    assert steps["compute_s"].min() >= scripts.BODY_S
    assert np.allclose(steps["gap_s"] + steps["compute_s"], steps["step_s"])
    ends = steps["compute_start_s"] + steps["compute_s"]
    assert np.allclose(ends[1:8] - ends[:7], steps["step_s"][1:8]), (
        "nothing between two steps of an epoch is left out"
    )
    # the first gap begins with the watching, after `iter(loader)`
    own = (steps["gap_s"] - steps["data_wait_s"])[1:]
    assert own.min() > -1e-6


@pytest.mark.measured
def test_nothing_but_the_wait_is_between_the_work_on_two_batches(in_the_loop: Told) -> None:
    own = (in_the_loop.steps["gap_s"] - in_the_loop.steps["data_wait_s"])[1:]
    assert np.median(own) < 0.001


def test_a_loss_is_told_as_it_was_before_it_was_scaled_and_a_compiled_step_is_compiled_as_before(
    host: Host,
) -> None:
    plain, told = host.run("scaled", watched=False), host.run("scaled")
    assert told.status == 0
    assert (
        told.returned == plain.returned == str([float(loss).hex() for loss in told.steps["loss"]])
    )
    plain, told = host.run("compiled", watched=False), host.run("compiled")
    assert (told.status, told.returned, len(told.steps["step"])) == (0, "ok", 4)
    assert told.complaint == plain.complaint, "PyTorch's own, on Python 3.13"


def test_a_check_between_epochs_is_a_phase_and_in_no_step_and_the_loaders_arguments_are_told(
    in_the_loop: Told,
) -> None:
    phase, last = in_the_loop.note("phase")
    assert phase["name"] == last["name"] == "evaluate"
    assert phase["t_end_s"] - phase["t_start_s"] >= scripts.CHECK_S
    # nothing is seen of what the script does with the last batch of all
    assert last["t_end_s"] - last["t_start_s"] >= scripts.COLLATE_S
    first, steps = N_STEPS // 2, in_the_loop.steps
    ends = steps["compute_start_s"] + steps["compute_s"]
    assert last["t_start_s"] >= ends[-1]
    assert phase["t_end_s"] <= steps["t_start_s"][first]
    assert steps["compute_start_s"][first] - steps["gap_s"][first] >= phase["t_end_s"], (
        "no part of the check counts"
    )
    (environment,) = in_the_loop.note("environment")
    assert environment["device"] == "cpu"
    expected = {
        "dataset": "Samples",
        "n_samples": scripts.N_SAMPLES,
        "epoch_batches": scripts.N_SAMPLES // scripts.BATCH,
        "batch_size": scripts.BATCH,
        "num_workers": 0,
    }
    expected |= dict.fromkeys(("prefetch_factor", "start_method")) | {
        "collate": "collate",
        "sampler": "RandomSampler",
    }
    expected |= dict.fromkeys(("pin_memory", "persistent_workers", "drop_last"), False)
    assert environment["watched"] == expected


def transforms(told: Told) -> dict[str, dict[str, float]]:
    return dict(told.facts()["transforms"])


@pytest.mark.measured
def test_each_transform_of_the_train_loader_is_told(in_the_loop: Told) -> None:
    """Past the warm-up; the check's Compose has the same transforms, and is none of it."""
    found = transforms(in_the_loop)
    assert list(found) == ["Transform", "Compose"], "a Compose within is one entry"
    making = in_the_loop.facts()["making"]
    # one of four, each in another place of its block: the check's batches are some of them
    assert making["batches"] in (2, 3)
    assert 0 < making["cpu_s"] <= 1.1 * making["made_s"]
    n = (N_STEPS - 5) * scripts.BATCH
    assert [one["calls"] for one in found.values()] == [n, n]
    spent = np.array(in_the_loop.spent["transform_s"])
    of_training = np.delete(spent, range(scripts.N_SAMPLES, scripts.N_SAMPLES + scripts.BATCH))
    mean = float(of_training[-n - scripts.BATCH : -scripts.BATCH].mean())
    assert mean <= found["Transform"]["s_per_sample"] < mean + 0.001
    assert found["Compose"]["s_per_sample"] < 0.001


@pytest.mark.measured
def test_transforms_of_the_second_kind(host: Host) -> None:
    plain, told = host.run(samples="Augmented", watched=False), host.run(samples="Augmented")
    assert told.returned == plain.returned
    found = transforms(told)
    assert list(found) == ["Transform", "neg", "Transform (2)"]
    assert found["Transform (2)"]["s_per_sample"] >= scripts.TRANSFORM_S
    assert found["neg"]["s_per_sample"] < scripts.TRANSFORM_S


def test_workers(host: Host, plain: str) -> None:
    told = host.run(workers=2, start_method="fork")
    steps, found = told.steps, transforms(told)
    assert (told.returned, len(steps["step"]), set(steps["worker"])) == (plain, N_STEPS, {0.0, 1.0})
    assert steps["collate_s"].min() >= scripts.COLLATE_S
    assert steps["read_s"].min() >= scripts.BATCH * scripts.READ_S
    assert steps["transform_s"].min() >= scripts.BATCH * scripts.TRANSFORM_S
    assert np.isfinite(steps["queue_depth"]).all()
    assert list(found) == ["Transform", "Compose"]
    assert found["Transform"]["calls"] == (N_STEPS - 5) * scripts.BATCH
    assert found["Transform"]["s_per_sample"] >= scripts.TRANSFORM_S
    # workers are started in iter(), before the first next(): the first wait of an epoch holds that, and a whole batch
    firsts = steps["data_wait_s"][[0, N_STEPS // 2]]
    assert (
        firsts.min() >= scripts.BATCH * (scripts.READ_S + scripts.TRANSFORM_S) + scripts.COLLATE_S
    )


def test_a_loader_that_nobody_trains_on_is_no_training_also_before_it(host: Host) -> None:
    told = host.ok("evaluate")
    assert (told.returned, told.notes, told.columns) == ("8", [], [])
    told = host.run("check_first")
    assert told.steps["samples"].tolist() == [2.0] * 8
    assert told.steps["epoch"].tolist() == [0] * 4 + [1] * 4
    assert told.note("environment")[0]["watched"]["batch_size"] == 2


def test_an_error_of_the_script_stays_its_own(host: Host) -> None:
    told = host.run("fail")
    assert (told.status, told.complaint) == (5, "")


@pytest.mark.parametrize("given", ["VITPROF_WATCH_STEPS", "VITPROF_WATCH_DETACH_AFTER"])
def test_after_the_steps_that_were_asked_for(host: Host, given: str, plain: str) -> None:
    told = host.run(env={given: "7"})
    assert (told.status, len(told.steps["step"])) == (0, 7)
    assert told.returned == ("" if given.endswith("STEPS") else plain), "ended, or let go on"


def test_other_ranks_end_after_the_same_step_and_tell_nothing(host: Host) -> None:
    """Those that go on would wait for rank 0 for ever."""
    told = host.run(env={"RANK": "1", "VITPROF_WATCH_STEPS": "6"})
    assert (told.status, told.complaint, told.returned, len(told.spent["collate_s"])) == (
        0,
        "",
        "",
        6,
    )
    assert (told.notes, told.columns) == ([], [])


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_inside_a_dataset_is_no_loop_of_its_own(host: Host, workers: int) -> None:
    """It begins while another one begins, or in a worker, which has all that was put in place by its fork."""
    told = host.ok("nested", workers=workers)
    assert told.returned == host.run("nested", watched=False, workers=workers).returned
    assert told.steps["step"].tolist() == list(range(8))
    in_samples = host.ok("nested_in_samples")
    assert (in_samples.returned, in_samples.steps["samples"].tolist()) == ("6", [2.0] * 6)


@pytest.mark.parametrize(
    ("trouble", "why"),
    [
        ({"listen": False}, ""),
        ({"hang_up": True}, f"{GONE})"),
        *(
            ({"failing": f"vitprof.watch.patches.{hook}"}, "RuntimeError: a defect)")
            for hook in (
                "Recorder.described",  # an iteration begins
                "Recorder.before_request",
                "batch_sizes.BatchSizes.of",
                "Recorder.backward",
                "Recorder.stepped",
                "own_iterations.OwnIterations.since_s",
            )
        ),
    ],
)
def test_trouble_of_ours_is_one_line_and_training_goes_on(
    host: Host, plain: str, trouble: dict[str, Any], why: str
) -> None:
    told = host.run(**trouble)
    assert (told.status, told.returned, told.complaint.count("\n")) == (0, plain, 1)
    assert told.complaint.startswith(f"vitprof: gave up watching ({why}")


NOT_SEEN = ("deque", "function, with checks")
OUTSIDE = ("generator", "late", "in the loop", "in parts")
"""Batches are worked on after the loader has given them."""


@pytest.mark.measured
@pytest.mark.parametrize(
    "how",
    [
        *("queue", "polled", "renewed", "future", "queue without loader", "nodes", "webloader"),
        *("stepped in a thread", "no_grad", *OUTSIDE, *NOT_SEEN),
    ],
)
def test_waits_are_those_of_the_thread_that_trains(host: Host, how: str) -> None:
    told = host.ok("batches_from_elsewhere", how=how)
    steps, waits = told.steps, json.loads(told.returned)
    assert len(waits) - (4 if how == "no_grad" else 3) <= len(steps["step"]) <= len(waits)
    verdict = told.verdict()
    if how in NOT_SEEN:
        assert (verdict.kind, verdict.advice) == ("inconclusive", ())
        assert "vitprof.watch(" in verdict.sentence
        return
    assert (verdict.kind, verdict.cause == "hand_over") == ("input-bound", False)
    assert "NoneType" not in verdict.sentence
    assert set(steps["samples"]) == {scripts.BATCH}
    since_s, until_s = steps["t_start_s"][[10, -1]]
    waited = np.array(
        [got - asked for asked, got in waits if since_s - 0.001 < asked < until_s - 0.001]
    )
    own = waited.sum() / (until_s - since_s)
    measured = np.nansum(steps["data_wait_s"][10:-1]) / (until_s - since_s)
    if how in OUTSIDE:
        outside = told.facts()["outside_next_frac"]
        assert outside > 0.1
        passed = f"Another {percent(outside)} of the time passed between the loader and the model"
        assert passed in verdict.sentence
        assert verdict.gain is None
        measured += outside
    if (
        how == "renewed"
    ):  # its body sleeps after the model's call, and is as long as that of the others
        asleep = scripts.BODY_S * len(steps["step"][10:-1]) / (until_s - since_s)
        assert abs(told.facts()["asleep_frac"] - asleep) < 0.1
    # what passes outside is of a sample of steps
    assert abs(measured - own) < (0.08 if how in OUTSIDE else 0.03)


@pytest.mark.measured
@pytest.mark.parametrize(
    "script",
    [
        {"order": "qs", "check": True},
        {"order": "qqs"},
        {"order": "qs", "quiet": True},
        {"order": "sqq", "apart": True},
    ],
    ids=str,
)
def test_a_step_waits_for_all_loaders_that_it_asks(host: Host, script: dict[str, Any]) -> None:
    told = host.ok("several_loaders", **script)
    steps = told.steps
    n, n_epoch = len(script["order"]), 64 // scripts.BATCH
    n_lost = 4 if script.get("quiet") else 2
    assert 2 * n_epoch - n_lost <= len(steps["step"]) <= 2 * n_epoch
    assert 2 * 64 * n - n_lost * n * scripts.BATCH <= steps["samples"].sum() <= 2 * 64 * n
    began_s, waited_s = np.array(json.loads(told.returned)).T
    since_s, until_s = steps["t_start_s"][[n_epoch - 26, n_epoch - 2]]
    own = waited_s[(began_s > since_s - 0.001) & (began_s < until_s - 0.001)].sum()
    measured = steps["data_wait_s"][n_epoch - 26 : n_epoch - 2].sum()
    assert abs(measured - own) < 0.05 * (until_s - since_s)
    apart_s = np.abs(
        steps["exposed_wait_s"] - steps["data_wait_s"]
    )  # a script may be held up between both clocks
    assert (apart_s.max() < 1e-3, (apart_s < 1e-4).mean() > 0.9) == (True, True)
    loaders = {
        loader["dataset"]: loader
        for facts in told.note("facts")
        for loader in facts.get("loaders", ())
    }
    assert loaders["Slow"]["wait_s"] > 0.5 * (
        loaders["Slow"]["wait_s"] + loaders["Quick"]["wait_s"]
    )
    assert not any(facts.get("unclear_loaders_steps") for facts in told.note("facts"))


def test_training_on_one_batch_again_and_again_is_called_so(host: Host) -> None:
    sentence = host.ok("leaves", how="overfitted", steps=1).verdict().sentence
    assert (
        "The optimizer stepped 30 times on one batch, which is loaded once. 1 step was recorded"
        in sentence
    )


@pytest.mark.parametrize("shared", [False, True])
def test_of_two_threads_that_train_one_is_watched_and_there_is_no_verdict(
    host: Host, shared: bool
) -> None:
    told = host.ok("in_two_threads", shared=shared)
    assert told.steps["step"].tolist() == list(range(len(told.steps["step"])))
    assert 20 < len(told.steps["step"]) <= 32
    verdict = told.verdict()
    assert verdict.sentence.startswith(
        "Not measurable here. Several threads of the script train, and vitprof watches one"
    )
    assert not verdict.advice


@pytest.mark.measured
@pytest.mark.parametrize(
    "script",
    [
        {"every": 10},
        {},
        {"anew": True},
        {"every": 10, "accumulate": 3},
        {"accumulate": 3},
    ],
    ids=str,
)
def test_a_check_with_backward_passes_is_in_no_step(host: Host, script: dict[str, Any]) -> None:
    """Also where each epoch has another loader: what trains is known by what follows its batches."""
    told = host.ok("differentiates_in_checks", **script)
    waited_s, checked_s = json.loads(told.returned)
    steps = told.steps
    assert steps["samples"].tolist() == [scripts.BATCH] * 64
    assert steps["data_wait_s"].sum() <= waited_s + 0.001
    since_s, until_s = steps["t_start_s"][[0, -1]]
    checks = [(note["t_start_s"], note["t_end_s"]) for note in told.note("phase")]
    assert sum(end_s - start_s for start_s, end_s in checks) > 0.95 * checked_s
    between_s = sum(end_s - start_s for start_s, end_s in checks if end_s <= until_s)
    assert steps["step_s"][1:-1].sum() < until_s - since_s - 0.9 * between_s
    assert not any(facts.get("unclear_loaders_steps") for facts in told.note("facts"))


@pytest.mark.parametrize(
    ("how", "n", "n_unknown"),
    [("list", 32, 64), ("break", 16, 32), ("checks", 32, 64), ("inner", 32, 0)],
)
def test_steps_without_a_loader_after_those_with_one(
    host: Host, how: str, n: int, n_unknown: int
) -> None:
    told = host.ok("goes_on_without_loader", how=how)
    assert abs(len(told.steps["step"]) - (n + n_unknown)) <= 4
    unknown = [facts.get("unknown_wait_steps", 0) for facts in told.note("facts")]
    assert abs(max(unknown, default=0) - n_unknown) <= 4
    if n_unknown:
        assert told.verdict().sentence.startswith(
            "Not measurable here. The script takes its batches from no loader"
        )


@pytest.mark.measured
def test_workers_that_begin_and_end_for_each_batch_are_waited_for(host: Host) -> None:
    told = host.ok("iterates_anew_for_each_batch")
    assert len(told.steps["step"]) == 16
    assert (
        0.8 * float(told.returned)
        < told.steps["data_wait_s"][5:].sum()
        < 1.01 * float(told.returned)
    )


@pytest.mark.parametrize("how", ["fork", "process", "worker"])
def test_what_trains_is_watched_also_in_a_fork(host: Host, how: str) -> None:
    told = host.ok("trains_in_a_fork", how=how)
    assert told.steps["step"].tolist() == list(range(32))
    assert np.isfinite(told.steps["data_wait_s"]).all()


def test_a_training_that_goes_on_in_a_fork_is_partly_watched(host: Host) -> None:
    told = host.ok("trains_on_in_a_fork")
    assert told.steps["step"].tolist() == list(range(32)), "those of the process that began"
    assert told.verdict().sentence.startswith("Partly watched. A process that the script forked")


@pytest.mark.measured
@pytest.mark.parametrize("kind", ["Opening", "Generating", "2xOpening", "new Opening"])
def test_an_epoch_begins_with_all_of_the_wait_for_it(host: Host, kind: str) -> None:
    """The end of the workers before, and what a loader's own `__iter__` does: neither is work of the last step."""
    told = host.ok("epoch_starts", kind=kind)
    steps, waits = told.steps, json.loads(told.returned)
    ends, begins = (np.array(told.spent[stage]) for stage in ("read_s", "collate_s"))
    firsts = np.flatnonzero(np.diff(steps["epoch"])) + 1
    slept = ends[: len(waits)] + begins.reshape(len(waits) + 1, -1).sum(axis=1)[1:]
    for waited in (steps["data_wait_s"][firsts], steps["exposed_wait_s"][firsts]):
        assert (slept < waited).all()
        assert (waited < waits).all(), "which has some work around it"
    assert steps["compute_s"][firsts - 1].max() < scripts.CHECK_S


@pytest.mark.parametrize("how", ["break", "freed", "error", "os._exit"])
def test_the_last_step_of_a_loop_that_is_left_early_is_recorded(host: Host, how: str) -> None:
    told = host.run("leaves", how=how, steps=12)
    assert (told.status, told.complaint) == (3 if how == "error" else 0, "")
    steps = told.steps
    assert steps["step"].tolist() == list(range(12))
    assert told.note("end") == [{"status": "done", "error": ""}]
    if told.returned:
        *_, asked, got, stepped = json.loads(told.returned)
        stalls_s = sum(told.spent[stage][-1] for stage in ("read_s", "transform_s", "collate_s"))
        assert stalls_s < steps["data_wait_s"][-1] < got - asked, (
            "no clock of ours is outside of the script's"
        )
        assert scripts.BODY_S < steps["compute_s"][-1] < stepped - asked - stalls_s


def test_of_hydras_jobs_in_one_process_the_first_is_recorded(host: Host, in_the_loop: Told) -> None:
    told = host.run("jobs_of_hydra")
    assert (told.status, len(told.steps["step"])) == (0, len(in_the_loop.steps["step"]))
    assert told.complaint.startswith("vitprof: hydra's next job is not recorded")
    assert told.note("end") == [{"status": "done", "error": ""}]


def test_what_a_step_costs_is_counted(host: Host) -> None:
    """Calls of our functions and clock readings are the same on every machine, where times are not. Whoever adds to a
    step says so here: it takes about 0.2 us for each call, and 0.05 us for a reading.

    Calls: `next()` 5 (the hook, the batches that are ready, the sampler, the batch that came, its tensors); how it was
    made 9 (the fetcher, whether its work is looked at, collate, 4 for a Compose, how long its samples took, taking it
    off) and 2 for one batch in four (what was used of the machine for it); backward 1; the optimizer 3 (before and
    after it, its number).
    Readings: `next()` 2, the sampler 2, making 5, and 2 each for the backward pass and the optimizer, which are parts
    of a step.
    """
    assert json.loads(host.run("count_work", watched=False, batch=8).returned) == [0, 0]
    few, many = (np.array(json.loads(host.run("count_work", batch=n).returned)) for n in (8, 16))
    each_sample = np.round((many - few) / 8, 9)  # counts of ten steps, divided by ten
    assert each_sample.tolist() == [1, 2], "of a Compose with one transform"
    assert (np.round(few - 8 * each_sample, 9) <= [20, 13]).all()


def test_a_device_that_cannot_be_timed_has_no_times_and_no_verdict(host: Host) -> None:
    """A stand-in for MPS, XPU and others: the waits of the loop are known, and nothing of the device."""
    done = host.ok("on_another_device")
    environment = done.note("environment")[0]
    assert (environment["device"], environment["untimed_device"]) == ("meta", "meta")
    steps = done.steps
    assert np.isnan(
        [steps[name] for name in ("compute_s", "gap_s", "exposed_wait_s", "h2d_s")]
    ).all()
    stalls_s = scripts.BATCH * (scripts.READ_S + scripts.TRANSFORM_S) + scripts.COLLATE_S
    assert steps["data_wait_s"].min() >= stalls_s
    verdict = done.verdict()
    assert (verdict.kind, verdict.advice) == ("inconclusive", ())
    assert re.match(
        r"Not measurable here. The loop waits for data \d+% of the time. Whether the device ",
        verdict.sentence,
    )
    assert verdict.sentence.endswith(" is not known: vitprof cannot time meta.")
