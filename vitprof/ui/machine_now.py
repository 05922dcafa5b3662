"""This machine: what it is made of, and what it does now, whichever program causes it."""

import math
import os

import streamlit as st

from vitprof import cores, formats
from vitprof.config import gpu_findings
from vitprof.telemetry.machine import READ_EVERY_S, GpuNow
from vitprof.ui import resources, texts

HELP = "All programs count: also a job that you started elsewhere."


def draw_machine(*, facts: bool = False) -> None:
    """Draws what this machine does now; with `facts`, what it is made of, too."""
    st.header("This machine now", anchor=False, help=HELP)
    if facts:
        _draw_facts()
    st.fragment(_draw_bars, run_every=READ_EVERY_S)()


def facts_in_words() -> dict[str, str]:
    """Returns what this machine is made of: its name, processor, memory, GPUs, PyTorch and driver, in
    words.
    """
    memory_bytes = resources.machine_watch().read().memory_total_bytes
    usable_cores = cores.cores_in_words(cores.job_cores(), os.cpu_count() or 1)
    known = {
        "Name": cores.node_name(),
        "Processor": f"{cores.processor_name()}, {usable_cores}",
        "Memory": formats.size(memory_bytes),
        "GPU": _gpus_in_words(),
        "PyTorch": torch_in_words(gpu_findings.torch_build()),
    }
    driver = resources.driver()
    if driver:
        known["NVIDIA driver"] = driver
        newest_cuda = next((gpu.cuda_driver for gpu in resources.gpus() if gpu.cuda_driver), None)
        if newest_cuda is not None:
            known["NVIDIA driver"] += f", for CUDA up to {gpu_findings.dotted(newest_cuda)}"
    return known


def _gpus_in_words() -> str:
    gpus = resources.gpus()
    if not gpus:
        return "none, jobs train on the CPU"
    return ", ".join(
        f"{resources.card(gpu, among=gpus)} ({formats.size(gpu.memory_bytes)})" for gpu in gpus
    )


def torch_in_words(build: gpu_findings.TorchBuild | None) -> str:
    """Returns the version of PyTorch and what it was built for."""
    if build is None:
        return "not installed"
    if build.cuda is not None:
        return f"{build.version}, built for CUDA {gpu_findings.dotted(build.cuda)}"
    if build.rocm:
        return f"{build.version}, built for AMD's GPUs"
    return f"{build.version}, built without CUDA"


def _draw_facts() -> None:
    """Draws what this machine is made of, and what is wrong with its GPU."""
    known = facts_in_words()
    lines = [f"**{name}**: {texts.escaped(words)}" for name, words in known.items()]
    st.markdown("  \n".join(lines))
    for finding in resources.findings_of_gpu():
        st.caption(f":material/warning: {texts.escaped(formats.sentence(finding.line))}")


PROCESSES_SHOWN = 5
"""Processes of a GPU that are named, those with most memory."""


def _draw_bars() -> None:
    reading = resources.machine_watch().read()
    cpu = f"{reading.cores} core{'s' if reading.cores > 1 else ''}"
    if math.isfinite(reading.cpu_pct):
        cpu = f"{reading.cpu_pct:.0f}% of {cpu}"
    else:
        cpu += ", measuring"
    if math.isfinite(reading.load):
        cpu += f", load {reading.load:.1f}"
    memory = f"{formats.size(reading.memory_bytes)} of {formats.size(reading.memory_total_bytes)}"
    rates = [("reads", reading.read_bytes_per_s), ("writes", reading.written_bytes_per_s)]
    disk = [f"{verb} {formats.size(rate)}/s" for verb, rate in rates if math.isfinite(rate)]
    if math.isfinite(reading.disk_bytes):
        disk.append(f"{formats.size(reading.disk_total_bytes - reading.disk_bytes)} free")
    on_disk = ", ".join(disk) or formats.NOT_AVAILABLE
    bars = (
        (_share(reading.cpu_pct, 100), f"CPU: {cpu}"),
        (_share(reading.memory_bytes, reading.memory_total_bytes), f"Memory: {memory}"),
        (_share(reading.disk_bytes, reading.disk_total_bytes), f"Disk: {on_disk}"),
    )
    with st.container(key="machine-now", gap="small"):
        for gpu in reading.gpus:
            _draw_gpu(gpu)
        for column, (share, text) in zip(st.columns([2, 2, 3]), bars, strict=True):
            column.progress(share, text=texts.escaped(text))


def _draw_gpu(gpu: GpuNow) -> None:
    name = f"GPU {gpu.info.index}: {gpu.info.name}"
    if gpu.info.slice_of:
        name = f"slice of {name}"
    if gpu.lost:
        st.warning(texts.escaped(f"{name} does not answer: {gpu.lost}."))
        return
    power = f"power {formats.NOT_AVAILABLE}"
    if math.isfinite(gpu.power_w):
        limit_w = gpu.info.power_limit_w
        limit = f" of {limit_w:.0f}" if math.isfinite(limit_w) else ""
        power = f"{gpu.power_w:.0f}{limit} W"
    heat = f"temperature {formats.NOT_AVAILABLE}"
    if math.isfinite(gpu.temp_c):
        heat = f"{gpu.temp_c:.0f} °C"
    left, right = st.columns(2)
    busy = formats.percent(gpu.util_pct / 100)
    left.progress(
        _share(gpu.util_pct, 100), text=texts.escaped(f"{name}, busy {busy}, {power}, {heat}")
    )
    room = f"{formats.size(gpu.memory_bytes)} of {formats.size(gpu.info.memory_bytes)}"
    right.progress(
        _share(gpu.memory_bytes, gpu.info.memory_bytes), text=texts.escaped(f"Its memory: {room}")
    )
    if gpu.processes:
        st.caption(texts.escaped(_processes_words(gpu)))


def _processes_words(gpu: GpuNow) -> str:
    """Returns what runs on a GPU: the processes with most memory, and how many more there are."""
    # of some processes the memory is not known, as in a container: they come last
    largest_first = sorted(gpu.processes, key=lambda process: -_known(process.memory_bytes))
    named = []
    for process in largest_first[:PROCESSES_SHOWN]:
        words = f"{process.name or 'a process'} ({process.pid})"
        if math.isfinite(process.memory_bytes):
            words += f" {formats.size(process.memory_bytes)}"
        named.append(words)
    listed = f"On it: {', '.join(named)}"
    more = len(largest_first) - len(named)
    return f"{listed} and {more} more" if more else listed


def _known(value: float) -> float:
    return value if math.isfinite(value) else 0.0


def _share(value: float, total: float) -> float:
    """Returns a share for a bar, 0 to 1; 0 where it is not known."""
    share = value / total if total else math.nan
    if not math.isfinite(share):
        return 0.0
    return min(max(share, 0.0), 1.0)
