"""The size of a run's trace as JSON, and as Perfetto's protobuf.

    python -m benchmarks.trace_sizes [--steps 100000] [--last 1.0] [--spelling compact]

Needs the package `perfetto`. A real job (worker processes, a simulated GPU) is run once. Its steps are repeated, later
each time, until there are as many as asked for, so that times are as irregular as real ones. `vitprof export --format
trace --all-steps` writes them as JSON. Each event of that file is then written as TrackEvents, with a flow from the
worker that made a batch to the step that waited for it. The spans of a part of the file are read back and compared.
Printed are bytes for each step, as they are and compressed (gzip, level 6). With `--last 0.1` they are those of the
last tenth of the file, whose numbers are the longest: the protobuf of a million steps takes minutes.

Spellings, each smaller than the one before:

plain: absolute times and names in every packet, as most examples write them.
compact: interned names, a sequence for each track, and an incremental clock of nanoseconds.
least: the same with the number of the step in the spans "compute" and "make batch" alone, and without the flag that a
packet needs its sequence's state.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackEvent

from vitprof.config import RunConfig
from vitprof.config.resolve import resolve
from vitprof.export.trace import write_trace
from vitprof.home import STORE_FILE
from vitprof.store import RunStore
from vitprof.store.chunks import chunks_of
from vitprof.store.nodes import MOMENTS

REAL_STEPS = 2_000
JOB = (
    *("run", "--strategy", "workers", "--workers", "2", "--device", "simulated:h100"),
    *("--batch-size", "64", "--steps", str(REAL_STEPS), "--no-evaluate", "--threads", "1"),
)
SPELLINGS = ("plain", "compact", "least")
BOOTTIME = 6
"""Perfetto's number of the clock of a trace."""
INCREMENTAL = 64
"""The first number of a clock of a sequence's own."""
NUMBERED = ("compute", "make batch")
"""Spans that have the number of their step in the least spelling."""
READ_BACK = 200_000
"""Events of which the protobuf is read back and compared with the JSON."""


def recorded(store: RunStore, home: Path, n: int) -> int:
    """Returns the number of a run of `n` steps, made of those of a real one."""
    environment = os.environ | {"VITPROF_HOME": str(home)}
    subprocess.run(
        [sys.executable, "-m", "vitprof", *JOB], env=environment, check=True, stdout=subprocess.PIPE
    )
    real = store.run(1)
    steps = store.steps(real.id)
    telemetry = store.telemetry(real.id)
    n_real = len(steps["step"])
    later_s = float(steps["t_start_s"][-1] - steps["t_start_s"][0] + steps["step_s"].mean())
    run_id = store.create_run(resolve(RunConfig(steps=n, device="simulated:h100")))
    epochs = float(steps["epoch"].max()) + 1
    for first in range(0, n, n_real):
        turn = first // n_real
        part = {name: values[: n - first].copy() for name, values in steps.items()}
        for name in MOMENTS:
            part[name] += turn * later_s
        part["step"] += first
        part["epoch"] += turn * epochs
        store.record(run_id, chunks_of("steps", part))
    seq = np.arange(len(telemetry["t_s"]), dtype=float)
    store.record(run_id, chunks_of("telemetry", {"seq": seq, **telemetry}))
    store.update_run(run_id, status="done", t_origin_s=real.t_origin_s, phases=real.phases)
    return run_id


@dataclass
class Sizes:
    """Bytes of a file that is counted and not kept."""

    plain: int = 0
    packed: int = 0
    _packer: Any = field(default_factory=lambda: zlib.compressobj(6, zlib.DEFLATED, 31))

    def write(self, data: bytes) -> None:
        self.plain += len(data)
        self.packed += len(self._packer.compress(data))

    def close(self) -> None:
        self.packed += len(self._packer.flush())


@dataclass
class Track:
    """A sequence of packets, one for each track of the trace."""

    number: int
    last_ns: int = 0
    names: dict[str, int] = field(default_factory=dict)
    is_counter: bool = False


