"""Data sets that are damaged, or made to harm: each is refused in one line, or its bad part left out."""

import io
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import h5py
import lmdb
import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.alarm import cpu_alarm
from tests.datasets.own.test_readers import IMAGES, N, folder, made, stored_in, written
from vitprof.datasets import on_disk
from vitprof.datasets.own import bounded, registry
from vitprof.datasets.own.look import look
from vitprof.datasets.own.readers import open_spec
from vitprof.errors import ConfigError, DataError, JobStopped

DEEP = b'{"label":' + b"[" * 100_000


def refused(spec: str, words: str, roots: list[Path] | None = None) -> None:
    """The spec is refused in one line that has these words, in little CPU time."""
    with cpu_alarm(5.0), pytest.raises(ConfigError) as caught:
        look("x", spec, allowed=roots)
    line = caught.value.allowed
    assert (words in line, "\n" in line) == (True, False), line


def tar_of(path: Path, members: dict[str, bytes]) -> str:
    with tarfile.open(path, "w") as file:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            file.addfile(member, io.BytesIO(data))
    return f"webdataset:{path}"


# what is no file, or no path


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("folder:{}/loop", "loop does not exist"),
        ("lmdb:{}/loop", "loop does not exist"),
        ("folder:~nosuchuser/x", "there is no home directory for it"),
        ("folder:/" + "x" * 5000, "does not exist"),
        ("csv:/" + "x/" * 2500, "does not exist"),
        ("webdataset:/" + "x" * 5000, "does not exist"),
        ("folder:{}/a\0b", "does not exist"),
        ("csv:/dev/zero", "/dev/zero is a device, not a file"),
        ("hdf5:/dev/zero", "/dev/zero is a device, not a file"),
        ("parquet:{}/zero", "zero is a device, not a file"),
        ("lmdb:{}/pipe", "pipe is a pipe, not a file"),
        ("csv:{}/pipe", "pipe is a pipe, not a file"),
        ("webdataset:/dev/zero", "/dev/zero is a device, not a file"),
        ("webdataset:/x{{0..99999999}}{{5..0}}.tar", "{{5..0}} counts down; write {{0..5}}"),
        ("webdataset:/x" + "{{0..1}}" * 300, "it names more than 100,000 shards"),
        ("webdataset:/x" + "{{0..0}}" * 2000, "does not exist (1 shard is named)"),
        ("webdataset:/x{{0..99999999999999999999999}}.tar", "does not exist"),
    ],
)
def test_what_is_no_file_is_refused(spec: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "zero").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    refused(spec.format(tmp_path), words.format())


def test_pipes_and_devices_among_images_are_left_out(tmp_path: Path) -> None:
    spec = folder(tmp_path / "f")
    os.mkfifo(tmp_path / "f" / "c0" / "pipe.png")
    (tmp_path / "f" / "c1" / "zero.png").symlink_to("/dev/zero")
    found = look("x", spec)
    assert (found.own.n_train + found.own.n_test, found.unreadable) == (N, ())
    assert "2 named as images are no files, but pipes or devices: left out" in found.notes
    rows = "path,label\nf/c0/pipe.png,1\nf/c1/zero.png,1\nf/c0/00.jpg,1\nf/c0/03.jpg,2\n"
    (tmp_path / "t.csv").write_text(rows)
    found = look("x", f"csv:{tmp_path}/t.csv")
    assert found.own.n_train + found.own.n_test == 2
    assert found.notes[0].startswith("2 files missing")


def test_an_image_file_of_any_size_takes_no_memory(tmp_path: Path) -> None:
    spec = folder(tmp_path / "f")
    with open(tmp_path / "f" / "c0" / "huge.png", "wb") as file:
        file.truncate(1 << 40)
    (unreadable,) = look("x", spec).unreadable
    assert "an image file of at most 536,870,912 is read" in unreadable


# files that say more than there is


