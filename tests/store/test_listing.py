"""Lists of runs: what is asked for, in order, page by page."""

import math
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.store.conftest import DATABASES
from tests.store.postgresql import Server
from vitprof.config import RunConfig
from vitprof.recording.columns import RunSummary
from vitprof.recording.verdict import NoVerdict, Verdict
from vitprof.store import HelperCounts, RunGroup, RunQuery, RunStore

NAN = math.nan


def add(
    store: RunStore,
    strategy: str,
    rate: float = NAN,
    *,
    kind: str = "",
    tags: tuple[str, ...] = (),
    **more: str,
) -> int:
    group = {k: more.pop(k) for k in ("group_key", "role") if k in more}
    run_id = store.create_run(RunConfig(strategy=strategy, **more), **group)
    summary = RunSummary(n_steps=9, samples_per_s=rate, device_idle_frac=1 / rate)
    store.update_run(
        run_id, status="done", summary=summary, verdict={"kind": kind}, spark=[0.5, None]
    )
    store.tag(run_id, tags)
    return run_id


@pytest.fixture(scope="module", params=DATABASES)
def listed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunStore]:
    """A store of six runs, which no test changes."""
    url = f"sqlite:///{tmp_path_factory.mktemp('listed') / 'runs.sqlite'}"
    if request.param == "postgresql":
        postgresql: Server = request.getfixturevalue("server")
        url = postgresql.schema()
    with closing(RunStore(url)) as store:
        fill(store)
        yield store


def fill(store: RunStore) -> None:
    add(
        store, "memory", 300.0, kind="not input-bound", tags=("ssd", "keep"), name="the best of all"
    )
    add(store, "per-sample", 100.0, kind="input-bound", dataset="photos")
    add(store, "hdf5", 200.0, kind="input-bound", tags=("nfs",), device="simulated:2,10")
    add(store, "memory")
    add(store, "memory", 250.0, group_key="headroom:1", role="A")
    add(store, "hdf5")
    store.edit(2, note="100% of_it is slow")


def ids(store: RunStore, **query: Any) -> list[int]:
    asked = RunQuery(**query)
    found = [row.id for row in store.list_runs(asked, limit=50)]
    assert store.count_runs(asked) == len(found)
    return found


def test_a_row_says_what_a_list_shows(listed: RunStore) -> None:
    row = listed.list_runs(RunQuery(text="best"), limit=1)[0]
    assert (row.id, row.strategy, row.dataset, row.batch_size) == (1, "memory", "digits", 128)
    assert (row.samples_per_s, row.device_idle_frac, row.verdict_kind) == (
        300.0,
        1 / 300,
        "not input-bound",
    )
    assert (row.tags, row.spark, row.simulated, row.live) == (
        ("keep", "ssd"),
        (0.5, None),
        False,
        False,
    )
    assert listed.list_runs(RunQuery(text="#3"), limit=1)[0].simulated
    assert listed.list_runs(RunQuery(text="#4"), limit=1)[0].samples_per_s is None


STATED: tuple[tuple[Verdict, float | None, str], ...] = (
    (
        Verdict(kind="input-bound", device="gpu", idle_frac=0.7, simulated=False),
        0.7,
        "input-bound",
    ),
    (
        Verdict(
            kind="launch-bound", device="gpu", idle_frac=0.06, paced_frac=0.73, simulated=False
        ),
        0.73,
        "launch-bound",
    ),
    (
        Verdict(
            kind="inconclusive",
            device="gpu",
            why_none=NoVerdict("too_few_steps", n_steps=18, idle_frac=0.94),
            simulated=False,
        ),
        0.94,
        "almost certainly starved",
    ),
    (
        Verdict(
            kind="inconclusive",
            device="gpu",
            idle_frac=0.5,
            why_none=NoVerdict("disturbed"),
            simulated=False,
        ),
        0.5,
        "disturbed",
    ),
    (
        Verdict(kind="inconclusive", device="gpu", why_none=NoVerdict("no_steps"), simulated=False),
        None,
        "inconclusive",
    ),
    (
        Verdict(
            kind="inconclusive",
            device="gpu",
            why_none=NoVerdict("rank_0_late", frac=0.4, rank_0_frac=0.1),
            simulated=False,
        ),
        0.4,
        "almost certainly starved",
    ),
)
"""Verdict -> the idle share and the word that lists have."""


