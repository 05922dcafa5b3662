"""A user's own data sets of every kind: listed, looked at, refused in one line."""

import csv
import io
import json
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

import fsspec
import h5py
import lmdb
import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from vitprof.datasets.own import kinds, readers
from vitprof.datasets.own.look import look
from vitprof.datasets.own.readers import open_spec
from vitprof.datasets.own.registry import LookReport
from vitprof.errors import ConfigError, JobStopped
from vitprof.forms import FORMS, form_of, is_installed, module_of, stored

N, CLASSES = 24, 3
STORED = ("memmap", "pt")
"""Forms of which only what `convert` stored is read."""


def jpeg(seed: int, side: int = 40, mode: str = "RGB", kind: str = "JPEG", **more: Any) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (side, side + 8, 3), np.uint8)
    file = io.BytesIO()
    deep = Image.fromarray(pixels[..., 0].astype(np.uint16) << 8)
    image = deep if mode == "I;16" else Image.fromarray(pixels).convert(mode)
    image.save(file, kind, **more)
    return file.getvalue()


IMAGES = [jpeg(seed) for seed in range(N)]
LABELS = [at % CLASSES for at in range(N)]


def written(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def folder(top: Path) -> str:
    for at, (image, label) in enumerate(zip(IMAGES, LABELS, strict=True)):
        written(top / f"c{label}" / f"{at:02d}.jpg", image)
    return f"folder:{top}"


def remote(top: Path) -> str:
    for image, label in zip(IMAGES, LABELS, strict=True):
        fsspec.filesystem("memory").pipe_file(f"{top}/c{label}/{hash(image)}.jpg", image)
    return f"folder:memory://{top}"


def table(top: Path) -> list[tuple[str, int]]:
    return [
        (str(written(top / f"{at}.jpg", image).relative_to(top.parent)), LABELS[at])
        for at, image in enumerate(IMAGES)
    ]


def made(kind: str, top: Path) -> str:
    """The same samples as a data set of this kind: its spec."""
    if kind in ("folder", "remote"):
        return (folder if kind == "folder" else remote)(top / "f")
    if kind == "csv":
        with open(top / "t.csv", "w", newline="") as file:
            csv.writer(file).writerows([("path", "label"), *table(top / "flat")])
        return f"csv:{top}/t.csv"
    if kind == "parquet":
        paths, labels = zip(*table(top / "flat"), strict=True)
        parquet.write_table(pa.table({"file": paths, "class": labels}), top / "p.parquet")
        return f"parquet:{top}/p.parquet?path=file&label=class"
    if kind == "bytes":
        parquet.write_table(
            pa.table({"image": IMAGES, "label": LABELS}), top / "b.parquet", row_group_size=10
        )
        return f"parquet:{top}/b.parquet"
    if kind == "hdf5":
        with h5py.File(top / "x.h5", "w") as file:
            file["X"] = np.stack([np.asarray(Image.open(io.BytesIO(image))) for image in IMAGES])
            file["Y"] = LABELS
        return f"hdf5:{top}/x.h5?images=X&labels=Y"
    if kind == "lmdb":
        with (
            lmdb.open(str(top / "l"), map_size=1 << 24) as store,
            store.begin(write=True) as transaction,
        ):
            transaction.put(b"__len__", b"24")
            for at, image in enumerate(IMAGES):
                transaction.put(f"{LABELS[at]}/{at:02d}".encode(), image)
        return f"lmdb:{top}/l"
    if kind == "webdataset":
        for shard in range(2):
            with tarfile.open(top / f"w-{shard:02d}.tar", "w") as file:
                for at in range(shard, N, 2):
                    said = json.dumps({"label": LABELS[at]}) if shard else str(LABELS[at])
                    for end, data in (
                        ("jpg", IMAGES[at]),
                        ("json" if shard else "cls", said.encode()),
                    ):
                        member = tarfile.TarInfo(f"a.b/{at:02d}.{end}")
                        member.size = len(data)
                        file.addfile(member, io.BytesIO(data))
        return f"wds/{top}/w-{{00..01}}.tar"
    (top / "mine.py").write_text(
        f"from torchvision import datasets\ndef make(): return datasets.ImageFolder({str(top / 'f')!r})\n"
    )
    folder(top / "f")
    return f"{top}/mine.py:make"


def stored_in(form: str, top: Path) -> str:
    """The same samples as `convert` stores them: its spec."""
    images = [Image.open(io.BytesIO(image)) for image in IMAGES]
    samples = list(zip(images, LABELS, strict=True))
    module = module_of(form)
    stored.convert(samples, top / form, module.Writer, module.Reader, part=10)
    return f"{form}:{top / form}"


KINDS = [
    "folder",
    "csv",
    "parquet",
    "bytes",
    "hdf5",
    "lmdb",
    "webdataset",
    "remote",
    "python",
    *STORED,
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_the_same_samples(kind: str, tmp_path: Path) -> None:
    spec = stored_in(kind, tmp_path) if kind in STORED else made(kind, tmp_path)
    originals = dict(zip(map(pixels_of, IMAGES), LABELS, strict=True))
    with closing(open_spec(spec)) as found:
        assert (len(found.samples), len(found.classes)) == (N, CLASSES)
        assert 0 < sum(not sample.train for sample in found.samples) <= CLASSES
        read = [
            (originals[pixels_of(found.read(sample.key))], sample.label) for sample in found.samples
        ]
        assert sorted(label for label, _ in read) == sorted(LABELS)
        assert all(of_it == label for of_it, label in read)
    seen = look("mine", spec)
    assert (seen.opened, seen.own.n_train + seen.own.n_test, seen.own.image_size) == (N, N, 32)
    with closing(open_spec(seen.own.spec)) as again:
        assert again.classes == found.classes


def pixels_of(image: bytes) -> bytes:
    return Image.open(io.BytesIO(image)).convert("RGB").tobytes()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("nothing", "write it as folder:PATH or folder:s3://BUCKET/PATH, csv:FILE"),
        ("folder:", "its path is missing; write folder:PATH"),
        ("folder:{}/gone", "gone does not exist"),
        ("folder:{}/flat", "has no folders, one for the images of each class"),
        ("folder:{}/e", "no image was found in it"),
        ("folder:{0}/t.csv", "t.csv is a table: csv:{0}/t.csv"),
        ("folder:{}/note.txt", "note.txt is not a folder"),
        ("folder:{}/f?label=x", "folder has no option label; it takes none"),
        ("csv:{}/t.csv?label=x", "it has no column 'x'; choose with label= one of path, label"),
        ("csv:{0}/b.parquet", "b.parquet is a Parquet file: parquet:{0}/b.parquet"),
        ("parquet:{0}/t.csv", "t.csv is a table: csv:{0}/t.csv"),
        ("parquet:{}/note.txt", "it cannot be read (ArrowInvalid"),
        ("hdf5:{0}/t.csv", "t.csv is a table: csv:{0}/t.csv"),
        ("hdf5:{}/note.txt", "it cannot be read (OSError"),
        ("hdf5:{0}/f", "f is a folder of images: folder:{0}/f"),
        ("csv:{0}/f", "f is a folder of images: folder:{0}/f"),
        ("csv:{0}/x.h5", "x.h5 is an HDF5 file: hdf5:{0}/x.h5"),
        ("folder:{0}/l", "l is an LMDB: lmdb:{0}/l"),
        ("parquet:{0}/l/data.mdb", "data.mdb is an LMDB: lmdb:{0}/l/data.mdb"),
        ("hdf5:{}/x.h5?images=far&labels=Z", "far is in another file"),
        ("folder:memory://nothing", "has no folder for each class with images"),
        ("folder:nowhere://x", "it cannot be read (ValueError: Protocol not known"),
        ("csv:s3://bucket/t.csv", "csv is read from a disk of this machine"),
        ("lmdb:{0}/f", "f is a folder of images: folder:{0}/f"),
        ("lmdb:{}/e", "LMDB cannot open it"),
        ("lmdb:{}/cut.mdb", "LMDB cannot open it (it is 9,000 bytes long, and its header says"),
        ("memmap:{0}/f", "f is a folder of images: folder:{0}/f"),
        ("memmap:{}/e", "it is no folder of samples that `convert` stored"),
        ("webdataset:{}/w-{{0..3}}.tar", "w-0.tar does not exist (4 shards are named)"),
        ("webdataset:{}/w-{{0..9999}}{{0..9999}}.tar", "names more than 100,000 shards"),
        ("webdataset:{}/note.txt", "it cannot be read (ReadError"),
        ("{}/bad.py:floats", "the first: 0: ValueError: a sample is float32 (3, 4, 4)"),
        ("{}/bad.py:number", "number() returns int"),
        ("{}/bad.py:gone", "has no function gone"),
        ("{}/bad.py:fails", "its code failed: ZeroDivisionError"),
        ("{}/none.py:make", "none.py does not exist"),
        ("nowhere_at_all:make", "the package nowhere_at_all is missing"),
    ],
)
def test_a_wrong_spec_is_one_line(spec: str, words: str, tmp_path: Path) -> None:
    made("csv", tmp_path), made("folder", tmp_path), made("bytes", tmp_path)
    (tmp_path / "e" / "cat").mkdir(parents=True)
    (tmp_path / "note.txt").write_text("these are my images")
    made("lmdb", tmp_path)
    whole = (tmp_path / "l" / "data.mdb").read_bytes()
    (tmp_path / "cut.mdb").write_bytes(whole[:9000])
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["Z"] = [1, 2, 3]
        layout = h5py.VirtualLayout((3, 4, 4, 3), np.uint8)
        layout[:] = h5py.VirtualSource("other.h5", "X", (3, 4, 4, 3))
        file.create_virtual_dataset("far", layout)
    code = "import numpy as np\ndef number(): return 3\ndef fails(): return 1 / 0\n"
    (tmp_path / "bad.py").write_text(
        f"{code}def floats(): return [(np.zeros((3, 4, 4), 'f4'), 1)] * 4\n"
    )
    with pytest.raises(ConfigError) as caught:
        look("x", spec.format(tmp_path))
    said = str(caught.value)
    assert (words.format(tmp_path) in said, said.count("\n")) == (True, 0), said


