"""Runs as one file: what goes in comes out, and a file from somebody who means harm is refused with nothing stored."""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import math
import os
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.alarm import cpu_alarm
from tests.config.configs import configs
from tests.ui.dashboard import add_run
from vitprof.config import RunConfig
from vitprof.config.bounds import RUN_BOUNDS
from vitprof.config.own_script import own_config, with_loader
from vitprof.errors import StoreError, VitprofError
from vitprof.experiments.prediction import CHECK
from vitprof.export import bundle
from vitprof.export.bundle import BundleError, ImportedRun, archive, bundle_bytes, import_bundle, write_bundle
from vitprof.names import MAX_NAME
from vitprof.recording.columns import STEP_COLUMNS, Phase
from vitprof.store import RunQuery, RunStore
from vitprof.store.groups import RunGroup
from vitprof.store.importing import RunImport
from vitprof.store.schema import run_tags, runs, series

Change = Callable[[dict[str, Any]], object]
TELLTALE = "was not imported: "
REFUSED_S = 5.0
"""CPU time in which any file is taken in or refused here; the largest have 200,000 steps."""
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
    """A bundle of one run of 12 steps."""
    opened = RunStore(f"sqlite:///{tmp_path_factory.mktemp('sender') / 'runs.sqlite'}")
    data = bundle_bytes(opened, [add_run(opened, n=12)])
    opened.close()
    return data


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A bundle of one run of 40 steps that has a verdict: it is found anew where it is taken in."""
    opened = RunStore(f"sqlite:///{tmp_path_factory.mktemp('judged') / 'runs.sqlite'}")
    run_id = add_run(opened, n=40)
    opened.update_run(run_id, verdict=SENT)
    data = bundle_bytes(opened, [run_id])
    opened.close()
    return data


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunStore]:
    """A store that nothing gets into."""
    opened = RunStore(f"sqlite:///{tmp_path_factory.mktemp('target') / 'runs.sqlite'}")
    yield opened
    assert counts(opened) == [0, 0, 0]
    opened.close()


def counts(store: RunStore) -> list[int]:
    with store.transaction() as db:
        return [db.execute(sa.select(sa.func.count()).select_from(t)).scalar_one() for t in (runs, series, run_tags)]


def unpacked(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def packed(members: dict[str, bytes], /, **manifest: Any) -> bytes:
    """A bundle of `members` with hashes as they should be, and a manifest changed by `manifest`."""
    rest = {name: data for name, data in members.items() if name != archive.MANIFEST}
    hashes = {n: {"bytes": len(d), "sha256": hashlib.sha256(d).hexdigest()} for n, d in rest.items()}
    told = json.loads(members[archive.MANIFEST]) | {"members": hashes} | manifest
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, data in {archive.MANIFEST: json.dumps(told).encode(), **rest}.items():
            opened.writestr(name, data)
    return target.getvalue()


def changed(data: bytes, change: Change, name: str = "run-1.json") -> bytes:
    members = unpacked(data)
    values = json.loads(members[name])
    change(values)
    return packed(members | {name: json.dumps(values).encode()})


def with_columns(data: bytes, change: Callable[[dict[str, np.ndarray]], object], kind: str = "steps") -> bytes:
    """The bundle with the series of its run changed; hashes and lengths fit."""
    members = unpacked(data)
    about = json.loads(members["run-1.json"])
    short = kind.removesuffix("s")
    names = about[f"{short}_columns"]
    matrix = np.frombuffer(members[f"{kind}-1.f64"], "<f8").reshape(len(names), -1)
    series = {name: row.copy() for name, row in zip(names, matrix, strict=True)}
    change(series)
    about[f"n_{kind}"] = len(next(iter(series.values())))
    about[f"{short}_columns"] = list(series)
    content = np.stack(list(series.values())).tobytes()
    return packed(members | {"run-1.json": json.dumps(about).encode(), f"{kind}-1.f64": content})


def refused(store: RunStore, data: bytes, telling: str = "") -> str:
    """That `data` is refused in one line, with nothing stored; the line."""
    before = counts(store)
    with cpu_alarm(REFUSED_S), pytest.raises(BundleError) as caught:
        import_bundle(store, io.BytesIO(data))
    line = str(caught.value)
    assert TELLTALE in line
    assert "\n" not in line
    assert len(line) < 400
    assert telling in line
    assert counts(store) == before
    return line


# what goes in comes out


def test_a_run_comes_out_as_it_went_in(store: RunStore, other: RunStore, tmp_path: Path) -> None:
    run_id = add_run(other, n=60, strategy="workers", workers=2, device="simulated:5,0")
    other.update_run(
        run_id,
        phases=[Phase("prepare", 90.0, 99.5), Phase("evaluate", 101.0, 101.25)],
        notices=["no GPU", "ein zweiter Hinweis: Größe 🚀"],
        facts={"n_train": 60000, "cache_hit_frac": None, "page_cached_frac": 0.5, "started_by": "ada@lab.example"},
        environment={"device_name": "Zürich 9000", "cpu_count": 2, "simulated": True},
        verdict=SENT,
        training_since_s=100.0,
    )
    other.rename(run_id, '=a "name", with ünïcode')
    other.annotate(run_id, "two\nlines")
    other.tag(run_id, ["before", "Größe"])
    path = tmp_path / "sent.vitprof"
    write_bundle(other, [run_id], path)
    came = import_bundle(store, path)
    assert came.sentence == "1 run imported as run 1"
    before, after = other.run(run_id), store.run(1)
    for name in ("name", "status", "created_utc", "t_origin_s", "training_since_s", "config", "environment", "phases"):
        assert getattr(after, name) == getattr(before, name), name
    for name in ("notices", "summary", "note", "role", "group_key", "error"):
        assert repr(getattr(after, name)) == repr(getattr(before, name)), name
    assert (before.facts.pop("started_by"), after.started_by) == ("ada@lab.example", ""), "stays in the house"
    assert after.facts == before.facts | {"imported": {"host": before.owner_host, "run_id": run_id}}
    assert store.tags(1) == other.tags(run_id)
    for kind in ("steps", "telemetry"):
        came_out, went_in = getattr(store, kind)(1), getattr(other, kind)(run_id)
        assert list(came_out) == list(went_in)
        for name, values in went_in.items():
            np.testing.assert_allclose(came_out[name], values, rtol=0, atol=1e-9, err_msg=name)
    assert after.verdict is not None
    assert after.verdict.kind == "input-bound"  # found here, from the steps; the sender's word does not count
    (row,) = store.list_runs(RunQuery(), limit=9)
    assert row.verdict_kind == "input-bound"
    assert len(row.spark) == 40


BLOCK = {"steps": 10, "step_s": 1.0, "compute_s": 0.5, "data_wait_s": 0}
WATCHED = {"dataset": "Samples", "n_samples": None, "batch_size": 16, "pin_memory": False}


def test_a_watched_run_comes_out_as_it_went_in(store: RunStore, other: RunStore, tmp_path: Path) -> None:
    run_id, path = add_run(other, n=30), tmp_path / "sent.vitprof"
    environment: dict[str, Any] = {"device": "cpu", "watched": WATCHED}
    told: dict[str, Any] = {
        "transforms": {"b": {"s_per_sample": 0.001, "calls": 9}, "a": {"s_per_sample": 0, "calls": 9}},
        "replay": {"0": BLOCK, "1": BLOCK},
    }
    config = with_loader(own_config("python train.py", storage="memory"), environment)
    other.update_run(run_id, config=config, environment=environment, facts=told, verdict=SENT)
    write_bundle(other, [run_id], path)
    import_bundle(store, path)
    came = store.run(1)
    assert (came.config, came.environment) == (config, environment)
    assert list(came.facts["transforms"].items()) == list(told["transforms"].items()), "in their order"
    assert came.facts["replay"] == told["replay"]
    assert came.verdict is not None
    assert came.verdict.kind == "input-bound"


def test_the_same_runs_give_the_same_bytes(other: RunStore) -> None:
    ids = [add_run(other, n=3), add_run(other, n=3)]
    assert bundle_bytes(other, ids) == bundle_bytes(other, ids[::-1])


def test_what_cannot_be_shown_is_made_harmless_on_the_way_out(store: RunStore, other: RunStore) -> None:
    run_id = add_run(other, n=3)
    odd = "bell\a\ttab\r\nand \u202eturned"  # an older version took it
    other.update_run(run_id, name=odd, error="\0" + "x" * 20_000, facts={"made_s": math.inf})
    import_bundle(store, io.BytesIO(bundle_bytes(other, [run_id])))
    run = store.run(1)
    assert run.name == "bell\ufffd tab and \ufffdturned"
    assert len(run.error) == 10_000
    assert run.facts["made_s"] is None


def test_a_run_without_steps_travels_too(store: RunStore, other: RunStore) -> None:
    run_id = add_run(other, n=0, status="failed")
    import_bundle(store, io.BytesIO(bundle_bytes(other, [run_id])))
    assert store.run(1).status == "failed"
    assert not len(store.steps(1)["step"])


def test_importing_twice_changes_nothing(store: RunStore, other: RunStore) -> None:
    sent = bundle_bytes(other, [add_run(other, n=5), add_run(other, n=5)])
    import_bundle(store, io.BytesIO(sent))
    store.rename(1, "my own name for it")
    before = counts(store)
    again = import_bundle(store, io.BytesIO(sent))
    assert again.sentence == "2 runs were here already: runs 1, 2"
    assert counts(store) == before
    more = bundle_bytes(other, [41, add_run(other, n=5)])
    assert import_bundle(store, io.BytesIO(more)).sentence == "1 run imported as run 3; 1 run was here already: run 1"


def test_a_run_that_comes_home_is_known(store: RunStore, other: RunStore) -> None:
    run_id = add_run(other, n=5)
    import_bundle(store, io.BytesIO(bundle_bytes(other, [run_id])))
    back = bundle_bytes(store, [1])
    assert import_bundle(other, io.BytesIO(back)).sentence == f"1 run was here already: run {run_id}"
    assert import_bundle(store, io.BytesIO(back)).sentence == "1 run was here already: run 1"


@pytest.mark.slow
def test_headroom_travels_with_its_run(store: RunStore, other: RunStore) -> None:
    add_run(store, n=3)
    run_id = add_run(other, n=5)
    other.delete(add_run(other, n=3))
    anchors = [add_run(other, n=5, group_key=RunGroup("headroom", run_id).key, role=role) for role in "AB"]
    came = import_bundle(store, io.BytesIO(bundle_bytes(other, [run_id])))
    assert came.sentence == "1 run imported as run 2; 2 measured for headroom came with it"
    assert [(r.group_key, r.role) for r in (store.run(n) for n in (2, 3, 4))] == [
        ("", ""),
        ("headroom:2", "A"),
        ("headroom:2", "B"),
    ]
    alone = import_bundle(store, io.BytesIO(bundle_bytes(other, anchors[:1])))
    assert alone.runs[0].already
    assert anchors == [43, 44]


def test_what_is_made_for_a_run_that_is_here_is_left_out(store: RunStore, other: RunStore) -> None:
    run_id = add_run(other, n=5)
    import_bundle(store, io.BytesIO(bundle_bytes(other, [run_id])))
    anchor = add_run(other, n=5, group_key=RunGroup("headroom", run_id).key, role="A")
    add_run(other, n=5, group_key=RunGroup("headroom", anchor).key, role="A")
    came = import_bundle(store, io.BytesIO(bundle_bytes(other, [run_id, anchor])))
    assert not came.new
    assert came.sentence == ("1 run was here already: run 1; 2 measured for runs that are here already were left out")
    assert counts(store)[0] == 1


def test_what_belongs_to_a_run_that_is_not_there_stands_alone(store: RunStore, other: RunStore) -> None:
    run_id = add_run(other, n=5)
    check = add_run(other, n=5, group_key=RunGroup("prediction", run_id).key, role=CHECK)
    trial = add_run(other, n=5, group_key="tournament:1", role="memory/b128/w-/as-is#1")
    import_bundle(store, io.BytesIO(bundle_bytes(other, [check, trial])))
    assert {(store.run(n).group_key, store.run(n).role) for n in (1, 2)} == {("", "")}


def test_a_run_of_a_tuning_travels(store: RunStore, other: RunStore) -> None:
    """Its group has a name and no number."""
    run_id = add_run(other, n=5, group_key=RunGroup("autotune", "4711-1790000000000000000").key, role="rung 1")
    assert import_bundle(store, io.BytesIO(bundle_bytes(other, [run_id]))).sentence == "1 run imported as run 1"
    assert store.run(1).group_key == ""


def test_words_that_only_a_newer_python_knows_travel(store: RunStore, other: RunStore) -> None:
    run_id = add_run(other, n=3)
    other.annotate(run_id, "new emoji: \U0001faff")
    other.tag(run_id, ["\U0001faff"])
    import_bundle(store, io.BytesIO(bundle_bytes(other, [run_id])))
    assert (store.run(1).note, store.tags(1)) == (other.run(run_id).note, other.tags(run_id))


def test_groups_in_a_circle_end(store: RunStore, other: RunStore) -> None:
    first = add_run(other, n=5)
    second = add_run(other, n=5, group_key=RunGroup("headroom", first).key, role="A")
    sent = bundle_bytes(other, [first, second])
    came = import_bundle(store, io.BytesIO(changed(sent, lambda v: v.update(group_key=f"headroom:{second}"))))
    assert len(came.new) == 2


def test_only_what_has_ended_is_exported(other: RunStore) -> None:
    run_id = add_run(other, n=5, status="running")
    with pytest.raises(BundleError, match=f"run {run_id} is still going on"):
        bundle_bytes(other, [run_id])
    with pytest.raises(StoreError, match="there is no run 7"):
        bundle_bytes(other, [7])
    with pytest.raises(BundleError, match="nothing to export"):
        bundle_bytes(other, [])


def test_what_is_too_much_for_a_file_is_said_before_it_is_written(
    other: RunStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run_id = add_run(other, n=50)
    for module in (archive, bundle.exporting):
        monkeypatch.setattr(module, "MAX_UNPACKED_BYTES", 5_000)
    with pytest.raises(BundleError, match="export fewer at a time"):
        write_bundle(other, [run_id], tmp_path / "x.vitprof")
    assert not (tmp_path / "x.vitprof").exists()


def test_a_large_file_waits_for_a_job_to_end(store: RunStore, other: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = bundle_bytes(other, [add_run(other, n=6)])
    monkeypatch.setattr(bundle.importing, "MAX_ROWS_BESIDE_A_JOB", 5)
    live = add_run(store, n=1, status="running")
    with pytest.raises(BundleError, match=f"while run {live} is being recorded"):
        import_bundle(store, io.BytesIO(sent))
    store.update_run(live, status="done")
    assert len(import_bundle(store, io.BytesIO(sent)).new) == 1


def test_a_store_that_fails_midway_keeps_nothing(
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
    assert inserted
    assert counts(store) == [0, 0, 0]


# files from people who mean harm

NO_BUNDLE = "it is not a file of runs that vitprof wrote (*.vitprof), or it is damaged"


@pytest.mark.parametrize(
    "data",
    [b"", b"hello", b"PK\x05\x06" + bytes(18), b"PK\x03\x04" + bytes(100), os.urandom(4096), b"\x80\x04N."],
    ids=["empty", "text", "empty zip", "half a zip", "noise", "pickle"],
)
def test_what_is_no_bundle(target: RunStore, data: bytes) -> None:
    refused(target, data, NO_BUNDLE)


def test_a_cut_file(target: RunStore, sent: bytes) -> None:
    for n in (1, len(sent) // 2, len(sent) - 1):
        refused(target, sent[:n], NO_BUNDLE)
    refused(target, sent + b"x", NO_BUNDLE)
    refused(target, b"#!/bin/sh\n" + sent, NO_BUNDLE)


@pytest.mark.parametrize("name", ["../../evil", "/etc/passwd", "run-1.json/../x", "run-0.json", "steps-1.npy", "a\\b"])
def test_members_that_do_not_belong_there(target: RunStore, sent: bytes, name: str) -> None:
    refused(target, packed(unpacked(sent) | {name: b"x"}))


def test_members_that_are_missing_or_twice(target: RunStore, sent: bytes) -> None:
    members = unpacked(sent)
    for name in members:
        if name != archive.MANIFEST:
            refused(target, packed({n: d for n, d in members.items() if n != name}), "missing")
    refused(target, packed(members, n_runs=2), "missing")
    file = io.BytesIO(sent)
    with zipfile.ZipFile(file, "a") as opened, pytest.warns(UserWarning, match="Duplicate"):
        opened.writestr("run-1.json", members["run-1.json"])
    refused(target, file.getvalue(), NO_BUNDLE)
    file = io.BytesIO(sent)
    with zipfile.ZipFile(file, "a") as opened:
        opened.writestr("run-2.json", members["run-1.json"])
    refused(target, file.getvalue(), "not those that its manifest names and runs have")


@pytest.mark.parametrize(
    "manifest",
    [
        {"format": "else"},
        {"version": 2},
        {"version": True},
        {"version": None},
        {"n_runs": 0},
        {"n_runs": 10**6},
        {"n_runs": "1"},
        {"members": []},
        {"members": {"run-1.json": 1}},
        {"members": {"run-1.json": {"bytes": -1, "sha256": "x"}}},
    ],
    ids=str,
)
def test_a_manifest_that_is_wrong(target: RunStore, sent: bytes, manifest: dict[str, Any]) -> None:
    refused(target, packed(unpacked(sent), **manifest))


def test_a_hash_that_does_not_fit(target: RunStore, sent: bytes) -> None:
    members = unpacked(sent)
    told = json.loads(members[archive.MANIFEST])["members"]
    told["steps-1.f64"]["sha256"] = "0" * 64
    refused(target, packed(members, members=told), "steps-1.f64 is not what was written")


def test_a_bomb_is_not_unpacked(target: RunStore, sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    members = unpacked(sent)
    refused(target, packed(members | {"run-1.json": b" " * 2**22}), "2.00 MiB that are allowed")
    monkeypatch.setattr(archive, "MAX_UNPACKED_BYTES", 2**20)
    refused(target, packed(members | {"steps-1.f64": bytes(2**22)}), "more than the 1.00 MiB that are allowed")
    # one that declares less than it holds is read up to what it declares, and its checksum is wrong there
    bomb = bytearray(packed(members | {"steps-1.f64": bytes(2**22)}))
    real, lie = (2**22).to_bytes(4, "little"), (96).to_bytes(4, "little")
    assert bomb.count(real) == 2
    refused(target, bytes(bomb.replace(real, lie)), "damaged")


def test_sizes_that_lie_do_not_get_past_the_limit(
    target: RunStore, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MAX_UNPACKED_BYTES", 2**20)
    members = unpacked(sent) | {"steps-1.f64": bytes(2**23)}
    told = json.loads(members[archive.MANIFEST])["members"]  # the manifest says little, zip's headers the truth
    refused(target, packed(members, members=told), "steps-1.f64 would unpack to more than the 1.00 MiB")
    many = unpacked(sent) | {f"{kind}-{n}.f64": bytes(2**19) for n in range(1, 9) for kind in ("steps", "telemetry")}
    refused(target, packed(many), "would unpack to more than the 1.00 MiB")  # each is small enough by itself


@pytest.mark.parametrize("n_files", [4_000, 8_000])
def test_a_huge_table_of_contents_is_not_read(target: RunStore, monkeypatch: pytest.MonkeyPatch, n_files: int) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as opened:
        for n in range(n_files):
            opened.writestr(f"run-{n}.json", b"")
    entries: list[zipfile.ZipInfo] = []
    monkeypatch.setattr(archive.zipfile.ZipInfo, "_decodeExtra", lambda self, *_: entries.append(self))
    refused(target, file.getvalue(), "more than the 1,000 runs")
    assert len(entries) <= 4_000  # the longer one is refused before it is in memory


@pytest.mark.parametrize("flag", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_ways_of_packing(target: RunStore, sent: bytes, flag: int) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", flag) as opened:
        for name, data in unpacked(sent).items():
            opened.writestr(name, data)
    refused(target, file.getvalue(), "packed in a way that vitprof does not write")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"null",
        b"\xff",
        b"{",
        b'{"a": NaN}',
        b'{"a": 1e999}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a": 99999999999999999999}',
        b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a": ' + b"[" * 20 + b"]" * 20 + b"}",
        b'{"a": "\\ud800"}',
        b'{"a": "\\u0000"}',
        b'{"a": "\\u202e"}',
        b'{"\\u0007": 1}',
        b'{"a": "' + b"x" * 10_001 + b'"}',
        b'{"' + b"x" * 101 + b'": 1}',
    ],
    ids=lambda text: text[:20].decode("latin-1"),
)
def test_json_that_is_none_or_too_much(target: RunStore, sent: bytes, text: bytes) -> None:
    members = unpacked(sent)
    refused(target, packed(members | {"run-1.json": text}), "run-1.json")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("run_id", v) for v in (None, 0, -1, 2**31, 1.0, "1", True)],
        *[
            ("origin", v)
            for v in (None, {}, {"host": "", "run_id": 1}, {"host": "x" * 256, "run_id": 1}, {"host": "x", "run_id": 0})
        ],
        *[
            ("origin", v)
            for v in ({"host": 5, "run_id": 1}, {"host": "x", "run_id": True}, {"host": "x", "run_id": 1, "more": 1})
        ],
        *[("name", v) for v in (None, "", 3, "x" * 201, ["a"])],
        *[("status", v) for v in (None, "running", "queued", "", "dead", ["done"])],
        *[("created_utc", v) for v in (None, "", "yesterday", "2026-13-01T00:00:00Z", "2026-01-01T00:00:00", 5)],
        *[("t_origin_s", v) for v in ("1", True, 1e10, [])],
        *[
            ("config", v)
            for v in (
                None,
                [],
                {"strategy": "magic"},
                {"batch_size": -1},
                {"no_such": 1},
                {"device": []},
                {"loader": "x"},
            )
        ],
        *[("config", {name: 10**12}) for name in RUN_BOUNDS],  # a count without end would hang whoever imports it
        *[("config", v) for v in ({"strategy": []}, {"seed": 1.5}, {"steps": 1, "epochs": 1}, {"name": "x" * 201})],
        *[("environment", v) for v in (None, [], {"a": []}, {"cpu_count": "many"}, {"memory_bytes": True})],
        *[("environment", {"device_name": v}) for v in (True, 5)],
        *[("environment", {"watched": v}) for v in (1, [], {"a": []}, {"watched": {}}, {"n_samples": "many"})],
        *[
            ("facts", v)
            for v in (None, {"n_train": "x"}, {"a": {}}, {"imported": {}}, dict.fromkeys(map(str, range(201))))
        ],
        *[
            ("facts", {"transforms": v})
            for v in (
                None,
                [],
                {"a": 1},
                {"a": {"s_per_sample": 1.0}},
                {"a": {"s_per_sample": "1", "calls": 1}},
                {"a": {"s_per_sample": -1.0, "calls": 1}},
                {"a": {"s_per_sample": 1.0, "calls": 1, "more": 1}},
            )
        ],
        *[
            ("facts", {"replay": v})
            for v in (None, [BLOCK], {"a": BLOCK}, {"0": {"steps": 1}}, {"0": BLOCK | {"step_s": -1}}, {"0": 1})
        ],
        *[
            ("config", {"strategy": "own-script", "model": "own-script", "loader": "dataloader"} | v)
            for v in ({"model": "vit-tiny"}, {"storage": "hdf5"}, {"dataset": "x" * 201}, {"loader": "threads"})
        ],
        *[("phases", v) for v in (None, [1], [["a", 1.0]], [["a", 2.0, 1.0]], [["a", None, 1.0]], [[1, 1.0, 2.0]])],
        *[("notices", v) for v in (None, "text", [1], [[]])],
        *[("summary", v) for v in ([], {"no_such": 1}, {"n_steps": 1.5}, {"n_steps": -1}, {"samples_per_s": "fast"})],
        ("verdict", "input-bound"),
        *[("note", v) for v in (None, "x" * 4001)],
        *[("tags", v) for v in (None, "ab", [""], [" a"], ["a,b"], ["x" * 41], ["a"] * 101)],
        *[("group_key", v) for v in (None, "x", "headroom:", "headroom:-1", "headroom:x", "a:1;DROP", 5)],
        *[("group_key", v) for v in ("prediction:99999999999", "headroom:1\n")],
        *[("role", v) for v in (None, 5, "x" * 201)],
        ("error", None),
        *[("n_steps", v) for v in (-1, 11, 13, 10**7, 2**60, 1.5, True, None)],
        *[("step_columns", v) for v in (None, "step", [1], [*STEP_COLUMNS[:-1], "evil"], [*STEP_COLUMNS[:-1], "step"])],
    ],
    ids=lambda value: repr(value)[:30],
)
def test_values_of_the_wrong_shape(store: RunStore, sent: bytes, field: str, value: Any) -> None:
    refused(
        store,
        changed(sent, lambda v: v.update({field: value})),
        "run-1.json" if "column" not in field and field != "n_steps" else "",
    )


def test_fields_that_are_missing_or_new(target: RunStore, sent: bytes) -> None:
    refused(target, changed(sent, lambda v: v.pop("note")), "the list of its fields")
    refused(target, changed(sent, lambda v: v.update(more=1)), "the list of its fields")


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.update(step=s["step"][::-1]),
        lambda s: s.update(step=s["step"] * 0),
        lambda s: s.update(step=s["step"] + 0.5),
        lambda s: s.update(step=s["step"] - 5),
        lambda s: s.update(step=s["step"] * 1e12),
        lambda s: s.update(rank=s["rank"] * np.nan),
        lambda s: s.update(epoch=s["epoch"] - np.arange(12)),
        lambda s: s.update(samples=s["samples"] * -1),
        lambda s: s.update(warmup=s["warmup"] + np.nan),
        lambda s: s.update(t_start_s=s["t_start_s"][::-1]),
        lambda s: s.update(t_start_s=s["t_start_s"] * np.nan),
        lambda s: s.update(compute_s=s["compute_s"] + np.inf),
        lambda s: s.update(compute_s=s["compute_s"] - 1e300),
        lambda s: s.pop("samples"),
        lambda s: s.pop("t_start_s"),
    ],
)
def test_steps_that_no_run_has(target: RunStore, sent: bytes, change: Any) -> None:
    refused(target, with_columns(sent, change), "steps-1.f64")


@pytest.mark.parametrize(
    "change",
    [lambda s: s.update(t_s=s["t_s"] * np.nan), lambda s: s.update(t_s=s["t_s"] * 1e12), lambda s: s.pop("t_s")],
)
def test_telemetry_that_no_run_has(target: RunStore, sent: bytes, change: Any) -> None:
    refused(target, with_columns(sent, change, "telemetry"), "telemetry-1.f64")


@pytest.mark.parametrize("kind", ["steps", "telemetry"])
def test_rows_that_are_small_in_the_file_and_large_here(target: RunStore, sent: bytes, kind: str) -> None:
    data = changed(sent, lambda v: v.update({f"n_{kind}": 16_000_000}))
    refused(target, data, "more steps and telemetry than the")


@pytest.mark.slow
def test_a_rank_for_each_step_takes_no_longer(store: RunStore, sent: bytes) -> None:
    n = 200_000  # one pass for each would take minutes

    def many(series: dict[str, np.ndarray]) -> None:
        series.update({name: np.resize(values, n) for name, values in series.items()})
        series.update(step=np.arange(n), rank=np.arange(n), t_start_s=np.zeros(n), compute_s=np.ones(n))
        series["t_start_s"][-1] = np.nan

    refused(store, with_columns(sent, many), "not in the order of time")


def test_columns_of_an_older_vitprof_may_be_missing(store: RunStore, sent: bytes) -> None:
    import_bundle(store, io.BytesIO(with_columns(sent, lambda s: s.pop("worker"))))
    assert np.isnan(store.steps(1)["worker"]).all()
    assert len(store.steps(1)["step"]) == 12


def test_the_same_run_twice_in_a_file(target: RunStore, other: RunStore) -> None:
    sent = bundle_bytes(other, [add_run(other, n=3), add_run(other, n=3)])
    refused(target, changed(sent, lambda v: v.update(run_id=41), "run-2.json"), "the same run twice")


@pytest.mark.slow
def test_whatever_the_times_are_there_is_a_verdict_or_a_refusal(store: RunStore, other: RunStore) -> None:
    run_id = add_run(other, n=40)
    other.update_run(run_id, verdict=SENT)
    sent = bundle_bytes(other, [run_id])
    rng = np.random.default_rng(7)
    stored, names = 0, ("compute_start_s", "compute_s", "gap_s", "data_wait_s", "step_s", "host_s")
    for number, (scale, name) in enumerate(itertools.product((0.0, -1.0, 1e-9, 1e8), names)):
        data = with_columns(sent, lambda s, n=name, k=scale: s.update({n: s[n] * k + rng.normal(0, 1e-3, 40)}))
        data = changed(data, lambda v, t=number: v.update(t_origin_s=t))
        with cpu_alarm(1.0), contextlib.suppress(BundleError):
            stored += len(import_bundle(store, io.BytesIO(data)).new)
    assert stored == counts(store)[0] > 0


@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(config=configs)
def test_whatever_the_config_is_there_is_a_verdict_or_a_refusal_within_a_second(
    store: RunStore, judged: bytes, config: RunConfig
) -> None:
    data = changed(judged, lambda v: v.update(config=config.to_dict()))
    came: tuple[ImportedRun, ...] = ()
    with cpu_alarm(1.0), contextlib.suppress(BundleError):
        came = import_bundle(store, io.BytesIO(data)).runs
    assert all(store.run(run.id).verdict is not None for run in came)


def test_files_that_cannot_be_read(store: RunStore, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="No such file"):
        import_bundle(store, tmp_path / "nothing.vitprof")
    with pytest.raises(BundleError, match="cannot be read"):
        import_bundle(store, tmp_path)
    with pytest.raises(BundleError, match="a device or a pipe"):
        import_bundle(store, Path(os.devnull))
    os.mkfifo(tmp_path / "pipe")  # nobody writes to it
    with pytest.raises(BundleError, match="a device or a pipe"):
        import_bundle(store, tmp_path / "pipe")


@pytest.mark.slow
def test_any_flipped_bytes_give_the_same_runs_or_one_line(tmp_path_factory: pytest.TempPathFactory) -> None:
    home = tmp_path_factory.mktemp("flips")
    source, target = RunStore(f"sqlite:///{home / 'a.sqlite'}"), RunStore(f"sqlite:///{home / 'b.sqlite'}")
    run_id = add_run(source, n=4)
    good = bundle_bytes(source, [run_id])
    config, series = source.run(run_id).config, source.steps(run_id)
    source.delete(add_run(source, n=1))
    with target.transaction() as db:
        db.exec_driver_sql("INSERT INTO sqlite_sequence (name, seq) VALUES ('runs', 90)")

    @settings(max_examples=250, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.tuples(st.integers(0, len(good) - 1), st.integers(1, 255)), min_size=1, max_size=4))
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
        run = target.run(came.id)
        assert run.config == config
        for name, values in series.items():
            np.testing.assert_allclose(target.steps(came.id)[name], values, rtol=0, atol=1e-9)  # whole nanoseconds
        target.delete(came.id)

    lines: set[str] = set()
    flip()
    assert lines
    assert not [line for line in lines if "\n" in line]
    source.close()
    target.close()


# names


ODD = st.text(st.characters(codec="utf-8"), max_size=MAX_NAME) | st.text("\t\n\r\x1b\u2028\u202e\ufeff a,", max_size=9)


@pytest.mark.slow
@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(typed=ODD, stored=ODD, tag=ODD)
def test_every_bundle_that_is_written_can_be_read(store: RunStore, other: RunStore, **given: str) -> None:
    """Whatever a person was allowed to call a run, and whatever an older store has."""
    ids = [add_run(other, n=1), add_run(other, n=1)]
    with contextlib.suppress(StoreError):
        other.rename(ids[0], given["typed"])
        other.tag(ids[0], [given["tag"]])
    with other.transaction() as db:
        db.execute(sa.update(runs).where(runs.c.id == ids[1]).values(name=given["stored"]))
        db.execute(sa.insert(run_tags).values(run_id=ids[1], tag=given["tag"].replace(",", "")[:40] or "x"))
    came = import_bundle(store, io.BytesIO(bundle_bytes(other, ids)))
    assert [store.run(new.id).name for new in came.runs] == [other.run(run_id).name for run_id in ids]
    assert not came.renamed
    other.delete_many(ids)


@pytest.mark.slow
@pytest.mark.parametrize(("sends", "here"), [("\n\n", "unnamed"), (" ", "unnamed"), ("two\nlines", "two lines")])
def test_a_name_of_an_older_version_is_another_one_here(store: RunStore, sent: bytes, sends: str, here: str) -> None:
    came = import_bundle(store, io.BytesIO(changed(sent, lambda v: v.update(name=sends))))
    assert came.sentence == "1 run imported as run 1; 1 got another name: what it had cannot be shown"
    assert store.run(1).name == here