class Writer:
    """Writes the events of a JSON trace as TrackEvents."""

    def __init__(self, spelling: str, emit: Callable[[bytes], None]) -> None:
        self._plain = spelling == "plain"
        self._least = spelling == "least"
        self._emit = emit
        self._tracks: dict[tuple[int, int, str], Track] = {}
        self._names: dict[tuple[int, int], str] = {}

    def event(self, event: dict[str, Any]) -> None:
        """Writes one event."""
        kind = event["ph"]
        place = (event["pid"], event["tid"])
        if kind == "M":
            if event["name"] == "thread_name":
                self._names[place] = event["args"]["name"]
            return
        is_counter = kind == "C"
        key = (*place, event["name"] if is_counter else "")
        track = self._tracks.get(key)
        if track is None:
            track = self._begin_track(key, is_counter=is_counter)
        at_ns = round(event["ts"] * 1e3)
        if is_counter:
            packet = self._packet(track, at_ns)
            packet.track_event.type = TrackEvent.TYPE_COUNTER
            packet.track_event.double_counter_value = event["args"]["value"]
            self._send(packet)
            return
        packet = self._packet(track, at_ns)
        begin = packet.track_event
        begin.type = TrackEvent.TYPE_SLICE_BEGIN
        name = event["name"]
        if self._plain:
            begin.name = name
        else:
            begin.name_iid = self._interned(track, packet, name)
        step = event.get("args", {}).get("step")
        if step is not None and (not self._least or name in NUMBERED):
            note = begin.debug_annotations.add()
            if self._plain:
                note.name = "step"
            else:
                note.name_iid = 1
            note.int_value = step
        if step is not None and name == "make batch":
            begin.flow_ids.append(step + 1)
        if step is not None and name == "data wait":
            begin.terminating_flow_ids.append(step + 1)
        self._send(packet)
        packet = self._packet(track, at_ns + round(event["dur"] * 1e3))
        packet.track_event.type = TrackEvent.TYPE_SLICE_END
        self._send(packet)

    def _begin_track(self, key: tuple[int, int, str], *, is_counter: bool) -> Track:
        number = len(self._tracks) + 1
        track = Track(number, is_counter=is_counter)
        self._tracks[key] = track
        packet = TracePacket()
        packet.trusted_packet_sequence_id = number
        packet.sequence_flags = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        described = packet.track_descriptor
        described.uuid = number
        described.name = key[2] or self._names.get(key[:2], "")
        if is_counter:
            described.counter.SetInParent()
        if not self._plain:
            packet.trace_packet_defaults.timestamp_clock_id = INCREMENTAL
            packet.trace_packet_defaults.track_event_defaults.track_uuid = number
            annotation = packet.interned_data.debug_annotation_names.add()
            annotation.iid = 1
            annotation.name = "step"
        self._send(packet)
        if not self._plain:
            clocks = TracePacket()
            clocks.trusted_packet_sequence_id = number
            clocks.clock_snapshot.primary_trace_clock = BOOTTIME
            for clock_id in (BOOTTIME, INCREMENTAL):
                clock = clocks.clock_snapshot.clocks.add()
                clock.clock_id = clock_id
                clock.timestamp = 0
                clock.is_incremental = clock_id == INCREMENTAL
            self._send(clocks)
        return track

    def _packet(self, track: Track, at_ns: int) -> Any:
        packet = TracePacket()
        packet.trusted_packet_sequence_id = track.number
        if self._plain:
            packet.timestamp = at_ns
            packet.track_event.track_uuid = track.number
            return packet
        if at_ns < track.last_ns:
            raise ValueError(f"track {track.number} goes back in time at {at_ns} ns")
        packet.timestamp = at_ns - track.last_ns
        track.last_ns = at_ns
        if not self._least:
            packet.sequence_flags = TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        return packet

    def _interned(self, track: Track, packet: Any, name: str) -> int:
        known = track.names.get(name)
        if known is not None:
            return known
        number = len(track.names) + 1
        track.names[name] = number
        entry = packet.interned_data.event_names.add()
        entry.iid = number
        entry.name = name
        return number

    def _send(self, packet: Any) -> None:
        body = packet.SerializeToString()
        self._emit(b"\x0a" + _varint(len(body)) + body)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def events_of(path: Path, last: float = 1.0) -> Iterator[dict[str, Any]]:
    """Yields the events of a JSON trace, each of which has a line: of the `last` share of the file."""
    for line in lines_of(path, last):
        text = line.rstrip().rstrip(b",")
        # the first line, and the last, are no events
        if text.startswith(b'{"ph"'):
            yield json.loads(text)


def lines_of(path: Path, last: float) -> Iterator[bytes]:
    """Yields the lines of the `last` share of a file."""
    with path.open("rb") as file:
        file.seek(int(path.stat().st_size * (1 - last)))
        next(file)
        yield from file


