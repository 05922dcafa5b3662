"""The sidebar's form for a data set of one's own: it is looked at, and then chosen."""

import os
from itertools import islice
from pathlib import Path
from typing import Any

import streamlit as st

from vitprof import errors, formats
from vitprof.config import fitting
from vitprof.datasets import catalog
from vitprof.datasets.own import registry, specs
from vitprof.datasets.own.bounded import look
from vitprof.datasets.own.specs import absolute
from vitprof.experiments.tournament.planning import LEAST_STEADY_STEPS
from vitprof.ui import gate, resources, texts, widgets

CHOSEN = "data set that was added"
FOUND = "what was found in it"
ALLOWED = "folders that may be read besides"
ASKED = "folder that is asked for"
WHERE = "own-spec"
BELOW = "own-below"
MOST_FOLDERS = 10_000
"""Names in a folder that are looked at."""
ALLOW_HELP = "Until you close this page. Only images below this folder are read."
SKIP_HELP = "Runs leave out and count what cannot be read. If you repair it instead, press Look at them again."
HELP = "Chooses images of yours as the data set. Files stay where they are; Run or a tournament then loads them."
SPEC_HELP = "A folder with one of images for each class, or csv:, hdf5:, lmdb:, webdataset: (docs/own-data.md)"
ROOTS_HELP = f"{specs.ROOTS} names the folders, and is read when the dashboard starts. A console may add any folder."
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
    with st.expander("Your own images", icon=":material/create_new_folder:", key="own-images"):
        below = texts.escaped(", ".join(map(str, _roots())) or "no folder")
        words = f"Folders below {below} may be read."
        if _may_ask():
            words = "You are asked once for each folder outside your home directory."
        st.caption(f"{HELP} {words}", help=ROOTS_HELP)
        typed = st.text_input(
            "Where they are", key=WHERE, placeholder="/path/to/images", help=SPEC_HELP
        ).strip()
        _draw_folders(typed)
        name = st.text_input(
            "Name",
            key="own-name",
            placeholder="as the folder",
            help=NAME_HELP,
            on_change="ignore",  # read when the button is pressed; nothing is drawn of it
        ).strip()
        about = "Opens up to 1,000 of them, and 300 of a larger set. Then it is chosen."
        if st.button(
            "Look at them", key="own-look", icon=":material/search:", help=about, disabled=not typed
        ):
            st.session_state.pop(ASKED, None)
            _look_or_ask(typed, name)
        elif st.session_state.get(ASKED):
            _draw_question(typed, name)
        if lines := st.session_state.get(FOUND):
            chosen = ["Chosen: now press Run.", *lines]
            if unreadable():
                chosen = lines
            st.caption("  \n".join(texts.escaped(line) for line in chosen))


def unreadable() -> str:
    """Returns how many images of the chosen data set cannot be read, in words; "" for none, and where
    they are skipped.
    """
    values = widgets.settings()
    own = registry.listed().get(values["dataset"])
    if own is None or values["skip_unreadable"]:
        return ""
    return own.unreadable_words


def draw_skip(key: str) -> None:
    """Draws the button that skips the images that cannot be read."""
    own = registry.listed()[widgets.settings()["dataset"]]
    words = "Skip it" if own.unreadable == 1 else "Skip them"
    st.button(words, key=key, icon=":material/skip_next:", help=SKIP_HELP, on_click=_skip)


def _skip() -> None:
    widgets.settings()["skip_unreadable"] = True
    st.session_state.pop("set-skip_unreadable", None)


# which folders may be read


def _roots() -> tuple[Path, ...]:
    """Returns the folders below which this session may read, those that its user allowed included."""
    local = str(st.get_option("server.address") or "") in LOCAL
    return (*specs.roots(local=local), *st.session_state.get(ALLOWED, ()))


def _may_ask() -> bool:
    """Returns whether the user may allow more folders: who opens the page can only be a user of this
    machine, and nobody set which folders may be read.
    """
    return gate.serves_this_machine_only() and not os.environ.get(specs.ROOTS)


