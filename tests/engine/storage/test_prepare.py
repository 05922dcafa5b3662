"""Making storages: once, going on where that is worth it, and never used half made."""

import dataclasses
import fcntl
import json
import os
import re
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engine.storage.preparing import (
    PHOTOS,
    assert_whole,
    damage_file,
    fill,
    images_of,
    place,
    prepare,
    read_all,
)
from tests.engine_fixtures import SMALL, error_in_one_line, ticking
from tests.forking import exit_status_of, fork_doing
from vitprof.datasets import digits, on_disk
from vitprof.datasets.on_disk import MANIFEST
from vitprof.engine.storage import REGISTRY, arrays, format_of, open_storage
from vitprof.engine.storage import prepare as making
from vitprof.engine.storage.contract import LABELS, read_ids, read_labels
from vitprof.engine.storage.prepare import JOURNAL
from vitprof.errors import DataError, JobStopped, SampleError, VitprofError

usual = pytest.mark.usefixtures("small_home")
MANY_FILES = ["raw-files", "pt", "files"]


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The 600 + 100 samples come in chunks of 50."""
    monkeypatch.setattr(making, "MAX_CHUNK_SAMPLES", 50)


class Log:
    """Progress, kept; `stop` turns true after some chunks."""

    def __init__(self, chunks: int = 10**9) -> None:
        self.messages: list[str] = []
        self.fractions: list[float] = []
        self._chunks = chunks

    def __call__(self, fraction: float, message: str) -> None:
        self.fractions.append(fraction)
        self.messages.append(message)

    def done(self) -> list[int]:
        """Samples written, after each chunk."""
        return [
            int(m[1])
            for message in self.messages
            if (m := re.search(r"(\d+) of \d+ samples", message))
        ]

    def stop(self) -> bool:
        return len(self.done()) >= self._chunks


def partial_of(name: str) -> Path:
    return Path(os.environ["VITPROF_HOME"]) / "prepared" / "digits" / f"{name}.partial"


@usual
def test_made_once(small_chunks: None) -> None:
    log, again = Log(), Log()
    first = prepare("memmap", progress=log, clock=ticking())
    assert log.done() == list(range(50, 701, 50))
    assert log.fractions == sorted(log.fractions)
    assert log.messages[-1] == "memmap is ready"
    assert first.directory == Path(os.environ["VITPROF_HOME"]) / "prepared" / "digits" / "memmap"
    assert (prepare("memmap", progress=again), again.messages) == (first, [])
    assert sorted(os.listdir(first.directory.parent)) == ["memmap", "memmap.lock"]
    assert sorted(os.listdir(first.directory)) == [LABELS, MANIFEST, "test.npy", "train.npy"]
    assert read_ids(first.directory, train=False) == [f"test-{i:06d}" for i in range(100)]
    assert read_labels(first.directory, train=True).dtype == torch.int64
    assert_whole("memmap")


@usual
def test_what_it_cost_is_recorded_and_a_data_sets_own_files_need_no_making() -> None:
    own = prepare("memory")
    assert (own.directory, own.prepare_s) == (on_disk.prepare("digits"), 0)
    assert own.size_bytes >= 700 * 784
    assert not (Path(os.environ["VITPROF_HOME"]) / "prepared").exists()
    prepared = prepare("raw-files", clock=ticking(0.5))
    files = [p for p in prepared.directory.rglob("*") if p.is_file() and p.name != MANIFEST]
    assert prepared.size_bytes == sum(p.stat().st_blocks * 512 for p in files)
    assert prepared.size_bytes > sum(p.stat().st_size for p in files)  # 784 bytes take a block
    assert prepared.prepare_s > 0
    manifest = json.loads((prepared.directory / MANIFEST).read_text())
    assert (manifest["n_train"], manifest["n_test"], manifest["n_unreadable"]) == (600, 100, 0)


@usual
@pytest.mark.parametrize("change", ["version", "maker"])
def test_made_again_where_it_would_come_out_otherwise(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = prepare("memmap").directory
    before = (root / MANIFEST).read_text()
    if change == "version":
        monkeypatch.setattr(arrays, "FORMAT", dataclasses.replace(arrays.FORMAT, version=99))
    else:
        home = Path(os.environ["VITPROF_HOME"])
        (home / "data").unlink()  # made once for all tests, and linked
        monkeypatch.setattr(digits, "IDENTITY", digits.IDENTITY | {"version": 99})
    log = Log()
    prepare("memmap", progress=log)
    assert log.done()
    assert json.loads((root / MANIFEST).read_text())["made_of"] != json.loads(before)["made_of"]
    assert sorted(os.listdir(root.parent)) == ["memmap", "memmap.lock"]


@usual
@pytest.mark.parametrize("chunks", [0, 3, 13])
def test_a_stop_loses_no_file_of_many(chunks: int, small_chunks: None) -> None:
    log, second = Log(chunks), Log()
    with pytest.raises(JobStopped, match=r"raw-files; the next try continues from there"):
        prepare("raw-files", progress=log, stop=log.stop, clock=ticking(1.0))
    assert not partial_of("raw-files").with_name("raw-files").exists()
    spent_s = json.loads((partial_of("raw-files") / JOURNAL).read_text())["spent_s"]
    prepared = prepare("raw-files", progress=second, clock=ticking(1.0))
    assert second.done() == list(range(50 * chunks + 50, 701, 50))
    assert prepared.prepare_s > spent_s > 0
    assert_whole("raw-files")


@usual
@pytest.mark.parametrize("name", ["memmap", "lmdb", "hdf5-encoded"])
def test_one_file_is_started_over_after_a_stop(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "MAX_CHUNK_SAMPLES", 4 if name == "hdf5-encoded" else 50)
    log, second = Log(3), Log()
    with pytest.raises(JobStopped, match=rf"{name}; the next try starts over"):
        prepare(name, progress=log, stop=log.stop)
    directory = prepare(name, progress=second).directory
    assert second.done() == (
        [4, 8, 12, 16, 20, 22] if name == "hdf5-encoded" else list(range(50, 701, 50))
    )
    assert sorted(os.listdir(directory.parent)) == [name, f"{name}.lock"]
    assert_whole(name)


@usual
@pytest.mark.parametrize(
    ("name", "samples"),
    [("memmap", 250), ("hdf5", 650), ("raw-files", 650), ("pt", 250), ("files", 250)],
)
def test_killed_and_started_again(name: str, samples: int, small_chunks: None) -> None:
    on_disk.prepare("digits")

    def kill(_: float, message: str) -> None:
        if f" {samples} of " in message:
            os.kill(os.getpid(), signal.SIGKILL)

    def work() -> None:
        # The journal is written after each chunk.
        prepare(name, progress=kill, clock=ticking(10.0))

    assert exit_status_of(fork_doing(work)) == -signal.SIGKILL
    assert not partial_of(name).with_name(name).exists()
    log = Log()
    prepare(name, progress=log)
    # Of many files only the chunk after the last entry of the journal comes again.
    first = samples if name in MANY_FILES else 50
    assert log.done() == list(range(first, 701, 50))
    assert sorted(os.listdir(partial_of(name).parent)) == [name, f"{name}.lock"]
    assert_whole(name)


@usual
@pytest.mark.parametrize(
    "change", ["garbage", "none", {"boot": "another"}, {"made_of": {"maker": {}}}], ids=str
)
def test_an_unusable_journal_means_starting_over(change: Any, small_chunks: None) -> None:
    """Of another boot: what was not yet on the disk is lost when the machine goes down."""
    log, second = Log(3), Log()
    with pytest.raises(JobStopped):
        prepare("raw-files", progress=log, stop=log.stop)
    journal = partial_of("raw-files") / JOURNAL
    entry = json.loads(journal.read_text())
    if isinstance(change, dict):
        assert entry.keys() >= change.keys()
        journal.write_text(json.dumps(entry | change))
    else:
        damage_file(journal, "half" if change == "garbage" else "missing")
    (partial_of("raw-files") / "stray").touch()
    root = prepare("raw-files", progress=second).directory
    assert second.done()[0] == 50
    assert not (root / "stray").exists()


@usual
def test_waits_while_another_process_prepares() -> None:
    log = Log()
    partial_of("memmap").parent.mkdir(parents=True)
    with partial_of("memmap").with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(JobStopped, match="waiting for another process"):
            prepare("memmap", stop=lambda: True)

        def until_noticed(fraction: float, message: str) -> None:
            log(fraction, message)
            if message == "another process is preparing memmap":
                fcntl.flock(lock, fcntl.LOCK_UN)

        assert prepare("memmap", progress=until_noticed).directory.exists()
        assert log.messages[0] == "another process is preparing memmap"


@usual
def test_several_at_once_make_it_once() -> None:
    logs = [Log() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda log: prepare("memmap", progress=log), logs))
    assert len({p.directory for p in found}) == len({p.prepare_s for p in found}) == 1
    assert sum(bool(log.done()) for log in logs) == 1


@usual
@pytest.mark.parametrize(
    ("name", "file", "how", "named"),
    [
        (
            "memmap",
            "train.npy",
            "cut",
            r"train\.npy is damaged \(470,527 bytes instead of 470,528\)",
        ),
        ("memmap", "test.npy", "missing", r"test\.npy is missing"),
        ("memmap", LABELS, "missing", r"labels\.npz is missing"),
        ("memmap", MANIFEST, "missing", r"manifest\.json is missing"),
        ("memmap", MANIFEST, "empty", r"manifest\.json is damaged"),
        (
            "raw-files",
            "images/train-000/train-000005",
            "missing",
            r"train-000/? is damaged \(599 files instead of 600",
        ),
        (
            "pt",
            "data/train-000005.pt",
            "missing",
            r"data/? is damaged \(699 files instead of 700\)",
        ),
    ],
)
def test_damage_is_noticed_and_named(name: str, file: str, how: str, named: str) -> None:
    root = prepare(name).directory
    damage_file(root / file, how)
    with error_in_one_line(DataError, match=f"{named}.*delete {root} and it is made again"):
        prepare(name)
    shutil.rmtree(root)
    assert prepare(name).directory == root


@usual
def test_labels_that_cannot_be_read_are_named() -> None:
    path = prepare("memmap").directory / LABELS
    whole = path.read_bytes()
    wrong = bytearray(whole)
    wrong[whole.index(b"train_labels.npy") + 400] ^= 1
    ids, labels = np.array(["a", "b"]), np.arange(2)
    others = [{"x": labels}, {"train_ids": ids, "train_labels": labels[:1]}]
    others.append({"train_ids": ids, "train_labels": labels.astype(np.float32)})
    for damage in (None, bytes(wrong), whole[: len(whole) // 2], b"", *others):
        path.unlink()
        if isinstance(damage, dict):
            np.savez(path, **damage)
        elif damage is not None:
            path.write_bytes(damage)
        reason = r" \(it is damaged\)" if damage == bytes(wrong) else ""
        with error_in_one_line(DataError, match=rf"labels\.npz cannot be read{reason}"):
            read_labels(path.parent, train=True)
        path.touch()


@usual
def test_a_full_disk_loses_no_file_of_many(small_chunks: None) -> None:
    log, second = Log(3), Log()
    with pytest.raises(JobStopped):
        prepare("raw-files", progress=log, stop=log.stop)
    following = partial_of("raw-files") / "images" / "train-000" / "train-000150"
    following.symlink_to("/dev/full")  # every write to it says that the disk is full
    with error_in_one_line(
        DataError, match=r"disk full while writing \S+raw-files\.partial; free some space"
    ):
        prepare("raw-files")
    following.unlink()
    prepare("raw-files", progress=second)
    assert second.done()[0] == 200
    assert_whole("raw-files")


@usual
@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("memmap", 0),
        ("pt-single", 300_000),
        ("hdf5", 0),
        ("hdf5-chunked", 300_000),
        ("lmdb", 0),
        ("lmdb", 300_000),
    ],
)
def test_one_file_on_a_full_disk(
    name: str, left: int, small_chunks: None, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial_of(name).parent.parent.symlink_to(small_disk)
    partial_of(name).parent.mkdir()
    (partial_of(name).parent / f"{name}.lock").touch()
    filler = fill(small_disk, left)
    with monkeypatch.context() as patch:
        patch.setattr(
            making.data, "ensure_space", lambda *_: None
        )  # somebody else fills it meanwhile
        with error_in_one_line(
            DataError, match=r"disk full while .* free some space or set VITPROF_HOME"
        ):
            prepare(name)
    assert sorted(os.listdir(partial_of(name).parent)) == [f"{name}.lock"]
    filler.unlink()
    prepare(name)
    assert_whole(name)


@usual
def test_too_little_room_and_no_manifest_are_seen_beforehand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match=rf"{tmp_path}/manifest\.json is missing"):
        making.prepare_storage("memmap", SMALL, tmp_path, progress=Log(), stop=lambda: False)
    monkeypatch.setattr(
        shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 1000)
    )  # type: ignore[attr-defined]
    with pytest.raises(DataError, match=r"disk full: .* needs 0.5 MB and has 0.0 MB free"):
        prepare("memmap")
    assert not list(partial_of("memmap").glob("*.npy"))


def test_a_home_that_cannot_be_written_to(
    read_only_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITPROF_HOME", str(read_only_dir))
    with error_in_one_line(VitprofError, match=r"cannot write to .*read-only"):
        making.prepare_storage("memmap", SMALL, read_only_dir, progress=Log(), stop=lambda: False)


def damage_photos(root: Path) -> list[str]:
    """An empty file and a truncated one; returns their names."""
    files = sorted((root / "train").rglob("*.jpg"))
    files[3].write_bytes(b"")
    files[11].write_bytes(files[11].read_bytes()[:5000])
    return [files[3].name, files[11].name]


def test_unreadable_samples_end_it_or_are_left_out(
    few_photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = images_of(PHOTOS)
    monkeypatch.setattr(making, "MAX_CHUNK_SAMPLES", 4)
    names, log = damage_photos(few_photos), Log()
    with error_in_one_line(SampleError, match=names[0]):
        prepare("memmap", PHOTOS)
    prepared = prepare("memmap", PHOTOS, progress=log, skip_unreadable=True)
    assert prepared.n_unreadable == 2
    assert names[0] in log.messages[-1]
    assert log.done()[-1] == 20
    manifest = json.loads((prepared.directory / MANIFEST).read_text())
    assert (manifest["n_train"], manifest["n_test"], manifest["n_unreadable"]) == (18, 2, 2)
    assert all(name in why for name, why in zip(names, manifest["unreadable"], strict=True))
    storage = open_storage(
        "memmap", PHOTOS, place("memmap", PHOTOS, skip_unreadable=True), train=True
    )
    assert np.array_equal(read_all(storage), np.delete(whole, [3, 11], axis=0))
    assert len(storage.labels) == 18
    assert not {Path(name).stem for name in names} & set(read_ids(prepared.directory, train=True))
    with pytest.raises(
        DataError, match=rf"made without samples that cannot be read \(2; the first: .*{names[0]}"
    ):
        prepare("memmap", PHOTOS)


def test_leaving_out_survives_an_interruption(
    few_photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "MAX_CHUNK_SAMPLES", 4)
    damage_photos(few_photos)

    def stop_late() -> bool:
        return any("left" in m or " 8 of 20 " in m for m in log.messages)

    log, second = Log(), Log()
    with pytest.raises(JobStopped):
        prepare("raw-files", PHOTOS, progress=log, stop=stop_late, skip_unreadable=True)
    prepare("raw-files", PHOTOS, progress=second, skip_unreadable=True)
    assert second.done() == [12, 16, 18, 20]  # neither looked for again nor started over


@usual
def test_every_format_is_known() -> None:
    from vitprof.config.availability import installed
    from vitprof.config.parts import STORAGES, prepared_as

    wanted = {prepared_as(s.name, kind) for s in STORAGES.values() for kind in s.kinds} - {None}
    written = [name for name, entry in REGISTRY.items() if entry.format]
    assert wanted == set(written)
    assert set(STORAGES) == set(REGISTRY)
    forms: list[Any] = [
        format_of(name) for name in written if all(map(installed, STORAGES[name].packages))
    ]
    assert all(f.bytes_a_sample(SMALL) > 0 and f.version >= 1 for f in forms)
