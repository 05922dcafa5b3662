"""The choice of the device: real ones, simulated GPUs by name, and one with the user's own times.

All pages share one setting, `device`, so that a change on one page is a change on the others.
"""

from typing import Any

import streamlit as st

from vitprof import formats
from vitprof.config import accelerators, bounds, models
from vitprof.errors import ConfigError
from vitprof.ui import resources, texts, widgets

OWN = f"{accelerators.SIMULATED}own"
"""The entry of the list for a device with the user's own times; never a device's name."""
OWN_AT_FIRST = (50.0, 100.0, 0.0)
"""Milliseconds for each step, microseconds for each sample, and milliseconds to launch a step."""
NOTHING_COMPUTED = (
    "It takes as long as an accelerator would and computes nothing: no loss, no accuracy."
)


def draw_device(key: str) -> None:
    """Draws the choice of a device, and what is wrong with it or how long it takes.

    For a device with the user's own times it draws their numbers. `key` is the widget's.
    """
    values = widgets.settings()
    _show(key, values["device"])
    names = {
        "auto": f"automatic: {_automatic()}",
        **resources.device_names(),
        OWN: "own simulated device",
    }
    typed = f"{accelerators.SIMULATED}{str(st.session_state[key]).lower()}"
    if typed in names:
        st.session_state[key] = typed
    options = [*names, "cpu"]
    if st.session_state[key] not in options:
        options.append(st.session_state[key])
    chosen = st.selectbox(
        widgets.label("device"),
        options,
        index=options.index(st.session_state[key]),
        format_func=lambda name: names.get(name, name),
        key=key,
        help=widgets.help_of("device"),
        accept_new_options=True,
    )
    widgets.say_if_cut(names.get(chosen or "", chosen or ""))
    if chosen == OWN:
        values["device"] = _own(key)
    else:
        values["device"] = chosen or widgets.DEFAULTS["device"]
    st.session_state[f"{key}-drawn"] = values["device"]
    if values["device"] != "cpu" and not accelerators.is_simulated(values["device"]):
        findings = resources.findings_of_gpu(values["precision"], values["device"])
        bad = [finding for finding in findings if finding.verdict == "bad"]
        for finding in bad or findings:
            st.caption(f":material/warning: {texts.escaped(formats.sentence(finding.line))}")
    if accelerators.is_simulated(values["device"]):
        takes, source = _what_it_takes(values)
        about = f"{NOTHING_COMPUTED} {source}".strip() if takes else None
        st.caption(texts.escaped(takes or NOTHING_COMPUTED), help=about)


MEASURE = (
    "A step takes *Step* plus the batch size times *Sample*. "
    "`python -m benchmarks.accelerator` measures both on a GPU."
)
TIMES: tuple[tuple[str, str, str, str], ...] = (
    ("ms", "step_ms", "Step (ms)", MEASURE),
    ("us", "sample_us", "Sample (µs)", MEASURE),
    (
        "launch",
        "step_ms",
        "Launch (ms)",
        "Time that Python needs to launch a step; where it is longer than the step, the device waits for it",
    ),
)
"""The numbers that make a simulated device: name of the widget, name of its bounds, label and
help."""


def _show(key: str, device: str) -> None:
    """Sets the widgets to `device` where that was set elsewhere: by the URL, a run's settings,
    another page.
    """
    numbers = [f"{key}-{name}" for name, *_ in TIMES]
    typed = st.session_state.get(key)
    if typed and accelerators.is_given(typed):
        device = typed
    elif key in st.session_state and st.session_state.get(f"{key}-drawn") == device:
        return
    own = accelerators.is_given(device)
    st.session_state[key] = OWN if own else device
    times = OWN_AT_FIRST
    if own:
        try:
            card = accelerators.accelerator(device)
        except ConfigError:  # the form says what is wrong
            st.session_state[key] = device
        else:
            times = (card.step_s * 1e3, card.sample_s * 1e6, card.launch_s * 1e3)
    st.session_state.update(dict(zip(numbers, times, strict=True)))


def _own(key: str) -> str:
    """Draws the numbers of an own simulated device; returns the device that they make."""
    numbers = []
    for column, (name, field, words, help_text) in zip(st.columns(len(TIMES)), TIMES, strict=True):
        limits = bounds.DEVICE_BOUNDS[field]
        shown = st.session_state.get(f"{key}-{name}")
        with column:
            typed = widgets.number_field(
                words,
                limits,
                value=limits.least if shown is None else shown,
                step=10,
                key=f"{key}-{name}",
                help=help_text,
            )
        numbers.append(limits.least if typed is None else typed)
    return accelerators.device_of_times(*numbers)


MAKER = "NVIDIA "
"""Begins the names of most GPUs: in a narrow field the rest of the name says more."""


def _automatic() -> str:
    """Returns the device that "auto" takes, in few words: the field is narrow.

    Why a GPU that is here cannot be used is said below the field.
    """
    gpus = resources.gpus()
    if not resources.gpu_is_usable():
        return "the CPU"
    return resources.card(gpus[0], among=gpus).removeprefix(MAKER)


def _what_it_takes(values: dict[str, Any]) -> tuple[str, str]:
    """Returns how long the simulated GPU takes with the chosen model, and the source of that.

    Both are "" for the user's own times.
    """
    card = accelerators.card_of(values["device"])
    model = values["model"]
    if card is None or model not in models.VITS:
        return "", ""
    size = values["image_size"] or models.MODELS[model].image_size
    device = accelerators.device_for(values["device"], model, size, values["precision"])
    simulated = accelerators.accelerator(device)
    takes = f"{simulated.times} with ViT {model} in {values['precision']}"
    if simulated.origin != accelerators.DERIVED:
        return f"{takes}, as measured.", f"The figures are {simulated.origin}."
    source = accelerators.MEASURED[model].source
    return (
        f"{takes}, derived from published figures.",
        f"From {source}, times the lower ratio of the cards' published TFLOP/s and memory bandwidth.",
    )
