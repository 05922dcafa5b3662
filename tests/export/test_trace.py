"""A trace is what the Trace Event Format asks for: strictly typed, nested, sorted, and true to the steps."""

import gzip
import itertools
import json
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.command_line import Call, one_line
from tests.export.written import written
from tests.series import made_steps
from tests.stored_series import append_steps, append_telemetry
from tests.ui.dashboard import add_run
from vitprof.export import trace
from vitprof.export.trace import COUNTERS, QUEUE, TrackPacker, write_trace, write_trace_gz
from vitprof.recording.columns import STEP_COLUMNS, TELEMETRY_COLUMNS, Phase
from vitprof.store import RunStore, StoredRun

Event = dict[str, Any]
NS = 1e3
"""Nanoseconds in the microsecond of a trace."""


def text_of(store: RunStore, runs: Sequence[StoredRun], *, whole: bool = False) -> str:
    return written(write_trace, store, runs, whole=whole).decode()


def checked(text: str) -> list[Event]:
    """The events of a trace, each held against the format."""

    trace = json.loads(text, parse_constant=pytest.fail)  # such as NaN
    assert set(trace) == {"displayTimeUnit", "otherData", "traceEvents"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    events: list[Event] = trace["traceEvents"]
    for event in events:
        always, extra = (
            {"ph", "name", "pid", "tid", "ts"},
            {"X": "dur", "C": "args", "M": "args"}[event["ph"]],
        )
        assert always | {extra} <= set(event) <= always | {"dur", "args"}
        assert [type(event[name]) for name in ("pid", "tid", "name")] == [int, int, str]
        for moment in (event["ts"], event.get("dur", 0)):
            assert isinstance(moment, (int, float))
            assert moment >= 0
        if event["ph"] == "C":
            assert [type(value) for value in event["args"].values()] in ([int], [float])
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    tracks = by_track(events)
    assert set(tracks) == named, "every track has a name, and no name is without a track"
    for track, spans in tracks.items():
        open_until: list[int] = []
        for start, end, name in spans:  # as a viewer nests them: by start, the longer one outside
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1], (
                f"{name} overlaps another event of {track} in part"
            )
            open_until.append(end)
    times = defaultdict(list)
    for event in events:
        if event["ph"] == "C":
            times[event["pid"], event["name"]].append(event["ts"])
    assert all(seen == sorted(seen) for seen in times.values())
    return events


def by_track(events: Sequence[Event]) -> dict[tuple[int, int], list[tuple[int, int, str]]]:
    """Track -> (start, end, name) in whole nanoseconds, in the order of nesting."""
    tracks = defaultdict(list)
    for e in events:
        if e["ph"] == "X":
            start = round(e["ts"] * NS)
            tracks[e["pid"], e["tid"]].append((start, start + round(e["dur"] * NS), e["name"]))
    return {track: sorted(found, key=lambda x: (x[0], -x[1])) for track, found in tracks.items()}


def names(events: Sequence[Event]) -> dict[str, list[Event]]:
    """Name of a track -> its spans."""
    title = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    found = defaultdict(list)
    for e in events:
        if e["ph"] == "X":
            found[title[e["pid"], e["tid"]]].append(e)
    return found


def overlapping(store: RunStore, n: int = 40) -> int:
    """A run whose two workers, copies and device all work at the same time; each copy begins in the one before."""
    run_id = add_run(store, n=0, device="simulated:8,0", strategy="workers", workers=2)
    k, t = np.arange(n), 100 + np.arange(n) * 0.004
    known = {
        "epoch": k // 20,
        "worker": k % 2,
        "queue_depth": k % 3,
        "launch_idle_s": np.where(k < 20, np.nan, 0.001),
    }
    known |= {
        "t_start_s": t,
        "step_s": 0.004,
        "gap_s": 0.001,
        "exposed_wait_s": 0.0,
        "host_s": 0.0005,
        "read_s": 0.002,
    }
    known |= {
        "h2d_start_s": t + 0.0012,
        "compute_start_s": t + 0.0065,
        "made_start_s": t - 0.007,
        "made_end_s": t,
    }
    steps = made_steps([0.001] * n, 0.003, h2d=0.005, **known)
    append_steps(store, run_id, np.stack([steps[name] for name in STEP_COLUMNS], axis=1))
    for seq in range(1, 9):
        known = {
            "t_s": 100 + seq / 50,
            "gpu_util_pct": 10.0 * seq,
            "gpu_power_w": math.nan if seq % 2 else 70.0,
        }
        append_telemetry(
            store, run_id, seq, [[known.get(name, math.nan) for name in TELEMETRY_COLUMNS]]
        )
    phases = [
        Phase("startup", 99.0, 99.9),
        Phase("stage", 99.5, 100.1),
        Phase("evaluate", 100.0835, 100.0836),
    ]
    store.update_run(run_id, status="done", t_origin_s=99.0, phases=phases)
    return run_id


