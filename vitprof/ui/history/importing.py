"""Import of runs from another machine, on the History page."""

from __future__ import annotations

import streamlit as st

from vitprof import formats
from vitprof.errors import VitprofError, one_line
from vitprof.export.bundle import MAX_FILE_BYTES, SUFFIX, import_bundle
from vitprof.program import program
from vitprof.ui.history.actions import DONE
from vitprof.ui.resources import store
from vitprof.ui.texts import escaped, sentence

TURN, OUTCOME = "history-import-turn", "history-import-outcome"


def draw_import() -> None:
    """Draws an uploader that imports a file as soon as it is chosen, and the outcome in words."""
    turn = st.session_state.setdefault(TURN, 0)
    with st.popover(
        "Import",
        icon=":material/upload:",
        key="history-import",
        help=f"Runs that were exported on another machine, as a *{SUFFIX} file.",
    ):
        given = st.file_uploader(
            "Runs from another machine",
            type=SUFFIX.removeprefix("."),
            key=f"history-upload-{turn}",
            max_upload_size=MAX_FILE_BYTES // 2**20,
            help=f"A {SUFFIX} file of at most {formats.size(MAX_FILE_BYTES)}, written by Export on another machine's "
            f"History page or by `{program()} bundle`. It is checked before anything is stored.",
        )
        if given is not None:
            _take_in(given.name, given)
        if outcome := st.session_state.get(OUTCOME):
            worked, words = outcome
            (st.success if worked else st.error)(escaped(words))


def _take_in(name: str, file: st.runtime.uploaded_file_manager.UploadedFile) -> None:
    """Imports the file, then redraws the page with an empty uploader, so that a rerun does not import it again."""
    try:
        with st.spinner("Checking and storing the runs..."):
            words = sentence(import_bundle(store(), file).sentence)
        st.session_state[OUTCOME] = (True, f"{name}: {words}")
        st.session_state[DONE] = words
    except VitprofError as error:
        st.session_state[OUTCOME] = (False, f"{name}: {one_line(error)}")
    st.session_state[TURN] += 1
    st.rerun()
