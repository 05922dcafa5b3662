"""Runs as one file: what goes in comes out, and where a file is refused nothing is stored."""

import contextlib
import dataclasses
import io
import itertools
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.alarm import cpu_alarm
from tests.config.configs import configs
from tests.recording.archives import arrow_here, changed, unpacked, with_columns  # noqa: F401
from tests.ui.dashboard import add_run
from vitprof.config import RunConfig
from vitprof.config.own_script import own_config, with_loader
from vitprof.datasets import catalog
from vitprof.datasets.own import registry
from vitprof.datasets.own.registry import OwnSet
from vitprof.errors import StoreError, VitprofError
from vitprof.export import bundle
from vitprof.export.bundle import ImportedRun, bundle_bytes, import_bundle, write_bundle
from vitprof.names import MAX_NAME
from vitprof.recording import archive
from vitprof.recording.archive import ArchiveError
from vitprof.recording.columns import Phase, summary_to_dict
from vitprof.store import RunGroup, RunQuery, RunStore
from vitprof.store.database import run_tags, runs, series
from vitprof.store.run_store import RunImport

pytestmark = pytest.mark.usefixtures("arrow_here")

TELLTALE = "was not imported: "
REFUSED_S = 5.0
"""CPU time in which any file is imported or refused here; the largest have 200,000 steps."""
SENT = {"kind": "inconclusive", "sentence": "whatever the sender says", "simulated": False}
"""A stored verdict."""


@pytest.fixture
def other(tmp_path: Path) -> Iterator[RunStore]:
    """The store of another machine, where runs begin with number 41."""
    opened = RunStore(f"sqlite:///{tmp_path / 'other.sqlite'}")
    with opened.transaction() as db:
        db.exec_driver_sql("INSERT INTO sqlite_sequence (name, seq) VALUES ('runs', 40)")
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A bundle of one run of 40 steps that has a verdict: it is found anew where it is imported."""
    opened = RunStore(f"sqlite:///{tmp_path_factory.mktemp('sender') / 'runs.sqlite'}")
    run_id = add_run(opened, n=40)
    opened.update_run(run_id, verdict=SENT)
    data = bundle_bytes(opened, [run_id])
    opened.close()
    return data


def counts(store: RunStore) -> list[int]:
    with store.transaction() as db:
        return [
            db.execute(sa.select(sa.func.count()).select_from(t)).scalar_one()
            for t in (runs, series, run_tags)
        ]


def refused(store: RunStore, data: bytes, telling: str = "") -> str:
    """That `data` is refused in one line, with nothing stored; the line."""
    before = counts(store)
    with cpu_alarm(REFUSED_S), pytest.raises(ArchiveError) as caught:
        import_bundle(store, io.BytesIO(data))
    line = str(caught.value)
    assert TELLTALE in line
    assert telling in line
    assert len(line) < 400
    assert counts(store) == before
    return line


PETS = OwnSet(
    "pets",
    "folder:/d/pets",
    n_train=60_000,
    n_test=10,
    classes=3,
    image_size=96,
    n_bytes=5_000,
    stamp="a",
)


@pytest.fixture
def with_pets(sent: bytes) -> bytes:
    """The bundle of a run on a data set of its sender's."""

    def change(values: dict[str, Any]) -> None:
        values["config"] |= {"dataset": "pets", "strategy": "workers"}
        values["facts"]["own_set"] = dataclasses.asdict(PETS)

    return changed(sent, change)


def test_the_data_set_of_a_run_is_kept_with_the_run(store: RunStore, with_pets: bytes) -> None:
    import_bundle(store, io.BytesIO(with_pets))
    assert catalog.dataset_info("pets").classes == 3
    registry.path().unlink()
    assert import_bundle(store, io.BytesIO(with_pets)).new == ()
    assert not registry.path().exists(), "the run was here already"


def test_a_password_in_the_url_of_a_data_set_is_neither_taken_from_a_bundle_nor_given(
    store: RunStore, with_pets: bytes
) -> None:
    spec = "folder:s3://me:hunter2@host/pets"
    sent = changed(with_pets, lambda v: v["facts"]["own_set"].update(spec=spec))
    (made,) = import_bundle(store, io.BytesIO(sent)).new
    facts = store.run(made.run_id).facts
    assert facts["own_set"]["spec"] == "folder:s3://me:***@host/pets"
    store.update_run(made.run_id, facts=facts | {"own_set": {**facts["own_set"], "spec": spec}})
    assert b"hunter2" not in b"".join(unpacked(bundle_bytes(store, [made.run_id])).values())


