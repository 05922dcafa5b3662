"""The sidebar's form for a data set of one's own: it is looked at, and then chosen."""

from pathlib import Path
from typing import Any

import streamlit as st

from vitprof import errors
from vitprof.config import fitting
from vitprof.datasets import catalog
from vitprof.datasets.own import registry, specs
from vitprof.datasets.own.bounded import look
from vitprof.datasets.own.specs import absolute
from vitprof.experiments.tournament.planning import LEAST_STEADY_STEPS
from vitprof.ui import resources, texts, widgets

CHOSEN = "data set that was added"
FOUND = "what was found in it"
HELP = "Chooses images of yours as the data set. Files stay where they are; Run or a tournament then loads them."
SPEC_HELP = "A folder with one of images for each class, or csv:, hdf5:, lmdb:, webdataset: (docs/own-data.md)"
ROOTS_HELP = f"{specs.ROOTS} names other folders, and is read when the dashboard starts. A console may add any folder."
SUITED_HELP = (
    "A model of the images' size, and a batch that gives an epoch 30 steps where there are enough images. "
    "A run goes on until it has 30 steady steps. All of it can be changed, the model under Advanced."
)
NAME_HELP = "Letters, digits, - and _."
LOCAL = ("127.0.0.1", "localhost", "::1")


def take_added() -> None:
    """Chooses the data set that was just added, before the settings are drawn."""
    name = st.session_state.pop(CHOSEN, "")
    if not name:
        return
    values = widgets.settings()
    before = values["dataset"]
    values.update(dataset=name, n_images=None)
    st.session_state.pop("set-dataset", None)  # the widget would show the one before
    suit(before)


SUITED = ("model", "batch_size", "least_steps")
"""Settings that are set for a data set of one's own when it is chosen."""


def suit(before: str) -> None:
    """Sets the model, the batch size and the least number of steady steps to what fits the data set
    that was chosen in place of `before`.

    After one of the user's own, vitprof's get those defaults again that were not changed by hand.
    """
    values = widgets.settings()
    chosen = _suits(values["dataset"])
    if not catalog.DATASETS[values["dataset"]].own_bytes:
        set_before = {}
        if before in catalog.DATASETS and catalog.DATASETS[before].own_bytes:
            set_before = _suits(before)
        chosen = {name: chosen[name] for name in set_before if values[name] == set_before[name]}
    values.update(chosen)
    for field in chosen:
        st.session_state.pop(f"set-{field}", None)


def draw_suited() -> None:
    """Says what model and batch a data set of one's own got, as long as they are set so."""
    values = widgets.settings()
    info = catalog.DATASETS[values["dataset"]]
    set_for_it = _suits(info.name) == {name: values[name] for name in SUITED}
    if info.own_bytes and set_for_it:
        st.caption(f":material/tune: {texts.escaped(_fit(info).words(info))}.", help=SUITED_HELP)


def _suits(name: str) -> dict[str, Any]:
    info = catalog.DATASETS[name]
    fits = _fit(info)
    least = LEAST_STEADY_STEPS if info.own_bytes else widgets.DEFAULTS["least_steps"]
    return {"model": fits.model, "batch_size": fits.batch_size, "least_steps": least}


def _fit(info: catalog.DatasetInfo) -> fitting.Fit:
    device = widgets.settings()["device"]
    on_cpu = device == "cpu" or (device == "auto" and not resources.gpus())
    return fitting.fit(info, on_cpu=on_cpu)


def draw_form() -> None:
    allowed = specs.roots(local=str(st.get_option("server.address") or "") in LOCAL)
    with st.expander("Your own images", icon=":material/create_new_folder:", key="own-images"):
        below = texts.escaped(", ".join(map(str, allowed)) or "no folder")
        st.caption(f"{HELP} Folders below {below} may be read.", help=ROOTS_HELP)
        typed = st.text_input(
            "Where they are", key="own-spec", placeholder="/path/to/images", help=SPEC_HELP
        ).strip()
        name = st.text_input(
            "Name",
            key="own-name",
            placeholder="as the folder",
            help=NAME_HELP,
            on_change="ignore",  # read when the button is pressed; nothing is drawn of it
        ).strip()
        about = "Opens some hundred of them; then the data set can be chosen."
        if st.button(
            "Look at them", key="own-look", icon=":material/search:", help=about, disabled=not typed
        ):
            _add(typed, name, allowed)
        if lines := st.session_state.get(FOUND):
            unreadable = any("cannot be read" in line for line in lines)
            first = "now"
            if unreadable:
                first = "under Advanced, turn on Skip unreadable samples, then"
            chosen = [f"Chosen: {first} press Run.", *lines]
            st.caption("  \n".join(texts.escaped(line) for line in chosen))


def _add(typed: str, name: str, allowed: tuple[Path, ...]) -> None:
    st.session_state.pop(FOUND, None)
    bar = st.progress(0.0)
    text = typed if ":" in typed else f"folder:{typed}"
    try:
        name = name or registry.name_of(absolute(text))
        registry.ensure_name(name)
        looked = look(name, text, allowed=allowed, progress=bar.progress)
        registry.add(looked.own)
    except errors.VitprofError as error:
        bar.empty()
        wrong = errors.one_line(error)
        if isinstance(error, errors.ConfigError):
            wrong = f"{error.value}: {error.allowed}."
        st.error(texts.escaped(wrong))
        return
    st.session_state.update({CHOSEN: name, FOUND: looked.lines()})
    st.rerun()