@pytest.mark.parametrize("kind", ["hdf5", "lmdb", "webdataset", "parquet", "folder", "csv", "hf"])
def test_stored_samples_of_another_form_are_named(kind: str, tmp_path: Path) -> None:
    stored_in("memmap", tmp_path)
    top = tmp_path / "memmap"
    with pytest.raises(ConfigError) as caught:
        look("x", f"{kind}:{top}")
    assert str(caught.value).endswith(f"{top} is a folder of stored samples (memmap): memmap:{top}")


@pytest.mark.parametrize("kind", ["memmap", "webdataset"])
def test_a_folder_of_what_another_kind_reads_is_named(kind: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    made("hdf5", tmp_path / "in")
    file = f"{tmp_path}/in/x.h5"
    with pytest.raises(ConfigError) as caught:
        look("x", f"{kind}:{tmp_path}/in")
    assert str(caught.value).endswith(f"/in is a folder with x.h5 in it: hdf5:{file}")
    assert kinds.held_in(file) == kinds.Held("an HDF5 file", "hdf5", file)


def test_of_a_folder_that_a_page_may_not_read_its_kind_is_not_told(tmp_path: Path) -> None:
    folder(tmp_path / "secret")
    (tmp_path / "root").mkdir()
    with pytest.raises(ConfigError) as caught:
        look("x", f"hdf5:{tmp_path}/secret", allowed=[tmp_path / "root"])
    assert "images" not in str(caught.value)


@pytest.mark.parametrize("form", [name for name in FORMS if is_installed(name)])
def test_a_form_is_known_by_its_mark(form: str, tmp_path: Path) -> None:
    part = tmp_path / "part"
    part.mkdir()
    writer = module_of(form).Writer(part, ["0.bin"])
    writer.add([b"abc"])
    writer.finish()
    writer.close()
    assert form_of(part) == {"jpeg": "memmap"}.get(form, form)


def odd(top: Path) -> LookReport:
    exif = Image.Exif()
    exif[0x0112] = 6
    files = {
        "turned.jpg": jpeg(1, exif=exif),
        "grey.jpg": jpeg(2, mode="L"),
        "cmyk.jpg": jpeg(3, mode="CMYK"),
    }
    files |= {
        "a.png": jpeg(4, kind="PNG"),
        "a.webp": jpeg(5, kind="WEBP"),
        "a.gif": jpeg(6, mode="P", kind="GIF"),
    }
    files |= {"a.tif": jpeg(7, kind="TIFF"), "deep.png": jpeg(8, mode="I;16", kind="PNG")}
    files |= {
        "clear.png": jpeg(9, mode="RGBA", kind="PNG"),
        "few.png": jpeg(10, mode="P", kind="PNG"),
    }
    files |= {"a.bmp": jpeg(11, kind="BMP")}
    files |= {"short.jpg": IMAGES[0][: len(IMAGES[0]) // 2], "empty.jpg": b"", "text.jpg": b"hello"}
    for name, data in files.items():
        written(top / "train" / "cat" / name, data)
    written(top / "val" / "cat" / "1.jpg", IMAGES[0])
    (top / "train" / "none").mkdir()
    (top / "train" / "cat" / "link.jpg").symlink_to(written(top.parent / "out.jpg", IMAGES[1]))
    return look("odd", f"folder:{top}", full=True)


def test_what_is_odd_is_named(tmp_path: Path) -> None:
    found = odd(tmp_path / "odd")
    assert (found.own.n_train, found.own.n_test, found.own.classes, found.opened) == (15, 1, 1, 16)
    assert found.formats == {"JPEG": 5, "PNG": 4, "WEBP": 1, "GIF": 1, "TIFF": 1, "BMP": 1}
    assert found.modes == {
        "RGB": 7,
        "grey": 1,
        "CMYK": 1,
        "palette": 2,
        "of 16 bits or more": 1,
        "transparent": 1,
    }
    assert found.rotated == 1
    said = "\n".join(found.lines())
    for words in (
        "3 samples cannot be read:",
        "empty.jpg: it is empty",
        "text.jpg: it is not an image",
        "short.jpg: OSError: image file is truncated",
        "none has no image: no class",
        "1 link leads out of",
        "1 sample has an EXIF rotation",
    ):
        assert words in said, words


def test_a_link_to_a_folder_above_counts_nothing_again(tmp_path: Path) -> None:
    top = tmp_path / "f"
    spec = folder(top)
    for link, target in (("loop", ".."), ("self", "."), ("c0/up", ".."), ("c1/here", ".")):
        (top / link).symlink_to(target)
    seen = look("x", spec)
    assert (seen.own.n_train + seen.own.n_test, seen.own.classes) == (N, CLASSES)
    first = f"4 links lead back to a folder above, whose images would count again: left out; to remove it: rm {top}"
    assert any(line.startswith(first) for line in seen.lines()), seen.lines()


def test_a_link_to_a_folder_above_is_one_on_whichever_way(tmp_path: Path) -> None:
    top = tmp_path / "f"
    spec = folder(top)
    (top / "c0" / "up").symlink_to("../..")
    (top / "c1" / "other").symlink_to("../c0")
    assert any(line.startswith("a link leads back") for line in look("x", spec).lines())


def test_numbers_in_a_column_are_parts_of_paths(tmp_path: Path) -> None:
    for at in range(4):
        written(tmp_path / f"00{at}.jpg", IMAGES[at])
    rows = pa.table({"id": list(range(4)), "label": LABELS[:4]})
    parquet.write_table(rows, tmp_path / "t.parquet")
    assert look("x", f"parquet:{tmp_path}/t.parquet?path=00{{id}}.jpg").opened == 4
    with pytest.raises(ConfigError, match=r"no image was found in it .*4 files missing"):
        look("x", f"parquet:{tmp_path}/t.parquet?path=id")


def test_links_to_folders_elsewhere_are_followed(tmp_path: Path) -> None:
    folder(tmp_path / "f")
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / "cat").symlink_to(tmp_path / "f" / "c0")
    assert look("x", f"folder:{tmp_path / 'g'}").own.classes == 1


def test_hidden_folders_are_left_out_and_said(tmp_path: Path) -> None:
    top = tmp_path / "f"
    spec = folder(top)
    for hidden in (top / ".ipynb_checkpoints", top / "c0" / ".ipynb_checkpoints"):
        written(hidden / "1.jpg", IMAGES[0])
    seen = look("x", spec)
    assert (seen.own.n_train + seen.own.n_test, seen.own.classes) == (N, CLASSES)
    line = f"2 hidden folders ({top}/.ipynb_checkpoints): left out; give it a name without the dot"
    assert any(said.startswith(line) for said in seen.lines()), seen.lines()
    written(tmp_path / "all" / ".cat" / "1.jpg", IMAGES[0])
    with pytest.raises(
        ConfigError, match=r"as .*/all/cat; 1 hidden folder \(.*/all/.cat\): left out"
    ):
        look("x", f"folder:{tmp_path / 'all'}")
    memory = remote(tmp_path / "r")
    fsspec.filesystem("memory").pipe_file(f"{tmp_path}/r/.ipynb_checkpoints/1.jpg", IMAGES[0])
    said = look("x", memory)
    assert said.own.classes == CLASSES
    assert any("1 hidden folder (.ipynb_checkpoints): left out" in line for line in said.lines())


@pytest.mark.parametrize(
    ("below", "of_mask"), [("", "{}.png"), ("train/", "{}_mask.png"), ("", "deep/{}.png")]
)
def test_images_and_their_masks_are_no_classes(below: str, of_mask: str, tmp_path: Path) -> None:
    top = tmp_path / "f"
    for at in range(4):
        written(top / f"{below}Images" / f"{at}.jpg", IMAGES[at])
        written(top / f"{below}masks" / of_mask.format(at), jpeg(at, mode="L", kind="PNG"))
    with pytest.raises(ConfigError) as caught:
        look("x", f"folder:{top}")
    root = top / below
    to_do = f"mkdir one && ln -s {root / 'Images'} one/Images, then name folder:one"
    assert str(caught.value).endswith(f"no classes; for the images alone: {to_do}")
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "Images").symlink_to(root / "Images")
    alone = look("x", f"folder:{tmp_path / 'one'}")
    assert (alone.own.classes, alone.own.n_train + alone.own.n_test) == (1, 4)


def test_classes_named_like_masks_are_classes_and_a_line_says_so(tmp_path: Path) -> None:
    for at in range(4):
        written(tmp_path / "f" / "image" / f"{at}.jpg", IMAGES[at])
        written(tmp_path / "f" / "mask" / f"other-{at}.jpg", IMAGES[at + 4])
    seen = look("x", f"folder:{tmp_path / 'f'}")
    assert seen.own.classes == 2
    assert any(line.startswith("image and mask are taken as two classes") for line in seen.lines())


def test_the_folder_above_that_of_the_classes_is_named_truly(tmp_path: Path) -> None:
    folder(tmp_path / "above" / "images")
    (line,) = [
        line for line in look("x", f"folder:{tmp_path / 'above'}").lines() if "all im" in line
    ]
    images = tmp_path / "above" / "images"
    assert line == (
        f"all images are of one class, images; if the {CLASSES} folders in {images} are the classes, "
        f"name folder:{images}"
    )
    assert "of one class" not in "\n".join(look("x", f"folder:{images}").lines())


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig", "utf-16-be"])
@pytest.mark.parametrize("delimiter", [",", "\t"])
def test_a_table_is_read_by_its_byte_order_mark(
    encoding: str, delimiter: str, tmp_path: Path
) -> None:
    rows = [("path", "label"), *table(tmp_path / "flät")]
    text = "\r\n".join(delimiter.join(map(str, row)) for row in rows)
    if encoding == "utf-16-be":
        text = f"\ufeff{text}"
    written(tmp_path / "t.csv", text.encode(encoding))
    seen = look("x", f"csv:{tmp_path}/t.csv")
    assert (seen.own.n_train + seen.own.n_test, seen.own.classes) == (N, CLASSES)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            "path,label\na.jpg,1\n".encode("utf-16-le"),
            "it is UTF-16LE without a byte order mark; "
            "to convert it: iconv -f UTF-16LE -t UTF-8 '{0}/my t.csv' > '{0}/my t.utf8.csv'",
        ),
        (
            "path,label\na.jpg,1\n".encode("utf-16-be"),
            "it is UTF-16BE without a byte order mark; to convert it: iconv -f UTF-16BE",
        ),
        (
            "path,label\nä.jpg,1\n".encode("latin-1"),
            "it is not text in UTF-8; to convert it: iconv -f WINDOWS-1252 -t UTF-8 ",
        ),
        (
            "path,label\na.jpg,1\n".encode("utf-16")[:-1],
            "it begins as UTF-16 and does not go on so: it is damaged, or cut short",
        ),
        (
            "path,label\na.jpg,1\n".encode("utf-32") + b"\xff\xff\xff\xff",
            "it begins as UTF-32 and does not go on so",
        ),
    ],
    ids=["le", "be", "latin", "cut", "utf-32"],
)
def test_a_table_in_another_encoding_says_what_to_type(
    data: bytes, words: str, tmp_path: Path
) -> None:
    written(tmp_path / "my t.csv", data)
    with pytest.raises(ConfigError) as caught:
        look("x", f"csv:{tmp_path}/my t.csv")
    said = str(caught.value)
    assert (words.format(tmp_path) in said, said.count("\n")) == (True, 0), said