def _outside(typed: str) -> Path | None:
    """Returns the folder to ask for before what was typed is read; None where it may be read, where
    nobody may be asked, or where the path itself is refused.
    """
    if not _may_ask():
        return None
    try:
        spec = specs.parse(_spec_of(typed))
    except errors.ConfigError:
        return None
    is_a_path = spec.kind != "python" and not specs.is_remote(spec.path)
    if not is_a_path or specs.is_below(spec.path, _roots()):
        return None
    # Of a link the folder that it leads to: that is what would be read.
    path = Path(os.path.realpath(spec.path))
    folder = path if path.is_dir() else path.parent
    return folder if folder.is_dir() else None


def _spec_of(typed: str) -> str:
    return typed if ":" in typed else f"folder:{typed}"


def _look_or_ask(typed: str, name: str) -> None:
    folder = _outside(typed)
    if folder is None:
        _add(typed, name, _roots())
        return
    st.session_state[ASKED] = str(folder)
    _draw_question(typed, name)


def _draw_question(typed: str, name: str) -> None:
    """Asks whether a folder may be read; looks at what was typed once it may."""
    asked = st.session_state[ASKED]
    folder = _outside(typed)
    if folder is None or str(folder) != asked:  # something else was typed since
        st.session_state.pop(ASKED, None)
        return
    with st.container(key="own-question", gap="xsmall"):
        st.info(f"Allow reading {texts.escaped(asked)}?", icon=":material/folder_open:")
        if st.button("Allow and look", key="own-allow", type="primary", help=ALLOW_HELP):
            st.session_state.setdefault(ALLOWED, []).append(folder)
            st.session_state.pop(ASKED, None)
            _add(typed, name, _roots())


# the folder picker


def _draw_folders(typed: str) -> None:
    """Draws the folders in the one that was typed, to go into, and the way up.

    Streamlit has no picker for folders of the machine it runs on.
    """
    if ":" in typed:  # of another kind: csv:, hdf5:, ...
        return
    folder = _folder_of(typed)
    if folder is None:
        return
    names = _folders_in(folder)
    above = folder.parent
    # below each other, and by their last names: the sidebar is narrow, and the field above has the path
    st.selectbox(
        f"Folders in {texts.escaped(_last_name(folder))}",
        names,
        index=None,
        placeholder=formats.count(len(names), "folder"),
        key=BELOW,
        help=f"In {texts.escaped(str(folder))}. Chooses one of them; its own folders are then listed.",
        on_change=_go_below,
        args=(folder,),
        disabled=not names,
    )
    st.button(
        f"Up to {texts.escaped(_last_name(above))}",
        key="own-up",
        icon=":material/arrow_upward:",
        help=f"To {texts.escaped(str(above))}.",
        disabled=above == folder or not _may_list(above),
        on_click=_go_to,
        args=(above,),
    )


def _last_name(folder: Path) -> str:
    """Returns the last name of a folder's path; "/" for the root, which has none."""
    return folder.name or str(folder)


def _folder_of(typed: str) -> Path | None:
    """Returns the folder whose folders are offered: the first that may be read where nothing was
    typed; None where what was typed is no folder, or may not be listed.
    """
    roots = _roots()
    if not typed:
        return next((root for root in roots if root.is_dir()), None)
    try:
        folder = Path(typed).expanduser().absolute()
        may = folder.is_dir() and _may_list(folder)
    except (OSError, RuntimeError, ValueError):
        return None
    return folder if may else None


def _may_list(folder: Path) -> bool:
    return _may_ask() or specs.is_below(folder, _roots())


def _folders_in(folder: Path) -> list[str]:
    """Returns the names of the folders in one, without hidden ones, in order."""
    try:
        with os.scandir(folder) as entries:
            seen = islice(entries, MOST_FOLDERS)
            names = [each.name for each in seen if not each.name.startswith(".") and each.is_dir()]
    except OSError:
        return []
    return sorted(names, key=str.lower)


def _go_below(folder: Path) -> None:
    name = st.session_state.get(BELOW)
    if name:
        _go_to(folder / name)


def _go_to(folder: Path) -> None:
    st.session_state[WHERE] = str(folder)
    st.session_state[BELOW] = None


# the data set


def _add(typed: str, name: str, allowed: tuple[Path, ...]) -> None:
    st.session_state.pop(FOUND, None)
    bar = st.progress(0.0)
    text = _spec_of(typed)
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
