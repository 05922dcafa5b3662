"""Actions for the runs that are ticked on the History page."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from vitprof.config.own_script import OWN_SCRIPT
from vitprof.export.bundle import SUFFIX, bundle_bytes
from vitprof.formats import count
from vitprof.names import MAX_NAME
from vitprof.store import MAX_NOTE, MAX_TAG, RunRow, this_program
from vitprof.ui.notifications import DIALOG_OPEN
from vitprof.ui.profile.page import USED
from vitprof.ui.profile.settings import use_config
from vitprof.ui.resources import manager, store
from vitprof.ui.texts import escaped, file_stamp, guarded
from vitprof.ui.widgets import name_field

DONE = "history-done"
"""Key of what was done, to be shown when the page is redrawn."""
NAMED = 5
"""Runs that the question before deleting lists by name, at most."""
NUMBERS = 12
"""Ticked runs whose numbers are shown, at most."""


def tell_what_was_done() -> None:
    """Shows a toast about the action after which the page was redrawn."""
    if outcome := st.session_state.pop(DONE, None):
        st.toast(outcome, icon=":material/check:")


def done(words: str) -> None:
    """Redraws the page with a toast that says what was done."""
    st.session_state[DONE] = words
    st.rerun()


@guarded
def draw_actions(ticked: Sequence[RunRow]) -> None:
    """Draws a row of buttons; those that do not apply to the ticked runs are disabled."""
    one, some = len(ticked) == 1, bool(ticked)
    live = [row for row in ticked if row.live]
    ours = one and ticked[0].strategy != OWN_SCRIPT
    with st.container(horizontal=True, gap="small"):
        if _button("Open", "open_in_new", "Its verdict, charts and figures, on the Profile page.", one):
            st.switch_page("pages/profile.py", query_params={"run": str(ticked[0].id)})
        if _button(
            "Compare", "compare_arrows", "Side by side on the Compare page; tick two or more.", some and not one
        ):
            st.switch_page("pages/compare.py", query_params={"runs": ",".join(str(row.id) for row in ticked)})
        if _button("Run again", "replay", "Starts a new run with the same settings.", ours):
            run_id = manager().submit(store().run(ticked[0].id).config)
            st.switch_page("pages/profile.py", query_params={"run": str(run_id)})
        if _button(
            "Settings to sidebar", "tune", "Puts its settings into the sidebar to change them; starts nothing.", ours
        ):
            _to_sidebar(ticked[0].id)
        if _button("Edit", "edit", "Name, tags and note of a run, or tags for several.", some):
            st.session_state[DIALOG_OPEN] = True
            (edit_one if one else edit_many)(list(ticked))
        _draw_export(ticked, live)
        if _button(
            "Delete",
            "delete",
            _first_live(live, "deleted") if live else "Asks first. Deletes their steps, telemetry and headroom too.",
            some and not live,
        ):
            st.session_state[DIALOG_OPEN] = True
            ask_to_delete(list(ticked))
    _draw_elsewhere(live)
    numbers = ", ".join([*(str(row.id) for row in ticked[:NUMBERS]), *(["..."] if len(ticked) > NUMBERS else [])])
    st.caption(
        f"{count(len(ticked), 'run')} ticked: {numbers}"
        if ticked
        else "Tick runs at the left of the table to open, compare, run again, edit, export or delete them; by keyboard "
        "with the arrow keys and Shift+Space."
    )


def _button(label: str, icon: str, help_text: str, usable: bool) -> bool:
    name = label.lower().replace(" ", "-")
    return st.button(
        label, icon=f":material/{icon}:", help=help_text, disabled=not usable, key=f"history-{name}", type="secondary"
    )


def _first_live(live: Sequence[RunRow], what: str) -> str:
    return f"Run {live[0].id} is still running; once it has ended it can be {what}."


def _to_sidebar(run_id: int) -> None:
    use_config(store().run(run_id).config)
    st.session_state[USED] = run_id
    st.switch_page("pages/profile.py", query_params={"run": str(run_id)})


def _draw_export(ticked: Sequence[RunRow], live: Sequence[RunRow]) -> None:
    opened, ids = store(), [row.id for row in ticked]
    what = f"run-{ids[0]}" if len(ids) == 1 else f"{len(ids)}-runs-{file_stamp()}"
    st.download_button(
        "Export",
        data=lambda: bundle_bytes(opened, ids),
        file_name=f"vitprof-{what}{SUFFIX}",
        mime="application/zip",
        on_click="ignore",
        icon=":material/download:",
        help=_first_live(live, "exported")
        if live
        else "One file with everything recorded about them, to import on another machine's History page.",
        disabled=not ids or bool(live),
        key="history-export",
    )


def _draw_elsewhere(live: Sequence[RunRow]) -> None:
    """Draws, for live runs of another machine or of a container restarted since, a button to say that it is gone."""
    here = this_program()[0]
    runs = [run for row in live[:NUMBERS] if (run := store().run(row.id)).live and run.owner_host != here]
    if not runs:
        return
    names = ", ".join(f"{run.id} ({escaped(run.owner_host)}, process {run.owner_pid})" for run in runs)
    with st.popover("Not running any more?", icon=":material/help:", help="For runs of a machine that is gone."):
        st.markdown(
            f"Started on another machine: {names}. This machine cannot tell whether it still runs; a container gets a "
            "new name each time it starts."
        )
        if st.button(
            "That machine is gone",
            type="primary",
            key="history-given-up",
            help="Marks these runs as interrupted. What was measured is kept.",
        ):
            marked = store().mark_interrupted({run.id for run in runs})
            done(f"{count(len(marked), 'run')} marked as interrupted")


@st.dialog("Edit run", icon=":material/edit:")
def edit_one(ticked: list[RunRow]) -> None:
    """Draws the dialog to edit name, tags and note of one run."""
    row = ticked[0]
    st.caption(f"Run {row.id}: {escaped(row.strategy)}, {escaped(row.dataset)}, batch {row.batch_size:,}")
    name = name_field("Name", f"history-name-{row.id}", value=row.name, help=f"1 to {MAX_NAME} characters.")
    tags = _tags_field(row.tags, f"history-tags-{row.id}")
    note = st.text_area(
        "Note", row.note, max_chars=MAX_NOTE, key=f"history-note-{row.id}", help="What you want to remember about it."
    )
    if st.button("Save", type="primary", key="history-save", help="Keeps name, tags and note."):
        _save(row, name, tags, note)


@guarded
def _save(row: RunRow, name: str, tags: Sequence[str], note: str) -> None:
    """Saves only what was changed: an unchanged old name may be longer than is allowed now."""
    store().edit(
        row.id,
        name=name if name != row.name else None,
        tags=tags if set(tags) != set(row.tags) else None,
        note=note if note != row.note else None,
    )
    done(f"Run {row.id} saved")


@st.dialog("Tag runs", icon=":material/label:")
def edit_many(ticked: list[RunRow]) -> None:
    """Draws the dialog to edit the tags of several runs at once."""
    shared = sorted(set.intersection(*(set(row.tags) for row in ticked)))
    st.caption(f"{count(len(ticked), 'run')}. Tags that only some of them have stay as they are.")
    tags = _tags_field(shared, "history-tags-many")
    if st.button("Save", type="primary", key="history-save-many", help="Adds and removes tags of all these runs."):
        _save_tags(ticked, set(shared), set(tags))


@guarded
def _save_tags(ticked: Sequence[RunRow], before: set[str], after: set[str]) -> None:
    for row in ticked:
        wanted = (set(row.tags) - (before - after)) | after
        if wanted != set(row.tags):
            store().tag(row.id, wanted)
    done(f"{count(len(ticked), 'run')} tagged")


def _tags_field(tags: Sequence[str], key: str) -> list[str]:
    return st.multiselect(
        "Tags",
        sorted({*store().choices("tag"), *tags}),
        default=list(tags),
        accept_new_options=True,
        key=key,
        placeholder="type a word and press Enter",
        help=f"Choose, or type a new one: up to {MAX_TAG} characters, no comma. The search finds them.",
    )


@st.dialog("Delete runs?", icon=":material/delete:")
def ask_to_delete(ticked: list[RunRow]) -> None:
    """Draws the dialog that asks before runs are deleted."""
    rest = len(ticked) - NAMED
    lines = [f"- {row.id}: {escaped(row.name)}" for row in ticked[:NAMED]]
    st.markdown("\n".join([*lines, *([f"- and {rest:,} more"] if rest > 0 else [])]))
    st.markdown("Their steps, telemetry, notes and headroom are deleted too. **This cannot be undone.**")
    with st.container(horizontal=True):
        yes = st.button(
            f"Delete {count(len(ticked), 'run')}",
            type="primary",
            key="history-delete-yes",
            icon=":material/delete:",
            help="For good.",
        )
        if st.button("Keep them", key="history-delete-no", help="Closes this and changes nothing."):
            st.rerun()
    if yes:
        _delete(ticked)


@guarded
def _delete(ticked: Sequence[RunRow]) -> None:
    store().delete_many(row.id for row in ticked)
    done(f"{count(len(ticked), 'run')} deleted")