Span = tuple[str, int, int, int | None]
"""Name, begin and end in ns, step."""


def spans_of(trace: bytes) -> dict[str, list[Span]]:
    """Returns the spans of each track of a trace in the compact spelling."""
    names: dict[int, dict[int, str]] = {}
    tracks: dict[int, str] = {}
    now: dict[int, int] = {}
    begun: dict[int, tuple[str, int, int | None]] = {}
    spans: dict[str, list[Span]] = {}
    for packet in Trace.FromString(trace).packet:
        sequence = packet.trusted_packet_sequence_id
        if packet.HasField("track_descriptor"):
            tracks[sequence] = packet.track_descriptor.name
        for entry in packet.interned_data.event_names:
            names.setdefault(sequence, {})[entry.iid] = entry.name
        if not packet.HasField("track_event"):
            continue
        now[sequence] = now.get(sequence, 0) + packet.timestamp
        event = packet.track_event
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            if sequence in begun:
                raise ValueError(f"two spans of {tracks[sequence]} overlap")
            step = next((note.int_value for note in event.debug_annotations), None)
            begun[sequence] = (names[sequence][event.name_iid], now[sequence], step)
        elif event.type == TrackEvent.TYPE_SLICE_END:
            name, begin, step = begun.pop(sequence)
            spans.setdefault(tracks[sequence], []).append((name, begin, now[sequence], step))
    if begun:
        raise ValueError("a span has no end")
    return spans


def spans_of_json(path: Path, most: int) -> dict[str, list[Span]]:
    """Returns the same of the first `most` events of a JSON trace."""
    names: dict[int, str] = {}
    spans: dict[str, list[Span]] = {}
    for number, event in enumerate(events_of(path)):
        if number >= most:
            break
        if event["ph"] == "M" and event["name"] == "thread_name":
            names[event["tid"]] = event["args"]["name"]
        if event["ph"] != "X":
            continue
        begin = round(event["ts"] * 1e3)
        end = begin + round(event["dur"] * 1e3)
        step = event.get("args", {}).get("step")
        spans.setdefault(names[event["tid"]], []).append((event["name"], begin, end, step))
    return spans


def check(path: Path) -> int:
    """Reads the protobuf of a part of a trace back, compares it with the JSON, and returns its spans."""
    pieces: list[bytes] = []
    writer = Writer("compact", pieces.append)
    for number, event in enumerate(events_of(path)):
        if number >= READ_BACK:
            break
        writer.event(event)
    found = spans_of(b"".join(pieces))
    if found != spans_of_json(path, READ_BACK):
        raise ValueError("the protobuf has other spans than the JSON")
    return sum(map(len, found.values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--last", type=float, default=1.0)
    parser.add_argument("--spelling", choices=SPELLINGS, action="append")
    options = parser.parse_args()
    n = options.steps
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        store = RunStore(f"sqlite:///{home / STORE_FILE}")
        run = store.run(recorded(store, home, n))
        path = home / "trace.json"
        began = time.perf_counter()
        with path.open("wb") as file:
            write_trace(store, [run], file, whole=True)
        took_s = time.perf_counter() - began
        json_sizes = Sizes()
        n_measured = 0
        for line in lines_of(path, options.last):
            json_sizes.write(line)
            n_measured += b'"make batch"' in line
        json_sizes.close()
        print(f"{n:,} steps: {path.stat().st_size:,} B of JSON, {took_s:.0f} s")
        print(f"{n_measured:,} of them as JSON: {_in_words(json_sizes, n_measured)}")
        print(f"read back and compared: {check(path):,} spans")
        for spelling in options.spelling or SPELLINGS:
            sizes = Sizes()
            began = time.perf_counter()
            writer = Writer(spelling, sizes.write)
            for event in events_of(path, options.last):
                writer.event(event)
            sizes.close()
            took_s = time.perf_counter() - began
            of_json = (
                f"{sizes.plain / json_sizes.plain:.3f} and {sizes.packed / json_sizes.packed:.3f}"
            )
            print(
                f"{spelling}: {_in_words(sizes, n_measured)}, {of_json} of the JSON's, {took_s:.0f} s"
            )
        store.close()


def _in_words(sizes: Sizes, n: int) -> str:
    return f"{sizes.plain / n:.0f} B a step, {sizes.packed / n:.1f} B compressed"


if __name__ == "__main__":
    main()
