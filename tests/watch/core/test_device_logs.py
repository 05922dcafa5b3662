"""Scripts that were recorded on the null device, replayed: what the core says that the device did is what
the device itself knows of its work (`tests.nullcuda.record`)."""

import functools
import json
from pathlib import Path

import numpy as np
import pytest

from vitprof.measure.step_columns import Columns
from vitprof.watch.core.columns import columns_of
from vitprof.watch.core.device_columns import DeviceFigures, DeviceSteps
from vitprof.watch.core.live import LiveSteps
from vitprof.watch.core.log import EventLog, row_of
from vitprof.watch.core.loop import Step, find_steps
from vitprof.watch.core.step_figures import StepFigures
from vitprof.watch.core.training import find_training
from vitprof.watch.event_log import read_event_log

LOGS = Path(__file__).parent / "device_logs"
TRUTHS: dict[str, dict[str, float]] = json.loads((LOGS / "truths.json").read_text())
N_BATCHES = 36
WARMUP_STEPS = 5
POINTS = 0.02
"""The most that a share of the time may be off, as in `benchmarks.watch_matrix`."""
BESIDE = ("beside", "beside-after", "beside-joined")
"""Another stream works while that of training is idle: the figures of one stream are wrong then, and the
recording says so."""


@functools.cache
def recorded(name: str) -> EventLog:
    return read_event_log(LOGS / f"{name}.jsonl")


@functools.cache
def replayed(name: str) -> tuple[list[Step], list[DeviceFigures | None], int]:
    """Returns the steps of a log, what the device did of each, and the steps beside other streams' work."""
    log = recorded(name)
    training = find_training(log)
    assert training is not None
    device = DeviceSteps(WARMUP_STEPS)
    device.add(log.events, find_steps(training).steps)
    steps, figures = device.take(training.thread, finished=True)
    return steps, figures, device.n_side_stream_steps


def columns(name: str) -> Columns:
    """Returns the columns of the steps in the time that the script measured itself."""
    steps, figures, _ = replayed(name)
    truth = TRUTHS[name]
    found = columns_of(steps, device=figures)
    began = found["t_start_s"]
    # the script's clock begins in `next()`, which the hooks are around
    kept = (began >= truth["since_s"] - 1e-3) & (began < truth["until_s"] - 1e-3)
    return {key: column[kept] for key, column in found.items()}


def share(name: str, column: str) -> float:
    found = columns(name)
    return float(found[column].sum() / found["step_s"].sum())


def true_share(name: str, column: str) -> float:
    truth = TRUTHS[name]
    return truth[column] / (truth["until_s"] - truth["since_s"])


def test_each_log_has_its_truth() -> None:
    assert {path.stem for path in LOGS.glob("*.jsonl")} == set(TRUTHS)


@pytest.mark.parametrize("name", sorted(TRUTHS))
def test_each_batch_is_a_step_and_has_figures_once_marks_have_begun(name: str) -> None:
    steps, figures, _ = replayed(name)
    assert len(steps) >= N_BATCHES - 2
    unknown = [figure is None or np.isnan(figure.compute_end) for figure in figures]
    assert not any(unknown[1:])


@pytest.mark.parametrize("name", sorted(set(TRUTHS) - set(BESIDE)))
def test_the_device_waited_for_data_as_long_as_it_says(name: str) -> None:
    off = share(name, "exposed_wait_s") - true_share(name, "exposed_wait_s")
    assert abs(off) < POINTS


@pytest.mark.parametrize("name", sorted(set(TRUTHS) - set(BESIDE)))
def test_other_streams_worked_beside_no_step(name: str) -> None:
    assert replayed(name)[2] == 0


@pytest.mark.parametrize("name", sorted(BESIDE))
def test_another_stream_that_worked_while_that_of_training_was_idle_is_counted(name: str) -> None:
    assert replayed(name)[2] > 0.8 * (N_BATCHES - WARMUP_STEPS)


@pytest.mark.parametrize("name", sorted(name for name in TRUTHS if name.startswith("busy")))
def test_work_takes_as_long_as_the_script_made_it(name: str) -> None:
    assert np.median(columns(name)["compute_s"]) == pytest.approx(0.012, rel=0.05)


@pytest.mark.parametrize("name", ["after-on-the-host", "after-on-the-device"])
def test_what_comes_after_the_optimizer_is_no_step(name: str) -> None:
    """12 ms of logging, or of metrics on the device, after 4 ms of work."""
    found = columns(name)
    assert np.median(found["outside_s"]) > 0.0114
    assert np.median(found["compute_s"]) < 0.012


@pytest.mark.parametrize("name", sorted(TRUTHS))
def test_steps_follow_each_other_without_a_gap(name: str) -> None:
    """The times of all steps add up to the time of the loop."""
    found = columns(name)
    ends = found["compute_start_s"] + found["compute_s"]
    assert np.diff(ends) == pytest.approx(found["step_s"][1:], abs=1e-9)


@pytest.mark.parametrize("size", [17, 150])
@pytest.mark.parametrize("name", sorted(TRUTHS))
def test_steps_that_are_given_out_live_have_the_same_figures(name: str, size: int) -> None:
    log = recorded(name)
    live = LiveSteps()
    live.add(log.descriptions.values(), [])
    given_out = StepFigures(WARMUP_STEPS)
    figures = list[DeviceFigures | None]()
    for begin in range(0, len(log.events), size):
        part = log.events[begin : begin + size]
        live.add([], map(row_of, part))
        given_out.add_events(part)
        settled = live.settle(part[-1].at_s).steps
        if live.training is not None:
            figures += given_out.take(live.training.thread, settled).device
    settled = live.settle(log.events[-1].at_s, finished=True).steps
    assert live.training is not None
    figures += given_out.take(live.training.thread, settled, finished=True).device
    assert [repr(each) for each in figures] == [repr(each) for each in replayed(name)[1]]
    assert given_out.device.n_side_stream_steps == replayed(name)[2]


@pytest.mark.parametrize("name", ["busy-loss-is-read", "lightning-busy"])
def test_compute_is_made_of_its_parts(name: str) -> None:
    """The work is in the forward pass. Lightning's optimizer calls the model."""
    found = columns(name)
    parts = [found[f"{part}_compute_s"] for part in ("forward", "backward", "optimizer")]
    assert sum(parts) == pytest.approx(found["compute_s"], abs=1e-9)
    assert np.median(parts[0]) == pytest.approx(0.012, rel=0.05)
    assert all((part >= 0).all() for part in parts)