def test_an_empty_table_says_what_is_in_a_table(tmp_path: Path) -> None:
    (tmp_path / "t.csv").touch()
    with pytest.raises(ConfigError, match="it is empty: its first line names the columns"):
        look("x", f"csv:{tmp_path}/t.csv")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("below", ["", "train/"])
def test_ids_without_an_extension_say_what_to_write(kind: str, below: str, tmp_path: Path) -> None:
    for at, image in enumerate(IMAGES):
        written(tmp_path / f"{below}{at:03d}.JPG".lower(), image)
    rows = [f"{at:03d}" for at in range(N)]
    if kind == "csv":
        with open(tmp_path / "t.csv", "w", newline="") as file:
            csv.writer(file).writerows([("id", "breed"), *zip(rows, LABELS, strict=True)])
    else:
        parquet.write_table(pa.table({"id": rows, "breed": LABELS}), tmp_path / "t.parquet")
    spec = f"{kind}:{tmp_path}/t.{kind}?label=breed&path="
    with pytest.raises(ConfigError) as caught:
        look("x", f"{spec}id")
    to_do = f"path={below}{{id}}.jpg"
    assert str(caught.value).endswith(f"24 files missing, the first: {tmp_path}/000; write {to_do}")
    seen = look("x", spec + to_do.removeprefix("path="))
    assert (seen.own.n_train + seen.own.n_test, seen.own.classes) == (N, CLASSES)
    with pytest.raises(ConfigError, match="it has no column 'name'; choose with path= one of id"):
        look("x", spec + "{name}.jpg")


