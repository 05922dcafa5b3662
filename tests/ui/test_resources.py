"""What all sessions share: work in a thread, what is closed at the end, and series in memory, each row read once."""

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import accumulate
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.series import made_steps
from tests.stored_series import append_steps
from vitprof.analysis.arrays import Series
from vitprof.analysis.timing.steady import plain_stops, training
from vitprof.analysis.timing.summary import RunningTotals
from vitprof.charts.live import BATCHES, GAPS, LiveChart, Points
from vitprof.config import RunConfig
from vitprof.errors import JobError
from vitprof.experiments.trials import OnProgress, Progress, Stop
from vitprof.jobs import users
from vitprof.recording import columns
from vitprof.store import RunStore
from vitprof.ui import resources
from vitprof.ui.resources import STEP_NAMES, BackgroundTask, Growing, PointCache, RunSeries, window

Task = BackgroundTask[str]
SEVEN = Progress("", 7, 10, 0.7)


@pytest.fixture
def task() -> Iterator[Task]:
    made: Task = BackgroundTask("vitprof-test")
    yield made
    made.close()


class Held:
    """Work that reports its progress and goes on until it is let go or stopped."""

    def __init__(self) -> None:
        self.begun, self.let_go = threading.Event(), threading.Event()

    def __call__(self, report: OnProgress, stopped: Stop) -> str:
        report(SEVEN)
        self.begun.set()
        while not self.let_go.wait(0.01) and not stopped():
            pass
        return "stopped early" if stopped() else "all of it"


def test_progress_then_the_result_or_what_was_done_until_it_was_stopped(task: Task) -> None:
    work, second = Held(), Held()
    assert (task.running, task.progress, task.result, task.error) == (False, None, None, "")
    task.start(work)
    work.begun.wait()
    task.start(second)  # changes nothing
    assert (task.running, task.progress, task.result) == (True, SEVEN, None)
    work.let_go.set()
    task.wait()
    assert (task.running, task.result, task.error, second.begun.is_set()) == (
        False,
        "all of it",
        "",
        False,
    )
    task.start(second)
    task.stop()
    task.wait()
    assert task.result == "stopped early"
    task.start(work)  # is not stopped
    task.wait()
    assert task.result == "all of it"