def test_a_bundle_that_is_refused_leaves_no_data_set(store: RunStore, with_pets: bytes) -> None:
    refused(store, changed(with_pets, lambda v: v.update(status="no status")))
    refused(store, with_columns(with_pets, lambda s: s.update(step=s["step"][::-1].copy())))
    refused(store, changed(with_pets, lambda v: v["facts"]["own_set"].update(name="../x")))
    refused(store, changed(with_pets, lambda v: v["facts"].update(own_set=[1])))
    assert not registry.path().exists()
    assert registry.everything() == {}


def test_a_run_comes_out_as_it_went_in(store: RunStore, other: RunStore, tmp_path: Path) -> None:
    run_id = add_run(other, n=60, strategy="workers", workers=2, device="simulated:5,0")
    other.update_run(
        run_id,
        phases=[Phase("prepare", 90.0, 99.5), Phase("evaluate", 101.0, 101.25)],
        notices=["no GPU", "ein zweiter Hinweis: Größe 🚀"],
        facts={
            "n_train": 60000,
            "cache_hit_frac": None,
            "page_cached_frac": 0.5,
            "started_by": "ada@lab.example",
        },
        environment={"device_name": "Zürich 9000", "cpu_count": 2, "simulated": True},
        verdict=SENT,
        training_since_s=100.0,
    )
    other.edit(run_id, name='=a "name", with ünïcode')
    other.edit(run_id, note="two\nlines")
    other.tag(run_id, ["before", "Größe"])
    path = tmp_path / "sent.vitprof"
    write_bundle(other, [run_id], path)
    came = import_bundle(store, path)
    assert came.sentence == "1 run imported as run 1"
    before, after = other.run(run_id), store.run(1)
    same = (
        "name",
        "status",
        "created_utc",
        "t_origin_s",
        "training_since_s",
        "config",
        "environment",
        "phases",
    )
    for name in (*same, "notices", "note", "role", "group_key", "error"):
        assert getattr(after, name) == getattr(before, name), name
    # which the sender did not note, and its steps say
    trained = {"training_s": pytest.approx(0.55)}
    assert summary_to_dict(after.summary) == summary_to_dict(before.summary) | trained
    assert (before.facts.pop("started_by"), after.started_by) == ("ada@lab.example", ""), (
        "stays in the house"
    )
    assert after.facts == before.facts | {"imported": {"host": before.owner_host, "run_id": run_id}}
    assert store.tags(1) == other.tags(run_id)
    for kind in ("steps", "telemetry"):
        came_out, went_in = getattr(store, kind)(1), getattr(other, kind)(run_id)
        assert list(came_out) == list(went_in)
        for name, values in went_in.items():
            np.testing.assert_allclose(came_out[name], values, rtol=0, atol=1e-9, err_msg=name)
    assert (
        after.verdict.kind == "input-bound"
    )  # found here, from the steps; the sender's word does not count
    (row,) = store.list_runs(RunQuery(), limit=9)
    assert (row.verdict_kind, len(row.spark)) == ("input-bound", 40)


BLOCK = {"steps": 10, "step_s": 1.0, "compute_s": 0.5, "data_wait_s": 0}
WATCHED = {"dataset": "Samples", "n_samples": None, "batch_size": 16, "pin_memory": False}


def test_a_watched_run_comes_out_as_it_went_in(
    store: RunStore, other: RunStore, tmp_path: Path
) -> None:
    run_id, path = add_run(other, n=30), tmp_path / "sent.vitprof"
    environment: dict[str, Any] = {"device": "cpu", "watched": WATCHED}
    told: dict[str, Any] = {
        "transforms": {
            "b": {"s_per_sample": 0.001, "calls": 9},
            "a": {"s_per_sample": 0, "calls": 9},
        },
        "replay": {"0": BLOCK, "1": BLOCK},
    }
    config = with_loader(own_config("python train.py", storage="memory"), environment)
    other.update_run(run_id, config=config, environment=environment, facts=told, verdict=SENT)
    write_bundle(other, [run_id], path)
    import_bundle(store, path)
    came = store.run(1)
    assert (came.config, came.environment) == (config, environment)
    assert list(came.facts["transforms"].items()) == list(told["transforms"].items()), (
        "in their order"
    )
    assert came.facts["replay"] == told["replay"]
    assert came.verdict.kind == "input-bound"