def test_a_row_has_the_idle_share_and_the_word_of_its_verdict(store: RunStore) -> None:
    for made, _, _ in STATED:
        run_id = store.create_run(RunConfig())
        summary = RunSummary(n_steps=9, device_idle_frac=0.99)
        store.update_run(run_id, status="done", summary=summary, verdict=made.to_dict())
    rows = store.list_runs(RunQuery(descending=False), limit=9)
    assert [(row.idle_frac, row.verdict_kind) for row in rows] == [
        (idle, word) for _, idle, word in STATED
    ]
    assert {row.device_idle_frac for row in rows} == {0.99}
    assert ids(store, sort="idle_frac") == [3, 2, 1, 4, 6, 5], "the one without a figure is last"
    assert ids(store, filters={"verdict": ("almost certainly starved",)}) == [6, 3]
    assert "disturbed" in store.choices("verdict")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, [6, 4, 3, 2, 1]),
        ({"helpers": True}, [6, 5, 4, 3, 2, 1]),
        ({"group_key": "headroom:1"}, [5]),
        ({"filters": {"strategy": ("memory",)}}, [4, 1]),
        ({"filters": {"verdict": ("input-bound",), "dataset": ("photos",)}}, [2]),
        ({"filters": {"tag": ("ssd", "nfs")}}, [3, 1]),
        ({"filters": {"device": ("simulated:2,10",)}}, [3]),
        ({"filters": {"status": ("failed",), "tag": ()}}, []),
        ({"text": "BEST all"}, [1]),
        ({"text": "best photos"}, []),
        ({"text": "100% of_it"}, [2]),
        ({"text": "%"}, [2]),
        ({"text": "keep"}, [1]),
        ({"text": "3"}, [3]),
        ({"text": "#2"}, [2]),
        ({"text": "9" * 30}, []),
        ({"text": "'; drop table runs; --"}, []),
        ({"sort": "samples_per_s"}, [1, 3, 2, 6, 4]),
        ({"sort": "samples_per_s", "descending": False}, [2, 3, 1, 6, 4]),
        ({"sort": "strategy", "descending": False}, [6, 3, 4, 1, 2]),
    ],
)
def test_runs_are_found_filtered_and_sorted(
    listed: RunStore, query: dict[str, object], expected: list[int]
) -> None:
    assert ids(listed, **query) == expected


def test_runs_made_for_others_are_counted_by_what_for(store: RunStore) -> None:
    fill(store)
    assert store.count_helpers(RunQuery()) == HelperCounts(of_tournaments=0, of_runs=1)
    trials = [
        add(store, "lmdb", group_key=RunGroup("tournament", 3).key, role=f"lmdb#{n}")
        for n in (1, 2)
    ]
    assert store.count_helpers(RunQuery()) == HelperCounts(of_tournaments=2, of_runs=1)
    only_lmdb = RunQuery(filters={"strategy": ("lmdb",)}, helpers=True)
    assert store.count_helpers(only_lmdb) == HelperCounts(of_tournaments=2, of_runs=0)
    assert store.count_helpers(RunQuery(text="nothing like it")).total == 0
    store.delete(trials[0])
    assert store.count_helpers(RunQuery()).of_tournaments == 1, "without what was deleted"


def test_pages_hold_every_run_once_and_choices_are_what_there_is(listed: RunStore) -> None:
    pages = [
        listed.list_runs(RunQuery(sort="samples_per_s", helpers=True), limit=2, offset=o)
        for o in (0, 2, 4, 6)
    ]
    assert [[row.id for row in page] for page in pages] == [[1, 5], [3, 2], [6, 4], []]
    assert listed.choices("strategy") == ["hdf5", "memory", "per-sample"]
    assert listed.choices("tag") == ["keep", "nfs", "ssd"]
    assert listed.choices("verdict") == ["input-bound", "not input-bound"]


@settings(max_examples=15, deadline=None)
@given(text=st.text(max_size=20))
def test_no_search_text_breaks_the_query(listed: RunStore, text: str) -> None:
    found = ids(listed, text=text.replace("\x00", ""))
    assert set(found) <= {1, 2, 3, 4, 6}