def test_a_look_can_be_stopped_and_opens_some_of_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = folder(tmp_path / "f")
    with pytest.raises(JobStopped):
        look("mine", spec, stop=lambda: True)
    monkeypatch.setattr("vitprof.datasets.own.look.SAMPLED", 7)
    assert look("mine", spec).opened == N, "of a small set all are opened"
    assert look("mine", spec).own.made_bytes == 0, "links are made to image files alone"
    monkeypatch.setattr("vitprof.datasets.own.look.OPENS_ALL_OF", 7)
    assert (look("mine", spec).opened, look("mine", spec, full=True).opened) == (7, N)
    assert "7 were opened" in "\n".join(look("mine", spec).lines())


def test_a_page_reads_only_below_its_roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = tmp_path / "root" / "f"
    spec, roots = folder(top), readers.specs.roots
    (top / "c0" / "link.jpg").symlink_to(written(tmp_path / "secret" / "1.jpg", IMAGES[0]))
    found = open_spec(spec, [tmp_path / "root"])
    assert (len(found.samples), found.notes[-1]) == (
        N,
        "1 link leads out of the folders that may be read: left out",
    )
    for wrong, words in (
        (f"folder:{tmp_path}/root/../secret", "it is not below"),
        (f"folder:{tmp_path}", "it is not below"),
        (f"wds/{tmp_path}/w-{{0..1}}.tar", "it is not below"),
        (f"wds/{tmp_path}/root/{{0..1}}/../../secret/1.tar", "it is not below"),
        ("os:getcwd", "only on the command line"),
        ("folder:memory://x", "on a network is added only on the command line"),
    ):
        with pytest.raises(ConfigError, match=words):
            open_spec(wrong, [tmp_path / "root"])
    with pytest.raises(ConfigError, match="serves other machines too"):
        open_spec(spec, [])
    monkeypatch.setenv("VITPROF_DATA_ROOTS", f"{tmp_path}/root:{tmp_path}/other")
    assert roots(local=False) == (tmp_path / "root", tmp_path / "other")
    monkeypatch.delenv("VITPROF_DATA_ROOTS")
    assert (roots(local=False), roots(local=True)) == ((), (Path.home().resolve(),))


def test_stored_samples_that_are_no_image_with_a_label_are_refused(tmp_path: Path) -> None:
    hdf5 = module_of("hdf5")
    stored.convert([(1, 2)] * 3, tmp_path / "numbers", hdf5.Writer, hdf5.Reader)
    words = "a sample is int, int; one image and one label are read"
    with pytest.raises(ConfigError, match=words):
        open_spec(f"hdf5:{tmp_path / 'numbers'}")


def test_a_page_reads_no_form_that_brings_pytorch(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="added only on the command line"):
        open_spec(f"pt:{tmp_path}", [tmp_path])