def test_what_cannot_be_shown_is_made_harmless_on_the_way_out(
    store: RunStore, other: RunStore
) -> None:
    run_id = add_run(other, n=0, status="failed")  # without steps
    odd = "bell\a\ttab\r\nand \u202eturned"  # an older version took it
    other.update_run(run_id, name=odd, error="\0" + "x" * 20_000, facts={"made_s": math.inf})
    import_bundle(store, io.BytesIO(bundle_bytes(other, [run_id])))
    run = store.run(1)
    assert (run.name, len(run.error)) == ("bell\ufffd tab and \ufffdturned", 10_000)
    assert run.facts["made_s"] is None
    assert (run.status, len(store.steps(1)["step"])) == ("failed", 0)


def test_the_same_runs_give_the_same_bytes_and_come_once(store: RunStore, other: RunStore) -> None:
    ids = [add_run(other, n=3), add_run(other, n=3)]
    sent = bundle_bytes(other, ids)
    assert sent == bundle_bytes(other, ids[::-1])
    refused(
        store,
        changed(sent, lambda v: v.update(run_id=41), "recording-2.json"),
        "the same run twice",
    )


def test_importing_twice_or_at_home_changes_nothing(store: RunStore, other: RunStore) -> None:
    sent = bundle_bytes(other, [add_run(other, n=5), add_run(other, n=5)])
    import_bundle(store, io.BytesIO(sent))
    store.edit(1, name="my own name for it")
    before = counts(store)
    again = import_bundle(store, io.BytesIO(sent))
    assert (again.sentence, counts(store)) == ("here already: runs 1, 2", before)
    more = bundle_bytes(other, [41, add_run(other, n=5)])
    assert (
        import_bundle(store, io.BytesIO(more)).sentence
        == "1 run imported as run 3; here already: run 1"
    )
    back = bundle_bytes(store, [1])
    assert import_bundle(other, io.BytesIO(back)).sentence == "here already: run 41", "it came home"
    assert import_bundle(store, io.BytesIO(back)).sentence == "here already: run 1"


def test_headroom_travels_with_its_run(store: RunStore, other: RunStore) -> None:
    add_run(store, n=3)
    run_id = add_run(other, n=5)
    other.delete(add_run(other, n=3))
    anchors = [
        add_run(other, n=5, group_key=RunGroup("headroom", run_id).key, role=role) for role in "AB"
    ]
    came = import_bundle(store, io.BytesIO(bundle_bytes(other, [run_id])))
    assert came.sentence == "1 run imported as run 2; 2 runs of headroom with them"
    groups = [("", ""), ("headroom:2", "A"), ("headroom:2", "B")]
    assert [(r.group_key, r.role) for r in (store.run(n) for n in (2, 3, 4))] == groups
    alone = import_bundle(store, io.BytesIO(bundle_bytes(other, anchors[:1])))
    assert alone.runs[0].already_here
    assert anchors == [43, 44]


def test_what_is_made_for_a_run_that_is_here_is_left_out(store: RunStore, other: RunStore) -> None:
    run_id = add_run(other, n=5)
    import_bundle(store, io.BytesIO(bundle_bytes(other, [run_id])))
    anchor = add_run(other, n=5, group_key=RunGroup("headroom", run_id).key, role="A")
    add_run(other, n=5, group_key=RunGroup("headroom", anchor).key, role="A")
    came = import_bundle(store, io.BytesIO(bundle_bytes(other, [run_id, anchor])))
    assert not came.new
    assert (
        came.sentence
        == "here already: run 1; left out, since they were measured for runs that are here: 2"
    )
    assert counts(store)[0] == 1