def test_tracks_tell_what_happened_when(store: RunStore) -> None:
    events = checked(text_of(store, [store.run(overlapping(store))]))
    tracks, counters = names(events), defaultdict(list)
    assert {"phases", "phases (2)", "training loop", "device", "H2D copy", "H2D copy (2)"} <= set(
        tracks
    )
    assert len(tracks["loader worker 0"]) == len(tracks["loader worker 1"]) == 20
    first = tracks["loader worker 1"][0]
    assert (first["ts"], first["dur"]) == pytest.approx(
        (997_000, 7_000)
    )  # step 1: made from 99.997 s on
    assert first["args"] == {"step": 1, "read_ms": 2.0}
    wait, host = (
        next(e for e in tracks["training loop"] if e["name"] == n)
        for n in ("data wait", "host work")
    )
    assert (wait["ts"], wait["dur"], wait["args"]) == (1e6, 1e3, {"step": 0})
    assert (host["ts"], host["dur"]) == (1_001_000, 500)
    compute = [e for e in tracks["device"] if e["name"] == "compute"]
    assert [e["args"]["step"] for e in compute] == list(range(40))
    assert {e["dur"] for e in compute} == {3_000}
    assert {"idle: H2D"} <= {e["name"] for e in tracks["device"]} - {"compute"}
    assert len(tracks["H2D copy"]) + len(tracks["H2D copy (2)"]) == 40
    ends = {e["args"]["step"]: e["ts"] + e["dur"] for e in compute}
    bubbles = tracks["launch bubbles"]
    assert [e["args"]["step"] for e in bubbles] == list(range(20, 40))
    assert all((e["name"], e["dur"]) == ("launch bubbles", 1_000) for e in bubbles)
    assert [e["ts"] + e["dur"] for e in bubbles] == pytest.approx(
        [ends[e["args"]["step"]] for e in bubbles]
    )
    for e in events:
        if e["ph"] == "C":
            counters[e["name"]].append((e["ts"], e["args"]["value"]))
    known = ("gpu_util_pct", "gpu_power_w", "cpu_pct", "job_cpu_pct", "job_rss_bytes")
    assert set(counters) == {*(COUNTERS[name] for name in known), QUEUE}, (
        "none of what is not available"
    )
    assert counters[COUNTERS["gpu_util_pct"]] == [
        (pytest.approx(1e6 + s * 2e4), 10.0 * s) for s in range(1, 9)
    ]
    assert [value for _, value in counters[COUNTERS["gpu_power_w"]]] == [70.0] * 4
    assert [value for _, value in counters[QUEUE]][:4] == [0, 1, 2, 0]


def test_compute_and_gaps_of_the_device_add_up(store: RunStore) -> None:
    run = store.run(add_run(store, n=60, wait_s=0.004))
    device = names(checked(text_of(store, [run])))["device"]
    total = sum(e["dur"] for e in device) / 1e6
    assert total == pytest.approx(
        60 * 0.009 - 0.004
    )  # from the first compute to the end of the last
    idle = sum(e["dur"] for e in device if e["name"] == "idle: data wait") / 1e6
    assert idle == pytest.approx(59 * 0.004)


