"""Each figure of a run, against traces that can be added up by hand."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from tests.series import made_steps, made_telemetry
from vitprof.analysis.timing.steady import first_of_epoch, steady_state
from vitprof.analysis.timing.summary import (
    RunningTotals,
    StepSums,
    epoch_of_script,
    loader_times_s,
    looking_s,
    mean_step_s,
    recording_cost,
    start_phases,
    summarise,
)
from vitprof.config import RunConfig
from vitprof.config.own_script import own_config
from vitprof.config.resolve import resolve
from vitprof.measure.stopwatch import stopwatch_cost_s
from vitprof.recording.columns import Phase, RunSummary

NAN = math.nan
# Two epochs of five steps; two steps of warm-up. Steady are steps 2, 3, 4 and 6, 7, 8, 9: 0.9 s of waits; step 5, with
# 0.4 s, begins an epoch and is wall clock of training as they are.
WAITS = [1.0, 0.5, 0.1, 0.2, 0.1, 0.4, 0.1, 0.1, 0.2, 0.1]
EPOCHS = [0] * 5 + [1] * 5
H2D, COMPUTE = 0.05, 0.1
TRAINING_S = 1.3 + 8 * (H2D + COMPUTE)


@pytest.fixture
def steps() -> dict[str, np.ndarray]:
    trace: dict[str, np.ndarray] = made_steps(
        WAITS, [COMPUTE] * 10, h2d=H2D, warmup=2, epochs=EPOCHS
    )
    return trace


def summary_of(
    steps: Mapping[str, np.ndarray],
    *,
    config: RunConfig | None = None,
    telemetry: Mapping[str, np.ndarray] | None = None,
    phases: Sequence[Phase] = (),
    **facts: float | None,
) -> RunSummary:
    """Of a run of a set of 50 samples that began at 97 s and ended at 110 s."""
    seen = made_telemetry() if telemetry is None else telemetry
    clock = {"t_origin_s": 97.0, "t_end_s": 110.0}
    return summarise(config or RunConfig(), steps, seen, phases, {"n_train": 50, **facts}, **clock)


def test_the_parts_of_compute_are_those_of_steady_steps(steps: Any) -> None:
    in_steady = np.isin(steps["step"], [2, 3, 4, 6, 7, 8, 9])
    parts = {
        "forward_compute_s": np.where(in_steady, 0.3 * COMPUTE, COMPUTE),
        "backward_compute_s": np.where(in_steady, 0.5 * COMPUTE, 0.0),
        "optimizer_compute_s": np.where(in_steady, 0.1 * COMPUTE, 0.0),
    }
    found = summary_of(steps | parts)
    assert (found.n_divided_steps, found.compute_ms_median) == (7, pytest.approx(100))
    shares = (found.forward_compute_frac, found.backward_compute_frac, found.optimizer_compute_frac)
    assert shares == pytest.approx((0.3, 0.5, 0.1))
    assert found.other_compute_frac == pytest.approx(0.1)
    assert found.other_compute_ms_median == pytest.approx(10)
    assert summary_of(steps).n_divided_steps == 0


def test_figures_leave_out_the_warm_up_and_steps_times_epoch_starts_too(steps: Any) -> None:
    assert np.flatnonzero(first_of_epoch(steps)).tolist() == [0, 5]
    assert np.flatnonzero(steady_state(steps)).tolist() == [2, 3, 4, 6, 7, 8, 9]
    s = summary_of(steps)
    assert (s.n_steps, s.n_steady_steps, s.n_samples) == (10, 7, 100)
    assert (s.samples_per_s, s.data_wait_frac) == (
        pytest.approx(80 / TRAINING_S),
        pytest.approx(1.3 / TRAINING_S),
    )
    assert s.h2d_frac == pytest.approx(8 * H2D / TRAINING_S)
    assert s.compute_frac == pytest.approx(8 * COMPUTE / TRAINING_S)
    assert s.device_idle_frac == pytest.approx((1.3 + 8 * H2D) / TRAINING_S)
    assert s.device_idle_frac + s.compute_frac == pytest.approx(1)
    assert s.step_ms_median == pytest.approx(250)  # five of 0.25 s and two of 0.35 s
    assert s.step_ms_p95 == pytest.approx(350)
    assert math.isnan(s.samples_per_s_low), "7 steps are too few for an interval"


def test_an_interval_needs_as_many_steps_as_a_verdict() -> None:
    for n_steady in (19, 20):
        waits = np.random.default_rng(3).uniform(0.01, 0.02, 5 + n_steady)
        s = summary_of(made_steps(waits, [COMPUTE] * (5 + n_steady), warmup=5))
        assert s.n_steady_steps == n_steady
        known = s.samples_per_s_low < s.samples_per_s < s.samples_per_s_high
        assert known == (n_steady == 20)


def test_a_wait_counts_as_exposed_only_as_far_as_the_device_idled(steps: Any) -> None:
    """A device with work still queued: half of each wait is hidden behind it."""
    half = steps["data_wait_s"] / 2
    steps |= {
        "exposed_wait_s": half,
        "gap_s": steps["gap_s"] - half,
        "step_s": steps["step_s"] - half,
    }
    s = summary_of(steps)
    time = TRAINING_S - 0.65
    assert (s.exposed_wait_frac, s.data_wait_frac) == (
        pytest.approx(0.65 / time),
        pytest.approx(1.3 / time),
    )
    assert s.device_idle_frac == pytest.approx((0.65 + 8 * H2D) / time)


def test_samples_that_nobody_counted_make_no_throughput() -> None:
    """As of `itertools.cycle(loader)`: after the first epoch it gives its own list of the batches."""
    waits = np.full(100, 0.02)
    waits[40:] = NAN
    steps = made_steps(waits.tolist(), [COMPUTE] * 100, warmup=5)
    steps["samples"][40:] = 0
    found = summary_of(steps)
    assert np.isnan([found.samples_per_s, found.samples_per_s_low, found.samples_per_s_high]).all()
    running = RunningTotals()
    running.add(steps)
    assert math.isnan(running.totals.samples_per_s)


def test_a_few_steps_without_known_samples_are_no_part_of_the_throughput() -> None:
    waits = np.full(100, 0.02)
    waits[50:52] = NAN
    steps = made_steps(waits.tolist(), [COMPUTE] * 100, warmup=5)
    steps["step_s"][50:52] = 10.0
    steps["samples"][:] = 6
    steps["samples"][50:52] = 0
    per_s = pytest.approx(6 / (0.02 + COMPUTE))
    assert summary_of(steps).samples_per_s == per_s
    running = RunningTotals()
    running.add(steps)
    assert running.totals.samples_per_s == per_s, "of a run that goes on, too"


def test_what_is_not_steady_is_told_apart(steps: Any) -> None:
    phases = [
        Phase("startup", 97.0, 97.5),
        Phase("prepare", 97.5, 99.0),
        Phase("startup", 99.0, 99.5),
        Phase("evaluate", 101.0, 101.5),
        Phase("evaluate", 105.0, 107.0),
        Phase("shutdown", 107.0, 107.25),
    ]
    s = summary_of(steps, phases=phases, test_loss=0.5, test_accuracy=0.875)
    assert (s.first_batch_s, s.epoch_restart_s) == (1.0, 0.4)
    assert (s.prepare_s, s.startup_s) == (1.5, 1.5)  # the first batch was asked for at 100 s
    assert (s.evaluate_s, s.shutdown_s, s.wall_s) == (2.5, 0.25, 13.0)
    staged = summary_of(
        steps, phases=[*phases, Phase("stage", 98.5, 99.25)], stage_s=0.75, stage_bytes=3e6
    )
    assert (staged.startup_s, staged.prepare_s, staged.stage_s, staged.stage_bytes) == (
        0.75,
        1.5,
        0.75,
        3e6,
    )
    assert (s.loss_first, s.loss_last, s.test_loss, s.test_accuracy) == (
        10.0,
        pytest.approx(9.1),
        0.5,
        0.875,
    )
    s = summary_of(steps)
    assert all(
        math.isnan(v)
        for v in (s.prepare_s, s.startup_s, s.evaluate_s, s.shutdown_s, s.test_accuracy)
    )


@pytest.mark.parametrize(
    ("losses", "last"),
    [
        ([3, 2, NAN, 1, NAN], 1.0),
        ([3, NAN, 2, NAN, NAN], NAN),
        ([3, 2, NAN], NAN),
        ([NAN, NAN], NAN),
    ],
    ids=["every second one is copied", "diverged", "diverged, on the CPU", "none"],
)
def test_the_last_loss_is_the_last_one_that_was_copied(losses: list[float], last: float) -> None:
    steps = made_steps([0.1] * len(losses), [COMPUTE] * len(losses)) | {
        "loss": np.array(losses, float)
    }
    assert summary_of(steps).loss_last == pytest.approx(last, nan_ok=True)


@pytest.mark.parametrize(
    ("epochs", "n_train", "expected", "n"),
    [
        ([0, 0, 1, 1, 2, 2], 20, (7 + 11) / 2, 2),  # the first epoch carries start-up and warm-up
        (
            [0, 0, 1, 1, 2, 2],
            30,
            30 / (60 / 21),
            0,
        ),  # never whole: extrapolated from 60 samples in 21 s
        ([0, 0, 1, 1, 1, 2], 20, 3, 1),  # the first is the only whole one
        ([0, 0, 0, 1, 1, 1], 30, 4 + 5 + 6, 1),
        ([0, 0, 1, 1, 1, 1], 40, 3 + 4 + 5 + 6, 1),  # a first epoch that was cut short is not whole
        ([0, 1, 1, 2, 2, 3], 20, (5 + 9) / 2, 2),
        ([0] * 6, 60, 21, 1),
    ],
)
def test_the_time_of_an_epoch(epochs: list[int], n_train: int, expected: float, n: int) -> None:
    steps = made_steps([0.0] * 6, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], epochs=epochs)
    s = summary_of(steps, n_train=n_train)
    if n == 0:
        expected = n_train / s.samples_per_s
    assert (s.epoch_s, s.n_epochs_measured) == (pytest.approx(expected), n)


OWN = own_config("train.py")


@pytest.mark.parametrize(
    ("epochs", "epoch_steps", "expected", "n", "samples"),
    [
        ([0, 0, 1, 1, 2, 2], 2.0, (7 + 11) / 2, 2, 20),
        ([0, 0, 1, 1, 2, 2], 1.5, (7 + 11) / 2, 2, 15),  # a last step with half of its batches
        ([0, 0, 0, 0, 0, 0], 40.0, 40 * 3.5, 0, 400),  # only a part of one: by the loader's length
        ([0, 0, 1, 1, 2, 2], 9.0, 9 * 3.5, 0, 90),  # left early each time
        ([0, 0, 1, 1, 2, 2], None, (7 + 11) / 2, 2, 20),  # as long as the others
        ([0, 0, 1, 1, 1, 2], None, 12, 1, 25),  # not over yet; and what is whole differs
        ([0, 0, 0, 0, 0, 1], None, 15, 1, 50),
        ([0, 0, 0, 0, 0, 0], None, NAN, 0, NAN),  # nobody knows how long it will be
    ],
)
def test_an_epoch_of_a_script_is_as_long_as_its_loader_or_as_those_that_were_seen(
    epochs: list[int], epoch_steps: float | None, expected: float, n: int, samples: float
) -> None:
    """Of a sampler of a tenth of the set 5.4 s were said for 0.53 s, and nothing of three whole epochs."""
    steps = made_steps([0.0] * 6, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], epochs=epochs)
    found = epoch_of_script(steps, epoch_steps, step_s=3.5)
    assert (found.seconds, found.samples) == pytest.approx((expected, samples), nan_ok=True)
    assert found.n_measured == n


def test_the_length_of_its_dataset_says_nothing_of_a_scripts_epoch(steps: Any) -> None:
    s = summary_of(steps, config=OWN, n_train=None, epoch_steps=5.0)
    assert (s.epoch_s, s.n_epochs_measured) == (pytest.approx(5 * (H2D + COMPUTE) + 0.9), 1)
    assert s.epoch_samples == pytest.approx(50)
    s = summary_of(steps, config=OWN, n_train=None, epoch_steps=100.0)
    usual_s = 0.9 / 7 + H2D + COMPUTE
    assert s.epoch_s == pytest.approx(99 * usual_s + 0.4 + H2D + COMPUTE)
    assert s.n_epochs_measured == 0
    assert s.epoch_samples == pytest.approx(1000)


@pytest.mark.parametrize("n_train", [None, 0])
def test_without_the_size_of_the_set_there_is_no_time_of_an_epoch(steps: Any, n_train: Any) -> None:
    """A killed job has not said it. Nothing is known, so it is not 0 s."""
    for seen in (steps, {name: values[7:8] for name, values in steps.items()}):
        s = summary_of(seen, n_train=n_train)
        assert (math.isnan(s.epoch_s), s.n_epochs_measured) == (True, 0)


def test_a_loader_only_run_has_no_figures_of_a_device_that_had_nothing_to_do() -> None:
    steps = made_steps([0.1] * 8, [0.0] * 8, h2d=0.1, warmup=1)
    steps["loss"][:] = NAN
    s = summary_of(steps, config=RunConfig(loader_only=True))
    none = (
        "compute_frac",
        "exposed_wait_frac",
        "device_idle_frac",
        "loss_first",
        "loss_last",
        "test_accuracy",
    )
    assert all(math.isnan(getattr(s, name)) for name in none)
    assert s.samples_per_s == pytest.approx(50)
    assert s.data_wait_frac == s.h2d_frac == pytest.approx(0.5)
    assert s.step_ms_median == pytest.approx(200)
    assert not math.isnan(summary_of(steps).device_idle_frac)


def test_an_empty_run_has_counts_of_0_and_one_of_one_step_has_figures_unless_it_was_warm_up() -> (
    None
):
    s = summary_of(made_steps([], []), phases=[Phase("prepare", 97.0, 98.0)])
    known = {name: value for name, value in dataclasses.asdict(s).items() if not math.isnan(value)}
    names = ("n_steps", "n_steady_steps", "n_divided_steps", "n_samples", "n_epochs_measured")
    counts = dict.fromkeys((*names, "n_unreadable", "n_energy_gpus"), 0)
    assert known == counts | {"prepare_s": 1.0, "wall_s": 13.0}
    s = summary_of(made_steps([0.75], [0.25]))
    assert (s.n_steady_steps, s.samples_per_s, s.step_ms_p95) == (1, 10.0, 1000.0)
    assert (s.data_wait_frac, s.device_idle_frac, s.first_batch_s) == (0.75, 0.75, 0.75)
    assert (s.epoch_s, s.n_epochs_measured) == (5.0, 0)
    assert all(
        math.isnan(v) for v in (s.samples_per_s_low, s.samples_per_s_high, s.epoch_restart_s)
    )
    s = summary_of(made_steps([0.75], [0.25], warmup=1))
    assert (s.n_steps, s.n_steady_steps, s.first_batch_s) == (1, 0, 0.75)
    assert all(
        math.isnan(v) for v in (s.samples_per_s, s.step_ms_median, s.device_idle_frac, s.epoch_s)
    )


def test_where_every_step_is_an_epoch_only_the_warm_up_is_left_out() -> None:
    s = summary_of(
        made_steps([5.0, 1.0, 2.0, 3.0], [1.0] * 4, warmup=1, epochs=[0, 1, 2, 3]), n_train=10
    )
    assert (s.n_steady_steps, s.samples_per_s) == (3, pytest.approx(30 / 9))
    assert (s.epoch_s, s.n_epochs_measured, s.epoch_restart_s) == (pytest.approx(3.0), 3, 2.0)


def test_telemetry_counts_while_training_and_in_no_evaluation(steps: Any) -> None:
    end = 100 + sum(WAITS) + 10 * (H2D + COMPUTE)
    # a counter looks back 1/6 s: at 100.1 and 102.1 on what was before training and on the evaluation
    at = {
        100.1: 1.0,
        100.2: 50.0,
        100.5: 70.0,
        102.1: 2.0,
        102.5: NAN,
        end - 0.01: 60.0,
        end + 0.1: 3.0,
    }
    telemetry = made_telemetry(
        t_s=list(at),
        gpu_util_pct=list(at.values()),
        gpu_mem_job_bytes=[NAN, 5, 9, 1, NAN, 2, 7],
        job_rss_bytes=range(7),
    )
    facts = {"gpu_mem_reserved_peak_bytes": 4.0, "gpu_mem_allocated_peak_bytes": 3.0}
    s = summary_of(steps, telemetry=telemetry, phases=[Phase("evaluate", 101.0, 102.0)], **facts)
    assert math.isnan(s.gpu_util_pct_mean)  # of a real GPU: it may look back a second
    s = summary_of(
        steps,
        telemetry=telemetry,
        phases=[Phase("evaluate", 101.0, 102.0)],
        simulated=True,
        **facts,
    )
    assert s.gpu_util_pct_mean == pytest.approx((50 + 70 + 60) / 3)
    assert (s.gpu_mem_peak_bytes, s.rss_peak_bytes) == (9, 6)  # memory counts over the whole run
    assert (
        s.gpu_mem_nvml_peak_bytes,
        s.gpu_mem_reserved_peak_bytes,
        s.gpu_mem_allocated_peak_bytes,
    ) == (9, 4, 3)
    s = summary_of(steps, telemetry=made_telemetry(t_s=[100.5]), **facts)
    assert np.isnan([s.gpu_util_pct_mean, s.rss_peak_bytes, s.gpu_mem_nvml_peak_bytes]).all()
    assert s.gpu_mem_peak_bytes == 4.0  # PyTorch's word where NVML has none
    assert math.isnan(summary_of(steps, gpu_mem_reserved_peak_bytes=None).gpu_mem_peak_bytes)


def test_sm_activity_counts_where_the_sample_before_did(steps: Any) -> None:
    """It is about the time since that: at 100.3 about what was before training, at 102.2 about the evaluation."""
    of = {99.9: 1.0, 100.3: 2.0, 100.5: 30.0, 100.7: 40.0, 100.9: 50.0, 101.5: 3.0, 102.2: 4.0}
    telemetry = made_telemetry(
        t_s=list(of),
        gpu_sm_active_pct=list(of.values()),
        gpu_sm_occupancy_pct=[value / 2 for value in of.values()],
    )
    s = summary_of(steps, telemetry=telemetry, phases=[Phase("evaluate", 101.0, 102.0)])
    assert (s.gpu_sm_active_pct_mean, s.gpu_sm_occupancy_pct_mean) == (40, 20)
    assert math.isnan(
        summary_of(steps, telemetry=made_telemetry(t_s=[100.5, 100.7])).gpu_sm_active_pct_mean
    )


def test_the_training_time_and_its_energy(steps: Any) -> None:
    begins_s = float(steps["t_start_s"][0])
    t_s = begins_s - 1 + np.arange(0, 10, 0.1)
    watts = 200.0
    telemetry = made_telemetry(
        t_s=t_s, gpu_energy_j=watts * (t_s - t_s[0]), energy_gpus=1.0, gpu_power_w=50.0
    )
    s = summary_of(steps, telemetry=telemetry)
    assert s.training_s == pytest.approx(TRAINING_S)
    assert s.energy_j == pytest.approx(watts * TRAINING_S)
    assert (s.n_energy_gpus, math.isnan(s.energy_by_power_j)) == (1, True)
    without = {**telemetry, "gpu_energy_j": np.full(len(t_s), NAN)}
    assert summary_of(steps, telemetry=without).energy_by_power_j == pytest.approx(50 * TRAINING_S)
    of_slice = summary_of(steps, telemetry=without, gpu_uuid="MIG-1")  # type: ignore[arg-type]
    assert (math.isnan(of_slice.energy_by_power_j), of_slice.n_energy_gpus) == (True, 0)
    alone = summary_of(steps, config=RunConfig(loader_only=True), telemetry=telemetry)
    assert np.isnan([alone.training_s, alone.energy_j]).all()


def test_cpu_time_is_known_only_where_the_job_has_a_process_of_its_own(steps: Any) -> None:
    assert summary_of(steps, cpu_s=3.0, cpu_samples=60).cpu_s_per_sample == pytest.approx(0.05)
    in_thread = summary_of(steps, config=RunConfig(isolation="thread"), cpu_s=3.0, cpu_samples=60)
    assert math.isnan(in_thread.cpu_s_per_sample)
    for facts in ({}, {"cpu_s": 3.0, "cpu_samples": 0}, {"cpu_s": None, "cpu_samples": 60}):
        assert math.isnan(summary_of(steps, **facts).cpu_s_per_sample)


def test_of_a_summary_they_are_those_of_the_steps() -> None:
    rng = np.random.default_rng(2)
    steps = made_steps(rng.exponential(0.01, 50), rng.exponential(0.01, 50), h2d=0.001, warmup=5)
    running = RunningTotals()
    running.add(steps)
    told = StepSums.of(
        summarise(RunConfig(), steps, made_telemetry(), (), {}, t_origin_s=99.0, t_end_s=110.0)
    )
    assert told.steps == running.totals.steps
    assert told.samples_per_s == pytest.approx(running.totals.samples_per_s)
    for name in ("data_wait_s", "exposed_wait_s", "gap_s", "compute_s"):
        shown, live = (totals.share(getattr(totals, name)) for totals in (told, running.totals))
        assert shown == pytest.approx(live), name


WAIT, HOST, RECORD, QUEUED_COMPUTE = 0.010, 0.005, 0.001, 0.005
STEP = WAIT + HOST + RECORD


def run(
    n: int = 12, *, queued: bool = False, warmup: int = 2, **columns: Any
) -> dict[str, np.ndarray]:
    """Steps of a device that computes while the host does; or, `queued`, of one that has work left while it records."""
    steps = made_steps([WAIT] * n, HOST, warmup=warmup, pause=RECORD, host_s=HOST)
    start = steps["t_start_s"] + WAIT + (HOST / 2 if queued else 0.0)
    compute = np.full(n, STEP - 0.001 if queued else QUEUED_COMPUTE)
    gap = np.concatenate([[math.nan], start[1:] - start[:-1] - compute[:-1]])[:n]
    steps |= {
        "h2d_start_s": steps["t_start_s"] + WAIT,
        "compute_start_s": start,
        "compute_s": compute,
        "gap_s": gap,
    }
    return steps | {name: np.resize(values, n) for name, values in columns.items()}


def test_recording_is_the_time_from_a_launch_to_the_next_request_over_the_time_of_a_step() -> None:
    cost = recording_cost(run())
    assert cost.n == 12 - 2 - 1  # neither warm-up nor the last one, which nothing follows
    assert (cost.s_per_step, cost.frac) == (pytest.approx(RECORD), pytest.approx(RECORD / STEP))
    assert cost.exposed_frac == pytest.approx(cost.frac), (
        "all of it on a device that is done with the step"
    )
    hidden = recording_cost(run(queued=True))
    assert (hidden.s_per_step, hidden.exposed_frac) == (pytest.approx(RECORD), 0), (
        "behind queued work"
    )
    unknown = recording_cost(run(compute_start_s=math.nan, compute_s=math.nan, gap_s=math.nan))
    assert (unknown.frac, math.isnan(unknown.exposed_frac)) == (pytest.approx(RECORD / STEP), True)
    lost = recording_cost({name: np.delete(values, 7) for name, values in run().items()})
    assert (lost.n, lost.s_per_step) == (9 - 2, pytest.approx(RECORD)), (
        "a lost step is no recording"
    )


def test_what_recording_took_is_not_guessed_at() -> None:
    assert recording_cost(run(outside_s=RECORD)).n == 0, (
        "the script does something between its steps"
    )
    assert (
        recording_cost(run(outside_s=np.where(np.arange(12) == 6, RECORD, math.nan))).n
        == 12 - 2 - 1 - 1
    )
    assert recording_cost(run(host_s=math.nan)).n == 0, "of an older version"
    assert recording_cost(run(host_s=STEP - WAIT)).n == 0, (
        "a watched script: its marks leave no time between them"
    )
    for n in (0, 1, 3):
        cost = recording_cost(run(n))
        assert (cost.n, math.isnan(cost.frac)) == (0, True)


def test_one_slow_report_counts_with_its_whole_length_and_neither_an_epochs_end_nor_a_phase() -> (
    None
):
    steps = run()
    steps["t_start_s"][6:] += 0.1
    steps["compute_start_s"][6:] += 0.1
    steps["gap_s"][6] += 0.1
    cost = recording_cost(steps)
    assert cost.s_per_step == pytest.approx(RECORD + 0.1 / 9)
    assert cost.frac == pytest.approx((9 * RECORD + 0.1) / (9 * STEP + 0.1))
    assert cost.exposed_frac == pytest.approx(cost.frac)
    steps = run(epoch=np.repeat([0.0, 1.0], 6))
    assert recording_cost(steps).n == 3 + 4  # the first step of the second epoch is not steady
    launched = steps["t_start_s"][8] + WAIT + HOST
    inside = Phase("evaluate", launched + RECORD / 4, launched + RECORD / 2)
    cost = recording_cost(steps, [inside])
    assert (cost.n, cost.s_per_step) == (6, pytest.approx(RECORD))
    elsewhere = [Phase("startup", 40.0, 50.0), Phase("shutdown", 60.0, 61.0)]
    assert recording_cost(steps, elsewhere).n == 7


@pytest.mark.parametrize(
    ("strategy", "dataset", "notes"),
    [("per-sample", "digits", 2 + 100), ("memory", "digits", 2), ("threads", "photos", 2 + 200)],
)
def test_what_is_noted_inside_the_loader_is_counted(
    strategy: str, dataset: str, notes: int
) -> None:
    config = resolve(RunConfig(strategy=strategy, dataset=dataset, batch_size=100))
    assert loader_times_s(config, 1e-6) == pytest.approx(notes * 1e-6)
    assert loader_times_s(dataclasses.replace(config, loader_times=False), 1e-6) == 0
    assert 0 < stopwatch_cost_s(100) < 1e-3


def test_looking_at_what_stages_use_is_counted_with_the_clocks_of_the_loader() -> None:
    assert looking_s({}) == 0.0
    assert looking_s({"making": {"made_s": 3.0}}) == 0.0, "of a watched script"
    assert looking_s({"making": {"looking_s": 0.25}}) == 0.25


STARTUP, PREPARE, STAGE = (
    Phase("startup", 102.0, 102.5),
    Phase("prepare", 102.5, 104.0),
    Phase("stage", 104.0, 110.0),
)


def phases_of(
    phases: tuple[Phase, ...] = (),
    *,
    training: float | None = None,
    now: float = 112.0,
    copies: bool = False,
) -> dict[str, tuple[float, bool]]:
    return {
        p.name: (p.seconds, p.running)
        for p in start_phases(100.0, phases, training, now, copies=copies)
    }


def test_each_phase_of_the_start_has_its_seconds_and_one_goes_on() -> None:
    begun = phases_of(now=101.5)
    assert begun["startup"] == (1.5, True)
    assert all(
        math.isnan(begun[name][0]) and not begun[name][1]
        for name in ("prepare", "model", "first batch")
    )
    assert phases_of((STARTUP,), now=103.0)["prepare"] == (0.5, True)
    found = phases_of(
        (STARTUP, PREPARE, STAGE, Phase("startup", 110.0, 111.0)), training=111.25, copies=True
    )
    assert list(found.values()) == [
        (2.5, False),
        (1.5, False),
        (6.0, False),
        (1.25, False),
        (0.75, True),
    ]
    unseen = phases_of((STARTUP,), training=111.0)
    assert (unseen["prepare"], unseen["model"], "stage" in unseen) == (
        (8.5, False),
        (0.0, False),
        False,
    )
    assert start_phases(None, (), None, 5.0, copies=False)[0].seconds == 0.0, (
        "its clock is not known yet"
    )


def test_the_mean_step_counts_a_short_last_batch_as_one() -> None:
    """Four steps of 10 ms, the last one of a quarter of the samples: the mean is 10 ms, and not a batch over the
    throughput, 12.3."""
    config = RunConfig(batch_size=128)
    ended = RunSummary(samples_per_s=(3 * 128 + 32) / 0.04, training_s=0.04, step_ms_median=10.0)
    assert mean_step_s(config, ended, StepSums(), 4) == pytest.approx(0.01)
    assert mean_step_s(config, ended, StepSums()) == pytest.approx(0.0123, abs=1e-4)