def test_what_belongs_to_a_run_that_is_not_there_stands_alone(
    store: RunStore, other: RunStore
) -> None:
    run_id = add_run(other, n=5)
    anchor = add_run(other, n=5, group_key=RunGroup("headroom", run_id).key, role="A")
    trial = add_run(other, n=5, group_key="tournament:1", role="memory/b128/w-/as-is#1")
    # of a search and of a prediction that an earlier version made
    rung = add_run(other, n=5, group_key="autotune:4711-1790000000000000000", role="rung 1")
    check = add_run(other, n=5, group_key=f"prediction:{run_id}", role="check")
    import_bundle(store, io.BytesIO(bundle_bytes(other, [anchor, trial, rung, check])))
    assert {(store.run(n).group_key, store.run(n).role) for n in (1, 2, 3, 4)} == {("", "")}


def test_groups_in_a_circle_end(store: RunStore, other: RunStore) -> None:
    first = add_run(other, n=5)
    second = add_run(other, n=5, group_key=RunGroup("headroom", first).key, role="A")
    sent = bundle_bytes(other, [first, second])
    came = import_bundle(
        store, io.BytesIO(changed(sent, lambda v: v.update(group_key=f"headroom:{second}")))
    )
    assert len(came.new) == 2


def test_what_cannot_be_exported_is_refused(
    other: RunStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    live = add_run(other, n=5, status="running")
    for ids, why in (
        ([live], f"run {live} is still going on"),
        ([7], "there is no run 7"),
        ([], "nothing to export"),
    ):
        with pytest.raises(VitprofError, match=why):
            bundle_bytes(other, ids)
    run_id = add_run(other, n=50)
    monkeypatch.setattr(archive, "MAX_UNPACKED_BYTES", 5_000)
    with pytest.raises(ArchiveError, match="export fewer at a time"):
        write_bundle(other, [run_id], tmp_path / "x.vitprof")
    assert not (tmp_path / "x.vitprof").exists()


def test_a_large_file_waits_for_a_job_to_end(
    store: RunStore, other: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = bundle_bytes(other, [add_run(other, n=6)])
    monkeypatch.setattr(bundle, "MAX_ROWS_DURING_A_JOB", 5)
    live = add_run(store, n=1, status="running")
    with pytest.raises(ArchiveError, match=f"while run {live} is being recorded"):
        import_bundle(store, io.BytesIO(sent))
    store.update_run(live, status="done")
    assert len(import_bundle(store, io.BytesIO(sent)).new) == 1


def test_a_store_that_fails_keeps_nothing(
    store: RunStore, other: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = bundle_bytes(other, [add_run(other, n=5), add_run(other, n=5)])
    insert, inserted = RunImport.insert, []

    def fails_at_the_second(*args: Any, **kwargs: Any) -> int:
        if inserted:
            raise StoreError("the disk is full")
        inserted.append(insert(*args, **kwargs))
        return inserted[0]

    monkeypatch.setattr(RunImport, "insert", fails_at_the_second)
    with pytest.raises(StoreError, match="the disk is full"):
        import_bundle(store, io.BytesIO(sent))
    assert (len(inserted), counts(store)) == (1, [0, 0, 0])


def test_what_no_store_would_have_is_refused(store: RunStore, sent: bytes) -> None:
    groups = ("x", "headroom:", "headroom:-1", "headroom:x", "a:1;DROP", "headroom:1\n")
    tags = ([""], [" a"], ["a,b"], ["x" * 41], ["a"] * 101)
    for wrong in (
        *({"group_key": group} for group in groups),
        *({"tags": tag} for tag in tags),
        {"note": "x" * 4001},
    ):
        refused(store, changed(sent, lambda v, wrong=wrong: v.update(wrong)))


def test_whatever_the_times_are_there_is_a_verdict_or_a_refusal(
    store: RunStore, sent: bytes
) -> None:
    rng = np.random.default_rng(7)
    stored, names = 0, ("compute_start_s", "compute_s", "gap_s", "data_wait_s", "step_s", "host_s")
    for number, (scale, name) in enumerate(itertools.product((-1.0, 1e8), names)):
        data = with_columns(
            sent, lambda s, n=name, k=scale: s.update({n: s[n] * k + rng.normal(0, 1e-3, 40)})
        )
        data = changed(data, lambda v, t=number: v.update(t_origin_s=t))
        with cpu_alarm(1.0), contextlib.suppress(ArchiveError):
            stored += len(import_bundle(store, io.BytesIO(data)).new)
    assert stored == counts(store)[0] > 0


@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(config=configs)
def test_whatever_the_config_a_verdict_or_refusal_in_a_second(
    store: RunStore, sent: bytes, config: RunConfig
) -> None:
    data = changed(sent, lambda v: v.update(config=config.to_dict()))
    came: tuple[ImportedRun, ...] = ()
    with cpu_alarm(1.0), contextlib.suppress(ArchiveError):
        came = import_bundle(store, io.BytesIO(data)).runs
    assert all(store.run(run.run_id).verdict is not None for run in came)


def test_files_that_cannot_be_read(store: RunStore, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # nobody writes to it
    wrong = {tmp_path / "none": "No such file", tmp_path: "cannot be read"}
    for path, why in {
        **wrong,
        Path(os.devnull): "a device or a pipe",
        pipe: "a device or a pipe",
    }.items():
        with pytest.raises(ArchiveError, match=why):
            import_bundle(store, path)


def test_any_flipped_bytes_give_the_same_runs_or_one_line(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    home = tmp_path_factory.mktemp("flips")
    source, target = (
        RunStore(f"sqlite:///{home / 'a.sqlite'}"),
        RunStore(f"sqlite:///{home / 'b.sqlite'}"),
    )
    run_id = add_run(source, n=4)
    good = bundle_bytes(source, [run_id])
    config, series = source.run(run_id).config, source.steps(run_id)
    source.delete(add_run(source, n=1))
    with target.transaction() as db:
        db.exec_driver_sql("INSERT INTO sqlite_sequence (name, seq) VALUES ('runs', 90)")

    @settings(max_examples=120, suppress_health_check=list(HealthCheck))
    @given(
        st.lists(
            st.tuples(st.integers(0, len(good) - 1), st.integers(1, 255)), min_size=1, max_size=4
        )
    )
    def flip(changes: list[tuple[int, int]]) -> None:
        data = bytearray(good)
        for at, by in changes:
            data[at] ^= by
        try:
            with cpu_alarm(1.0):
                (came,) = import_bundle(target, io.BytesIO(bytes(data))).runs
        except VitprofError as error:
            lines.add(str(error))
            return
        run = target.run(came.run_id)
        assert run.config == config
        for name, values in series.items():
            np.testing.assert_allclose(
                target.steps(came.run_id)[name], values, rtol=0, atol=1e-9
            )  # whole nanoseconds
        target.delete(came.run_id)

    lines: set[str] = set()
    flip()
    assert lines
    assert not [line for line in lines if "\n" in line]
    source.close()
    target.close()


ODD = st.text(st.characters(codec="utf-8"), max_size=MAX_NAME) | st.text(
    "\t\n\r\x1b\u2028\u202e\ufeff a,", max_size=9
)


@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(typed=ODD, stored=ODD, tag=ODD)
def test_every_bundle_that_is_written_can_be_read(
    store: RunStore, other: RunStore, **given: str
) -> None:
    """Whatever a person was allowed to call a run, and whatever an older store has."""
    ids = [add_run(other, n=1), add_run(other, n=1)]
    with contextlib.suppress(StoreError):
        other.edit(ids[0], name=given["typed"])
        other.tag(ids[0], [given["tag"]])
    with other.transaction() as db:
        db.execute(sa.update(runs).where(runs.c.id == ids[1]).values(name=given["stored"]))
        db.execute(
            sa.insert(run_tags).values(run_id=ids[1], tag=given["tag"].replace(",", "")[:40] or "x")
        )
    came = import_bundle(store, io.BytesIO(bundle_bytes(other, ids)))
    assert [store.run(new.run_id).name for new in came.runs] == [
        other.run(run_id).name for run_id in ids
    ]
    assert not came.renamed
    other.delete(*ids)


@pytest.mark.parametrize(
    ("sends", "here"), [("\n\n", "unnamed"), (" ", "unnamed"), ("two\nlines", "two lines")]
)
def test_a_name_of_an_older_version_is_another_one_here(
    store: RunStore, sent: bytes, sends: str, here: str
) -> None:
    came = import_bundle(store, io.BytesIO(changed(sent, lambda v: v.update(name=sends))))
    assert (
        came.sentence
        == "1 run imported as run 1; renamed, since what they were called cannot be shown: 1"
    )
    assert store.run(1).name == here
