"""The History page: what it lists, its address, and what is done with the runs ticked in it."""

import io
import math
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import streamlit as st
from streamlit.testing.v1 import AppTest

from tests.store.test_nodes import made
from tests.ui.dashboard import LIMIT_S, add_run, address, app, click, kept_in_url, said, shown
from vitprof import formats
from vitprof.analysis.verdict import rendering
from vitprof.export import bundle
from vitprof.recording.columns import RunSummary
from vitprof.recording.verdict import Verdict
from vitprof.store import RunRow, RunStore
from vitprof.store.database import runs as runs_table
from vitprof.ui import history
from vitprof.ui.notifications import TO_SAY
from vitprof.ui.profile.verdict_card import LOOKS


@pytest.fixture
def ticked(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The runs ticked in the table, as far as it shows them; ticks themselves need a browser."""
    ticked: set[int] = set()
    draw_table = history.draw_table

    def draw(rows: list[RunRow], *, more: bool) -> list[RunRow]:
        draw_table(rows, more=more)
        return [row for row in rows if row.id in ticked]

    monkeypatch.setattr(history, "draw_table", draw)
    return ticked


def listed(at: AppTest) -> list[int]:
    return list(at.dataframe[0].value["run"]) if at.dataframe else []


def dialog(name: str, ids: list[int]) -> AppTest:
    """One of the page's dialogs by itself, open until something is done: a rerun of the whole page closes them."""
    return shown(
        AppTest.from_function(
            _draw_dialog, default_timeout=LIMIT_S, kwargs={"name": name, "ids": ids}
        )
    )


def _draw_dialog(name: str, ids: list[int]) -> None:
    from vitprof.store import RunQuery
    from vitprof.ui import history_actions, notifications, resources

    notifications.announce()
    rows = resources.store().list_runs(RunQuery(helpers=True, descending=False), limit=100)
    getattr(history_actions, name)([row for row in rows if row.id in ids])


def usable(at: AppTest) -> set[str]:
    buttons = [*at.button, *at.get("download_button")]
    names = ("Open", "Compare", "Run again", "Settings to sidebar", "Edit", "Export", "Delete")
    return {b.proto.label for b in buttons if b.proto.label in names and not b.proto.disabled}


def test_without_runs_it_says_what_to_do_and_then_a_row_what_a_run_was(store: RunStore) -> None:
    at = app("history")
    assert "No runs yet" in said(at)
    assert not at.dataframe
    assert [b.label for b in at.button if b.label == "Open Profile"]
    done = add_run(store, strategy="memory", batch_size=64, name="mine")
    verdict = Verdict(kind="input-bound", device="gpu", idle_frac=0.4567, simulated=False)
    store.update_run(done, verdict=verdict.to_dict(), spark=[None, 0.5, None, 1.0])
    store.tag(done, ["one", "two"])
    store.edit(done, note="a word")
    add_run(store, status="failed", device="simulated:5,0")
    first = ["run", "open", "idle", "name", "verdict", "speed", "created"]
    assert list(app("history").dataframe[0].value) == first, "they fit a window of 1366 px"
    at = app("history", more="true")
    table = at.dataframe[0].value.set_index("run")
    row = table.loc[done]
    expected = {
        "name": "mine",
        "strategy": "memory",
        "dataset": "digits",
        "batch": 64,
        "device": "cpu",
    }
    assert {name: row[name] for name in expected} == expected
    assert row["note"] == "a word"
    assert (list(row["verdict"]), list(row["spark"])) == (["input-bound"], [0.0, 0.5, 0.5, 1.0])
    assert (list(row["tags"]), row["idle"], row["speed"]) == (["one", "two"], 46.0, 12_800.0)
    assert row["device_idle"] == 50.0
    assert (str(row["created"].tz), list(table.loc[2]["verdict"])) == (
        "UTC",
        ["failed", "simulated"],
    )
    headlines = (*rendering.HEADLINES.values(), rendering.STARVED, rendering.NOT_MEASURABLE)
    words = {*LOOKS, *(headline.lower() for headline in headlines)}
    assert words < set(history.CHIPS), "every verdict has a chip, and every widget help"
    kinds = (
        "button",
        "download_button",
        "selectbox",
        "multiselect",
        "text_input",
        "toggle",
        "file_uploader",
    )
    mine = [w.proto for kind in kinds for w in at.get(kind)]
    mine = [w for w in mine if "history" in w.id or getattr(w, "query_param_key", "")]
    assert len(mine) > 15
    assert [w.label for w in mine if not w.help] == []


def test_search_filter_and_sort_stand_in_the_address(store: RunStore) -> None:
    slow = add_run(store, wait_s=0.05, strategy="memory")
    fast = add_run(store, wait_s=0.0, strategy="memory")
    other = add_run(store, wait_s=0.01, device="simulated:66,70")
    at = app("history")
    assert (listed(at), address(at)) == ([other, fast, slow], {})
    at.selectbox(key="sort").set_value("Slowest first").run()
    at.multiselect(key="strategies").set_value(["memory"]).run()
    assert listed(at) == [slow, fast]
    kept = kept_in_url(at)
    assert (kept["sort"], kept["strategies"]) == ("Slowest first", ["memory"])
    at.text_input(key="q").set_value(f"#{fast}").run()
    assert listed(at) == [fast]
    assert "runs" not in address(app("history", runs="1,2")), (
        "left behind by the browser's Back from Compare"
    )
    again = app("history", sort="Slowest first", strategies="memory", q=f"#{fast}")
    assert (listed(again), again.selectbox(key="sort").value) == ([fast], "Slowest first")
    at.text_input(key="q").set_value("nothing like it").run()
    assert "No run matches the search for nothing like it" in said(at).replace("*", "")
    click(at, "history-clear")
    assert listed(at) == [slow, other, fast]
    kept = kept_in_url(at)
    assert (kept["sort"], kept["strategies"], kept["q"]) == ("Slowest first", [], "")
    at.multiselect(key="devices").set_value(["simulated:66,70"]).run()  # a comma is no separator
    assert listed(at) == [other]


def test_the_page_is_as_it_was_left_and_helper_runs_are_listed_when_asked_for(
    store: RunStore,
) -> None:
    one, two, three = (add_run(store, strategy="memory") for _ in range(3))
    helper = add_run(store, group_key=f"headroom:{one}", role="A")
    # of a search that an earlier version made
    rung = add_run(store, group_key="autotune:411-1790000000000000000", role="batch 64#1")
    at = app("history", strategies="memory")
    at.session_state[history.TICKED] = {one, three}
    at.switch_page("pages/strategies.py").run()
    at.switch_page("pages/history.py").run()
    assert (listed(at), address(at)) == ([three, two, one], {"strategies": "memory"})
    assert f"2 runs ticked: {three}, {one}" in said(at)
    store.delete(three)  # the same ticks would now be other runs
    assert f"1 run ticked: {one}" in said(at.run())
    at.multiselect(key="strategies").set_value([]).run()
    at.toggle(key="helpers").set_value(True).run()
    assert listed(at) == [rung, helper, two, one]
    assert kept_in_url(at)["helpers"] is True


def test_a_speed_is_rounded_as_on_the_page_of_its_run(store: RunStore) -> None:
    for samples_per_s in (45.68, 9994.6, None):
        summary = (
            RunSummary(n_steps=9)
            if samples_per_s is None
            else RunSummary(n_steps=9, samples_per_s=samples_per_s)
        )
        store.update_run(add_run(store), summary=summary)
    speeds = app("history", sort="Oldest first").dataframe[0].value["speed"]
    words = [formats.number(value) for value in speeds[:2]]
    assert (list(speeds[:2]), words) == ([45.7, 9990.0], ["45.7", "9,990"])
    assert math.isnan(speeds[2])


def test_runs_of_tournaments_are_counted_and_can_be_listed(store: RunStore) -> None:
    """ "3 runs" were said where there were 41."""
    own = add_run(store)
    trials = [add_run(store, group_key=f"tournament:{of}", role=f"memory#{of}") for of in (1, 1, 2)]
    at = app("history")
    assert listed(at) == [own]
    assert "1 run, and 3 of tournaments" in said(at)
    click(at, "history-switch-helpers")
    assert listed(at) == [*trials[::-1], own]
    assert "4 runs, with 3 of tournaments" in said(at)
    assert at.toggle(key="helpers").value, "the same switch as under Filters"
    click(at, "history-switch-helpers")
    assert listed(at) == [own]
    add_run(store, group_key=f"headroom:{own}", role="A")
    assert "1 run, and 3 of tournaments and 1 made for other runs" in said(at.run())
    store.delete(own)
    at.run()
    assert "No run of your own yet. There are 3 of tournaments." in said(at)
    click(at, "history-switch-helpers")
    assert listed(at) == trials[::-1]


def test_a_run_that_begins_or_ends_elsewhere_is_shown_without_a_reload(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a console; each change happens after the page was drawn, and before its first check."""
    changes: list[Callable[[], object]] = []
    as_of_now = history._as_of_now

    def check(*args: Any) -> history.Drawn:
        if changes:
            changes.pop()()
        return as_of_now(*args)

    monkeypatch.setattr(history, "_as_of_now", check)
    changes.append(lambda: add_run(store, status="running"))
    at = app("history")
    assert listed(at) == [1], "the first run"
    changes.append(lambda: store.update_run(1, status="failed"))
    at.run()
    assert list(at.dataframe[0].value["verdict"][0]) == ["failed"]
    changes.append(lambda: add_run(store, group_key="tournament:1", role="memory#1"))
    assert "1 run, and 1 of tournaments" in said(at.run())
    at.text_input(key="q").set_value("#3").run()
    assert listed(at) == []
    changes.append(lambda: add_run(store))
    assert listed(at.run()) == [3]


def test_nothing_is_drawn_anew_while_a_dialog_is_open(
    store: RunStore, ticked: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ticked.add(add_run(store))
    at = app("history")
    checks: list[object] = []
    monkeypatch.setattr(history, "_as_of_now", lambda *args: checks.append(args))
    at.button(key="history-edit").click().run()
    assert not checks, "it would close the dialog, and what was typed would be lost"


def test_pages(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "SIZES", (2, 9))
    for _ in range(5):
        add_run(store, n=0)
    at = app("history", page="2")
    assert listed(at) == [3, 2]
    assert "3 to 4 of 5 runs" in said(at)
    at.pagination(key="page").set_value(3).run()
    assert listed(at) == [1]
    assert "5 to 5 of 5 runs" in said(at)
    assert kept_in_url(at)["page"] == 3
    at.selectbox(key="size").set_value(9).run()
    assert len(listed(at)) == 5
    kept = kept_in_url(at)
    assert (kept["size"], kept["page"]) == (9, 1)
    at.selectbox(key="size").set_value(2).run()
    at.pagination(key="page").set_value(2).run()
    at.text_input(key="q").set_value("#4").run()
    assert (listed(at), kept_in_url(at)["page"]) == ([4], 1)
    at.text_input(key="q").set_value("").run()
    assert listed(at) == [5, 4], "and not the second page again"


def test_an_address_with_nonsense_shows_the_list_or_says_why_not(store: RunStore) -> None:
    run_id = add_run(store)
    for query in (
        *({"page": page, "sort": "drop table"} for page in ("-1", "nine", "9999999")),
        {"size": "7", "sort": "newest", "helpers": "maybe", "page": "0"},
        {"size": "", "page": "", "sort": "", "helpers": "", "tags": "", "q": ""},
    ):
        at = app("history", **query)
        assert (listed(at), address(at)) == ([run_id], {}), query
    add_run(store)
    tags = [f"t{n}" for n in range(500)]
    for query, words in (
        ({"tags": "x" * 5000}, "No run matches"),
        ({"tags": tags}, "500 are too many; give at most 100"),
        ({"statuses": "<script>"}, "status: '<script>' is not possible"),
    ):
        at = app("history", **query)
        assert (listed(at), words in said(at)) == ([], True)


def test_what_can_be_done_depends_on_what_is_ticked(store: RunStore, ticked: set[int]) -> None:
    one, two, live = add_run(store), add_run(store), add_run(store, status="running")
    for ids, expected in (
        ((), set()),
        ((one,), {"Open", "Run again", "Settings to sidebar", "Edit", "Export", "Delete"}),
        ((one, two), {"Compare", "Edit", "Export", "Delete"}),
        ((one, live), {"Compare", "Edit"}),
    ):
        ticked.clear()
        ticked.update(ids)
        assert usable(app("history")) == expected, ids


def test_open_run_again_settings_and_compare(
    store: RunStore, ticked: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = add_run(store, strategy="memory", batch_size=96), add_run(store)
    configs: list[object] = []
    monkeypatch.setattr(
        "vitprof.jobs.manager.JobManager.submit", lambda self, config: configs.append(config) or two
    )
    ticked.add(one)
    for key, opened in (("history-open", one), ("history-run-again", two)):
        at = app("history")
        click(at, key)
        assert address(at)["run"] == str(opened)
    assert configs == [store.run(one).config]
    at = app("history")
    click(at, "history-settings-to-sidebar")
    assert at.selectbox(key="set-strategy").value == "memory"
    assert at.number_input(key="set-batch_size").value == 96
    ticked.add(two)
    at = app("history")
    click(at, "history-compare")
    assert sorted(address(at)["runs"].split(",")) == [str(one), str(two)]


def test_a_run_is_renamed_annotated_and_several_are_tagged(store: RunStore) -> None:
    run_id = add_run(store)
    store.tag(run_id, ["old"])
    at = dialog("edit_one", [run_id])
    at.text_input(key=f"history-name-{run_id}").set_value("a better name")
    note = at.text_area(key=f"history-note-{run_id}").set_value("as on Tuesday")
    tags = at.multiselect(key=f"history-tags-{run_id}")
    assert note.proto.ignore_rerun, "what is typed comes with Save, and redraws nothing"
    assert tags.proto.ignore_rerun
    click(at, "history-save")
    assert (store.run(run_id).name, store.run(run_id).note) == ("a better name", "as on Tuesday")
    assert store.tags(run_id) == ("old",)
    assert [t.value for t in at.toast] == [f"Run {run_id} saved"]
    at = dialog("edit_one", [run_id])
    at.text_input(key=f"history-name-{run_id}").set_value("another name")
    at.multiselect(key=f"history-tags-{run_id}").set_value(["old", "a,b"])
    click(at, "history-save")
    assert "without a comma" in said(at)
    assert (store.run(run_id).name, store.tags(run_id)) == ("a better name", ("old",)), (
        "refused: nothing is saved"
    )
    at.text_input(key=f"history-name-{run_id}").set_value("  ")
    at.multiselect(key=f"history-tags-{run_id}").set_value(["old"])
    click(at, "history-save")
    assert "name: a run needs one" in said(at)
    assert store.run(run_id).name == "a better name"
    at.text_input(key=f"history-name-{run_id}").set_value("n" * 201).run()
    assert "Cut to the first 200 characters" in said(at)
    ids = [add_run(store) for _ in range(3)]
    for run_id, tags in zip(ids, (["all", "a"], ["all"], ["all"]), strict=True):
        store.tag(run_id, tags)
    at = dialog("edit_many", ids[:2])
    field = at.multiselect(key="history-tags-many")
    assert field.value == ["all"]
    field.set_value(["a"])
    click(at, "history-save-many")
    assert [store.tags(run_id) for run_id in ids] == [("a",), ("a",), ("all",)]


def test_a_run_of_a_machine_that_is_gone_can_be_given_up(store: RunStore, ticked: set[int]) -> None:
    run_id = add_run(store, status="running")
    store.update_run(run_id, owner_host="box-1")
    ticked.add(run_id)
    at = app("history")
    assert "box-1, process" in said(at)
    click(at, "history-given-up")
    assert store.run(run_id).status == "interrupted"
    assert [words for words, _ in at.session_state[TO_SAY]] == ["1 run marked as interrupted"]


def test_what_was_deleted_comes_back(store: RunStore, ticked: set[int]) -> None:
    ids = [add_run(store, name=f"number {n}") for n in range(3)]
    helper = add_run(store, status="running", group_key=f"headroom:{ids[1]}", role="A")
    ticked.update(ids[1:])
    at = app("history")
    click(at, "history-delete")
    assert "is still going on" in said(at)
    assert len(store.runs()) == 4
    store.update_run(helper, status="done")
    click(at.run(), "history-delete")
    assert listed(at) == ids[:1]
    assert [words for words, _ in at.session_state[TO_SAY]] == ["2 runs deleted"]
    click(at, "history-undo")
    assert (listed(at), store.run(helper).role) == (ids[::-1], "A")
    ticked.add(ids[0])
    click(at.run(), "history-delete")
    at = (
        app("history").multiselect(key="history-restore").set_value([2]).run()
    )  # also where nothing is left
    click(at, "history-restore-now")
    assert listed(at) == [2]


def test_runs_come_in_from_a_file(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = RunStore(f"sqlite:///{tmp_path / 'elsewhere.sqlite'}")
    files = [
        bundle.bundle_bytes(elsewhere, [add_run(elsewhere, n=5, name="from afar")]),
        b"no bundle at all",
    ]
    elsewhere.close()
    waiting: list[io.BytesIO] = []
    monkeypatch.setattr(
        st, "file_uploader", lambda *args, **kwargs: waiting.pop() if waiting else None
    )
    at = app("history")
    for content, message in zip(files, ("", "was not imported"), strict=True):
        waiting.append(io.BytesIO(content))
        at.run()
        assert message in said(at)
        assert listed(at) == [1]
    assert store.run(1).name == "from afar"
    assert [words for words, _ in at.session_state[TO_SAY]] == ["1 run imported as run 1."]


@pytest.mark.parametrize(("answer", "left"), [("join", [1]), ("apart", [2, 1])])
def test_whether_an_imported_run_is_of_a_job_is_asked(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, left: list[int]
) -> None:
    elsewhere = RunStore(f"sqlite:///{tmp_path / 'elsewhere.sqlite'}")
    waiting = [io.BytesIO(bundle.bundle_bytes(elsewhere, [made(elsewhere, 2, host="b")]))]
    elsewhere.close()
    made(store, 0)
    monkeypatch.setattr(
        st, "file_uploader", lambda *args, **kwargs: waiting.pop() if waiting else None
    )
    at = app("history")
    assert "Run 2 may be of the job of run 1" in said(at)
    assert listed(at) == [2, 1]
    click(at, f"history-{answer}-2")
    assert listed(at) == left
    assert "may be of the job" not in said(at)


def test_a_run_of_another_version_is_listed_and_named(store: RunStore, ticked: set[int]) -> None:
    run_id = add_run(store)
    with store.transaction() as db:
        db.execute(sa.update(runs_table).values(config={"strategy": "of tomorrow", "what": 1}))
    ticked.add(run_id)
    at = app("history")
    assert listed(at) == [run_id]
    click(at, "history-run-again")
    assert "was written by another version of vitprof" in said(at)


@pytest.mark.usefixtures("fresh")
def test_a_store_that_can_only_be_read_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITPROF_HOME", str(tmp_path))
    with closing(RunStore()) as store:
        run_id = add_run(store, name="kept")
    monkeypatch.setattr("vitprof.store.database.cannot_be_written", lambda path: True)
    assert listed(app("history")) == [run_id]
    at = app(run=str(run_id))
    assert not at.error
    assert at.button(key="run-button").disabled
    assert "can only be read here" in at.info[0].value