def test_tables_that_are_none(tmp_path: Path) -> None:
    folder(tmp_path / "f")
    table = tmp_path / "t.csv"
    table.write_text(f"path,label\n{'y' * 200_000},1\n")
    refused(f"csv:{table}", "line 2 is not as in a table (field larger than field limit")
    with table.open("wb") as file:
        file.truncate(1 << 40)
    refused(f"csv:{table}", "a line has more than 1,048,576 characters")
    table.write_text(
        f"path,label\n{'y' * 5000},1\na\0b,1\nf/c0/00.jpg\nf/c0/03.jpg,2\nf/c0/06.jpg,1"
    )
    assert open_spec(f"csv:{table}").notes[:2] == [
        "1 row without a path or a label: left out",
        f"2 files missing, the first: {tmp_path}/a\0b",
    ]


@pytest.mark.parametrize("said", [b"[1, 2]", DEEP, b"{", b"\xff\xfe", b'{"label": ' + b"9" * 5000])
def test_a_member_that_says_no_label_is_left_out(said: bytes, tmp_path: Path) -> None:
    good = {
        f"{at}.{end}": data for at in range(2) for end, data in (("jpg", IMAGES[at]), ("cls", b"1"))
    }
    spec = tar_of(tmp_path / "t.tar", {"bad.jpg": IMAGES[2], "bad.json": said, **good})
    with cpu_alarm(5.0):
        found = open_spec(spec)
    assert (len(found.samples), found.notes[0]) == (
        2,
        "1 sample has no image, or no .cls and no label in .json: left out",
    )


def test_members_that_lead_back(tmp_path: Path) -> None:
    member = tarfile.TarInfo("0.jpg")
    member.size = -1024
    written(tmp_path / "t.tar", member.tobuf(tarfile.GNU_FORMAT) + bytes(10240))
    refused(f"webdataset:{tmp_path}/t.tar", "it cannot be read (")


@pytest.mark.parametrize(
    ("images", "labels", "words"),
    [
        ((10**14, 8, 8, 3), (10**14,), "at most 20,000,000 samples are read"),
        ((10, 8, 8, 3), (10, 10**13), "at most 100,000 classes are read"),
        ((10**7, 8, 8, 3), (10**7,), "labels of at most 536,870,912 bytes are read"),
    ],
)
def test_hdf5_of_more_rows_than_there_is_memory(
    images: tuple[int, ...], labels: tuple[int, ...], words: str, tmp_path: Path
) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("images", images, "u1", chunks=(1, 8, 8, 3))
        kind = "S1000" if len(labels) == 1 else "i8"
        file.create_dataset("labels", labels, kind, chunks=(1, 1000)[-len(labels) :])
    refused(f"hdf5:{tmp_path}/x.h5", words)


@pytest.mark.parametrize("text", ["[" * 100_000, "[1]", "{}", '{"n": 1e99}'])
def test_a_description_that_is_none(text: str, tmp_path: Path) -> None:
    written(tmp_path / "stored.json", text.encode())
    refused(f"hdf5:{tmp_path}", "its stored.json is not as `convert` writes it")


# what ends a process


def lmdb_of(path: Path, values: list[bytes]) -> bytearray:
    with lmdb.open(str(path), map_size=1 << 24) as store, store.begin(write=True) as transaction:
        for at, value in enumerate(values):
            transaction.put(f"0/{at:02d}".encode(), value)
    return bytearray((path / "data.mdb").read_bytes())


def test_what_ends_its_process_is_one_line(tmp_path: Path) -> None:
    large = [image + bytes(4000) for image in IMAGES[:3]]
    data = lmdb_of(tmp_path / "l", large)
    # A node: size of the value, flags (it has pages of its own), size of the key. It says more than
    # the file has, and less than the map: reading that is a bus error.
    said = struct.pack("<IHH", len(large[0]), 1, len("0/00"))
    assert said in data
    cut = data.replace(said, struct.pack("<IHH", 8 << 20, 1, 4))
    ended = "reading it ended a process by SIGBUS: it is damaged, or cut short"
    with pytest.raises(ConfigError) as caught:
        bounded.look("x", f"lmdb:{written(tmp_path / 'cut.mdb', cut)}")
    assert caught.value.allowed == ended
    registry.add(look("mine", f"lmdb:{tmp_path}/l").own)
    written(tmp_path / "l" / "data.mdb", cut)
    with pytest.raises(DataError, match=ended):
        on_disk.prepare("mine")


def test_what_was_looked_at_is_not_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = made("lmdb", tmp_path)
    registry.add(look("mine", spec).own)
    monkeypatch.setattr(bounded, "look", lambda *_, **__: pytest.fail("looked again"))
    on_disk.prepare("mine")


