"""The sidebar's form for a data set of one's own: it is looked at, and then chosen."""

from pathlib import Path

import streamlit as st

from vitprof import errors
from vitprof.datasets import catalog
from vitprof.datasets.own import registry, specs
from vitprof.datasets.own.bounded import look
from vitprof.datasets.own.specs import absolute
from vitprof.ui import texts, widgets

CHOSEN = "data set that was added"
FOUND = "what was found in it"
HELP = "Chooses images of yours as the data set. Files stay where they are; Run or a tournament then loads them."
SPEC_HELP = "A folder with one of images for each class, or csv:, hdf5:, lmdb:, webdataset: (docs/own-data.md)"
ROOTS_HELP = f"{specs.ROOTS} names other folders, and is read when the dashboard starts. A console may add any folder."
NAME_HELP = "Letters, digits, - and _."
LOCAL = ("127.0.0.1", "localhost", "::1")


def take_added() -> None:
    """Chooses the data set that was just added, before the settings are drawn."""
    name = st.session_state.pop(CHOSEN, "")
    if not name:
        return
    values = widgets.settings()
    n = catalog.DATASETS[name].n_train
    if values["batch_size"] > n:
        lines = st.session_state.get(FOUND, [])
        st.session_state[FOUND] = [*lines, f"Batch size {n}: training has {n} images."]
    values.update(dataset=name, n_images=None, batch_size=min(values["batch_size"], n))
    for field in ("dataset", "batch_size"):  # whose widgets would show the values before
        st.session_state.pop(f"set-{field}", None)


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
