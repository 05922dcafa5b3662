"""Actions for the runs that are ticked on the History page."""

from collections.abc import Sequence
from functools import partial

import streamlit as st

from vitprof import formats, names
from vitprof.config.own_script import OWN_SCRIPT
from vitprof.export.bundle import SUFFIX, bundle_bytes
from vitprof.program import program
from vitprof.store import MAX_NOTE, MAX_TAG, RunRow, stored_run
from vitprof.store.run_store import KEPT_DAYS
from vitprof.ui import notifications, resources, texts, widgets
from vitprof.ui.profile import settings

DELETED = "runs deleted last"
UNDO = ":material/undo:"


def done(words: str) -> None:
    """Redraws the page with a toast that says what was done."""
    notifications.say_there(words, ":material/check:")
    st.rerun()


@texts.guarded
def draw_actions(ticked: Sequence[RunRow]) -> None:
    """Draws a row of buttons; those that do not apply to the ticked runs are disabled."""
    one = len(ticked) == 1
    some = bool(ticked)
    ids = [row.id for row in ticked]
    live = [row for row in ticked if row.live]
    can_run_again = one and ticked[0].strategy != OWN_SCRIPT
    not_yet = ""
    if live:
        not_yet = f"Run {live[0].id} is still running; this can be done once it has ended."
    with st.container(horizontal=True, gap="small"):
        if _button(
            "Open", "open_in_new", "Its verdict, charts and figures, on the Profile page.", one
        ):
            open_in_profile(ids[0])
        if _button(
            "Compare",
            "compare_arrows",
            "Side by side on the Compare page; tick two or more.",
            len(ids) > 1,
        ):
            st.switch_page("pages/compare.py", query_params={"runs": ",".join(map(str, ids))})
        about = "Starts a new run with the same settings."
        if _button("Run again", "replay", about, can_run_again):
            open_in_profile(resources.manager().submit(resources.store().run(ids[0]).config))
        if _button(
            "Settings to sidebar",
            "tune",
            "Puts its settings into the sidebar; starts nothing.",
            can_run_again,
        ):
            settings.offer(resources.store().run(ids[0]).config)
            open_in_profile(ids[0])
        if _button("Edit", "edit", "Name, tags and note of a run, or tags for several.", some):
            st.session_state[notifications.DIALOG_OPEN] = True
            edit = edit_one if one else edit_many
            edit(list(ticked))
        what = f"run-{ids[0]}" if one else f"{len(ids)}-runs-{texts.file_stamp()}"
        st.download_button(
            "Export",
            data=partial(bundle_bytes, resources.store(), ids),
            file_name=f"vitprof-{what}{SUFFIX}",
            mime="application/zip",
            on_click="ignore",
            icon=":material/download:",
            help=not_yet
            or "One file with everything recorded, to import on another machine's History page.",
            disabled=not ids or bool(live),
            key="history-export",
        )
        about = (
            not_yet or f"Takes them out of the list. For {KEPT_DAYS} days they can be brought back."
        )
        if _button("Delete", "delete", about, some and not live):
            resources.store().delete(*ids)
            st.session_state[DELETED] = ids
            done(f"{formats.count(len(ids), 'run')} deleted")
    _draw_elsewhere(live)
    if ids:
        st.caption(f"{formats.count(len(ids), 'run')} ticked: {texts.listed(ids)}")
    else:
        st.caption(
            "Tick runs at the left to compare, run again, edit, export or delete them.",
            help="By keyboard: the arrow keys move, Shift+Space ticks.",
        )


@texts.guarded
def draw_deleted() -> None:
    """Draws the way back: a button for what was deleted last, and a list of all that can be
    restored.
    """

    def restore(run_ids: Sequence[int]) -> None:
        st.session_state.pop(DELETED, None)
        resources.store().restore(*run_ids)
        done(f"{formats.count(len(run_ids), 'run')} restored")

    last = st.session_state.get(DELETED, ())
    if last and st.button(
        "Undo delete", "history-undo", f"Brings back {texts.numbers_of(last)}.", icon=UNDO
    ):
        restore(last)
    if gone := resources.store().deleted():
        with st.popover(
            "Deleted",
            icon=":material/restore_from_trash:",
            key="history-deleted",
            help="Deleted runs.",
        ):
            chosen = st.multiselect(
                "Bring back",
                list(gone),
                format_func=lambda n: f"{n}: {gone[n]}",
                key="history-restore",
            )
            if st.button("Restore", key="history-restore-now", disabled=not chosen):
                restore(chosen)
            st.caption(
                f"Kept for {KEPT_DAYS} days. To erase them now: `{program()} prune --keep-days 0`"
            )