def test_several_runs_are_processes_beside_each_other_and_say_what_is_simulated(
    store: RunStore,
) -> None:
    ids = [overlapping(store), add_run(store, name='"<b>'), add_run(store, n=0, status="failed")]
    text = text_of(store, [store.run(i) for i in ids])
    events = checked(text)
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert list(processes) == ids
    assert processes[ids[0]].endswith("(simulated device)")
    assert processes[ids[1]] == f'run {ids[1]}: "<b>'
    assert json.loads(text)["otherData"]["simulated"] == str(ids[0])
    assert (
        gzip.decompress(written(write_trace_gz, store, [store.run(i) for i in ids])).decode()
        == text
    )


def test_a_run_that_only_loaded_and_one_without_an_origin_have_a_trace(store: RunStore) -> None:
    run_id = add_run(store, n=5, loader_only=True)
    store.update_run(run_id, t_origin_s=None)
    tracks = names(checked(text_of(store, [store.run(run_id)])))
    assert [e["args"]["step"] for e in tracks["loader"]] == list(range(5))
    assert tracks["loader"][0]["ts"] == 0


@settings(max_examples=40)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=20),
        min_size=1,
        max_size=5,
    )
)
def test_lanes_hold_one_thing_at_a_time_and_are_as_few_as_can_be(
    parts: list[list[tuple[int, int]]],
) -> None:
    """Those of several parts do not overlap either; of a single part there are no more than needed."""
    packer = TrackPacker()
    lanes: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for pairs in parts:
        start = np.array([a for a, _ in pairs], dtype=np.int64)
        end = start + np.array([n for _, n in pairs], dtype=np.int64)
        for lane, a, b in zip(
            packer.pack(start, end).tolist(), start.tolist(), end.tolist(), strict=True
        ):
            lanes[lane].append((a, b))
    assert len(lanes) <= packer.n_lanes
    for spans in lanes.values():
        assert all(b[0] >= a[1] for a, b in itertools.pairwise(sorted(spans)))
    if len(parts) == 1:
        at_once = max((int(((start <= t) & (end > t)).sum()) for t in start), default=0)
        assert len(lanes) <= max(at_once, 1) + int((start == end).any())


def test_a_trace_in_pieces_is_the_trace_at_once(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = store.run(overlapping(store, n=50))
    at_once = checked(text_of(store, [run]))
    in_parts = RunStore.steps_in_parts
    monkeypatch.setattr(
        RunStore, "steps_in_parts", lambda self, run_id: in_parts(self, run_id, rows=7)
    )

    def spans(events: Sequence[Event]) -> list[str]:
        return sorted(
            json.dumps([e["name"], e["ts"], e["dur"], e.get("args")])
            for e in events
            if e["ph"] == "X"
        )

    assert spans(checked(text_of(store, [run]))) == spans(at_once)


def test_the_first_steps_of_a_long_run_or_all_on_request(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "MOST_STEPS", 40)
    in_parts = RunStore.steps_in_parts
    monkeypatch.setattr(
        RunStore, "steps_in_parts", lambda self, run_id: in_parts(self, run_id, rows=30)
    )
    long, short = add_run(store, n=100), add_run(store, n=30)
    cut = f"run {long}: the first 40 of 100 steps"
    for run_id, whole, n, told in (
        (long, False, 40, cut),
        (long, True, 100, "no"),
        (short, False, 30, "no"),
    ):
        text = text_of(store, [store.run(run_id)], whole=whole)
        events = checked(text)
        assert sorted(e["args"]["step"] for e in events if e["name"] == "compute") == list(range(n))
        assert json.loads(text)["otherData"]["cut"] == told
        (name,) = (e["args"]["name"] for e in events if e["name"] == "process_name")
        assert name.endswith("(the first 40 of 100 steps)") is (n == 40)


def test_the_terminal_says_that_a_trace_is_cut_and_how_to_have_all(
    call: Call, mine: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "MOST_STEPS", 40)
    add_run(mine, n=60)
    target = str(tmp_path / "x.json")
    err = one_line(call, "export", "1", "--format", "trace", "--output", target, status=0)
    assert "run 1: the first 40 of 60 steps" in err
    assert "--all-steps" in err
    assert call("export", "1", "--format", "trace", "--all-steps", "--output", target) == (
        0,
        "",
        "",
    )
    assert call("export", "1", "--format", "html", "--all-steps", "--output", target)[0] == 2
