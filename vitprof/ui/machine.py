"""What the machine is doing now, for a page that would otherwise be empty: useful beside a job started elsewhere."""

from __future__ import annotations

import math

import streamlit as st

from vitprof import formats, home
from vitprof.telemetry import GpuNow, MachineNow, MachineWatch
from vitprof.telemetry.machine import READ_EVERY_S
from vitprof.ui import resources
from vitprof.ui.shutdown import at_end
from vitprof.ui.texts import escaped, sentence

PROCESSES_SHOWN = 5


@st.cache_resource(show_spinner=False)
def watch() -> MachineWatch:
    """Returns the server's one reader of the machine."""
    made = MachineWatch(home.home().absolute())
    at_end(made.close)
    return made


def draw_machine() -> None:
    """Draws what the machine is doing now, once a second while it is on the page."""
    st.header(
        "This machine now",
        anchor=False,
        help="Counts all programs: a job that you started elsewhere shows up here, too. Read once a second, and only "
        "while this is on your screen.",
    )
    st.fragment(_draw, run_every=READ_EVERY_S)()


def _draw() -> None:
    seen = watch().read()
    with st.container(key="machine", gap="small"):
        for gpu in seen.gpus:
            _draw_gpu(gpu)
        bars = (_cpu(seen), _memory(seen), _disk(seen))
        for column, (share, text) in zip(st.columns([2, 2, 3]), bars, strict=True):
            column.progress(share, text=escaped(text))


def _draw_gpu(gpu: GpuNow) -> None:
    name = f"{'slice of ' if gpu.info.slice_of else ''}GPU {gpu.info.index}: {gpu.info.name}"
    if gpu.lost:
        st.warning(escaped(f"{name} does not answer: {gpu.lost}."))
        return
    limit = f" of {gpu.info.power_limit_w:.0f}" if math.isfinite(gpu.info.power_limit_w) else ""
    power = f"{gpu.power_w:.0f}{limit} W" if math.isfinite(gpu.power_w) else f"power {formats.NOT_AVAILABLE}"
    heat = f"{gpu.temp_c:.0f} °C" if math.isfinite(gpu.temp_c) else f"temperature {formats.NOT_AVAILABLE}"
    left, right = st.columns(2)
    busy = formats.percent(gpu.util_pct / 100)
    left.progress(_share(gpu.util_pct, 100), text=escaped(f"{name}, busy {busy}, {power}, {heat}"))
    room = f"{formats.size(gpu.memory_bytes)} of {formats.size(gpu.info.memory_bytes)}"
    right.progress(_share(gpu.memory_bytes, gpu.info.memory_bytes), text=escaped(f"Its memory: {room}"))
    if gpu.processes:
        biggest = sorted(gpu.processes, key=lambda p: -p.memory_bytes if math.isfinite(p.memory_bytes) else 0.0)
        shown = [
            f"{p.name or 'a process'} ({p.pid})"
            + (f" {formats.size(p.memory_bytes)}" if math.isfinite(p.memory_bytes) else "")
            for p in biggest[:PROCESSES_SHOWN]
        ]
        more = len(biggest) - len(shown)
        st.caption(escaped("On it: " + ", ".join(shown) + (f" and {more} more" if more else "")))


def _cpu(seen: MachineNow) -> tuple[float, str]:
    cores = f"{seen.cores} core{'s' if seen.cores > 1 else ''}"
    busy = f"{seen.cpu_pct:.0f}% of {cores}" if math.isfinite(seen.cpu_pct) else f"{cores}, measuring"
    load = f", load {seen.load:.1f}" if math.isfinite(seen.load) else ""
    return _share(seen.cpu_pct, 100), f"CPU: {busy}{load}"


def _memory(seen: MachineNow) -> tuple[float, str]:
    room = f"{formats.size(seen.memory_bytes)} of {formats.size(seen.memory_total_bytes)}"
    return _share(seen.memory_bytes, seen.memory_total_bytes), f"Memory: {room}"


def _disk(seen: MachineNow) -> tuple[float, str]:
    rates = [("reads", seen.read_bytes_per_s), ("writes", seen.written_bytes_per_s)]
    said = [f"{verb} {formats.size(rate)}/s" for verb, rate in rates if math.isfinite(rate)]
    if math.isfinite(seen.disk_bytes):
        said.append(f"{formats.size(seen.disk_total_bytes - seen.disk_bytes)} free")
    return _share(seen.disk_bytes, seen.disk_total_bytes), f"Disk: {', '.join(said) or formats.NOT_AVAILABLE}"


def _share(value: float, total: float) -> float:
    share = value / total if total else math.nan
    return min(max(share, 0.0), 1.0) if math.isfinite(share) else 0.0


def machine_in_words() -> str:
    """Returns the device that runs would use here, in a sentence. Markdown."""
    found = resources.gpus()
    if not found:
        return "No GPU here: jobs train on the CPU. Pick a simulated GPU under **Device** to see how one would wait."
    names = [f"{gpu.name} ({formats.size(gpu.memory_bytes)})" for gpu in found]
    listed = ", ".join(f"**{escaped(name)}**" for name in names)
    for finding in resources.gpu_findings():
        if finding.verdict == "bad":
            why = escaped(sentence(finding.line))
            return f"**{escaped(names[0])}** cannot be used yet, and runs use the CPU. {why}"
    which = " Runs use the first one unless you choose another **Device**." if len(found) > 1 else ""
    return f"{listed} is ready to be profiled.{which}" if len(found) == 1 else f"{listed}.{which}"