def open_in_profile(run_id: int) -> None:
    st.switch_page("pages/profile.py", query_params={"run": str(run_id)})


def _button(label: str, icon: str, help_text: str, usable: bool) -> bool:
    key = f"history-{label.lower().replace(' ', '-')}"
    return st.button(label, icon=f":material/{icon}:", help=help_text, disabled=not usable, key=key)


def _draw_elsewhere(live: Sequence[RunRow]) -> None:
    """Draws a button to say that the machine is gone on which live runs were started.

    Only for runs of another machine, or of a container restarted since.
    """
    this_host, *_ = stored_run.this_program()
    away = {}
    for row in live[: texts.MOST_NAMED]:
        run = resources.store().run(row.id)
        if run.live and run.owner_host != this_host:
            away[run.id] = f"{run.id} ({run.owner_host}, process {run.owner_pid})"
    if away:
        about = "Marks these runs as interrupted. What was measured is kept."
        texts.draw_take_over(
            ", ".join(away.values()), "history-given-up", lambda: _give_up(set(away)), about
        )


def _give_up(run_ids: set[int]) -> None:
    marked = resources.store().mark_interrupted(run_ids)
    notifications.say_there(
        f"{formats.count(len(marked), 'run')} marked as interrupted", ":material/check:"
    )


@st.dialog("Edit run", icon=":material/edit:")
@texts.guarded
def edit_one(ticked: list[RunRow]) -> None:
    """Draws the dialog to edit name, tags and note of one run."""
    row = ticked[0]
    st.caption(
        f"Run {row.id}: {texts.escaped(row.strategy)}, {texts.escaped(row.dataset)}, batch "
        f"{row.batch_size:,}"
    )
    name = widgets.name_field(
        "Name", f"history-name-{row.id}", value=row.name, help=f"1 to {names.MAX_NAME} characters."
    )
    tags = _tags_field(row.tags, f"history-tags-{row.id}")
    note = st.text_area(
        "Note",
        row.note,
        max_chars=MAX_NOTE,
        key=f"history-note-{row.id}",
        help="What you want to remember about it.",
        on_change="ignore",  # read by Save
    )
    if st.button("Save", type="primary", key="history-save", help="Keeps name, tags and note."):
        # only what was changed: an unchanged old name may be longer than is allowed now
        resources.store().edit(
            row.id,
            name=name if name != row.name else None,
            tags=tags if set(tags) != set(row.tags) else None,
            note=note if note != row.note else None,
        )
        done(f"Run {row.id} saved")


@st.dialog("Tag runs", icon=":material/label:")
@texts.guarded
def edit_many(ticked: list[RunRow]) -> None:
    """Draws the dialog to edit the tags of several runs at once."""
    shared = set.intersection(*(set(row.tags) for row in ticked))
    st.caption(f"{formats.count(len(ticked), 'run')}. Tags that only some of them have are kept.")
    tags = set(_tags_field(sorted(shared), "history-tags-many"))
    if st.button(
        "Save",
        type="primary",
        key="history-save-many",
        help="Adds and removes tags of all these runs.",
    ):
        removed = shared - tags
        for row in ticked:
            wanted = (set(row.tags) - removed) | tags
            if wanted != set(row.tags):
                resources.store().tag(row.id, wanted)
        done(f"{formats.count(len(ticked), 'run')} tagged")


def _tags_field(tags: Sequence[str], key: str) -> list[str]:
    return st.multiselect(
        "Tags",
        sorted({*resources.store().choices("tag"), *tags}),
        default=list(tags),
        accept_new_options=True,
        key=key,
        placeholder="type a word and press Enter",
        on_change="ignore",  # read by Save
        help=f"Choose, or type a new one: up to {MAX_TAG} characters, no comma. The search finds them.",
    )