def test_pages_of_lmdb_that_lead_nowhere(tmp_path: Path) -> None:
    data = lmdb_of(tmp_path / "l", IMAGES)
    for page in range(8192, len(data), 4096):
        data[page + 10 : page + 16] = b"\xff" * 6
    refused(f"lmdb:{written(tmp_path / 'bad.mdb', data)}", "it is damaged (")


def test_a_look_in_a_process_of_its_own_finds_the_same(tmp_path: Path) -> None:
    spec = made("parquet", tmp_path)
    said: list[str] = []
    found = bounded.look("x", spec, full=True, progress=lambda done, words: said.append(words))
    here = look("x", spec, full=True)
    assert (found.own, found.lines()[:4]) == (here.own, here.lines()[:4])
    assert (said[0], said[-1]) == (f"listing {spec}", f"opened {N} of {N} samples")
    with pytest.raises(ConfigError, match="gone does not exist"):
        bounded.look("x", f"folder:{tmp_path}/gone")
    with pytest.raises(JobStopped):
        bounded.look("x", spec, stop=lambda: True)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (-signal.SIGBUS, "reading it ended a process by SIGBUS: it is damaged, or cut short"),
        (-signal.SIGPROF, "60 s of work gave no sample; it may be damaged"),
        (-signal.SIGKILL, "it may need more memory than there is"),
        (1, "ended a process with status 1"),
    ],
)
def test_a_process_that_gave_no_answer(status: int, words: str) -> None:
    assert words in bounded._ended(status)


@pytest.mark.parametrize(
    ("work", "status"),
    [
        ("bounded._Reports(sys.stdout)\nwhile True: pass", -signal.SIGPROF),
        ("reports = bounded._Reports(sys.stdout)\nfor _ in range(10**5): reports.alive()", 0),
        ("bounded._bound_memory('parquet:/x')\nbytearray(64 << 30)", 1),
        ("bounded._bound_memory('parquet:/x')\nbytearray(64 << 20)", 0),
    ],
)
def test_what_bounds_the_other_process(work: str, status: int) -> None:
    code = f"import sys\nfrom vitprof.datasets.own import bounded\nbounded.MOST_CPU_S = 0.2\n{work}"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert ended.returncode == status, ended.stderr
    assert ("MemoryError" in ended.stderr) == (status == 1)


