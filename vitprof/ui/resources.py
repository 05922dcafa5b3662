"""What all sessions of a server share: the store, the job manager, the series of the runs on view."""

from __future__ import annotations

import os

import streamlit as st

from vitprof.config.accelerators import CARDS, SIMULATED
from vitprof.config.availability import Machine, look_around
from vitprof.config.gpu_findings import Finding, findings
from vitprof.jobs.launcher import Launcher
from vitprof.jobs.manager import JobManager
from vitprof.store import RunStore
from vitprof.telemetry.cards import driver_version
from vitprof.telemetry.nvml import Nvml
from vitprof.telemetry.visible import VisibleGpu, visible_gpus
from vitprof.ui.background import at_end
from vitprof.ui.series import RunSeries

SERIES_KEPT = 12
"""Runs whose series stay in memory: 100,000 steps take 10 MB."""


@st.cache_resource(show_spinner=False)
def manager() -> JobManager:
    """Returns the one job manager of this server. Raises `VitprofError` where the store cannot be opened."""
    jobs = JobManager(RunStore(), launcher=Launcher().warm())
    at_end(jobs.shutdown)  # a server that ends stops its jobs and keeps what they measured
    return jobs


def store() -> RunStore:
    """Returns the store the manager writes to."""
    return manager().store


@st.cache_resource(show_spinner=False)
def gpus() -> list[VisibleGpu]:
    """Returns the GPUs that CUDA shows to a job, in the order of `cuda:N`; empty where there are none."""
    return visible_gpus()


@st.cache_resource(show_spinner=False)
def driver() -> str:
    """Returns the version of the GPUs' driver; "" where it cannot be read."""
    with Nvml() as nvml:
        return driver_version(nvml.call)


def card(gpu: VisibleGpu, *, among: list[VisibleGpu]) -> str:
    """Returns the GPU's name, with the start of its UUID where another of `among` has the same name."""
    twins = sum(other.name == gpu.name for other in among) > 1
    return f"{gpu.name}, {short_uuid(gpu.uuid)}" if twins and gpu.uuid else gpu.name


def short_uuid(uuid: str) -> str:
    """Returns the start of a UUID, enough to tell the GPUs of a machine apart: "GPU-8932f937"."""
    return "-".join(uuid.split("-")[:2])


def gpu_findings(precision: str = "", device: str = "auto") -> tuple[Finding, ...]:
    """Returns the findings about runs on the GPU that `device` names, in `precision` ("" for any); none without it."""
    number = device.removeprefix("cuda:")
    named = [gpu for gpu in gpus() if gpu.index == (int(number) if number.isdecimal() else 0)]
    if not named:
        return ()
    return findings(named, os.environ, driver=driver(), precision=precision)


def device_names() -> dict[str, str]:
    """Returns the devices besides auto and cpu that a page offers, and how each is shown."""
    visible = gpus()
    real = {f"cuda:{gpu.index}": f"cuda:{gpu.index} ({card(gpu, among=visible)})" for gpu in visible}
    return real | {f"{SIMULATED}{card.name}": f"{card.title}, simulated" for card in CARDS.values()}


@st.cache_resource(show_spinner=False, max_entries=SERIES_KEPT)
def series(run_id: int) -> RunSeries:
    """Returns the steps and telemetry of a run, shared by every session that looks at it."""
    return RunSeries(store(), run_id)


LOOK_AGAIN_S = 10.0
"""Seconds for which a look at memory, disk and RAM disk is reused: every change of a setting redraws the form."""


@st.cache_resource(show_spinner=False, ttl=LOOK_AGAIN_S)
def machine() -> Machine:
    """Returns what this machine has, as of the last `LOOK_AGAIN_S` seconds."""
    return look_around()
