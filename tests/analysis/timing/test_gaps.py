"""Idle gaps and their causes, against traces that can be added up by hand and against a count of single nanoseconds."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.series import made_steps
from vitprof.analysis.arrays import Interval
from vitprof.analysis.timing.chain import from_seconds, union
from vitprof.analysis.timing.gaps import (
    BLOCK,
    CAUSES,
    IDLE_CAUSES,
    Gaps,
    TrainingTime,
    divided_at_starts,
    find_gaps,
    training_time,
)
from vitprof.analysis.timing.loading import find_exposure
from vitprof.analysis.timing.steady import got_s, steady_state
from vitprof.analysis.timing.steady import training as training_steps
from vitprof.analysis.timing.timeline import KINDS, LANES, timeline
from vitprof.config import RunConfig
from vitprof.recording.columns import STEP_COLUMNS, Phase

NAN = math.nan
MS = 1_000_000


def busy_ns(steps: Any) -> int:
    """The time in which the device computed, ns, read off the columns."""
    preparing = np.nan_to_num(steps["device_prepare_s"])
    ends = steps["compute_start_s"] + steps["compute_s"] - preparing
    copied = steps["h2d_start_s"] + steps["h2d_s"]
    begin = np.clip(
        copied, np.concatenate([steps["compute_start_s"][:1], ends[:-1]]), steps["compute_start_s"]
    )
    prepared = np.minimum(
        begin + preparing, steps["compute_start_s"]
    )  # nothing of it lies before the first step
    spans = (from_seconds(steps["compute_start_s"], ends), from_seconds(begin, prepared))
    return int(np.diff(union(np.concatenate(spans))).sum())


def made(rows: list[dict[str, float]], unit: float = 1e-3) -> dict[str, np.ndarray]:
    """Steps from marks on one clock in `unit` seconds: asked, got, copy (start, end), launched, busy (start, end).
    `resumed` is where the recorder let the gap begin, if not at the end of the step before. `decoded` is when the
    device had decoded the batch, `prepared` when it had prepared it, from the end of the copy on. `outside` is how long
    the loop did something else since the step before."""
    steps = {name: np.full(len(rows), NAN) for name in STEP_COLUMNS}
    before = NAN
    for i, row in enumerate(rows):
        copy, busy = row.get("copy", (row["got"],) * 2), row["busy"]
        before = row.get("resumed", before)
        known = {
            "step": i / unit,
            "epoch": row.get("epoch", 0) / unit,
            "warmup": 0.0,
            "samples": 10 / unit,
        }
        known |= {"t_start_s": row["asked"], "data_wait_s": row["got"] - row["asked"]}
        known |= {"host_s": row["launched"] - row["got"], "outside_s": row.get("outside", NAN)}
        known |= {"h2d_start_s": copy[0], "h2d_s": copy[1] - copy[0]}
        known |= {
            "compute_start_s": busy[0],
            "compute_s": busy[1] - busy[0],
            "gap_s": busy[0] - before,
        }
        if "decoded" in row:
            known["decode_wait_s"] = max(
                0.0, min(row["decoded"], busy[0]) - max(row["got"], before)
            )
            known["data_wait_s"] += known["decode_wait_s"]
        if "prepared" in row:
            known["device_prepare_s"] = max(
                0.0, min(row["prepared"], busy[0]) - max(copy[1], before)
            )
            known["compute_s"] += known["device_prepare_s"]
            known["gap_s"] -= known["device_prepare_s"]
        for name, value in known.items():
            steps[name][i] = value * unit
        before = busy[1]
    return steps


def causes_ms(gaps: Gaps, row: int) -> dict[str, float]:
    """Causes of one gap in milliseconds, without those that are 0."""
    return {c: ns / MS for c, ns in zip(CAUSES, gaps.causes_ns[row].tolist(), strict=True) if ns}


def test_each_part_of_a_gap_goes_to_what_the_device_waited_for() -> None:
    steps = made(
        [
            {"asked": 0, "got": 10, "copy": (11, 14), "launched": 20, "busy": (14, 30)},
            # the device runs dry at 30, the recording ends at 32, the batch comes at 50
            {"asked": 32, "got": 50, "copy": (51, 55), "launched": 57, "busy": (58, 70)},
            # asked for while the device computes: 8 of 10 ms are hidden, and so is the copy
            {"asked": 60, "got": 72, "copy": (72, 72), "launched": 73, "busy": (73, 90)},
            # all hidden: no gap
            {"asked": 74, "got": 80, "copy": (80, 84), "launched": 85, "busy": (90, 95)},
        ]
    )
    gaps = find_gaps(steps, ())
    assert gaps.index.tolist() == [0, 1, 2, 3]
    assert causes_ms(gaps, 0) == {}  # the span begins with the first compute
    assert causes_ms(gaps, 1) == {"logging": 2, "data_wait": 18, "host": 3, "h2d": 4, "other": 1}
    assert (causes_ms(gaps, 2), causes_ms(gaps, 3)) == ({"data_wait": 2, "host": 1}, {})
    assert (gaps.span_ns, gaps.busy_ns, gaps.idle_ns) == (81 * MS, 50 * MS, 31 * MS)
    assert gaps.data_wait_ns.tolist() == [10 * MS, 18 * MS, 12 * MS, 6 * MS]
    assert gaps.exposed_wait_ns.tolist() == [0, 18 * MS, 2 * MS, 0]
    assert gaps.hidden_wait_ns == (10 + 10 + 6) * MS
    assert gaps.by_step("h2d").tolist() == [0, 0.004, 0, 0]
    assert gaps.shares()["data_wait"] == pytest.approx(20 / 81)
    assert (sum(gaps.shares().values()), gaps.seconds("data_wait")) == (pytest.approx(1), 0.02)
    assert gaps.by_step("data_wait").tolist() == [0, 0.018, 0.002, 0]


def test_what_the_device_does_for_a_batch_before_its_step() -> None:
    steps = made(
        [
            {"asked": 0, "got": 1, "launched": 2, "busy": (1, 10)},
            # in hand at 3, decoded at 25 while the device waited: 15 of 15 ms, and a copy of its labels
            {
                "asked": 2,
                "got": 3,
                "decoded": 25,
                "copy": (25, 26),
                "launched": 26,
                "busy": (26, 30),
            },
            # decoded while the step before was running, and passed when that was done
            {
                "asked": 27,
                "got": 28,
                "decoded": 30,
                "copy": (30, 30),
                "launched": 29,
                "busy": (30, 40),
            },
            # copied from 41 to 43, normalised to 48, launched late
            {
                "asked": 35,
                "got": 41,
                "copy": (41, 43),
                "prepared": 48,
                "launched": 50,
                "busy": (50, 55),
            },
            # gathered from 57 to 59 while the loop waited for the batch
            {
                "asked": 55,
                "got": 60,
                "copy": (57, 57),
                "prepared": 59,
                "launched": 61,
                "busy": (61, 65),
            },
        ]
    )
    gaps = find_gaps(steps, ())
    assert (causes_ms(gaps, 1), causes_ms(gaps, 2)) == ({"data_wait": 15, "h2d": 1}, {})
    assert causes_ms(gaps, 3) == {"data_wait": 1, "h2d": 2, "host": 2}
    assert causes_ms(gaps, 4) == {"data_wait": 3, "host": 1}
    assert (gaps.prepare_ns // MS).tolist() == [0, 0, 0, 5, 2]
    assert (gaps.compute_ns // MS).tolist() == [9, 4, 10, 10, 6]
    assert (gaps.data_wait_ns // MS).tolist() == [1, 16, 1, 6, 5]
    assert gaps.hidden_wait_ns == (1 + 1 + 1 + 5 + 2) * MS
    assert (gaps.busy_ns, gaps.span_ns, gaps.busy_ns) == (39 * MS, 64 * MS, busy_ns(steps))
    line = timeline(steps, (), 0, 5).only("device")
    assert (line.end_s - line.start_s)[line.kind == KINDS.index("compute")].sum() == pytest.approx(
        39e-3
    )


def test_what_a_script_does_outside_its_steps_is_neither_recording_nor_host_work() -> None:
    steps = made(
        [
            # 3 ms before its step begins
            {"asked": 0, "got": 1, "launched": 12, "busy": (4, 12), "outside": 3},
            # 5 ms after the step, a wait of 2, and 4 ms in which the batch is copied for 1; then the launch is late
            {
                "asked": 17,
                "got": 19,
                "copy": (20, 21),
                "launched": 30,
                "busy": (25, 30),
                "outside": 9,
            },
            # it does not say where its step begins
            {"asked": 31, "got": 32, "launched": 40, "busy": (32, 40)},
            {"asked": 43, "got": 44, "launched": 50, "busy": (45, 50), "outside": 4, "epoch": 1},
        ]
    )
    gaps = find_gaps(steps, ())
    assert causes_ms(gaps, 1) == {"outside": 8, "data_wait": 2, "h2d": 1, "host": 2}
    assert causes_ms(gaps, 2) == {"logging": 1, "data_wait": 1}
    assert causes_ms(gaps, 3) == {"epoch_boundary": 4, "outside": 1}, (
        "between the epochs: 3 ms, and 1 of wait"
    )
    line = timeline(steps, (), 0, 4)
    for lane, expected in (("device", 9e-3), ("host", (3 + 5 + 4 + 1) * 1e-3)):
        spans = line.only(lane)
        assert (spans.end_s - spans.start_s)[
            spans.kind == KINDS.index("outside")
        ].sum() == pytest.approx(expected)


def test_evaluation_is_kept_apart_and_an_epochs_first_batch_is_the_epoch_boundary() -> None:
    steps = made(
        [
            {"asked": 0, "got": 1, "launched": 2, "busy": (1, 10), "resumed": 0},
            {"asked": 12, "got": 15, "launched": 20, "busy": (15, 25)},
            {
                "asked": 132,
                "got": 150,
                "launched": 151,
                "busy": (151, 160),
                "epoch": 1,
                "resumed": 130,
            },
        ]
    )
    phases = [
        Phase("startup", -5e-3, 0.0),
        Phase("evaluate", 20e-3, 128e-3),
        Phase("evaluate", 1.0, 2.0),
    ]
    gaps = find_gaps(steps, phases)
    # up to 128 evaluation, resumed at 130; 130..132 between the epochs, 132..150 the first batch, 1 ms of host work
    assert causes_ms(gaps, 2) == {"epoch_boundary": 20, "host": 1}
    assert (causes_ms(gaps, 1), causes_ms(gaps, 0)) == (
        {"logging": 2, "data_wait": 3},
        {"data_wait": 1},
    )
    assert (gaps.evaluation_ns, gaps.idle_ns, gaps.span_ns) == (
        0,
        (1 + 5 + 21) * MS,
        (1 + 5 + 21 + 28) * MS,
    )
    # of an older record, which does not say where it resumed
    steps["gap_s"][:] = NAN
    gaps = find_gaps(steps, phases)
    assert causes_ms(gaps, 2) == {"evaluation": 103, "epoch_boundary": 22, "host": 1}
    assert (gaps.evaluation_ns, gaps.idle_ns, gaps.span_ns) == (
        103 * MS,
        (5 + 23) * MS,
        (160 - 1 - 103) * MS,
    )
    assert gaps.exposed_wait_ns[2] == 18 * MS


@st.composite
def traces(draw: Any, *, on_device: bool = False) -> tuple[dict[str, np.ndarray], list[Phase]]:
    """Marks in any order that a loop, a copy engine and a device can produce, in microseconds, and evaluations.
    `on_device`: batches may be decoded or prepared there."""
    length = st.integers(0, 6)
    rows, host, copied, device, epoch = [], 3, 0, 0, 0
    phases = []
    for _ in range(draw(st.integers(1, 6))):
        row: dict[str, Any] = {"asked": host + draw(length)}
        row["got"] = row["asked"] + draw(length)
        copy = max(row["got"] + draw(length), copied)
        copied = copy + draw(length)
        row["copy"] = (copy, copied)
        row["launched"] = row["got"] + draw(length)
        start = max(device, copied) + draw(length)
        if on_device and (played := draw(st.sampled_from(("decoded", "prepared", "")))):
            least = max(row["got"], device) if played == "decoded" else copied
            row[played] = least + draw(length)
            start = max(start, row[played])
        device = start + draw(length)
        row["busy"] = (start, device)
        row["epoch"] = epoch
        host = row["launched"]
        rows.append(row)
        if draw(st.booleans()):
            epoch += 1
            begin = host + draw(length)
            host = begin + draw(length)
            device = max(device, host)
            phases.append(Phase("evaluate", begin * 1e-6, host * 1e-6))
    return made(rows, 1e-6), phases


def counted(steps: dict[str, np.ndarray], phases: list[Phase]) -> list[dict[str, int]]:
    """Causes of each gap, microsecond by microsecond, by the rule in words."""
    us = {name: np.rint(values * 1e6) for name, values in steps.items()}
    evaluations = {
        t for p in phases for t in range(round(p.t_start_s * 1e6), round(p.t_end_s * 1e6))
    }
    decoding, preparing = (
        np.nan_to_num(us[name]) for name in ("decode_wait_s", "device_prepare_s")
    )
    found = []
    end = int(us["compute_start_s"][0])
    launched_before = us["t_start_s"][0]
    for k in range(len(us["step"])):
        asked = us["t_start_s"][k]
        got = asked + us["data_wait_s"][k] - decoding[k]
        arrived = max(got, end) + decoding[k] if decoding[k] else got
        launched = got + us["host_s"][k]
        copy = us["h2d_start_s"][k]
        prepare = min(max(copy + us["h2d_s"][k], end), us["compute_start_s"][k])
        first = k > 0 and us["epoch"][k] > us["epoch"][k - 1]
        causes = dict.fromkeys(CAUSES, 0)
        for t in range(end, int(us["compute_start_s"][k])):
            if prepare <= t < prepare + preparing[k]:
                continue
            if t in evaluations:
                causes["evaluation"] += 1
            elif asked <= t < arrived:
                causes["epoch_boundary" if first else "data_wait"] += 1
            elif copy <= t < copy + us["h2d_s"][k]:
                causes["h2d"] += 1
            elif arrived <= t < launched or t < launched_before:
                causes["host"] += 1
            elif launched_before <= t < asked:
                causes["epoch_boundary" if first else "logging"] += 1
            else:
                causes["other"] += 1
        end = int(us["compute_start_s"][k] + us["compute_s"][k] - preparing[k])
        launched_before = launched
        found.append(causes)
    return found


@settings(max_examples=50)
@given(st.one_of(traces(), traces(on_device=True)))
def test_gaps_are_what_a_count_of_single_moments_finds(trace: Any) -> None:
    steps, phases = trace
    gaps = find_gaps(steps, phases)
    expected = counted(steps, phases)
    assert (gaps.causes_ns // 1000).tolist() == [[row[c] for c in CAUSES] for row in expected]
    assert gaps.busy_ns + gaps.idle_ns == gaps.span_ns
    start, end = (
        int(gaps.end_ns[0]),
        int(gaps.end_ns[-1] + gaps.compute_ns[-1] - gaps.prepare_ns[-1]),
    )
    assert gaps.span_ns + gaps.evaluation_ns == end - start
    assert gaps.busy_ns == busy_ns(steps)
    assert (gaps.exposed_wait_ns <= gaps.data_wait_ns).all()


@settings(max_examples=50)
@given(st.one_of(traces(), traces(on_device=True)), st.data())
def test_a_time_line_shows_the_same_gaps_moment_by_moment(trace: Any, data: Any) -> None:
    steps, phases = trace
    n = len(steps["step"])
    first = data.draw(st.integers(0, n - 1))
    stop = data.draw(st.integers(first + 1, n))
    gaps, line = find_gaps(steps, phases), timeline(steps, phases, first, stop)
    ns = np.rint((line.end_s - line.start_s) * 1e9).astype(int)
    device = line.lane == LANES.index("device")
    for row in range(first, stop):
        mine = device & (line.step == row)
        for cause, expected in zip(CAUSES, gaps.causes_ns[row].tolist(), strict=True):
            assert ns[mine & (line.kind == KINDS.index(cause))].sum() == expected
        assert ns[mine & (line.kind == KINDS.index("compute"))].sum() == gaps.compute_ns[row]
        asked, got = steps["t_start_s"][row], got_s(steps)[row]
        waits = (
            (line.lane == LANES.index("host"))
            & (line.step == row)
            & (line.start_s >= asked - 1e-10)
        )
        waits &= (line.end_s <= got + 1e-10) & (line.kind != KINDS.index("host"))
        assert (line.end_s - line.start_s)[waits].sum() == pytest.approx(got - asked, abs=1e-10)
    assert (line.end_s > line.start_s).all()
    for lane in LANES:
        here = line.lane == LANES.index(lane)
        order = np.argsort(line.start_s[here])
        assert (line.start_s[here][order][1:] >= line.end_s[here][order][:-1] - 1e-12).all()


@settings(max_examples=50)
@given(st.one_of(traces(), traces(on_device=True)), st.integers(1, 4), st.data())
def test_gaps_worked_out_in_blocks_are_those_of_all_steps_at_once(
    trace: Any, block: int, data: Any
) -> None:
    steps, phases = trace
    n = len(steps["step"])
    flags = st.lists(st.booleans(), min_size=n, max_size=n).map(np.array)
    for name in (
        "compute_s",
        "gap_s",
        "t_start_s",
    ):  # not every time is known, and the recorder resumed at some
        steps[name] = np.where(data.draw(flags), steps[name], NAN)
    whole, keep = find_gaps(steps, phases), data.draw(flags)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vitprof.analysis.timing.gaps.BLOCK", block)
        blocks = find_gaps(steps, phases)
    for name, values in vars(whole).items():
        np.testing.assert_array_equal(getattr(blocks, name), values)
    assert whole.only(keep).span_ns + whole.only(~keep).span_ns == whole.span_ns


def test_their_sums_say_the_same_of_the_whole() -> None:
    rng = np.random.default_rng(3)
    bubbles = np.where(np.arange(40) % 2, 0.001, NAN)
    steps = made_steps(
        rng.exponential(0.01, 40), rng.exponential(0.01, 40), h2d=0.001, launch_idle_s=bubbles
    )
    gaps = find_gaps(steps, [Phase("evaluate", 100.2, 100.21)])
    one = gaps.summed()
    assert (len(one.index), one.shares()) == (1, gaps.shares())
    for name in (
        "busy_ns",
        "idle_ns",
        "span_ns",
        "evaluation_ns",
        "hidden_wait_ns",
        "launch_idle_frac",
    ):
        assert getattr(one, name) == pytest.approx(getattr(gaps, name), rel=1e-12), name


def test_compute_that_overlaps_by_rounding_is_counted_once() -> None:
    steps = made(
        [
            {"asked": 0, "got": 1, "launched": 2, "busy": (2, 10)},
            {"asked": 2, "got": 3, "launched": 4, "busy": (9.9995, 12)},
            {"asked": 4, "got": 5, "launched": 6, "busy": (11, 11.5)},  # within the one before
            {"asked": 6, "got": 7, "launched": 8, "busy": (13, 14)},
        ]
    )
    gaps = find_gaps(steps, ())
    assert gaps.span_ns == 12 * MS
    assert gaps.compute_ns.tolist() == [8 * MS, 2 * MS, 0, 1 * MS]
    assert (gaps.idle_s.tolist(), gaps.busy_ns) == ([0, 0, 0, 1e-3], busy_ns(steps))


def test_what_is_not_known_is_left_out_or_other() -> None:
    rows = [
        {"asked": k, "got": k + 4, "launched": k + 5, "busy": (k + 5, k + 9)}
        for k in range(0, 40, 10)
    ]
    whole = find_gaps(made(rows), ())
    assert causes_ms(whole, 1) == {
        "logging": 1,
        "data_wait": 4,
        "host": 1,
    }  # launched at 5, computed from 5 to 9
    steps = made(rows)
    steps["compute_s"][1] = NAN
    gaps = find_gaps(steps, ())
    assert gaps.index.tolist() == [0, 2, 3]
    assert causes_ms(gaps, 1) == {
        "data_wait": 4,
        "host": 1,
        "other": 1,
    }  # from gap_s; the launch before is not known
    steps["gap_s"][2] = NAN
    assert causes_ms(find_gaps(steps, ()), 1) == {}
    steps = made(rows)
    steps["t_start_s"][2] = NAN
    assert causes_ms(find_gaps(steps, ()), 2) == {"other": 6}
    steps = made(rows)
    for name in ("host_s", "h2d_start_s"):
        steps[name][:] = NAN
    assert causes_ms(find_gaps(steps, ()), 2) == {"data_wait": 4, "host": 1, "other": 1}


def test_runs_without_compute_with_one_step_and_with_none() -> None:
    rows = [
        {"asked": k, "got": k + 9, "launched": k + 9.5, "busy": (k + 9.5,) * 2}
        for k in range(0, 50, 10)
    ]
    gaps = find_gaps(made(rows), ())
    assert (gaps.busy_ns, gaps.shares()["busy"], gaps.seconds("data_wait")) == (0, 0.0, 0.036)
    one = find_gaps(made(rows[:1]), ())
    assert one.span_ns == 0
    none = find_gaps(made([]), ())
    assert (none.span_ns, len(none.index), none.causes_ns.shape) == (0, 0, (0, 8))
    for empty in (one, none):
        assert all(math.isnan(v) for v in empty.shares().values())
        assert all(math.isnan(i.value) for i in without_starts(empty).values())
    assert len(timeline(made([]), (), 0, 0).step) == 0


def test_the_interval_of_the_idle_share_holds_it_and_closes_around_constant_steps() -> None:
    n = 400
    rng = np.random.default_rng(1)
    steps = made_steps(rng.exponential(0.01, n), np.full(n, 0.01), h2d=0.002)
    gaps = find_gaps(steps, ()).only(steady_state(steps))
    found = without_starts(gaps)
    assert set(found) == {"idle", "waits", *IDLE_CAUSES}
    assert found["waits"].value == pytest.approx(found["data_wait"].value + found["h2d"].value)
    idle, wait = found["idle"], found["data_wait"]
    assert (idle.value, wait.value) == pytest.approx(
        (1 - gaps.shares()["busy"], gaps.shares()["data_wait"])
    )
    assert wait.low < wait.value < wait.high
    assert idle.low < idle.value < idle.high < idle.low + 0.1
    assert found["other"].value == pytest.approx(0, abs=1e-9)
    alike = find_gaps(made_steps(np.full(n, 0.02), np.full(n, 0.01)), ())
    constant = without_starts(alike)["data_wait"]
    assert constant == pytest.approx((2 / 3,) * 3)
    few = without_starts(find_gaps(made_steps([0.1] * 3, [0.1] * 3), ()))["idle"]
    assert (few.value, math.isnan(few.low)) == (pytest.approx(0.5), True)


def test_many_steps_below_a_millisecond_stay_exact() -> None:
    n = 3 * BLOCK + 7
    wait, busy = 123_457, 76_543  # ns: steps of 0.2 ms
    steps = made_steps(
        np.full(n, wait * 1e-9), busy * 1e-9, began=5e5, host_s=busy * 1e-9, gap_s=NAN
    )
    gaps = find_gaps(steps, [Phase("evaluate", 0.0, 1.0)])
    assert gaps.busy_ns + gaps.idle_ns == gaps.span_ns
    # Stamps are float64 seconds half a million seconds after the machine started: exact to 0.06 ns each.
    assert abs(gaps.busy_ns - busy * n) <= n
    assert np.abs(gaps.causes_ns[1:, CAUSES.index("data_wait")] - wait).max() <= 2


def without_starts(gaps: Gaps) -> dict[str, Interval]:
    """Intervals of gaps none of which begins an epoch."""
    return TrainingTime(gaps, np.zeros(len(gaps.index), dtype=bool)).intervals()


def test_a_gap_at_an_epochs_start_is_divided_as_the_verdict_divides_it() -> None:
    """Steps wait 20 ms, the first one of an epoch 50: 30 of these are due to the start. The card said 9%, the bar
    below it 13%."""
    waits_s = np.full(40, 0.02)
    waits_s[[10, 20, 30]] = 0.05
    steps = made_steps(waits_s, np.full(40, 0.01), epochs=np.arange(40) // 10)
    whole = find_gaps(steps, ())
    training = training_time(steps, ())
    assert training.n_starts == 3
    gaps = training.gaps
    assert gaps.seconds("epoch_boundary") == pytest.approx(3 * 0.03)
    exposure = find_exposure(RunConfig(), steps, ())
    of_starts = next(s for s in exposure.shares if s.name == "epoch_start")
    said = of_starts.frac * exposure.idle.value
    assert gaps.shares()["epoch_boundary"] == pytest.approx(said, rel=1e-6)
    assert gaps.idle_ns == whole.only(training_steps(steps)).idle_ns, "nothing is lost"
    assert gaps.seconds("outside") == whole.seconds("outside")


def test_what_a_loop_does_between_epochs_is_no_wait_for_data() -> None:
    """The loop validates for 40 ms before it asks for the first batch of an epoch."""
    waits_s = np.full(40, 0.02)
    steps = made_steps(waits_s, np.full(40, 0.01), epochs=np.arange(40) // 10, host_s=0.0)
    late = np.arange(40) // 10 * 0.04
    for name in ("t_start_s", "compute_start_s"):
        steps[name] += late
    steps["gap_s"] = np.full(40, NAN)
    gaps = training_time(steps, ()).gaps
    assert gaps.seconds("outside") == pytest.approx(3 * 0.04)
    assert gaps.seconds("epoch_boundary") == pytest.approx(0, abs=1e-9)


def test_without_an_epochs_start_nothing_is_divided() -> None:
    gaps = find_gaps(made_steps(np.full(9, 0.02), np.full(9, 0.01)), ())
    assert divided_at_starts(gaps, np.zeros(len(gaps.index), dtype=bool)) is gaps