def test_memory_that_runs_out_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = made("parquet", tmp_path)

    def greedy(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("vitprof.forms.parquet.find", greedy)
    refused(spec, "it needs more memory than there is for it")


# paths that a container names


def struct_of_paths(root: Path, secret: Path) -> str:
    cells = [{"bytes": None, "path": str(secret)}] * N
    parquet.write_table(pa.table({"image": cells, "label": [1] * N}), root / "s.parquet")
    return f"parquet:{root}/s.parquet"


def column_of_paths(root: Path, secret: Path) -> str:
    parquet.write_table(pa.table({"path": [str(secret)] * N, "label": [1] * N}), root / "p.parquet")
    return f"parquet:{root}/p.parquet"


def table_of_paths(root: Path, secret: Path) -> str:
    (root / "t.csv").write_text(f"path,label\n{secret},1\n../secret/1.jpg,2\n")
    return f"csv:{root}/t.csv"


def linked_lmdb(root: Path, secret: Path) -> str:
    made("lmdb", secret.parent)
    (root / "l").mkdir()
    (root / "l" / "data.mdb").symlink_to(secret.parent / "l" / "data.mdb")
    return f"lmdb:{root}/l"


def linked_shards(root: Path, secret: Path) -> str:
    made("webdataset", secret.parent)
    (root / "w-0.tar").symlink_to(secret.parent / "w-00.tar")
    return f"webdataset:{root}"


def linked_part(root: Path, secret: Path) -> str:
    spec = stored_in("hdf5", root)
    shutil.move(root / "hdf5" / "part-00000", secret.parent / "part")
    (root / "hdf5" / "part-00000").symlink_to(secret.parent / "part")
    return spec


def names_of_files(root: Path, secret: Path) -> str:
    spec = stored_in("memmap", root)
    described = root / "memmap" / "stored.json"
    said = json.loads(described.read_text())
    shutil.copy(root / "memmap" / "part-00000" / said["names"][0], secret.parent / "pixels")
    said["names"][0] = str(secret.parent / "pixels")
    described.write_text(json.dumps(said))
    return spec


def arrays_elsewhere(root: Path, secret: Path) -> str:
    with h5py.File(root / "x.h5", "w") as file:
        raw = [(str(secret), 0, 64)]
        file.create_dataset("images", (4, 4, 4), "u1", external=raw)
        file["labels"] = [1, 2, 1, 2]
    return f"hdf5:{root}/x.h5"


def stored_arrays_elsewhere(root: Path, secret: Path) -> str:
    spec = stored_in("hdf5", root)
    ours = root / "hdf5" / "part-00000" / "samples.h5"
    theirs = shutil.copy(ours, secret.parent / "samples.h5")
    with h5py.File(ours, "a") as file:
        for name in list(file):
            del file[name]
            file[name] = h5py.ExternalLink(theirs, name)
    return spec


def library_of_its_own(root: Path, secret: Path) -> str:
    return f"arrow:{folder(root / 'f').removeprefix('folder:')}"


NAMING: dict[Callable[[Path, Path], str], str] = {
    struct_of_paths: "secret/1.jpg is outside of the folders that may be read",
    column_of_paths: "no image was found in it",
    table_of_paths: "no image was found in it",
    linked_lmdb: "l/data.mdb is outside of the folders that may be read",
    linked_shards: "it is not below",
    linked_part: "part-00000 is outside of the folders that may be read",
    names_of_files: "which is no name of a value",
    arrays_elsewhere: "is in another file",
    stored_arrays_elsewhere: "is in another file",
    library_of_its_own: "added only on the command line",
}


@pytest.mark.parametrize("name", NAMING, ids=lambda name: name.__name__)
def test_no_path_in_a_container_leads_a_page_out(
    name: Callable[[Path, Path], str], tmp_path: Path
) -> None:
    secret = written(tmp_path / "secret" / "1.jpg", IMAGES[0])
    root = tmp_path / "root"
    root.mkdir()
    refused(name(root, secret), NAMING[name], [root])


def test_on_the_command_line_structs_of_paths_are_read(tmp_path: Path) -> None:
    secret = written(tmp_path / "secret" / "1.jpg", IMAGES[0])
    assert not look("x", struct_of_paths(tmp_path, secret)).unreadable
    assert not look("x", struct_of_paths(tmp_path, Path("secret/1.jpg"))).unreadable


def test_a_page_walks_no_folder_outside(tmp_path: Path) -> None:
    spec = folder(tmp_path / "root" / "f")
    written(tmp_path / "secret" / "1.jpg", IMAGES[0])
    (tmp_path / "root" / "f" / "c0" / "all").symlink_to(tmp_path / "secret")
    (tmp_path / "root" / "f" / "c9").symlink_to(tmp_path / "secret")
    found = open_spec(spec, [tmp_path / "root"])
    assert (len(found.samples), len(found.classes)) == (N, 3)


# what is printed


def test_names_with_line_ends_are_one_line(tmp_path: Path) -> None:
    for at, image in enumerate(IMAGES[:3]):
        written(tmp_path / "f" / "ca\nt" / f"{at}\n.jpg", image)
    written(tmp_path / "f" / "ca\nt" / "bad\r\nname.jpg", b"hello")
    (tmp_path / "f" / "none\nhere").mkdir()
    lines = look("x", f"folder:{tmp_path}/f").lines()
    assert not any("\n" in line or "\r" in line for line in lines)
    assert any("bad\ufffd\ufffdname.jpg: it is not an image" in line for line in lines)


def test_a_missing_file_with_line_ends_in_its_name_is_one_line(tmp_path: Path) -> None:
    """Found by the fuzz of csv: the path that a damaged table names came as it was."""
    (tmp_path / "t.csv").write_text('path,label\n"no\nsuch.jpg",cat\n', encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        look("x", f"csv:{tmp_path}/t.csv")
    assert "1 file missing, the first: " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_large_image_prints_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    spec = folder(tmp_path / "f")
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 1500)
    assert not look("x", spec).unreadable
    assert not [warning for warning in recwarn if "Decompression" in str(warning.category)]
