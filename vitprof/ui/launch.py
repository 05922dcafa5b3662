"""The Run button, and below it what the run will need of this machine, or why it cannot run."""

from __future__ import annotations

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from vitprof import home
from vitprof.config import PARTS, RunConfig
from vitprof.config.availability import Machine, availability, look_around
from vitprof.config.catalog import MODELS, DatasetInfo
from vitprof.config.duration import duration, duration_sentence
from vitprof.config.footprint import footprint, made
from vitprof.config.parts import Combination
from vitprof.config.resolve import resolve
from vitprof.config.strategies import Strategy
from vitprof.errors import ConfigError
from vitprof.formats import seconds, size
from vitprof.ui.texts import escaped, sentence
from vitprof.ui.widgets import label, settings

LOOK_AGAIN_S = 10.0
"""Seconds for which a look at memory, disk and RAM disk is reused: every change of a setting redraws the form."""


@st.cache_resource(show_spinner=False, ttl=LOOK_AGAIN_S)
def machine() -> Machine:
    """Returns what this machine has, as of the last `LOOK_AGAIN_S` seconds."""
    return look_around()


def run_button(
    config: RunConfig | ConfigError,
    plan: Strategy,
    info: DatasetInfo,
    rejected: str,
    button: DeltaGenerator,
    notes: DeltaGenerator,
) -> tuple[RunConfig | None, bool]:
    """Draws Run and the expected duration in `button`, which stays in sight, and in `notes` what the run needs or why
    it cannot run. `rejected` is a warning to show there too.

    Returns the config if it can be run, and whether Run was pressed.
    """
    usable: RunConfig | None = None
    message, remark = "", ""
    asked = config.to_dict() if isinstance(config, RunConfig) else {k: settings()[k] for k in PARTS}
    seen = availability(plan, info, asked, machine=machine())
    if isinstance(config, ConfigError) and config.field not in ("strategy", *PARTS):
        message = f"{label(config.field)} {config.value}: {config.allowed}"
    elif seen.verdict == "bad":
        message = f"Not possible here: {seen.reason}"
    elif isinstance(config, ConfigError):
        message = f"{label(config.field)} {config.value}: {config.allowed}"
    else:
        usable, remark = config, seen.reason
    with button:
        pressed = st.button(
            "Run",
            type="primary",
            width="stretch",
            key="run-button",
            disabled=usable is None,
            icon=":material/play_arrow:",
            help="Starts a run with these settings, or queues it behind the one that has the device.",
        )
        if usable is not None and (said := lasts(usable, info)):
            st.caption(f":material/schedule: {escaped(said)}")
    with notes:
        if rejected:
            st.warning(escaped(rejected))
        if message:
            st.error(escaped(message))
        elif usable is not None:
            lines = [remark, resized(info), takes(plan.combination(info, usable.to_dict()), info)]
            if any(lines):
                st.caption(escaped(" ".join(sentence(line) for line in lines if line)))
    return usable, pressed


def lasts(config: RunConfig, info: DatasetInfo) -> str:
    """Returns how long a run takes, in a sentence; "" where that is not known beforehand."""
    config = resolve(config)
    there = (home.data_dir() / info.directory).is_dir()
    return duration_sentence(duration(config, info, made=there, prepared=made(config.storage or "", info) is not None))


def takes(parts: Combination, info: DatasetInfo) -> str:
    """Returns what a run writes and keeps in memory, in a line; "" where that is next to nothing."""
    needs = footprint(parts, info)
    said = []
    if not (home.data_dir() / info.directory).is_dir():
        said.append(f"makes {info.name} first (about {size(needs.source_bytes)} on disk)")
    if needs.made is not None:
        said.append(
            f"{needs.prepared_as} is prepared ({size(needs.made.size_bytes)}, took {seconds(needs.made.prepare_s)})"
        )
    elif needs.prepared_as is not None:
        said.append(f"prepares {needs.prepared_as} once (about {size(needs.prepared_bytes)} on disk)")
    if needs.staged_bytes:
        said.append(f"copies {size(needs.staged_bytes)} to the local disk")
    if needs.ram_disk_bytes:
        said.append(f"copies {size(needs.ram_disk_bytes)} to the RAM disk")
    elif needs.ram_bytes:
        said.append(f"keeps about {size(needs.ram_bytes)} in RAM")
    return ", ".join(said)


def resized(info: DatasetInfo) -> str:
    """Returns how images are resized for the model, in a sentence; "" where it takes them as they are."""
    values = settings()
    model = MODELS.get(values["model"])
    wanted = values["image_size"] or (model.image_size if model else info.image_size)
    if wanted != info.image_size:
        return f"model {values['model']} takes {wanted} px: the device resizes the images of {info.image_size} px"
    return ""