def test_others_of_those_who_log_in_cannot_stop_it(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    person, work = "ada", Held()
    monkeypatch.setattr(users, "_source", [lambda: person])
    task.start(work)
    work.begun.wait()
    person = "bob"
    with pytest.raises(JobError, match="it was started by ada; others cannot stop it"):
        task.stop()
    assert task.running
    person = "ada"
    task.stop()
    task.wait()
    assert task.result == "stopped early"


def test_an_error_is_one_line_and_gone_with_the_next_start(task: Task) -> None:
    task.start(Mock(side_effect=JobError("no process\ncould be started")))
    task.wait()
    assert (task.error, task.result) == ("no process could be started", None)
    task.start(lambda report, stopped: "fine")
    task.wait()
    assert (task.error, task.result) == ("", "fine")


def test_all_is_closed_once_the_last_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(resources, "_closing", contextlib.ExitStack())
    closed: list[str] = []
    resources.at_end(lambda: closed.append("manager"))
    resources.at_end(lambda: 1 / 0)
    resources.at_end(lambda: closed.append("tournaments"))
    resources.end()
    resources.end()
    assert closed == ["tournaments", "manager"]
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_the_end_of_the_program_stops_work_and_waits() -> None:
    code = """
import time
from vitprof.ui.resources import BackgroundTask
def work(report, stopped):
    while not stopped():
        time.sleep(0.01)
    print("put away")
BackgroundTask("vitprof-test").start(work)
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert ended.stdout == "put away\n"


def rows(first: int, n: int) -> list[list[float]]:
    """Made-up steps, each figure different from every other."""
    step = np.arange(first, first + n)
    figures = {"step": step, "epoch": step // 7, "t_start_s": 10 + step, "warmup": step < 3}
    made = made_steps(
        0.1 + step / 1000,
        0.5,
        samples=4,
        **figures,
        gap_s=0.2 + step / 1000,
        step_s=0.7 + step / 1000,
    )
    return np.nan_to_num(np.stack(list(made.values()), axis=1)).tolist()


@settings(max_examples=40)
@given(
    steps=st.lists(st.tuples(st.sampled_from([0, 0, 1]), st.booleans()), max_size=30),
    every_step_begins_an_epoch=st.booleans(),
    cuts=st.lists(st.integers(1, 9), max_size=12),
)
def test_totals_are_those_of_the_analysis_rule_at_every_refresh(
    steps: list[tuple[int, bool]], every_step_begins_an_epoch: bool, cuts: list[int]
) -> None:
    n = len(steps)
    whole = {name: np.arange(n) + 10.0 * i for i, name in enumerate(STEP_NAMES)}
    epochs = range(n) if every_step_begins_an_epoch else list(accumulate(step for step, _ in steps))
    whole |= {
        "epoch": np.array(epochs, float),
        "warmup": np.array([warmup for _, warmup in steps], float),
    }
    running, done = RunningTotals(), 0
    for cut in [*cuts, n]:
        if done < n:
            running.add({name: values[done : done + cut] for name, values in whole.items()})
        done = min(done + cut, n)
        series = first(whole, done)
        counted = training(series)
        assert running.totals.steps == counted.sum()
        for name in ("samples", "step_s", "data_wait_s", "exposed_wait_s", "gap_s", "compute_s"):
            assert getattr(running.totals, name) == pytest.approx(series[name][counted].sum())


def test_a_view_handed_out_does_not_change_later() -> None:
    growing = Growing(("x",))
    growing.append({"x": np.arange(3.0)})
    view = growing.view()["x"]
    growing.append({"x": np.arange(5000.0)})
    assert (view.tolist(), growing.view()["x"][:4].tolist(), growing.n) == (
        [0, 1, 2],
        [0, 1, 2, 0],
        5003,
    )


def test_rows_arrive_once_and_those_that_a_stop_left_out_are_read_again(store: RunStore) -> None:
    run_id = store.create_run(RunConfig())
    series = RunSeries(store, run_id)
    for first, n in ((0, 20), (20, 0), (20, 1500)):
        append_steps(store, run_id, rows(first, n))
        for _ in range(2):
            series.refresh()
            assert series.steps()["step"].tolist() == list(range(first + n))
    n = series.totals.steps
    store.mark_warmup(run_id, [10, 11])
    store.mark_warmup(run_id, [])
    facts = {"stops": plain_stops([columns.Stop("stopped", 20.0, 21.0, 1.0)])}
    series.refresh(facts)
    series.refresh(facts)
    assert series.totals.steps == n - 2
    assert series.steps()["warmup"][9:13].tolist() == [0, 1, 1, 0]


ORIGIN_S = 50.0


def made_up(n: int) -> Series:
    rng = np.random.default_rng(1)
    return made_steps(rng.uniform(0.1, 1.0, n), rng.uniform(0.1, 1.0, n), h2d=0.1, began=ORIGIN_S)


def first(series: Series, n: int) -> Series:
    return {name: values[:n] for name, values in series.items()}


def anew(chart: LiveChart, series: Series, view: tuple[float, float] | None) -> list[Points]:
    start, stop, size = window(chart, series, ORIGIN_S, view)
    return chart.build(series, ORIGIN_S, start, stop, size)


def same(a: list[Points], b: list[Points]) -> bool:
    seen = [
        [(points.x.tolist(), points.y.tolist(), list(points.text or ())) for points in made]
        for made in (a, b)
    ]
    return seen[0] == seen[1]


@pytest.mark.parametrize("chart", [GAPS, BATCHES], ids=lambda c: c.key)
def test_growing_run(chart: LiveChart) -> None:
    series, cache = made_up(5000), PointCache()
    for n in (1, 2, 161, 650, 661, 2601, 5000, 5000):
        grown = first(series, n)
        assert same(cache.points(chart, 1, grown, ORIGIN_S, None), anew(chart, grown, None))


def test_another_run_another_view_and_back() -> None:
    runs, cache = {1: made_up(4000), 2: made_up(300)}, PointCache()
    for run_id, view in (
        (1, None),
        (1, (100.0, 140.0)),
        (1, (120.0, 180.0)),
        (1, None),
        (2, None),
        (1, None),
    ):
        assert same(
            cache.points(GAPS, run_id, runs[run_id], ORIGIN_S, view), anew(GAPS, runs[run_id], view)
        )


def test_full_groups_are_built_once() -> None:
    build = Mock(wraps=GAPS.build)
    chart = LiveChart(**{**vars(GAPS), "build": build})
    series, cache = made_up(100_000), PointCache()
    cache.points(chart, 1, first(series, 90_000), ORIGIN_S, None)
    build.reset_mock()
    cache.points(chart, 1, first(series, 90_010), ORIGIN_S, None)
    built = [stop - start for _, _, start, stop, _ in (call.args for call in build.call_args_list)]
    assert 10 <= sum(built) <= 1024 + 10


def test_window() -> None:
    series = made_up(100) | {"compute_start_s": ORIGIN_S + 1 + 2.0 * np.arange(100)}
    for chart, view, expected in (
        (GAPS, (11.0, 13.0), (3, 8)),
        (BATCHES, (10.0, 12.0), (7, 15)),
        (BATCHES, (-50.0, -40.0), (0, 100)),
        (GAPS, (900.0, 901.0), (99, 100)),
    ):
        assert window(chart, series, ORIGIN_S, view)[:2] == expected
